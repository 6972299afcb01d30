"""EWPBA: the shape of the list, and what the two bisections aim at."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.errors import ConfigError
from dptune.mechanisms.ewpba import (
    allocate,
    epoch_multipliers,
    epoch_shape,
    sampled_epsilon,
)


def energy(multipliers):
    """A cost in closed form: epsilon of noise of these multipliers, roughly."""
    return 2 * math.sqrt(sum(1 / s**2 for s in multipliers))


def test_six_epochs_rise_by_one_add_and_then_by_s_adds():
    found = epoch_multipliers(last=1.0, center=2.0, num_epochs=6, step_distance=2)
    add = 4 / (5 * 3)
    falls = [a - b for a, b in pairwise(found)]
    assert found[-1] == 1.0
    assert falls == pytest.approx([2 * add, 2 * add, 2 * add, 2 * add, add])


def test_step_distance_one_is_an_even_staircase_around_the_center():
    found = epoch_multipliers(last=1.0, center=2.0, num_epochs=5, step_distance=1)
    assert found == pytest.approx((3.0, 2.5, 2.0, 1.5, 1.0))


@given(
    st.integers(2, 12),
    st.floats(0.5, 4),
    st.floats(2, 20),
)
def test_allocate_falls_and_meets_the_target(num_epochs, step_distance, target):
    found = allocate(
        energy,
        target_epsilon=target,
        num_epochs=num_epochs,
        step_distance=step_distance,
    )
    assert list(found) == sorted(found, reverse=True)
    assert target * 0.999 < energy(found) <= target


def test_allocate_one_epoch_is_the_constant():
    (found,) = allocate(energy, target_epsilon=4.0, num_epochs=1, step_distance=2)
    assert found == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("target", [0.5, 1.0, math.nan])
def test_target_of_one_or_less_has_no_list(target):
    with pytest.raises(ConfigError, match="above 1"):
        allocate(energy, target_epsilon=target, num_epochs=3, step_distance=2)


@pytest.mark.parametrize("target", [0.5, 1.0, 1.0001, 1.01])
def test_shape_of_a_small_target_is_that_of_the_papers_epsilon(target):
    """So little above 1 no multiplier that is tried reaches epsilon - 1."""
    small, paper = (
        epoch_shape(energy, target_epsilon=e, num_epochs=3, step_distance=2)
        for e in (target, 8.0)
    )
    assert small == paper
    assert paper[-1] == 1.0 < paper[0]


def test_target_that_no_noise_reaches_is_refused():
    with pytest.raises(ConfigError, match="no noise multiplier"):
        allocate(lambda _: 99.0, target_epsilon=8, num_epochs=3, step_distance=2)


@pytest.mark.parametrize(
    "changes", [{"num_epochs": 0}, {"step_distance": 0}, {"last": 3.0}, {"last": 0.0}]
)
def test_impossible_lists_are_refused(changes):
    numbers = {"last": 1.0, "center": 2.0, "num_epochs": 3, "step_distance": 2}
    with pytest.raises(ConfigError, match="EWPBA needs"):
        epoch_multipliers(**(numbers | changes))


def test_sampled_epsilon_rises_as_the_noise_falls():
    first, second = (
        sampled_epsilon((s, s), sample_rate=0.01, num_steps=100, delta=1e-5)
        for s in (1.0, 0.8)
    )
    assert first < second
