"""Evidences and policies, one for each thing that the gate can say."""

import math
from datetime import timedelta

from dptune.results import STRONGEST_ATTACK, ShadowReport

NAN, INF = math.nan, math.inf
SELECTIVE = {"notion": "selective", "relation": "replace_one"}
LOCAL = {"notion": "local", "relation": "replace_one"}
BOTH = ("certified", "conditional")


def validity(make):
    champion = {"champion_digest": "old"}
    stored = make.manifest("a", "b", "c", "d", "\nname")
    few = make.manifest("MLmodel", "a", "b", "c")
    blind = make.blind

    def age(**since):
        return {"measured_at": make.now - timedelta(**since)}

    def member(**changes):
        return {"membership": make.membership(**changes)}

    def lies(**changes):
        return {"files": make.files(**changes)}

    return {
        "all of another model": (
            {
                "exposure": make.exposure(model_digest="x"),
                "membership": make.membership(model_digest="x"),
                "utility": make.utility(model_digest="x"),
                "claims": (make.claim(model_digest="x"),) * 2,
                "audits": (make.audit(model_digest="x"),),
                "step_audits": (make.step_audit(model_digest="x"),),
            },
            {},
        ),
        "planned for another version": (
            {"planned_for": make.policy(version=2).reference},
            {},
        ),
        "planned for this version": ({"planned_for": make.policy().reference}, {}),
        "another base": (member(base_model_digest="x"), {}),
        "utility of another champion": (
            champion | {"champion_utility": make.utility(model_digest="x")},
            {},
        ),
        "no list of files": ({"files": None}, {}),
        "nothing lies there": (
            lies(stored=make.manifest(), fault="It is gone."),
            {},
        ),
        "many other files": (lies(stored=stored), {}),
        "four files too many": (
            lies(stored=make.manifest("MLmodel", *"abcd", "model/config.json")),
            {},
        ),
        "three files too many": (lies(registered=few, stored=few), {}),
        "weights unreadable": (lies(fault="Too short."), {}),
        "weights of another model": (lies(model_digest="y" * 20), {}),
        "no tag": (lies(registry_digest=""), {}),
        "another tag": (lies(registry_digest="z" * 20), {}),
        "nothing was registered": (lies(registered=None), {}),
        "another list in the tag": (lies(registry_manifest="x"), {}),
        "nan in a list": (
            {
                "detection": make.detection(masked_character_share=NAN),
                "membership": make.membership(
                    signals=(
                        make.signal("loss").model_copy(update={"roc_fpr": (0.0, NAN)}),
                        make.signal(STRONGEST_ATTACK),
                    )
                ),
            },
            {},
        ),
        "nan in one list alone": (
            member(
                signals=(
                    make.signal("loss").model_copy(update={"roc_fpr": (0.0, NAN)}),
                    make.signal(STRONGEST_ATTACK),
                )
            ),
            {},
        ),
        "nothing at all": (
            {
                "exposure": None,
                "membership": None,
                "utility": None,
                "claims": (),
                "detection": None,
                "audits": (),
                "planned_for": None,
                "measured_at": None,
                "decided_at": None,
                "step_audits": (),
                "dataset_budget": None,
            },
            {},
        ),
        "no audits": ({"audits": ()}, {}),
        "no audits, none asked for": ({"audits": ()}, {"require_canaries": False}),
        "oldest age": (age(days=180), {}),
        "too old": (age(days=180, seconds=1), {}),
        "measured when decided": (age(), {}),
        "five minutes ahead": (age(minutes=-5), {}),
        "more than five minutes ahead": (age(minutes=-5, seconds=-1), {}),
        "no time of decision": ({"decided_at": None}, {}),
        "no time of an attack": (member(measured_at=None), {}),
        "texts tell members": (member(blind=blind(p_value=0.0005)), {}),
        "texts hardly tell members": (member(blind=blind(p_value=0.00051)), {}),
        "texts were not tested": (member(blind=blind(p_value=None)), {}),
        "texts give no number": (
            member(blind=blind().model_copy(update={"auc": NAN})),
            {},
        ),
        "texts give no interval": (
            member(
                blind=blind().model_copy(
                    update={"auc_interval": make.interval(0.1, NAN)}
                )
            ),
            {},
        ),
    }


