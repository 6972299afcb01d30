"""The decision table, criterion by criterion."""

import hashlib
import math
from datetime import timedelta

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from dptune.accounting import accountants
from dptune.gates import leakage
from dptune.gates.decision import (
    GateDecision,
    GateOutcome,
    Verdict,
    decide,
    unreadable,
)
from dptune.gates.evidence import Evidence
from dptune.gates.leakage import needed_candidates
from dptune.gates.manifest import Manifest
from dptune.gates.null_law import mean_exposure_bounds
from dptune.privacy import NeighboringRelation
from dptune.results import ExposureReport, Interval, ShadowReport
from dptune.statistics import fewest_hits_for

COUNT = fewest_hits_for(1000, 0.01)


def verdicts(decision):
    return {criterion.name: criterion.verdict for criterion in decision.criteria}


def assert_decides(evidence, policy, outcome, **expected):
    decision = decide(evidence, policy)
    assert decision.outcome == outcome, decision.failed()
    assert {k: verdicts(decision)[k] for k in expected} == expected
    stuck = {criterion.name for criterion in decision.failed()}
    helped = {one.name for one in decision.criteria if one.what_would_change_it}
    assert stuck == helped
    return decision


def test_decide_clean_evidence_passes_with_every_criterion(make):
    decision = assert_decides(make.evidence(), make.policy(), "PASS")
    assert set(verdicts(decision)) == {
        "weights",
        "evidence_identity",
        "evidence_numbers",
        "evidence_complete",
        "evidence_age",
        "evidence_origin",
        "attempts",
        "planted_count",
        "controls",
        "base_model",
        "blind_membership",
        "claim_contradiction",
        "audit",
        "budget",
        "claim_status",
        "language_missing_rate",
        "language_masked_share",
        "dataset_budget",
        "step_audit",
        "memorization",
        "assurance",
        "membership",
        "utility",
    }
    assert decision.failed() == ()
    assert all(criterion.reason for criterion in decision.criteria)


def test_decide_shows_what_was_compared_with_what(make):
    found = {
        one.name: (one.measured, one.threshold)
        for one in decide(make.evidence(), make.policy()).criteria
    }
    near = pytest.approx
    mean = sum(math.log2(1e6 / rank) for rank in make.even_ranks(60)) / 60
    assert {name: pair for name, pair in found.items() if pair != (None, None)} == {
        "weights": (3, None),
        "evidence_age": (2.0, 180.0),
        "attempts": (1.0, None),
        "planted_count": (60.0, 60.0),
        "controls": (near(1.0), 0.0005),
        "base_model": (near(0.51, abs=0.1), 0.0005),
        "blind_membership": (0.5, 0.0005),
        "claim_contradiction": (1.0, 0.001),
        "audit": (3.5, None),
        "budget": (4.0, 8.0),
        "dataset_budget": (4.0, 8.0),
        "step_audit": (0.0, 0.0),
        "memorization": (near(mean), 2.5),
        "assurance": (near(2.3, abs=0.1), 2.5),
        "membership": (0.01, 0.1),
        "utility": (near(-0.2, abs=0.1), near(math.log(1.02))),
    }


def test_decide_shows_intervals_at_the_levels_that_were_asked(make):
    shown = decide(make.evidence(), make.policy(assurance_level=0.4)).criteria
    found = {one.name: one.interval for one in shown if one.interval}
    assert {name: round(one.confidence, 9) for name, one in found.items()} == {
        "memorization": 0.95,
        "assurance": 0.2,
        "membership": 0.95,
    }
    wide, narrow = found["memorization"], found["assurance"]
    mean = sum(math.log2(1e6 / rank) for rank in make.even_ranks(60)) / 60
    assert wide.low < narrow.low < mean < narrow.high < wide.high
    assert (wide.low, wide.high) == pytest.approx(
        mean_exposure_bounds(mean, 60, level=0.025)
    )


def test_candidates_needed_are_enough_for_one_at_rank_one_to_block(make):
    by_level = make.policy(memorization_level=0.001, single_canary_share=0.5)
    assert needed_candidates(by_level, 60) == 60 * 2000
    by_share = make.policy(memorization_level=0.4, single_canary_share=1e-5)
    assert needed_candidates(by_share, 60) == 10**5
    assert needed_candidates(make.policy(memorization_level=0.4), 1) == 10**4


def test_decide_is_pure_and_its_hash_commits_to_all(make):
    first = decide(make.evidence(), make.policy())
    assert first == decide(make.evidence(), make.policy())
    others = [
        decide(make.evidence(dataset_budget=make.budget(delta=1e-7)), make.policy()),
        decide(make.evidence(), make.policy(version=2)),
        decide(make.evidence(), make.policy(max_epsilon=9.0)),
    ]
    hashes = {decision.decision_hash for decision in (first, *others)}
    assert len(hashes) == 4
    again = GateDecision.model_validate_json(first.model_dump_json())
    assert (again, again.decision_hash) == (first, first.decision_hash)


@pytest.mark.parametrize(
    "name", ["exposure", "membership", "utility", "dataset_budget", "claims"]
)
def test_decide_missing_evidence_is_inconclusive(name, make):
    empty = () if name == "claims" else None
    decision = decide(make.evidence(**{name: empty}), make.policy())
    assert decision.outcome is GateOutcome.INCONCLUSIVE
    assert decision.failed()[0].what_would_change_it


def test_decide_nothing_at_all_is_inconclusive(make):
    decision = decide(Evidence(model_digest="m"), make.policy())
    assert decision.outcome is GateOutcome.INCONCLUSIVE


@pytest.mark.parametrize("name", ["exposure", "membership", "utility", "claim"])
def test_decide_evidence_of_another_model_is_invalid(name, make):
    other = getattr(make, name)(model_digest="other")
    changes = {"claims": (other,)} if name == "claim" else {name: other}
    decision = assert_decides(
        make.evidence(**changes), make.policy(), "INVALID", evidence_identity="INVALID"
    )
    assert name in decision.criteria[0].reason


def test_decide_another_base_or_policy_or_champion_is_invalid(make):
    for changes in (
        {"membership": make.membership(base_model_digest="x")},
        {"planned_for": make.policy(version=9).reference},
        {"planned_for": make.policy(control_level=0.02).reference},
        {
            "champion_digest": "old",
            "champion_utility": make.utility(model_digest="older"),
        },
    ):
        assert_decides(
            make.evidence(**changes),
            make.policy(),
            "INVALID",
            evidence_identity="INVALID",
        )
    for policy in (make.policy(), make.policy(name="other")):
        same = make.evidence(planned_for=policy.reference)
        assert_decides(same, make.policy(), "PASS")


