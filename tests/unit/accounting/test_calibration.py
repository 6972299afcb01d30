"""Calibrate, account again, and land just below the target."""

import dp_accounting as dpa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dptune.accounting.accountants import epsilon
from dptune.accounting.calibration import calibrate_noise_multiplier
from dptune.accounting.events import merge_events
from dptune.errors import InfeasibleBudgetError
from dptune.privacy import NeighboringRelation, PrivacyBudget
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def plan(rate=0.05, count=100):
    return lambda noise: poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=count
    )


def budget(epsilon=2.0, delta=1e-5):
    return PrivacyBudget(target_epsilon=epsilon, target_delta=delta)


@settings(derandomize=True, deadline=None, max_examples=12)
@given(
    target=st.floats(0.05, 12),
    delta=st.sampled_from([1e-3, 1e-5, 1e-7]),
    rate=st.floats(0.005, 1.0),
    count=st.integers(1, 500),
    relation=st.sampled_from([ADD, REPLACE]),
)
def test_calibrate_then_account_is_within_one_percent_and_never_above(
    target, delta, rate, count, relation
):
    make_event = plan(rate, count)
    noise = calibrate_noise_multiplier(
        make_event, budget=budget(target, delta), relation=relation
    )
    spent = epsilon(make_event(noise), delta=delta, relation=relation)
    assert spent <= target
    assume(noise > 0.1)
    assert spent >= 0.99 * target


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_calibrate_prior_is_paid_from_the_same_budget(relation):
    prior = plan(0.02, 300)(1.5)
    noise = calibrate_noise_multiplier(
        plan(), budget=budget(4.0), relation=relation, prior=prior
    )
    both = merge_events([prior, plan()(noise)])
    assert 0.99 * 4.0 <= epsilon(both, delta=1e-5, relation=relation) <= 4.0
    assert noise > calibrate_noise_multiplier(
        plan(), budget=budget(4.0), relation=relation
    )


def test_calibrate_replace_needs_more_noise_than_add_or_remove():
    """The broken twin: calibrated for add/remove, claimed for replace."""
    twin = calibrate_noise_multiplier(plan(), budget=budget(), relation=ADD)
    assert epsilon(plan()(twin), delta=1e-5, relation=REPLACE) > 2.0 * 1.2


def test_calibrate_result_is_paid_for_by_blocks_alike():
    noise = calibrate_noise_multiplier(plan(), budget=budget(), relation=ADD)
    blocks = [plan(count=size)(noise) for size in (30, 30, 40)]
    assert epsilon(merge_events(blocks), delta=1e-5, relation=ADD) <= 2.0


def test_calibrate_several_stages_share_one_multiplier():
    def make_event(noise):
        return dpa.ComposedDpEvent([plan(0.05, 100)(noise), plan(0.1, 50)(noise)])

    noise = calibrate_noise_multiplier(make_event, budget=budget(), relation=ADD)
    assert 1.98 <= epsilon(make_event(noise), delta=1e-5, relation=ADD) <= 2.0


def test_calibrate_spent_budget_says_the_best_possible():
    prior = plan(0.02, 1000)(1.37)
    with pytest.raises(InfeasibleBudgetError) as caught:
        calibrate_noise_multiplier(
            plan(), budget=budget(2.0, 1e-6), relation=ADD, prior=prior
        )
    assert "at least 2.57" in str(caught.value)
    assert "larger epsilon" in str(caught.value)
    best = float(str(caught.value).split("at least ")[1].split(",")[0])
    noise = calibrate_noise_multiplier(
        plan(), budget=budget(best, 1e-6), relation=ADD, prior=prior
    )
    assert noise > 1


@pytest.mark.parametrize(
    "make_event",
    [
        lambda _: dpa.NonPrivateDpEvent(),
        lambda noise: dpa.ComposedDpEvent([plan()(noise), dpa.NonPrivateDpEvent()]),
    ],
)
def test_calibrate_stage_without_noise_says_so(make_event):
    with pytest.raises(InfeasibleBudgetError, match="trains without noise"):
        calibrate_noise_multiplier(make_event, budget=budget(), relation=ADD)


def test_calibrate_noise_that_does_nothing_is_infeasible():
    with pytest.raises(InfeasibleBudgetError, match="best possible"):
        calibrate_noise_multiplier(lambda _: plan()(0.7), budget=budget(), relation=ADD)


def test_calibrate_free_plan_gets_the_least_noise():
    noise = calibrate_noise_multiplier(
        lambda _: dpa.NoOpDpEvent(), budget=budget(), relation=ADD
    )
    assert noise == pytest.approx(0.1)


def test_calibrate_jumping_cost_stays_on_the_safe_side():
    def make_event(noise):
        return plan()(3.0) if noise >= 1.7 else plan()(0.5)

    noise = calibrate_noise_multiplier(make_event, budget=budget(), relation=ADD)
    assert noise >= 1.7