def canaries(make):
    clean = make.exposure()
    even = make.even_ranks(60)

    def first(base=False, **changes):
        name = "base_canaries" if base else "canaries"
        one, *others = getattr(clean, name)
        whole = (one.model_copy(update=changes), *others)
        return {"exposure": clean.model_copy(update={name: whole})}

    def trained(copies, **changes):
        marked = tuple(
            one.model_copy(update={"trained": copies if one.planted else None})
            for one in clean.canaries
        )
        return {"exposure": clean.model_copy(update={"canaries": marked, **changes})}

    def changed(**changes):
        return {"exposure": clean.model_copy(update=changes)}

    none = make.exposure(planted=[], not_measurable="All were redacted.")
    held = tuple(one for one in clean.canaries if not one.planted)
    lax = {"require_canaries": False, "require_step_audit": False}
    return {
        "rank 0": (first(rank=0), {}),
        "rank beyond the last": (first(rank=10**6 + 1), {}),
        "best rank of all": (first(rank=1, exposure=math.log2(10**6)), {}),
        "last rank of all": (first(rank=10**6, exposure=0.0), {}),
        "exposure off by a hair": (
            first(exposure=clean.canaries[0].exposure + 2e-6),
            {},
        ),
        "loss is no number": (first(nll=NAN), {}),
        "planted in no record": (first(insertions=0), {}),
        "base rank 0": (first(base=True, rank=0), {}),
        "estimate said to be exact": (first(method="uniform_sample"), {}),
        "estimates": (
            {
                "exposure": first(method="uniform_sample")["exposure"].model_copy(
                    update={"exact": False}
                )
            },
            {},
        ),
        "canary twice": (
            changed(
                canaries=clean.canaries[:1] + clean.canaries,
                base_canaries=clean.base_canaries[:1] + clean.base_canaries,
            ),
            {},
        ),
        "base of fewer": (changed(base_canaries=clean.base_canaries[1:]), {}),
        "one found too few": (changed(planted_found=59), {}),
        "one expected too many": (changed(planted_expected=61), {}),
        "no controls": (
            changed(
                canaries=clean.planted(),
                base_canaries=tuple(c for c in clean.base_canaries if c.planted),
            ),
            {},
        ),
        "few controls": ({"exposure": make.exposure(held_out=even[:19])}, {}),
        "just enough controls": (
            {"exposure": make.exposure(held_out=make.even_ranks(20))},
            {},
        ),
        "controls leak": (
            {"exposure": make.exposure(held_out=[r // 3 + 1 for r in even])},
            {},
        ),
        "known to the base": (
            changed(
                base_canaries=make.canaries([1] * 60, planted=True)
                + tuple(c for c in clean.base_canaries if not c.planted)
            ),
            {},
        ),
        "given secrets": (changed(drawn=False), {}),
        "none planted": ({"exposure": none}, {}),
        "none planted, none asked for": ({"exposure": none, "audits": ()}, lax),
        "none planted, no reason": (
            changed(
                canaries=held,
                base_canaries=held,
                planted_found=0,
                planted_expected=0,
            ),
            {},
        ),
        "none trained on": (trained(0), {}),
        "none trained on, none asked for": (trained(0) | {"audits": ()}, lax),
        "nobody counted": (trained(None), {}),
        "trained on, none asked for": ({}, lax),
        "copies": ({"exposure": make.exposure(insertions=3)}, {}),
    }


def claims(make):
    claim, audit = make.claim, make.audit
    memorized = make.exposure(planted=[1] * 60)

    def one(**changes):
        return {"claims": (claim(**changes),)}

    def bound(*audits, **changes):
        return {"audits": tuple(audit(**one) for one in audits), **changes}

    def spent(**changes):
        return {"dataset_budget": make.budget(**changes)}

    hidden = make.exposure(planted=[1] * 60, setting="missed")
    partly = make.exposure(planted=[1] * 60, setting="partly_missed")
    two = (claim(), claim(**SELECTIVE))
    return {
        "claim is no number": (one(delta=NAN), {}),
        "rate is no number": (one(missing_rate_upper=NAN), {}),
        "unknown assumption": (one(assumptions=("magic",)), {}),
        "epsilon below 0": (one(epsilon=-0.1), {}),
        "epsilon 0": (one(epsilon=0.0), {}),
        "delta 0": (one(delta=0.0), {}),
        "delta above 1": (one(delta=1.1), {}),
        "delta 1": (one(delta=1.0), {}),
        "selective as add or remove": (one(notion="selective"), {}),
        "contradicted": ({"exposure": memorized}, {}),
        "contradicted or unfounded": (
            {"exposure": memorized, **one(status="conditional")},
            {},
        ),
        "both claims contradicted": ({"exposure": memorized, "claims": two}, {}),
        "missed secrets test records": (
            {"exposure": hidden, "claims": two},
            {},
        ),
        "partly missed secrets": ({"exposure": partly, "claims": (two[1],)}, {}),
        "infinite claim": (one(epsilon=INF, status="none"), {}),
        "empirical claim": ({"exposure": memorized, **one(status="empirical")}, {}),
        "no claims": ({"claims": ()}, {}),
        "audit is no number": (bound({"capacity": NAN}), {}),
        "audit beyond its capacity": (bound({"epsilon_lower_bound": 3.6}), {}),
        "audit at its capacity": (bound({"epsilon_lower_bound": 3.5}), {}),
        "refuted": (bound({"epsilon_lower_bound": 4.1, "capacity": 5.0}), {}),
        "refuted by missed secrets": (
            bound(
                {
                    "epsilon_lower_bound": 4.1,
                    "capacity": 5.0,
                    "assumption_violated": True,
                }
            ),
            {},
        ),
        "refuted by both": (
            bound(
                {
                    "epsilon_lower_bound": 4.5,
                    "capacity": 5.0,
                    "assumption_violated": True,
                },
                {"epsilon_lower_bound": 4.1, "capacity": 5.0},
            ),
            {},
        ),
        "bound at the claim": (
            bound({"epsilon_lower_bound": 4.0, "capacity": 4.0}),
            {},
        ),
        "bound at the claim's delta": (
            bound({"epsilon_lower_bound": 4.1, "capacity": 5.0, "delta": 1e-6}),
            {},
        ),
        "bound at a smaller delta": (
            bound({"epsilon_lower_bound": 4.1, "capacity": 5.0, "delta": 1e-7}),
            {},
        ),
        "bound of another notion": (
            bound({**SELECTIVE, "epsilon_lower_bound": 4.1, "capacity": 5.0}, {}),
            {},
        ),
        "enough capacity": (bound({}), {"min_audit_capacity": 3.5}),
        "capacity of the best": (
            bound({"capacity": 2.0, "num_canaries": 7}, {}, {"capacity": 1.0}),
            {"min_audit_capacity": 3.6},
        ),
        "highest of two bounds": (bound({"epsilon_lower_bound": 0.25}, {}), {}),
        "audit of another claim": (bound(SELECTIVE), {}),
        "local": (
            {
                "claims": (claim(**LOCAL),),
                "dataset_budget": make.budget(notion="local"),
                **bound(SELECTIVE),
            },
            {"notion": "local"},
        ),
        "epsilon at the limit": (one(epsilon=8.0), {}),
        "epsilon above the limit": (one(epsilon=8.001), {}),
        "epsilon a hair above the limit": (one(epsilon=8.00001), {}),
        "epsilon and delta in many digits": (
            one(epsilon=3.14112, delta=1.00004e-6),
            {},
        ),
        "delta at the limit": (one(delta=1e-5), {}),
        "delta above the limit": (one(delta=1.1e-5), {}),
        "claims of both kinds": (
            {"claims": (claim(epsilon=9.0, delta=1e-7), claim(delta=2e-5))},
            {},
        ),
        "coarser unit": (
            {
                "claims": tuple(
                    claim(privacy_unit="user", relation=relation, epsilon=bounded)
                    for relation, bounded in (
                        ("add_or_remove_one", 4.0),
                        ("replace_one", 7.0),
                    )
                ),
                **spent(relation="replace_one"),
            },
            {},
        ),
        "coarser unit that leaves": (one(privacy_unit="user"), {}),
        "finer unit": (one(), {"privacy_unit": "document"}),
        "unit of the policy": (
            one(privacy_unit="document"),
            {"privacy_unit": "document"},
        ),
        "two refused statuses": (
            {
                "claims": (
                    claim(status="conditional"),
                    claim(status="none", epsilon=INF),
                )
            },
            {},
        ),
        "unmeasured assumption": (
            one(
                status="conditional",
                assumptions=("num_units_is_public", "deduplicated_corpus"),
            ),
            {"accepted_statuses": BOTH},
        ),
        "accepted assumptions": (
            one(
                status="conditional",
                assumptions=("num_units_is_public", "deduplicated_corpus"),
            ),
            {
                "accepted_statuses": BOTH,
                "accepted_assumptions": ("num_units_is_public", "deduplicated_corpus"),
            },
        ),
        "budget at its end": (spent(spent_epsilon=8.0), {}),
        "budget exceeded": (spent(spent_epsilon=8.1), {}),
        "budget infinite": (spent(spent_epsilon=INF, budget_epsilon=INF), {}),
        "budget is no number": (spent(delta=NAN), {}),
        "budget of another notion": (spent(notion="local"), {}),
        "budget waived": (
            {"dataset_budget": None},
            {"require_dataset_budget": False},
        ),
        "no budget": ({"dataset_budget": None}, {}),
    }


def rates(make):
    """A claim that depends on the detector."""

    def founded(detection=None, **claim):
        recall = {"status": "conditional", "assumptions": ("detector_recall_is_one",)}
        return {
            "claims": (make.claim(**SELECTIVE, **recall, **claim),),
            "dataset_budget": make.budget(notion="selective"),
            "detection": make.detection(**(detection or {})),
        }

    asks = {"notion": "selective", "accepted_statuses": BOTH}
    said = {"missing_rate_origin": "declared", "missing_rate_source": "their word"}
    none = {"missing_rate": None, "missing_rate_interval": None}

    def rate(rate, upper):
        return founded(missing_rate=rate, missing_rate_upper=upper)

    return {
        "measured rate": (founded(), asks),
        "measured rate and its source": (
            founded({"missing_rate_source": "a review"}),
            asks,
        ),
        "rate of the claim first": (rate(0.003, 0.004), asks),
        "rate without a bound": (founded(missing_rate=0.5), asks),
        "bound without a rate": (founded(missing_rate_upper=0.5), asks),
        "rate at the limit": (rate(0.009, 0.01), asks),
        "bound above the limit": (rate(0.01, 0.011), asks),
        "rate above the limit": (rate(0.0101, 0.011), asks),
        "rate above its bound": (rate(0.005, 0.004), asks),
        "rate of everything": (rate(1.0, 1.0), asks | {"max_missing_rate": 1.0}),
        "rate above everything": (rate(1.0, 1.01), asks),
        "rate below 0": (rate(-0.1, 0.0), asks),
        "no rate": (founded(none), asks),
        "rate without interval": (founded({"missing_rate_interval": None}), asks),
        "interval without rate": (founded({"missing_rate": None}), asks),
        "refused rate": (
            founded({**none, "missing_rate_refusal": "of other text"}),
            asks,
        ),
        "rate measured on one text": (founded({"missing_rate_texts": 1}), asks),
        "rate measured on nothing": (founded({"missing_rate_texts": 0}), asks),
        "reviewed rate": (founded({"missing_rate_origin": "review"}), asks),
        "declared rate": (founded(said), asks),
        "rate of unknown origin": (founded({"missing_rate_origin": ""}), asks),
        "declared rate accepted": (
            founded(said),
            asks | {"accept_declared_missing_rate": True},
        ),
        "no detection": (
            founded(missing_rate=0.001, missing_rate_upper=0.002) | {"detection": None},
            asks,
        ),
        "no detection and no rate": (founded() | {"detection": None}, asks),
        "worst of two": (
            {
                **founded(),
                "claims": (
                    *rate(0.001, 0.02)["claims"],
                    *rate(0.004, 0.005)["claims"],
                ),
            },
            asks,
        ),
    }


def leakage(make):
    def planted(ranks, **changes):
        return {"exposure": make.exposure(planted=ranks, **changes)}

    even = [int(rank) for rank in make.even_ranks(60)]
    best = [100, *(max(r, 20_000) for r in even[1:])]
    some = make.exposure(planted=[1, *even[1:]])
    unseen = some.model_copy(
        update={
            "canaries": tuple(
                one.model_copy(update={"trained": 0 if one.planted else None})
                for one in some.canaries
            )
        }
    )
    return {
        "all leak": (planted([1 + r // 50 for r in even]), {}),
        "all leak a little": (planted([1 + r // 2 for r in even]), {}),
        "effect at its size": (
            planted([1 + r // 50 for r in even]),
            {"effect_size_bits": 6.5},
        ),
        "one leaks": (planted([1, *even[1:]]), {}),
        "one at the share": (planted(best), {"memorization_level": 0.4}),
        "one above the share": (
            planted([101, *best[1:]]),
            {"memorization_level": 0.4},
        ),
        "one that was not trained on leaks": ({"exposure": unseen}, {}),
        "too few": ({}, {"min_canaries": 61}),
        "just enough": ({}, {"min_canaries": 60}),
        "bound of assurance": ({}, {"assurance_bound_bits": 1.9}),
        "level of assurance": ({}, {"assurance_level": 0.2}),
        "too few candidates": ({}, {"min_space_size": 10**6 + 1}),
        "just enough candidates": ({}, {"min_space_size": 10**6}),
        "seven evaluations": ({"attempts": make.attempts(7)}, {}),
    }


def membership(make):
    signal = make.signal

    def found(*signals, **changes):
        whole = {"signals": signals, **changes} if signals else changes
        return {"membership": make.membership(**whole)}

    def odd(**changes):
        return found(signal(STRONGEST_ATTACK).model_copy(update=changes))

    best = STRONGEST_ATTACK
    hits = signal(best).hits
    small = make.membership().model_copy(
        update={"num_members": 499, "signals": (signal(best, num=499, tpr=0.0),)}
    )
    return {
        "no shadows": (found(shadows=None), {}),
        "too few shadows": (
            found(shadows=ShadowReport(num_models=3, num_records=9)),
            {},
        ),
        "strongest did not run": (found(signal("loss")), {}),
        "shadows not asked for": (
            found(signal("loss"), shadows=None),
            {"min_shadow_models": 0},
        ),
        "rate is nan": (odd(tpr_at_low_fpr=NAN), {}),
        "interval is nan": (odd(tpr_at_low_fpr_interval=make.interval(NAN, 1.0)), {}),
        "fewer hits": (odd(hits=hits[1:]), {}),
        "hits not sorted": (odd(hits=(11, *hits[1:])), {}),
        "hits below 0": (odd(hits=(-1, *hits[1:])), {}),
        "hits beyond all": (odd(hits=(*hits[:-1], 1001)), {}),
        "hits of all": (odd(hits=(*hits[:-1], 1000)), {}),
        "rate off by a hair": (odd(tpr_at_low_fpr=0.010002), {}),
        "no false positives": (odd(low_fpr=0.0), {}),
        "all false positives": (odd(low_fpr=1.0), {}),
        "no members": (found(signal(best), num_members=0), {}),
        "no others": (found(signal(best), num_non_members=0), {}),
        "strong attack": (found(signal("loss"), signal(best, tpr=0.3)), {}),
        "weak one is strong": (found(signal("loss", tpr=0.3), signal(best)), {}),
        "near the limit": (found(signal("loss"), signal(best, tpr=0.08)), {}),
        "near the limit after seven": (
            found(signal("loss"), signal(best, tpr=0.073))
            | {"attempts": make.attempts(7)},
            {},
        ),
        "few members": ({"membership": small}, {}),
        "just enough members": ({}, {"min_membership_records": 1000}),
        "too few of both": ({}, {"min_membership_records": 1001}),
        "limit of guessing": ({}, {"max_membership_tpr": 0.01}),
    }


def rest(make):
    utility, audit = make.utility, make.step_audit

    def useful(**changes):
        return {"utility": utility(**changes)}

    def beside(**changes):
        return {
            "champion_digest": "old",
            "champion_utility": utility(model_digest="old", **changes),
        }

    def steps(*audits):
        return {"step_audits": tuple(audit(**one) for one in audits)}

    shown = {"accuracy": 0.75, "base_accuracy": 0.5, "majority_accuracy": 0.4}
    failed = {"num_passed": 18, "failed": ("noise", "sampling")}
    return {
        "losses infinite": (useful(perplexity=INF), {}),
        "one loss infinite": (useful(record_nll=(INF, *(1.0,) * 99)), {}),
        "losses of fewer": (useful(num_records=99), {}),
        "tokens of fewer": (useful(record_tokens=(10,) * 99), {}),
        "units of fewer": (useful(record_units=(0,) * 99), {}),
        "no tokens": (useful(num_tokens=0, record_tokens=(0,) * 100), {}),
        "loss off by a hair": (
            useful(nll_per_token=utility().nll_per_token * 1.00001),
            {},
        ),
        "base of fewer records": (useful(base_record_nll=(25.0,) * 99), {}),
        "base perplexity 0": (useful(base_perplexity=0.0), {}),
        "base losses off by a hair": (useful(base_perplexity=math.exp(2.50001)), {}),
        "no base": (useful(base_record_nll=()), {}),
        "base infinite": (useful(base_record_nll=(INF,) * 100), {}),
        "classifier": (useful(**shown), {}),
        "classifier without majority": (
            useful(**{**shown, "majority_accuracy": None}),
            {},
        ),
        "accuracy without the base's": (useful(accuracy=0.75), {}),
        "base's accuracy alone": (useful(base_accuracy=0.75), {}),
        "worse than the base": (
            useful(base_record_nll=(22.0,) * 100, base_perplexity=math.exp(2.2)),
            {},
        ),
        "better than the champion": (beside(shift=0.5), {}),
        "worse than the champion": (beside(shift=-0.5), {}),
        "no champion's utility": ({"champion_digest": "old"}, {}),
        "champion deleted": ({"champion_digest": ""}, {}),
        "champion infinite": (beside(perplexity=INF), {}),
        "champion on other records": (beside(corpus_fingerprint="g"), {}),
        "champion on another split": (beside(split="validation"), {}),
        "champion of other tokens": (
            beside(record_tokens=(11, 9, *(10,) * 98)),
            {},
        ),
        "steps failed": (steps(failed, {"stage": "two", **failed}), {}),
        "steps failed, none asked for": (steps(failed), {"require_step_audit": False}),
        "steps not asked for": (steps(), {"require_step_audit": False}),
        "no steps": (steps(), {}),
        "no noise": (steps({"is_private": False}), {}),
        "steps not looked at": (
            steps(
                {},
                {"stage": "two", "num_checks": 0, "num_passed": 0},
                {"stage": "three", "num_checks": 0, "num_passed": 0},
            ),
            {},
        ),
        "one step not looked at": (
            steps({"num_recorded": 39}, {"stage": "two", "num_recorded": None}),
            {},
        ),
        "one check": (
            steps({"num_checks": 1, "num_passed": 1}, {"is_private": False}),
            {},
        ),
        "steps of shards": (
            steps(*({"num_recorded": None, "unrecorded": "Sharded."},) * 2),
            {},
        ),
        "unknown origin": ({"origin": None}, {}),
        "faults of the origin": ({"origin": make.origin(faults=("One.", "Two."))}, {}),
        "origin not registered": ({"origin": make.origin(is_verified=False)}, {}),
        "origin not checked": (
            {
                "origin": make.origin(
                    is_verified=False, run="run 7", remarks=("Moved.", "By hand.")
                )
            },
            {},
        ),
        "attempts unknown": ({"attempts": None}, {}),
        "attempts at the limit": (
            {"attempts": make.attempts(2, trainings=0)},
            {"max_evaluations": 2},
        ),
        "attempts above the limit": (
            {"attempts": make.attempts(3, decisions=2)},
            {"max_evaluations": 2},
        ),
    }


PARTS = (validity, canaries, claims, rates, leakage, membership, rest)
"""Each gives changes of the clean evidence and of the policy, by the case's name."""
