"""The plan's claim: E Gaussians of sensitivity 2C, without amplification."""

import math

import pytest
from scipy.stats import norm

from dptune.accounting.accountants import epsilon
from dptune.errors import ConfigError
from dptune.local.plan import ForwardPlan
from dptune.privacy import NeighboringRelation

REPLACE = NeighboringRelation.REPLACE_ONE
DELTA = 1e-5


def plan(*sigmas, **changes):
    values = {"max_norm": 2.0, "num_users": 10, "batch_size": 4} | changes
    return ForwardPlan(noise_multipliers=sigmas, **values)


def delta_of(mu, e):
    return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)


@pytest.mark.parametrize("sigmas", [(2.0,), (2.0, 2.0, 2.0), (4.0, 3.0, 2.0)])
def test_event_costs_what_one_gaussian_of_the_composed_mu_costs(sigmas):
    found = epsilon(plan(*sigmas).dp_event(len(sigmas)), delta=DELTA, relation=REPLACE)
    mu = 2 * math.sqrt(sum(1 / s**2 for s in sigmas))
    assert delta_of(mu, found) <= DELTA * 1.001
    assert delta_of(mu, found * 0.995) > DELTA


def test_sensitivity_of_c_instead_of_2c_is_caught():
    found = epsilon(plan(2.0).dp_event(1), delta=DELTA, relation=REPLACE)
    assert delta_of(1 / 2.0, found * 0.995) < DELTA  # broken: mu = C / sigma
    assert plan(2.0).sensitivity(REPLACE) == 4.0


def test_more_participations_than_planned_have_no_guarantee():
    event = plan(2.0, 2.0).dp_event(3)
    assert epsilon(event, delta=DELTA, relation=REPLACE) == math.inf


def test_blocks_add_up_to_the_stage():
    made = plan(3.0, 2.0, 1.0)
    assert made.noise_stddev(step=1) == 4.0
    assert (
        [e.noise_multiplier for e in made.dp_event(3).events]
        == [
            e.noise_multiplier
            for step in range(3)
            for e in made.dp_event(1, first_step=step).events
        ]
        == [3.0, 2.0, 1.0]
    )


def test_other_relations_have_no_sensitivity():
    with pytest.raises(ConfigError, match="replace_one"):
        plan(1.0).sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize(
    ("sigmas", "changes"),
    [
        ((), {}),
        ((0.0,), {}),
        ((math.inf,), {}),
        ((1.0,), {"max_norm": 0.0}),
        ((1.0,), {"max_norm": 1e-43}),
        ((1.0,), {"num_users": 0}),
        ((1.0,), {"batch_size": 0}),
    ],
)
def test_impossible_plans_are_refused(sigmas, changes):
    with pytest.raises(ConfigError):
        plan(*sigmas, **changes)