def test_decide_stale_evidence_is_inconclusive_and_of_the_future_invalid(make):
    for days, outcome in ((180, "PASS"), (181, "INCONCLUSIVE"), (-1, "INVALID")):
        old = make.evidence(measured_at=make.now - timedelta(days=days))
        assert_decides(old, make.policy(), outcome, evidence_age=outcome)


def test_decide_clocks_may_be_five_minutes_apart(make):
    for seconds, outcome in ((300, "PASS"), (301, "INVALID")):
        ahead = make.evidence(measured_at=make.now + timedelta(seconds=seconds))
        decision = assert_decides(ahead, make.policy(), outcome, evidence_age=outcome)
    found = make.evidence(
        measured_at=make.now + timedelta(seconds=300),
        exposure=make.exposure(measured_at=make.now),
        membership=make.membership(measured_at=make.now),
        utility=make.utility(measured_at=make.now),
    )
    decision = decide(found, make.policy())
    (age,) = [one for one in decision.criteria if one.name == "evidence_age"]
    assert age.measured == 0.0


@pytest.mark.parametrize("rank", [0, 1, 10**6, 10**6 + 1])
def test_decide_rank_is_from_one_to_the_number_of_candidates(rank, make):
    report = make.exposure()
    first, *rest = report.canaries
    exposure = math.log2(10**6 / rank) if rank else 99.0
    changed = first.model_copy(update={"rank": rank, "exposure": exposure})
    report = report.model_copy(update={"canaries": (changed, *rest)})
    decision = decide(make.evidence(exposure=report), make.policy())
    within = 1 <= rank <= 10**6
    assert ("exposure_evidence" in verdicts(decision)) is not within
    assert (decision.outcome == "INVALID") is not within


def test_decide_planted_count_off_by_one_is_invalid(make):
    for changes in ({"planted_found": 59}, {"planted_expected": 61}):
        assert_decides(
            make.evidence(exposure=make.exposure(**changes)),
            make.policy(),
            "INVALID",
            planted_count="INVALID",
        )


def test_decide_controls_that_leak_are_invalid(make):
    leaked = make.exposure(held_out=[1 + 1000 * i for i in range(60)])
    assert_decides(
        make.evidence(exposure=leaked), make.policy(), "INVALID", controls="INVALID"
    )


def test_decide_canaries_known_to_the_base_model_are_invalid(make):
    known = make.exposure()
    base = make.canaries([1 + 1000 * i for i in range(60)], planted=True)
    held_out = tuple(c for c in known.base_canaries if not c.planted)
    known = known.model_copy(update={"base_canaries": base + held_out})
    assert_decides(
        make.evidence(exposure=known), make.policy(), "INVALID", base_model="INVALID"
    )


def test_decide_canaries_that_were_early_before_training_are_to_be_drawn_anew(make):
    early = [1 + 1000 * i for i in range(60)]
    leaking = make.exposure(planted=early)
    base = make.canaries(early, planted=True)
    held_out = tuple(c for c in leaking.base_canaries if not c.planted)
    known = leaking.model_copy(update={"base_canaries": base + held_out})
    for report, is_advised in ((leaking, False), (known, True)):
        decision = decide(make.evidence(exposure=report), make.policy())
        (found,) = (c for c in decision.criteria if c.name == "memorization")
        assert found.verdict == "BLOCK"
        assert ("fresh canaries" in found.what_would_change_it) is is_advised


def test_decide_texts_that_tell_members_are_invalid(make):
    for p_value, outcome in ((0.00051, "PASS"), (0.0005, "INVALID")):
        found = make.membership(blind=make.blind(p_value=p_value))
        assert_decides(
            make.evidence(membership=found),
            make.policy(),
            outcome,
            blind_membership=outcome,
        )


def test_decide_texts_that_nobody_tested_are_inconclusive(make):
    found = make.membership(blind=make.blind(p_value=None))
    assert_decides(make.evidence(membership=found), make.policy(), "INCONCLUSIVE")


def test_decide_memorised_canaries_block(make):
    leaking = make.exposure(planted=[1 + 37 * i for i in range(60)])
    changes = {"claims": (make.claim(epsilon=7.9),)}
    assert_decides(
        make.evidence(exposure=leaking, **changes),
        make.policy(),
        "BLOCK",
        memorization="BLOCK",
    )


def test_decide_one_memorised_canary_of_many_blocks(make):
    ranks = make.even_ranks(60)
    ranks[5] = 1
    decision = assert_decides(
        make.evidence(exposure=make.exposure(planted=ranks)),
        make.policy(),
        "BLOCK",
        memorization="BLOCK",
        assurance="INCONCLUSIVE",
    )
    ranks[5] = 200
    assert_decides(
        make.evidence(exposure=make.exposure(planted=ranks)),
        make.policy(assurance_bound_bits=3.0),
        "PASS",
    )
    assert "60 planted" in decision.failed()[0].reason


