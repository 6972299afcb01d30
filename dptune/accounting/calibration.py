"""Calibration: how much noise a budget asks for, before anything is trained."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dp_accounting import DpEvent

from dptune.accounting.accountants import AGREEMENT, epsilon
from dptune.accounting.events import merge_events
from dptune.errors import InfeasibleBudgetError
from dptune.privacy import NeighboringRelation, PrivacyBudget

_LEAST_SHARE: Final = 0.99
_AIM: Final = 0.996
_LEAST_NOISE: Final = 0.1
_MOST_NOISE: Final = 2.0**14
_SETTLED: Final = 1e-3
_MAX_STEPS: Final = 60


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A noise multiplier and what it costs."""

    noise: float
    epsilon: float


def calibrate_noise_multiplier(
    make_event: Callable[[float], DpEvent],
    *,
    budget: PrivacyBudget,
    relation: NeighboringRelation,
    prior: DpEvent | None = None,
) -> float:
    """Find the noise multiplier that spends a budget, and never more.

    **Formal guarantee**: the epsilon of `prior` and `make_event(result)` composed, as
    `epsilon` computes it, is at most 99.8 % of the target, so that a certificate, whose
    published figure may be 0.2 % larger, does not exceed it; and at least 99 %, unless
    `_LEAST_NOISE` already costs less.

    Args:
        make_event: event of the planned run for a noise multiplier; its epsilon falls
            as the noise multiplier rises.
        budget: target epsilon and delta of prior and plan together.
        relation: neighboring relation of the claim.
        prior: what was already spent on the same data.

    Returns:
        A noise multiplier of at least 0.1: less gives no useful guarantee and saves
        no utility worth having.

    Raises:
        InfeasibleBudgetError: no noise is enough; the message gives the best epsilon.
        UnsupportedEventError: an event that the accountant does not know.

    >>> import dp_accounting
    >>> def thousand_steps(noise_multiplier):
    ...     gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    ...     step = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    ...     return dp_accounting.SelfComposedDpEvent(step, 1000)
    >>> found = calibrate_noise_multiplier(
    ...     thousand_steps,
    ...     budget=PrivacyBudget(target_epsilon=3.0, target_delta=1e-5),
    ...     relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    ... )
    >>> round(found, 2)
    0.81
    """

    def cost(noise_multiplier: float) -> float:
        events = [make_event(noise_multiplier)]
        if prior is not None:
            events.append(prior)
        return epsilon(
            merge_events(events), delta=budget.target_delta, relation=relation
        )

    return find_noise_multiplier(cost, budget.target_epsilon, spare=AGREEMENT)


def find_noise_multiplier(
    cost: Callable[[float], float], target: float, *, spare: float = 0.0
) -> float:
    """Find the noise multiplier whose cost is 99 % to 100 % of the target.

    Args:
        cost: epsilon of a noise multiplier; it falls as the multiplier rises.
        target: epsilon, above 0.
        spare: fraction of the target that is left, below 1 %.

    Raises:
        InfeasibleBudgetError: no noise is enough; the message gives the best epsilon.
    """
    most = (1 - spare) * target
    low, high = _bracket(cost, most)
    for step in range(_MAX_STEPS):
        if high.epsilon >= _LEAST_SHARE * target or low.noise >= high.noise:
            break
        share = 0.5 if step % 4 == 3 else _interpolate(low, high, _AIM * target)
        noise = low.noise * (high.noise / low.noise) ** share
        here = _at(cost, noise)
        low, high = (here, high) if here.epsilon > most else (low, here)
    return high.noise


def _bracket(cost: Callable[[float], float], target: float) -> tuple[_Point, _Point]:
    """Find two noise multipliers, at most a factor of two apart, around the target."""
    here = _Point(noise=1.0, epsilon=cost(1.0))
    while here.epsilon > target:
        before, here = here, _at(cost, 2 * here.noise)
        hopeless = here.epsilon >= (1 - _SETTLED) * before.epsilon
        if here.epsilon > target and (here.noise >= _MOST_NOISE or hopeless):
            here = _at(cost, _MOST_NOISE)
            if here.epsilon > target:
                raise _infeasible(here, target)
        if here.epsilon <= target:
            return before, here
    while here.noise > _LEAST_NOISE:
        before, here = here, _at(cost, max(here.noise / 2, _LEAST_NOISE))
        if here.epsilon > target:
            return here, before
    return here, here


def _interpolate(low: _Point, high: _Point, aim: float) -> float:
    """Where between two points the aim lies, if both logarithms were on a line.

    They are apart: `low` is above the target, `high` below 99 % of it.
    """
    if not (math.isfinite(low.epsilon) and high.epsilon > 0):
        return 0.5
    fall = math.log(low.epsilon) - math.log(high.epsilon)
    share = (math.log(low.epsilon) - math.log(aim)) / fall
    return min(max(share, 0.02), 0.98)


def _at(cost: Callable[[float], float], noise: float) -> _Point:
    """Ask for the epsilon of one noise multiplier."""
    return _Point(noise=noise, epsilon=cost(noise))


def _infeasible(best: _Point, target: float) -> InfeasibleBudgetError:
    """Say what is possible instead."""
    if math.isinf(best.epsilon):
        return InfeasibleBudgetError(
            f"target_epsilon must be reachable, got target_epsilon={target:g}: a part "
            "of the plan, or of what was spent before, trains without noise, so "
            "epsilon is infinite. Give that stage noise, or claim another notion."
        )
    return InfeasibleBudgetError(
        f"target_epsilon must be at least {1.003 * best.epsilon:.4g}, got "
        f"target_epsilon={target:g}: that is about the best possible, even at "
        f"noise_multiplier={best.noise:g}. Ask for a larger epsilon or delta, spend "
        "fewer steps, use a smaller sample rate, or start from data on which less was "
        "spent."
    )
