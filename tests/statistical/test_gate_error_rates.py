"""How often the default policy errs, over simulated models of each kind.

Bars: a model that memorizes nothing is BLOCKed in at most 1 % of runs, INVALID in at
most .3 %, and anything but PASS in at most 2 %; one whose canaries leak 2.5 bits on
average, or of which one is known by heart, PASSes in at most 1 %; one whose canaries
leak 4 bits is BLOCKed in at least 95 %. The runs here are few, so that they may exceed
the bars as far as chance does once in 1,000; `benchmarks/gate_errors.py` makes
thousands. Seeds are fixed.
"""

import functools

import numpy as np
import pytest
from scipy import stats

from dptune.gates.null_law import fisher_p_value, uniform_p_value
from tests import gate_runs as runs

NUM_RUNS, NUM_LEAKING, NUM_TESTED = 400, 200, 2000
BARS = {"BLOCK": 0.01, "INVALID": 0.003}


@functools.cache
def clean_draws():
    return runs.clean_draws(NUM_RUNS)


def most(bar, num):
    """Share of the runs that a rate at the bar exceeds once in 1,000."""
    return stats.binom.isf(1e-3, num, bar) / num


@pytest.mark.parametrize("name", ["fewest", "smallest_space"])
def test_clean_models_pass_and_are_hardly_ever_blocked_or_invalid(name):
    shape = runs.SHAPES[name]
    rates, mean = runs.outcomes(shape, runs.Shape.uniform, clean_draws())
    assert mean == pytest.approx(1.44, abs=0.03)
    assert 1 - rates["PASS"] <= most(0.02, NUM_RUNS), rates
    for outcome, bar in BARS.items():
        assert rates.get(outcome, 0.0) <= most(bar, NUM_RUNS), rates


@pytest.mark.parametrize("leak", runs.LEAKS)
def test_models_that_leak_hardly_ever_pass(leak):
    shape = runs.SHAPES["fewest"]
    rates, mean = runs.outcomes(shape, runs.LEAKS[leak], clean_draws()[:NUM_LEAKING])
    assert rates.get("PASS", 0.0) <= most(0.01, NUM_LEAKING), rates
    assert leak == "one_at_rank_1" or mean == pytest.approx(2.5, abs=0.1)


@functools.cache
def clean_p_values():
    """p-values of controls and of base model in clean runs, `(runs, 2)`."""
    generator, shape = np.random.default_rng(3), runs.Shape()
    found = []
    for _ in range(NUM_TESTED):
        controls, base = (shape.uniform(generator).tolist() for _ in range(2))
        found.append(
            (
                uniform_p_value(controls, shape.size),
                fisher_p_value(base, shape.size),
            )
        )
    return np.array(found)


def invalid_share(policy):
    """Share of clean runs that controls or base model make INVALID."""
    levels = policy.control_level, policy.base_level
    return (clean_p_values() <= levels).any(axis=1).mean()


def test_levels_that_make_clean_runs_invalid_leave_room_below_the_bar():
    """At .001 each they are the bar itself: .43 % of 4,000 clean runs were INVALID."""
    names = ("control_level", "base_level", "blind_level")
    assert sum(getattr(runs.POLICY, name) for name in names) <= BARS["INVALID"] / 2


def test_levels_of_one_in_a_hundred_are_caught():
    """The twin tests controls and base at .01 each: 2 % of clean runs are INVALID."""
    bar = most(BARS["INVALID"], NUM_TESTED)
    assert invalid_share(runs.POLICY) <= bar
    levels = {"control_level": 0.01, "base_level": 0.01}
    assert invalid_share(runs.POLICY.model_copy(update=levels)) > bar


def test_policy_of_fifty_canaries_at_one_in_twenty_is_caught(monkeypatch):
    """The twin lets one in twenty models pass whose canaries leak 2.5 bits."""
    broken = runs.POLICY.model_copy(
        update={"min_canaries": 50, "assurance_level": 0.05}
    )
    monkeypatch.setattr(runs, "POLICY", broken)
    leak = runs.LEAKS["exponential_2.5_bits"]
    rates, _ = runs.outcomes(runs.Shape(num=50), leak, clean_draws()[:NUM_LEAKING])
    assert rates["PASS"] > most(0.01, NUM_LEAKING), rates


@pytest.mark.parametrize(
    "draw",
    [
        lambda shape, generator: runs.shifted_ranks(shape, generator, 1.316),
        lambda shape, generator: runs.mixed_ranks(shape, generator, 0.138),
    ],
    ids=["all_a_little", "few_outright"],
)
def test_models_that_leak_four_bits_are_blocked(draw):
    rates, mean = runs.outcomes(runs.Shape(), draw, clean_draws()[:NUM_LEAKING])
    assert mean == pytest.approx(4.0, abs=0.1)
    assert rates["BLOCK"] >= 0.95, rates


def test_models_whose_members_are_found_are_blocked():
    generator = np.random.default_rng(2)
    draws = [runs.drawn(generator, 1.0) for _ in range(100)]
    rates, _ = runs.outcomes(runs.Shape(), runs.Shape.uniform, draws)
    assert rates["BLOCK"] >= 0.95, rates