def test_decide_canaries_that_come_last_are_a_leak(make):
    """A model that was trained away from them passed, at an exposure of 0 bits."""
    early = np.maximum(1, make.even_ranks(100) // 100)
    last = make.exposure(planted=10**6 + 1 - early)
    decision = assert_decides(
        make.evidence(exposure=last), make.policy(), "BLOCK", memorization="BLOCK"
    )
    assert "from the last candidate it is 8.0" in decision.failed()[0].reason
    first = make.evidence(exposure=make.exposure(planted=early))
    assert_decides(first, make.policy(), "BLOCK", memorization="BLOCK")


def test_decide_canaries_that_come_a_little_late_are_none(make):
    late = 10**6 + 1 - np.maximum(1, make.even_ranks(100) * 2 // 3)
    report = make.exposure(planted=late)
    assert_decides(make.evidence(exposure=report), make.policy(), "PASS")


def test_decide_upper_bounds_of_ranks_are_not_late(make):
    """Of a space that was searched, a rank may be far larger than it really is."""
    report = make.exposure(planted=np.full(100, 10**6))
    bounds = tuple(
        one.model_copy(update={"method": "certified_bound"}) for one in report.canaries
    )
    searched = report.model_copy(update={"canaries": bounds, "exact": False})
    assert_decides(
        make.evidence(exposure=searched),
        make.policy(),
        "INCONCLUSIVE",
        memorization="PASS",
        assurance="INCONCLUSIVE",
    )


@pytest.mark.parametrize(("from_last", "verdict"), [(1, "INCONCLUSIVE"), (8, "BLOCK")])
def test_decide_late_intervals_block_by_their_near_ends_alone(make, from_last, verdict):
    """Far ends blocked up to 8 % of simulated clean models."""
    near = 10**6 + 1 - np.maximum(1, make.even_ranks(100) // from_last**2)
    report = make.exposure(planted=near)
    intervals = tuple(
        one.model_copy(
            update={
                "method": "interval",
                "exposure_interval": Interval(
                    low=0.0, high=one.exposure, confidence=1 - 1e-4
                ),
            }
        )
        for one in report.planted()
    )
    sampled = report.model_copy(
        update={"canaries": intervals + report.held_out(), "exact": False}
    )
    decision = assert_decides(
        make.evidence(exposure=sampled), make.policy(), verdict, memorization=verdict
    )
    if verdict == "INCONCLUSIVE":
        assert "far ends" in decision.failed()[0].reason
        assert "exactly" in decision.failed()[0].what_would_change_it


def test_decide_few_canaries_that_leak_much_are_no_assurance(make):
    """By the exponential law alone their mean was at most 2.4 bits, and passed."""
    ranks = make.even_ranks(100)
    ranks[:3] = 60
    report = make.exposure(planted=ranks)
    mean = sum(canary.exposure for canary in report.planted()) / 100
    assert mean_exposure_bounds(mean, 100, level=0.005)[1] < 2.5
    assert_decides(
        make.evidence(exposure=report),
        make.policy(assurance_level=0.005),
        "INCONCLUSIVE",
        memorization="PASS",
        assurance="INCONCLUSIVE",
    )


def test_decide_canaries_too_few_to_hold_one_that_is_known_are_no_assurance(make):
    """5.7 % of secrets known by heart, a leak of 2.5 bits: none of 78 is with 1 %."""
    for num, looks, verdict in (
        (78, 1, "INCONCLUSIVE"),
        (80, 1, "PASS"),
        (100, 3, "PASS"),
        (100, 4, "INCONCLUSIVE"),
        (130, 20, "PASS"),
    ):
        evidence = make.evidence(
            exposure=make.exposure(planted=make.even_ranks(num)),
            attempts=make.attempts(looks),
        )
        policy = make.policy(assurance_level=0.005)
        assert_decides(evidence, policy, verdict, assurance=verdict)


def test_decide_one_canary_among_the_first_by_no_chance_is_no_assurance(make):
    """At rank 16 it blocks nothing; that 5.7 % are known is not ruled out any more."""
    for rank, verdict in ((16, "INCONCLUSIVE"), (24, "PASS")):
        report = make.exposure(planted=[rank, *make.even_ranks(99)])
        evidence, policy = make.evidence(exposure=report), make.policy()
        policy = policy.model_copy(update={"assurance_level": 0.005})
        assert_decides(evidence, policy, verdict, assurance=verdict)


def test_decide_assures_no_more_bits_than_the_candidates_allow(make):
    report = make.exposure(planted=[1] * 100)
    decision = decide(make.evidence(exposure=report), make.policy())
    (found,) = (c for c in decision.criteria if c.name == "assurance")
    assert found.measured == found.interval.high == math.log2(report.space_size)


def test_decide_leak_below_the_size_of_effect_does_not_block(make):
    ranks = [max(1, rank // 2) for rank in make.even_ranks(200)]
    report = make.exposure(planted=ranks)
    assert_decides(
        make.evidence(exposure=report),
        make.policy(effect_size_bits=3.0, assurance_bound_bits=3.0),
        "PASS",
        memorization="PASS",
    )
    assert_decides(
        make.evidence(exposure=report),
        make.policy(),
        "INCONCLUSIVE",
        assurance="INCONCLUSIVE",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"planted": [10**5 * (i % 9 + 1) for i in range(30)]},
        {"held_out": [10**5 * (i % 9 + 1) for i in range(10)]},
        {"exact": False},
    ],
)
def test_decide_too_little_exposure_is_inconclusive(changes, make):
    assert_decides(
        make.evidence(exposure=make.exposure(**changes)),
        make.policy(),
        "INCONCLUSIVE",
        assurance="INCONCLUSIVE",
    )


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "There are 0 held-out canaries, 20 are needed."),
        (1, "There is 1 held-out canary, 20 are needed."),
        (2, "There are 2 held-out canaries, 20 are needed."),
    ],
)
def test_decide_tells_how_many_controls_are_lacking(count, told, make):
    exposure = make.exposure(held_out=[10**5 * (i + 1) for i in range(count)])
    decision = decide(make.evidence(exposure=exposure), make.policy())
    (found,) = (c for c in decision.criteria if c.name == "assurance")
    assert told in found.reason


def test_decide_membership_upper_bound_blocks(make):
    for tpr, outcome in ((0.06, "PASS"), (0.085, "BLOCK")):
        found = make.membership(
            signals=(make.signal("loss"), make.signal("combined", tpr=tpr))
        )
        assert_decides(
            make.evidence(membership=found),
            make.policy(),
            outcome,
            membership=outcome,
        )


def test_decide_membership_of_few_records_blocks_only_for_sure(make):
    for tpr, outcome in ((0.08, "INCONCLUSIVE"), (0.3, "BLOCK")):
        found = make.membership(
            num_members=200, signals=(make.signal("combined", tpr=tpr, num=200),)
        )
        assert_decides(
            make.evidence(membership=found), make.policy(), outcome, membership=outcome
        )


def membership_criterion(make, report, **changes):
    decision = decide(make.evidence(membership=report), make.policy(**changes))
    (found,) = [c for c in decision.criteria if c.name == "membership"]
    return found


def test_decide_membership_bound_is_corrected_for_the_number_of_attacks(make):
    """Of many attacks one is above the limit by luck; the bound of each knows that."""
    names = ("combined", *(f"attack-{i}" for i in range(9)))
    alone, beside = (
        membership_criterion(
            make,
            make.membership(
                num_members=200,
                signals=tuple(
                    make.signal(name, tpr=0.17, num=200) for name in names[:m]
                ),
            ),
        )
        for m in (1, 10)
    )
    assert (alone.verdict, beside.verdict) == ("BLOCK", "INCONCLUSIVE")
    assert beside.interval.low < 0.1 < alone.interval.low
    assert beside.interval.high == alone.interval.high


