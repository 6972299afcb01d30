"""Epsilon so far is never too small, and cheap."""

import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import merge_events
from dptune.accounting.progress import epsilon_curve
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def steps(count=1, noise=1.0):
    return poisson_gaussian_event(
        sample_rate=0.05, noise_multiplier=noise, num_steps=count
    )


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_epsilon_curve_is_an_upper_bound_and_exact_at_its_points(relation):
    curve = epsilon_curve(steps(), 200, 1e-5, relation)
    assert curve.steps[0] == 0
    assert curve.steps[-1] == 200
    assert curve.epsilons[0] == 0.0
    assert list(curve.epsilons) == sorted(curve.epsilons)
    for count in (1, 2, 17, 63, 150, 200):
        exact = epsilon(steps(count), delta=1e-5, relation=relation)
        assert curve.at(count) >= exact * (1 - 1e-12)
    final = epsilon(steps(200), delta=1e-5, relation=relation)
    assert curve.at(200) == pytest.approx(final)


def test_epsilon_curve_starts_from_what_was_spent():
    curve = epsilon_curve(steps(), 50, 1e-5, ADD, prior=steps(100, 2.0))
    assert curve.at(0) == epsilon(steps(100, 2.0), delta=1e-5, relation=ADD)
    both = merge_events([steps(100, 2.0), steps(50)])
    assert curve.at(50) == epsilon(both, delta=1e-5, relation=ADD)


def test_epsilon_curve_schedule_has_an_event_for_each_step():
    schedule = [steps(noise=1.0)] * 10 + [steps(noise=2.0)] * 10
    curve = epsilon_curve(schedule, 20, 1e-5, ADD, points=4)
    exact = epsilon(merge_events([steps(10), steps(10, 2.0)]), delta=1e-5, relation=ADD)
    assert curve.at(20) == exact
    with pytest.raises(ConfigError, match="one event for each step"):
        epsilon_curve(schedule, 21, 1e-5, ADD)


@pytest.mark.parametrize("step", [-1, 51])
def test_epsilon_curve_beyond_the_plan_is_refused(step):
    with pytest.raises(ConfigError, match="step"):
        epsilon_curve(steps(), 50, 1e-5, ADD, points=3).at(step)


@pytest.mark.parametrize(("count", "points"), [(-1, 5), (10, 0)])
def test_epsilon_curve_bad_sizes_are_refused(count, points):
    with pytest.raises(ConfigError, match="steps"):
        epsilon_curve(steps(), count, 1e-5, ADD, points=points)


def test_epsilon_curve_of_nothing_is_zero():
    assert epsilon_curve(steps(), 0, 1e-5, ADD).at(0) == 0.0
