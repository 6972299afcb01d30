"""A wide interval of ranks never buys a verdict that the ranks would not get."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.gates.decision import decide
from dptune.results import Interval

from .conftest import SIZE

BITS = math.log2(SIZE)


def with_interval(canary, near, far, *, confidence=0.9999):
    """The canary, known to be somewhere between two ranks."""
    high, low = BITS - math.log2(near), BITS - math.log2(far)
    return canary.model_copy(
        update={
            "method": "interval",
            "rank": near,
            "exposure": high,
            "exposure_interval": Interval(low=low, high=high, confidence=confidence),
        }
    )


def blurred(report, widths):
    """The same ranks, each somewhere in an interval around it."""
    draw = np.random.default_rng(1)

    def around(canaries, width):
        found = []
        for canary in canaries:
            reach = draw.random(2) * width * SIZE
            near, far = canary.rank - int(reach[0]), canary.rank + int(reach[1])
            found.append(with_interval(canary, max(1, near), min(SIZE, far)))
        return tuple(found)

    ours, base = widths
    return report.model_copy(
        update={
            "exact": False,
            "canaries": around(report.canaries, ours),
            "base_canaries": around(report.base_canaries, base),
        }
    )


def at_far_ends(report):
    """What a gate would see that believes the end that suits the model."""

    def far(canary):
        rank = report.farthest_rank(canary)
        exposure = BITS - math.log2(rank)
        update = {"rank": rank, "exposure": exposure, "method": "exact"}
        return canary.model_copy(update={**update, "exposure_interval": None})

    return report.model_copy(
        update={
            "exact": True,
            "canaries": tuple(map(far, report.canaries)),
            "base_canaries": tuple(map(far, report.base_canaries)),
        }
    )


def verdicts(make, report):
    decision = decide(make.evidence(exposure=report), make.policy(min_canaries=60))
    names = ("memorization", "assurance", "controls", "base_model")
    names += ("claim_contradiction",)
    return {c.name: c.verdict for c in decision.criteria if c.name in names}


def ranks(power, seed):
    """Ranks of canaries that leak more or less, or too little for chance."""
    shares = np.random.default_rng(seed).random(60) ** power
    return np.maximum(1, np.ceil(shares * SIZE)).astype(int)


def bought(make, exact, widths, judge=lambda report: report):
    """Criteria that pass by intervals and would not by the ranks within them."""
    truth, found = verdicts(make, exact), verdicts(make, judge(blurred(exact, widths)))
    return {n for n, v in found.items() if v == "PASS" and truth[n] != "PASS"}


POWERS = st.sampled_from([0.3, 0.8, 1.0, 1.3, 1.8, 2.5])
WIDTHS = st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])


@settings(max_examples=25, deadline=None)
@given(
    powers=st.tuples(POWERS, POWERS),
    widths=st.tuples(WIDTHS, WIDTHS),
    seed=st.integers(0, 10**6),
)
def test_interval_passes_only_what_every_rank_in_it_passes(make, powers, widths, seed):
    exact = make.exposure(*(ranks(p, seed + k) for k, p in enumerate(powers)))
    assert bought(make, exact, widths) == set()


def test_gate_that_takes_far_ends_is_caught(make):
    exact = make.exposure(ranks(2.5, 1), ranks(2.5, 2))
    found = bought(make, exact, (0.3, 0.3), at_far_ends)
    assert found >= {"memorization", "assurance"}
    assert bought(make, exact, (0.3, 0.3)) == set()


def test_narrow_intervals_of_a_clean_model_pass(make):
    report = blurred(make.exposure(), (0.005, 0.005))
    assert decide(make.evidence(exposure=report), make.policy()).outcome == "PASS"


@pytest.mark.parametrize("group", ["canaries", "base_canaries"])
def test_whole_space_as_interval_never_passes(make, group):
    report = make.exposure()
    wide = tuple(with_interval(c, 1, SIZE) for c in getattr(report, group))
    report = report.model_copy(update={"exact": False, group: wide})
    outcome = decide(make.evidence(exposure=report), make.policy()).outcome
    assert outcome in {"BLOCK", "INCONCLUSIVE"}


def test_controls_that_no_rank_in_the_intervals_saves_are_invalid(make):
    report = make.exposure(held_out=np.arange(1, 61) * 1000)
    found = verdicts(make, blurred(report, (0.05, 0.05)))
    assert found["controls"] == "INVALID"
    assert verdicts(make, blurred(report, (1.0, 1.0)))["controls"] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "changes",
    [
        {"exposure_interval": None},
        {"exposure_interval": Interval(low=0.0, high=0.5, confidence=0.9999)},
        {"exposure_interval": Interval(low=-1.0, high=1.0, confidence=0.9999)},
        {"exposure_interval": Interval(low=2.0, high=1.0, confidence=0.9999)},
        {"exposure_interval": Interval(low=math.nan, high=1.0, confidence=0.9999)},
        {"exposure_interval": Interval(low=0.5, high=1.0, confidence=0.5)},
    ],
)
def test_interval_that_does_not_stand_for_its_rank_is_invalid(changes, make):
    report = blurred(make.exposure(), (0.005, 0.005))
    first = with_interval(report.canaries[0], SIZE // 2, SIZE).model_copy(
        update=changes
    )
    report = report.model_copy(update={"canaries": (first, *report.canaries[1:])})
    decision = decide(make.evidence(exposure=report), make.policy())
    assert decision.outcome == "INVALID"


def test_doubt_of_intervals_is_taken_from_the_level_of_assurance(make):
    report = blurred(make.exposure(), (0.0, 0.0))

    def interval(found):
        (one,) = [c for c in found.criteria if c.name == "assurance"]
        return one

    exact = interval(decide(make.evidence(), make.policy()))
    with_doubt = interval(decide(make.evidence(exposure=report), make.policy()))
    assert with_doubt.measured > exact.measured
    policy = make.policy(assurance_level=0.0001)
    little = interval(decide(make.evidence(exposure=report), policy))
    assert little.verdict == "INCONCLUSIVE"