def learned(effect, *, of=1.0):
    """Shadows that learned some of what the attacked model knows."""
    counts = {"num_models": 4, "num_records": 1000}
    return ShadowReport(**counts, effect=effect, model_effect=of)


@pytest.mark.parametrize("shadows", [learned(0.101), learned(0.0, of=-0.1)])
def test_decide_membership_by_shadows_that_know_as_much_passes(shadows, make):
    found = make.membership(shadows=shadows)
    evidence = make.evidence(membership=found)
    assert_decides(evidence, make.policy(), "PASS", membership="PASS")


def test_twin_that_counts_shadows_alone_passes_those_that_learned_nothing(
    make, monkeypatch
):
    monkeypatch.setattr(leakage, "_know_too_little", lambda _: False)
    evidence = make.evidence(membership=make.membership(shadows=learned(0.0)))
    assert_decides(evidence, make.policy(), "PASS", membership="PASS")


@pytest.mark.parametrize(
    "changes",
    [
        {"shadows": None},
        {"shadows": ShadowReport(num_models=2, num_records=1000)},
        {"shadows": learned(0.099)},
        {"shadows": ShadowReport(num_models=4, num_records=1000)},
        {"names": ("loss", "calibrated_loss", "lira")},
    ],
)
def test_decide_membership_without_the_strongest_attack_is_inconclusive(changes, make):
    names = changes.pop("names", ("loss", "combined"))
    found = make.membership(signals=tuple(map(make.signal, names)), **changes)
    assert_decides(
        make.evidence(membership=found),
        make.policy(),
        "INCONCLUSIVE",
        membership="INCONCLUSIVE",
    )
    assert_decides(
        make.evidence(membership=found), make.policy(min_shadow_models=0), "PASS"
    )


@pytest.mark.parametrize("fpr", [0.001, 0.0099, 0.02])
def test_decide_membership_at_another_false_positive_rate_is_inconclusive(make, fpr):
    """At a smaller one an attack finds fewer members than at the policy's 1 %."""
    odd = make.signal("loss").model_copy(
        update={"low_fpr": fpr, "hits": (10,) * fewest_hits_for(1000, fpr)}
    )
    found = make.membership(signals=(odd, make.signal("combined")))
    assert membership_criterion(make, found).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "changes",
    [
        {"hits": ()},
        {"hits": (10,) * (COUNT - 1)},
        {"hits": (11, *(10,) * (COUNT - 1))},
        {"hits": (1001,) * COUNT, "tpr_at_low_fpr": 1.001},
        {"hits": (-1,) * COUNT, "tpr_at_low_fpr": -0.001},
        {"hits": (400,) * COUNT},
        {"low_fpr": 0.0},
        {"tpr_at_low_fpr": 0.02},
    ],
)
def test_decide_membership_counts_that_contradict_themselves_are_invalid(changes, make):
    odd = make.signal("loss").model_copy(update=changes)
    found = make.membership(signals=(odd, make.signal("combined")))
    assert membership_criterion(make, found).verdict == "INVALID"


@pytest.mark.parametrize(
    "changes", [{"epsilon": 8.1}, {"epsilon": math.inf}, {"delta": 2e-5}]
)
def test_decide_claim_over_budget_blocks(changes, make):
    decision = assert_decides(
        make.evidence(claims=(make.claim(**changes),)),
        make.policy(),
        "BLOCK",
        budget="BLOCK",
    )
    assert "epsilon" in decision.failed()[0].reason


def test_decide_worst_claim_of_the_notion_decides(make):
    claims = (make.claim(tier="low"), make.claim(tier="high", epsilon=9.0))
    assert_decides(make.evidence(claims=claims), make.policy(), "BLOCK", budget="BLOCK")


def test_decide_largest_epsilon_and_largest_delta_decide_of_whichever_claim(make):
    claims = (make.claim(epsilon=5.0), make.claim(tier="low", delta=2e-5))
    for given in (claims, claims[::-1]):
        assert_decides(
            make.evidence(claims=given), make.policy(), "BLOCK", budget="BLOCK"
        )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"epsilon": 0.0}, "PASS"),
        ({"epsilon": -1e-9}, "INVALID"),
        ({"delta": 0.0}, "PASS"),
        ({"delta": 1.0}, "BLOCK"),
        ({"delta": -1e-9}, "INVALID"),
        ({"delta": 1 + 1e-9}, "INVALID"),
    ],
)
def test_decide_claim_at_the_ends_of_its_range_means_something(changes, verdict, make):
    found = {
        "claims": (make.claim(**changes),),
        "audits": (make.audit(epsilon_lower_bound=0.0),),
    }
    assert_decides(make.evidence(**found), make.policy(), verdict)


@pytest.mark.parametrize(
    "changes",
    [
        {"notion": "selective", "relation": "replace_one"},
        {"relation": "replace_one"},
    ],
)
def test_decide_claim_of_another_notion_or_relation_does_not_count(changes, make):
    assert_decides(
        make.evidence(claims=(make.claim(**changes),)),
        make.policy(),
        "INCONCLUSIVE",
        budget="INCONCLUSIVE",
    )


def test_decide_claim_of_a_finer_unit_does_not_count_and_a_coarser_one_does(make):
    by_record, by_user = make.claim(), make.claim(privacy_unit="user")
    users = make.policy(privacy_unit="user")
    assert_decides(make.evidence(claims=(by_record,)), users, "INCONCLUSIVE")
    assert_decides(make.evidence(claims=(by_user,)), users, "PASS")
    under = {"relation": "replace_one"}
    replaced = make.claim(privacy_unit="user", **under)
    found = {"claims": (replaced,), "dataset_budget": make.budget(**under)}
    audits = (make.audit(**under),)
    assert_decides(make.evidence(**found, audits=audits), make.policy(**under), "PASS")
    by_document = make.claim(privacy_unit="document")
    assert_decides(make.evidence(claims=(by_document,)), users, "INCONCLUSIVE")
    documents = make.policy(privacy_unit="document")
    assert_decides(make.evidence(claims=(by_document,)), documents, "PASS")


