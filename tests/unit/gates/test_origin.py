"""Evidence is what was written down, its age is real, and every attempt is counted."""

import math
from datetime import timedelta

import pytest
from scipy import stats

from dptune.gates.decision import decide
from dptune.gates.evidence import Evidence
from dptune.gates.null_law import mean_exposure_bounds


def verdict(decision, name):
    (found,) = (c for c in decision.criteria if c.name == name)
    return found


def decided(make, **changes):
    policy = changes.pop("policy", make.policy())
    return decide(make.evidence(**changes), policy)


def test_evidence_of_unknown_origin_never_passes(make):
    decision = decided(make, origin=None)
    assert decision.outcome == "INCONCLUSIVE"
    assert verdict(decision, "evidence_origin").verdict == "INCONCLUSIVE"


def test_every_fault_of_the_origin_is_named_and_invalid(make):
    origin = make.origin(faults=("The claims do not follow.", "It was edited."))
    decision = decided(make, origin=origin)
    assert decision.outcome == "INVALID"
    assert "edited" in verdict(decision, "evidence_origin").reason


def test_signature_that_nobody_checked_is_said_to_be_so(make):
    origin = make.origin(is_verified=False, signer="unsigned")
    decision = decided(make, origin=origin)
    assert decision.outcome == "PASS"
    assert "unsigned" in verdict(decision, "evidence_origin").reason
    assert decision.dossier_digest == origin.digest


# attempts


def test_attempts_that_nobody_counted_are_inconclusive(make):
    assert decided(make, attempts=None).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("evaluations", "outcome"), [(1, "PASS"), (4, "PASS"), (5, "BLOCK")]
)
def test_policy_limits_evaluations(make, evaluations, outcome):
    decision = decided(
        make,
        attempts=make.attempts(evaluations),
        policy=make.policy(max_evaluations=4, assurance_bound_bits=9.0),
    )
    shown = verdict(decision, "attempts")
    assert shown.verdict == outcome
    assert (shown.measured, shown.threshold) == (evaluations, 4.0)
    assert decision.outcome == outcome
    assert f"{evaluations} evaluation" in verdict(decision, "attempts").reason


def one_in_twenty(make):
    return make.policy(assurance_level=0.05)


def bounds(make, looks, **changes):
    decision = decided(make, attempts=make.attempts(looks), **changes)
    names = ("assurance", "membership", "utility")
    return {name: verdict(decision, name) for name in names}


def test_bounds_of_a_pass_widen_with_every_evaluation(make):
    losses = tuple(20.0 + math.sin(i) for i in range(100))
    mean = sum(losses) / 1000
    noisy = make.utility(
        record_nll=losses, nll_per_token=mean, perplexity=math.exp(mean)
    )
    found = [bounds(make, looks, utility=noisy) for looks in (1, 2, 10, 100)]
    for name in ("assurance", "utility"):
        measured = [one[name].measured for one in found]
        assert measured == sorted(measured)
        assert measured[0] < measured[-1]
    told = [one["membership"].reason for one in found]
    assert len(set(told)) == len(told)


def test_model_at_the_limit_that_passes_once_does_not_after_fifty(make):
    ranks = [max(1, int(r / 1.35)) for r in make.even_ranks(60)]
    outcomes = [
        bounds(
            make,
            looks,
            exposure=make.exposure(planted=ranks),
            policy=one_in_twenty(make),
        )["assurance"].verdict
        for looks in (1, 50)
    ]
    assert outcomes == ["PASS", "INCONCLUSIVE"]


def test_membership_at_the_limit_is_inconclusive_after_many(make):
    near = make.membership(signals=(make.signal("combined", tpr=0.075),))
    found = [bounds(make, looks, membership=near)["membership"] for looks in (1, 100)]
    assert [one.verdict for one in found] == ["PASS", "INCONCLUSIVE"]