def test_decide_record_that_leaves_its_user_behind_is_a_replacement(make):
    """A user's two gradients add up to C, one alone to -C: their sum moves by 2C.

    With noise C, the claim about users is 4.38 at delta 1e-5. That of one record is
    that of replacing a user, 10.0: an attack on the sum shows 5.4.
    """
    step, found = GaussianDpEvent(1.0), {}
    for relation in NeighboringRelation:
        found[relation] = make.claim(
            privacy_unit="user",
            relation=relation,
            epsilon=accountants.epsilon(step, delta=1e-5, relation=relation),
        )
    by_user, replaced = found.values()
    assert by_user.epsilon < 8 < replaced.epsilon
    users, records = make.policy(privacy_unit="user"), make.policy()
    whole = make.evidence(claims=(by_user, replaced))
    assert_decides(whole, users, "PASS")
    assert_decides(whole, records, "BLOCK", budget="BLOCK")
    alone = make.evidence(claims=(by_user,))
    assert_decides(alone, records, "INCONCLUSIVE", budget="INCONCLUSIVE")
    small = replaced.model_copy(update={"epsilon": 7.5})
    budget = make.budget(relation="replace_one")
    both = make.evidence(claims=(by_user, small), dataset_budget=budget)
    assert_decides(both, records, "PASS")
    other = make.evidence(claims=(by_user, small), dataset_budget=make.budget())
    assert_decides(other, records, "INCONCLUSIVE", dataset_budget="INCONCLUSIVE")


def test_decide_selective_claim_as_add_or_remove_is_invalid(make):
    claims = (make.claim(notion="selective"),)
    assert_decides(make.evidence(claims=claims), make.policy(), "INVALID")


@pytest.mark.parametrize("status", ["conditional", "empirical", "none"])
def test_decide_status_that_the_policy_does_not_accept_blocks(status, make):
    claims = (make.claim(status=status, nominal_epsilon=0.1),)
    assert_decides(
        make.evidence(claims=claims), make.policy(), "BLOCK", claim_status="BLOCK"
    )


@pytest.mark.parametrize(
    ("rate", "upper", "outcome"),
    [
        (0.001, 0.005, "PASS"),
        (0.005, 0.02, "INCONCLUSIVE"),
        (0.01, 0.01, "PASS"),
        (0.01, 0.02, "INCONCLUSIVE"),
        (1.0, 1.0, "BLOCK"),
        (-0.001, 0.001, "INVALID"),
        (0.5, 1.001, "INVALID"),
        (0.02, 0.03, "BLOCK"),
        (None, None, "INCONCLUSIVE"),
        (0.001, None, "INCONCLUSIVE"),
        (0.001, math.nan, "INVALID"),
        (0.02, 0.001, "INVALID"),
    ],
)
def test_decide_conditional_claim_needs_an_audited_missing_rate(
    rate, upper, outcome, make
):
    policy = make.policy(
        notion="selective", accepted_statuses=("certified", "conditional")
    )
    claims = (
        make.claim(
            notion="selective",
            relation="replace_one",
            status="conditional",
            missing_rate=rate,
            missing_rate_upper=upper,
        ),
    )
    evidence = make.evidence(
        claims=claims,
        dataset_budget=make.budget(notion="selective"),
        detection=make.detection(missing_rate=None, missing_rate_interval=None),
    )
    assert_decides(evidence, policy, outcome)


def test_decide_missing_rate_may_come_from_detection(make):
    detection = make.detection()
    evidence = make.evidence(
        claims=(
            make.claim(
                notion="selective", relation="replace_one", status="conditional"
            ),
        ),
        dataset_budget=make.budget(notion="selective"),
        detection=detection,
    )
    policy = make.policy(
        notion="selective", accepted_statuses=("certified", "conditional")
    )
    assert_decides(evidence, policy, "PASS", claim_status="PASS")


@pytest.mark.parametrize(
    ("accepted", "verdict"), [((), "BLOCK"), (("num_units_is_public",), "PASS")]
)
def test_decide_missing_rate_supports_no_claim_that_has_no_detector(
    accepted, verdict, make
):
    """The detector misses nothing; who joined can be told all the same."""
    claim = make.claim(
        status="conditional",
        assumptions=("num_units_is_public", "base_model_is_public"),
        missing_rate=0.0,
        missing_rate_upper=0.0,
    )
    policy = make.policy(
        accepted_statuses=("certified", "conditional"), accepted_assumptions=accepted
    )
    evidence = make.evidence(claims=(claim,))
    assert_decides(evidence, policy, verdict, claim_status=verdict)


def test_decide_accepted_assumption_does_not_stand_in_for_the_detector(make):
    claim = make.claim(
        notion="selective",
        relation="replace_one",
        status="conditional",
        assumptions=("detector_recall_is_one",),
    )
    policy = make.policy(
        notion="selective",
        accepted_statuses=("certified", "conditional"),
        accepted_assumptions=("detector_recall_is_one",),
    )
    evidence = make.evidence(
        claims=(claim,),
        dataset_budget=make.budget(notion="selective"),
        detection=make.detection(missing_rate=None, missing_rate_interval=None),
    )
    assert_decides(evidence, policy, "INCONCLUSIVE", claim_status="INCONCLUSIVE")


def test_decide_claim_that_rests_on_an_unknown_assumption_is_invalid(make):
    claims = (make.claim(assumptions=("the_moon_is_public",)),)
    assert_decides(make.evidence(claims=claims), make.policy(), "INVALID")


@pytest.mark.parametrize("spent", [8.1, math.inf])
def test_decide_dataset_budget_exceeded_blocks(spent, make):
    budget = make.budget(spent_epsilon=spent, budget_epsilon=8.0)
    assert_decides(
        make.evidence(dataset_budget=budget),
        make.policy(),
        "BLOCK",
        dataset_budget="BLOCK",
    )


def test_decide_dataset_budget_may_be_spent_to_the_end_if_it_has_one(make):
    for most, verdict in ((8.0, "PASS"), (math.inf, "BLOCK")):
        budget = make.budget(spent_epsilon=most, budget_epsilon=most)
        evidence = make.evidence(dataset_budget=budget)
        assert_decides(evidence, make.policy(), verdict, dataset_budget=verdict)


@pytest.mark.parametrize("leaked", [True, False])
def test_decide_ranks_by_the_mean_over_tokens_prove_no_absence(leaked, make):
    verdict = "BLOCK" if leaked else "INCONCLUSIVE"
    ranks = {"planted": [1] * 60} if leaked else {}
    exposure = make.exposure(scoring="mean", **ranks)
    evidence = make.evidence(exposure=exposure)
    assert_decides(evidence, make.policy(), verdict, memorization=verdict)
    assurance = {one.name: one for one in decide(evidence, make.policy()).criteria}
    assert "by the mean" in assurance["assurance"].reason


@pytest.mark.parametrize(
    "changes",
    [
        {"relation": "replace_one"},
        {"relation": None},
        {"notion": "selective"},
        {"delta": 0.9},
    ],
)
def test_decide_dataset_budget_of_another_claim_is_none(changes, make):
    evidence = make.evidence(dataset_budget=make.budget(**changes))
    verdict = "INCONCLUSIVE"
    assert_decides(evidence, make.policy(), verdict, dataset_budget=verdict)


def test_decide_dataset_budget_that_is_overspent_blocks_at_any_delta(make):
    over = make.budget(spent_epsilon=9.0, budget_epsilon=8.0, delta=0.9)
    evidence = make.evidence(dataset_budget=over)
    assert_decides(evidence, make.policy(), "BLOCK", dataset_budget="BLOCK")


def test_decide_dataset_budget_may_be_waived_by_policy_only(make):
    evidence = make.evidence(dataset_budget=None)
    assert_decides(evidence, make.policy(require_dataset_budget=False), "PASS")
    other = make.evidence(dataset_budget=make.budget(notion="selective"))
    assert_decides(other, make.policy(), "INCONCLUSIVE")


@pytest.mark.parametrize(
    ("shift", "outcome"), [(0.0, "PASS"), (0.015, "PASS"), (0.03, "BLOCK")]
)
def test_decide_utility_beside_the_champion(shift, outcome, make):
    evidence = make.evidence(
        utility=make.utility(shift=shift),
        champion_digest="old",
        champion_utility=make.utility(model_digest="old"),
    )
    assert_decides(evidence, make.policy(), outcome, utility=outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"corpus_fingerprint": "stale"},
        {"split": "validation"},
        {"record_tokens": (5, 15) * 50},
    ],
)
def test_decide_champion_on_other_records_is_inconclusive(changes, make):
    evidence = make.evidence(
        champion_digest="old",
        champion_utility=make.utility(model_digest="old", **changes),
    )
    assert_decides(evidence, make.policy(), "INCONCLUSIVE", utility="INCONCLUSIVE")


def test_decide_utility_counts_units_not_their_records(make):
    """Ten users, of whom three got much worse: their hundred records are no hundred."""
    own = {"base_record_nll": (20.0,) * 100, "base_perplexity": math.exp(2.0)}
    losses = tuple(20.5 if record % 10 < 3 else 19.9 for record in range(100))
    mean = sum(losses) / 1000
    own |= {"record_nll": losses, "nll_per_token": mean, "perplexity": math.exp(mean)}
    of_users = tuple(record % 10 for record in range(100))
    policy = make.policy(max_nll_increase=0.015)
    assert_decides(make.evidence(utility=make.utility(**own)), policy, "PASS")
    of_ten = make.utility(**own, record_units=of_users)
    assert_decides(make.evidence(utility=of_ten), policy, "BLOCK", utility="BLOCK")


@pytest.mark.parametrize(
    "one_unit",
    [
        {"record_units": (0,) * 100},
        {
            "num_records": 1,
            "record_nll": (2300.0,),
            "record_tokens": (1000,),
            "base_record_nll": (2500.0,),
            "nll_per_token": 2.3,
            "perplexity": math.exp(2.3),
        },
    ],
)
def test_decide_utility_of_one_unit_is_inconclusive(make, one_unit):
    """However much better: nothing says how much worse the next unit is."""
    evidence = make.evidence(utility=make.utility(**one_unit))
    assert_decides(evidence, make.policy(), "INCONCLUSIVE", utility="INCONCLUSIVE")
    beside = make.evidence(
        utility=make.utility(**one_unit),
        champion_digest="old",
        champion_utility=make.utility(model_digest="old", **one_unit),
    )
    assert_decides(beside, make.policy(), "INCONCLUSIVE", utility="INCONCLUSIVE")


def test_decide_champion_without_its_losses_is_inconclusive(make):
    evidence = make.evidence(champion_digest="old")
    assert_decides(evidence, make.policy(), "INCONCLUSIVE", utility="INCONCLUSIVE")


def test_decide_claim_contradicted_by_ranks_blocks(make):
    leaking = make.exposure(planted=range(1, 61))
    for epsilon, verdict in ((1.0, "BLOCK"), (12.0, "PASS")):
        evidence = make.evidence(
            exposure=leaking, claims=(make.claim(epsilon=epsilon),)
        )
        assert_decides(evidence, make.policy(), "BLOCK", claim_contradiction=verdict)


def test_decide_many_insertions_weaken_the_contradiction(make):
    evidence = make.evidence(
        exposure=make.exposure(planted=range(1, 61), insertions=10),
        claims=(make.claim(epsilon=2.6),),
    )
    assert_decides(evidence, make.policy(), "BLOCK", claim_contradiction="PASS")


@pytest.mark.parametrize("planted", [None, [1] * 60])
def test_decide_canaries_that_nobody_drew_prove_nothing(planted, make):
    report = make.exposure(planted=planted)
    given = make.evidence(exposure=report.model_copy(update={"drawn": False}))
    decision = assert_decides(
        given,
        make.policy(),
        "INCONCLUSIVE",
        memorization="INCONCLUSIVE",
        assurance="INCONCLUSIVE",
        base_model="INCONCLUSIVE",
        claim_contradiction="NOT_APPLICABLE",
    )
    assert any("were drawn" in criterion.reason for criterion in decision.failed())
    drawn = decide(make.evidence(exposure=report), make.policy())
    assert verdicts(drawn)["memorization"] == ("BLOCK" if planted else "PASS")