@pytest.mark.parametrize("looks", [1, 2, 50, 10_000])
def test_leak_is_blocked_however_often_was_tried(make, looks):
    attempts = make.attempts(looks)
    leaks = {
        "exposure": make.exposure(planted=[1 + 20 * i for i in range(60)]),
        "membership": make.membership(signals=(make.signal("combined", tpr=0.4),)),
        "audits": (make.audit(epsilon_lower_bound=4.5, capacity=5.0),),
    }
    for name, value in leaks.items():
        decision = decided(make, attempts=attempts, **{name: value})
        assert decision.outcome == "BLOCK", name


def test_correction_holds_over_the_best_of_many_and_its_twin_does_not(make):
    """Twenty models that leak 2.5 bits each, and the luckiest is shown to the gate."""
    policy, num, models = one_in_twenty(make), 60, 20

    def unearned(level):
        bound = mean_exposure_bounds(1.0, num, level=level)[1]
        alone = stats.gamma.cdf(
            policy.assurance_bound_bits / bound, num, scale=2.5 / num
        )
        return 1 - (1 - alone) ** models

    assert unearned(policy.assurance_level / models) <= policy.assurance_level
    assert unearned(policy.assurance_level) > 0.5  # the twin that corrects nothing


def test_twin_that_counts_no_attempts_passes_the_lucky_one(make, monkeypatch):
    ranks = [max(1, int(r / 1.35)) for r in make.even_ranks(60)]
    changes = {
        "exposure": make.exposure(planted=ranks),
        "attempts": make.attempts(50),
        "policy": one_in_twenty(make),
    }
    assert decided(make, **changes).outcome == "INCONCLUSIVE"
    monkeypatch.setattr(Evidence, "num_looks", 1)
    assert decided(make, **changes).outcome == "PASS"


# the first version


@pytest.mark.parametrize(
    ("base", "outcome"), [(25.0, "PASS"), (24.0, "PASS"), (22.0, "BLOCK")]
)
def test_first_version_is_compared_with_its_base(make, base, outcome):
    """The model has 22.98 nats a record, over ten tokens."""
    report = make.utility(
        base_record_nll=(base,) * 100, base_perplexity=math.exp(base / 10)
    )
    decision = decided(make, utility=report)
    assert decision.outcome == outcome
    assert "base model" in verdict(decision, "utility").reason


def test_champion_takes_the_place_of_the_base(make):
    worse = make.utility(base_record_nll=(1.0,) * 100, base_perplexity=math.exp(0.1))
    champion = make.utility(model_digest="old")
    decision = decided(
        make, utility=worse, champion_digest="old", champion_utility=champion
    )
    assert decision.outcome == "PASS"


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"base_record_nll": ()}, "INCONCLUSIVE"),
        ({"base_record_nll": (25.0,) * 99}, "INVALID"),
        ({"base_record_nll": (math.inf, *(25.0,) * 99)}, "INVALID"),
        ({"base_record_nll": (90.0,) * 100}, "INVALID"),  # another perplexity
    ],
)
def test_base_losses_that_say_nothing_never_pass(make, changes, outcome):
    assert decided(make, utility=make.utility(**changes)).outcome == outcome


# age


@pytest.mark.parametrize("part", ["exposure", "membership", "utility"])
def test_age_is_that_of_the_oldest_attack(make, part):
    built = getattr(make, part)()
    old = built.model_copy(update={"measured_at": make.now - timedelta(days=181)})
    decision = decided(make, **{part: old})
    assert verdict(decision, "evidence_age").verdict == "INCONCLUSIVE"
    unknown = built.model_copy(update={"measured_at": None})
    decision = decided(make, **{part: unknown})
    assert verdict(decision, "evidence_age").verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(("minutes", "outcome"), [(4, "PASS"), (6, "INVALID")])
def test_evidence_from_the_future_is_invalid_beyond_what_clocks_differ(
    make, minutes, outcome
):
    later = make.now + timedelta(minutes=minutes)
    report = make.exposure(measured_at=later)
    assert decided(make, exposure=report).outcome == outcome