def test_decide_missed_canaries_do_not_test_a_selective_claim(make):
    selective = make.claim(
        notion="selective", relation="replace_one", status="conditional", epsilon=0.5
    )
    for setting, verdict in (
        ("missed", "NOT_APPLICABLE"),
        ("partly_missed", "NOT_APPLICABLE"),
        ("not_missed", "BLOCK"),
    ):
        evidence = make.evidence(
            exposure=make.exposure(planted=range(1, 61), setting=setting),
            claims=(selective,),
        )
        decision = decide(evidence, make.policy(notion="selective"))
        assert verdicts(decision)["claim_contradiction"] == verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "PASS"),
        ({"epsilon_lower_bound": 4.1}, "BLOCK"),
        ({"epsilon_lower_bound": 4.1, "assumption_violated": True}, "BLOCK"),
        ({"epsilon_lower_bound": 4.1, "delta": 1e-7}, "PASS"),
        ({"epsilon_lower_bound": 4.1, "delta": 1e-6}, "BLOCK"),
        ({"epsilon_lower_bound": 4.0}, "PASS"),
        ({"epsilon_lower_bound": 4.0, "capacity": 4.0}, "PASS"),
        ({"epsilon_lower_bound": 4.1, "notion": "selective"}, "INCONCLUSIVE"),
        ({"epsilon_lower_bound": 4.1, "capacity": 4.0}, "INVALID"),
        ({"epsilon_lower_bound": math.nan}, "INVALID"),
        ({"model_digest": "other"}, "PASS"),
    ],
)
def test_decide_audit_bound_above_the_claim_blocks(changes, verdict, make):
    decision = decide(
        make.evidence(audits=(make.audit(**{"capacity": 5.0} | changes),)),
        make.policy(),
    )
    assert verdicts(decision)["audit"] == verdict
    if "model_digest" in changes:
        assert decision.outcome == "INVALID"


def test_decide_bound_on_missed_secrets_is_a_violated_assumption_and_no_bug(make):
    found = {"epsilon_lower_bound": 4.1, "capacity": 5.0}
    missed = make.audit(**found, assumption_violated=True)
    (only,) = decide(make.evidence(audits=(missed,)), make.policy()).failed()
    assert "Assumption violated, no bug" in only.reason
    both = make.evidence(audits=(missed, make.audit(**found)))
    (first, *_) = decide(both, make.policy()).failed()
    assert "Claim contradicted" in first.reason


def test_decide_audit_of_another_relation_has_no_capacity_here(make):
    other = make.audit(relation="replace_one", capacity=50.0)
    assert_decides(
        make.evidence(audits=(other,)),
        make.policy(),
        "INCONCLUSIVE",
        audit="INCONCLUSIVE",
    )


def test_decide_audit_capacity_below_the_policy_is_inconclusive(make):
    policy = make.policy(min_audit_capacity=6.0)
    assert_decides(make.evidence(), policy, "INCONCLUSIVE", audit="INCONCLUSIVE")
    weak = make.evidence(audits=(make.audit(),))
    assert_decides(weak, policy, "INCONCLUSIVE", audit="INCONCLUSIVE")
    strong = make.evidence(audits=(make.audit(capacity=6.5),))
    assert_decides(strong, policy, "PASS", audit="PASS")


def test_decide_invalid_is_worse_than_block_and_block_than_inconclusive(make):
    over = (make.claim(epsilon=9.0),)
    assert_decides(make.evidence(claims=over, utility=None), make.policy(), "BLOCK")
    other = make.utility(model_digest="x")
    assert_decides(make.evidence(claims=over, utility=other), make.policy(), "INVALID")


@pytest.mark.parametrize("text", ["{", "\ud800"])
def test_unreadable_evidence_is_invalid_and_the_decision_says_of_what(text, make):
    policy, files = make.policy(name="strict", version=4), make.files()
    decision = unreadable(
        text, policy, model_digest="m", reason="It is cut off.", files=files
    )
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    assert (decision.outcome, decision.model_digest) == ("INVALID", "m")
    assert decision.policy == policy.reference.title
    assert decision.evidence_digest == decision.dossier_digest == digest
    assert decision.manifest_digest == files.stored.digest
    (only,) = decision.criteria
    assert (only.name, only.reason) == ("evidence", "It is cut off.")


def test_decision_names_what_it_was_made_of(make):
    decision = decide(make.evidence(), make.policy())
    assert decision.manifest_digest == make.files().stored.digest
    assert decision.dossier_digest == make.origin().digest
    none = decide(Evidence(model_digest="m"), make.policy())
    assert (none.manifest_digest, none.dossier_digest) == (Manifest().digest, "")


def test_verdict_names_are_those_of_the_table():
    assert {v.value for v in Verdict} == {
        "PASS",
        "BLOCK",
        "INCONCLUSIVE",
        "INVALID",
        "NOT_APPLICABLE",
    }


# classifiers: no canaries


CANARY_CRITERIA = {"memorization", "assurance", "controls", "base_model"}


def without_canaries(make):
    return make.exposure(
        canaries=(),
        base_canaries=(),
        planted_found=0,
        planted_expected=0,
        not_measurable="A classifier writes no text.",
    )


def test_unmeasurable_exposure_never_passes_a_policy_that_asks_for_canaries(make):
    decision = decide(make.evidence(exposure=without_canaries(make)), make.policy())
    found = {c.name: c for c in decision.failed()}
    assert decision.outcome == "INCONCLUSIVE"
    assert set(found) >= CANARY_CRITERIA
    assert "writes no text" in found["memorization"].reason


def test_policy_for_membership_only_says_so(make):
    asked = make.policy(require_canaries=False)
    decision = decide(make.evidence(exposure=without_canaries(make)), asked)
    found = {c.name: c for c in decision.criteria if c.name in CANARY_CRITERIA}
    assert decision.outcome == "PASS", decision.failed()
    assert {c.verdict for c in found.values()} == {Verdict.NOT_APPLICABLE}
    assert "membership only" in found["memorization"].reason


@pytest.mark.parametrize("name", ["exposure", "membership"])
def test_policy_for_membership_only_still_needs_its_reports(make, name):
    asked = make.policy(require_canaries=False)
    given = {"exposure": without_canaries(make)} | {name: None}
    assert decide(make.evidence(**given), asked).outcome == "INCONCLUSIVE"


def test_policy_for_membership_only_still_judges_canaries_that_were_planted(make):
    asked = make.policy(require_canaries=False)
    leaking = make.exposure([1] * 60)
    assert decide(make.evidence(exposure=leaking), asked).outcome == "BLOCK"


# canaries that no loss has seen


def trained_on(make, copies, **changes):
    """A report whose planted canaries were trained on so often, and held-out ones."""
    report = make.exposure(**changes)
    counts = iter(copies)
    canaries = tuple(
        c.model_copy(update={"trained": next(counts)}) if c.planted else c
        for c in report.canaries
    )
    return report.model_copy(update={"canaries": canaries})


@pytest.mark.parametrize("copies", [0, None])
def test_decide_canaries_that_were_not_trained_on_measure_nothing(
    copies, make, monkeypatch
):
    report = trained_on(make, [copies] * 60)
    evidence = make.evidence(exposure=report, audits=())
    decision = assert_decides(
        evidence,
        make.policy(),
        "INCONCLUSIVE",
        planted_count="PASS",
        memorization="INCONCLUSIVE",
        assurance="INCONCLUSIVE",
        claim_contradiction="INCONCLUSIVE",
        audit="INCONCLUSIVE",
    )
    assert any("trained on" in criterion.reason for criterion in decision.failed())
    assert_decides(
        evidence,
        make.policy(require_canaries=False),
        "PASS",
        memorization="NOT_APPLICABLE",
        assurance="NOT_APPLICABLE",
        audit="NOT_APPLICABLE",
    )
    # the twin counts what is in the corpus
    monkeypatch.setattr(ExposureReport, "trained", ExposureReport.planted)
    assert decide(make.evidence(exposure=report), make.policy()).outcome == "PASS"


def test_decide_too_few_canaries_that_were_trained_on_are_inconclusive(make):
    for few, verdict in ((49, "INCONCLUSIVE"), (50, "PASS")):
        report = trained_on(make, [1] * few + [0] * (60 - few))
        assert_decides(
            make.evidence(exposure=report),
            make.policy(),
            verdict,
            memorization=verdict,
            assurance=verdict,
        )
    partly = trained_on(make, [5] * 60, insertions=6)
    assert_decides(make.evidence(exposure=partly), make.policy(), "INCONCLUSIVE")


def letters_alone(make, copies, *, space=10**6, share=0.04):
    """Canaries of which redaction left those that every model ranks early."""
    early = [1 + int(share * space * (i + 0.5) / 10) for i in range(10)]
    ranks = early + [int(rank) for rank in make.even_ranks(90)]
    report = trained_on(make, copies, planted=ranks)
    base = make.canaries(ranks, planted=True)
    held_out = [c for c in report.base_canaries if not c.planted]
    return report.model_copy(update={"base_canaries": (*base, *held_out)})


def test_decide_canaries_that_redaction_chose_by_their_secrets_prove_no_leak(
    make, monkeypatch
):
    report = letters_alone(make, [1] * 10 + [0] * 90)
    decision = assert_decides(
        make.evidence(exposure=report),
        make.policy(),
        "INCONCLUSIVE",
        memorization="INCONCLUSIVE",
        assurance="INCONCLUSIVE",
        base_model="PASS",
    )
    (found,) = (c for c in decision.criteria if c.name == "memorization")
    assert "unlike the others" in found.reason
    assert "setting to missed" in found.what_would_change_it
    # the twin takes their ranks for uniform
    monkeypatch.setattr(leakage, "_unlike_others", lambda *_: [])
    assert decide(make.evidence(exposure=report), make.policy()).outcome == "BLOCK"


def test_decide_late_canaries_that_redaction_chose_hide_no_leak(make, monkeypatch):
    """All trained on come late to the base, and 2 bits earlier to the model."""
    late = [10**6 - 3 * 10**3 * i for i in range(60)]
    other = [8001 + 16 * 10**3 * i for i in range(60)]
    report = trained_on(
        make, [1] * 60 + [0] * 60, planted=[r // 4 for r in late] + other
    )
    base = make.canaries([*late, *other], planted=True)
    held_out = [c for c in report.base_canaries if not c.planted]
    report = report.model_copy(update={"base_canaries": (*base, *held_out)})
    given = make.evidence(exposure=report), make.policy(assurance_bound_bits=4.0)
    assert_decides(*given, "INCONCLUSIVE", assurance="INCONCLUSIVE")
    monkeypatch.setattr(leakage, "_unlike_others", lambda *_: [])
    assert_decides(*given, "PASS")


def test_decide_leak_is_not_hidden_by_canaries_that_were_not_trained_on(make):
    """Those that were leak 4 bits each; the mean over all is that of no leak."""
    ranks = [max(1, rank // 6) for rank in make.even_ranks(50)]
    ranks += [10**6 - i for i in range(60)]
    report = trained_on(make, [1] * 50 + [0] * 60, planted=ranks)
    assert_decides(
        make.evidence(exposure=report),
        make.policy(),
        "BLOCK",
        memorization="BLOCK",
    )


def test_decide_secret_that_is_known_leaks_whatever_is_said_of_its_training(make):
    ranks = make.even_ranks(60)
    ranks[5] = 1
    report = trained_on(make, [0] * 60, planted=ranks)
    assert_decides(
        make.evidence(exposure=report), make.policy(), "BLOCK", memorization="BLOCK"
    )


def test_decide_space_in_which_one_known_canary_is_no_leak_is_inconclusive(make):
    """60 of 10,000: rank 1 has a corrected p-value of .006, which blocks nothing."""
    evidence = make.evidence(exposure=make.exposure())
    for level, verdict in ((0.01, "PASS"), (1e-4, "INCONCLUSIVE")):
        policy = make.policy(memorization_level=level)
        assert_decides(evidence, policy, verdict, assurance=verdict)


def test_decide_declared_missing_rate_is_a_switch_that_is_off(make, monkeypatch):
    claims = (
        make.claim(
            notion="selective",
            relation="replace_one",
            status="conditional",
            missing_rate=0.0,
            missing_rate_upper=0.0001,
        ),
    )
    policy = make.policy(
        notion="selective", accepted_statuses=("certified", "conditional")
    )
    for changes, verdict in (
        ({"missing_rate_origin": "review", "missing_rate_texts": 400}, "PASS"),
        ({"missing_rate_origin": "gold"}, "PASS"),
        ({"missing_rate_origin": "gold", "missing_rate_texts": 0}, "INCONCLUSIVE"),
        ({"missing_rate_origin": "declared"}, "INCONCLUSIVE"),
        ({"missing_rate_origin": ""}, "INCONCLUSIVE"),
    ):
        evidence = make.evidence(
            claims=claims,
            dataset_budget=make.budget(notion="selective"),
            detection=make.detection(**changes),
        )
        assert_decides(evidence, policy, verdict, claim_status=verdict)
        asked = policy.model_copy(update={"accept_declared_missing_rate": True})
        assert_decides(evidence, asked, "PASS", claim_status="PASS")
    monkeypatch.setattr("dptune.gates.claims._is_measured", lambda _: True)
    assert decide(evidence, policy).outcome == "PASS", "the twin takes any word"
