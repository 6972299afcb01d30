"""Groups: what is left of a guarantee for a secret that sits in several units."""

import functools
import math
from typing import Final

import dp_accounting
from dp_accounting import DpEvent
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from dptune.accounting.accountants import check_delta, epsilon, refine, rounding
from dptune.accounting.events import is_non_private, mechanism_counts, merge_events
from dptune.errors import ConfigError, PrivacyError
from dptune.privacy import NeighboringRelation

_FIRST_INTERVAL: Final = 1e-2
_LEAST_INTERVAL: Final = 1e-4
_SMALLEST_LOG_DELTA: Final = -120.0

_Part = tuple[float, float, int]


def group_epsilon(
    event: DpEvent,
    *,
    group_size: int,
    delta: float,
    relation: NeighboringRelation,
    same_turns: bool = True,
) -> float:
    """Compute the epsilon of a group of k units, such as the copies of one secret.

    **Formal guarantee**, by the first theorem that applies:

    | events | relation | theorem |
    |---|---|---|
    | Gaussian | both | the sum moves by k times as much: noise multiplier / k |
    | Gaussian, Poisson-sampled, `same_turns` | add or remove | j of k units are drawn
      with chance Bin(k, q), a mixture of Gaussians at 0, 1, ..., k dominates |
    | any | both | (e, d)-DP for one is (k e, d (exp(k e) - 1) / (exp(e) - 1))-DP |

    The second leaves it to the third below a delta of about 2e-15 times the number of
    steps, where the rounding of its transforms is felt: at sample rate 1e-4, noise
    multiplier 0.8, 100,000 steps and delta 1e-13 two copies cost 2.15, and it said 1.68
    without that.

    The third is far looser: with sample rate 0.02, noise multiplier 1.37, 1,000 steps
    and delta 1e-6 (epsilon 2.57), ten copies cost 41 by the second and have no finite
    bound by the third.

    Args:
        event: what ran.
        group_size: k >= 1 units: all added, all removed, or each replaced.
        delta: in (0, 1), of the group.
        relation: neighboring relation of one step.
        same_turns: whether each mechanism may draw any unit of the group. Not so under
            cyclic sampling, where the event holds for one unit at a time and units of
            other groups join other steps.

    Returns:
        Infinity where no bound within double precision exists.

    Raises:
        ConfigError: group_size or delta is out of range.

    References:
        Choquette-Choo, Ganesh, Steinke, Thakurta (2024), section 4, arXiv:2310.15526.
        Vadhan (2017), The Complexity of Differential Privacy, Lemma 2.2.

    >>> import dp_accounting
    >>> gaussian = dp_accounting.GaussianDpEvent(4.0)
    >>> relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    >>> one, two = (
    ...     group_epsilon(gaussian, group_size=k, delta=1e-6, relation=relation)
    ...     for k in (1, 2)
    ... )
    >>> round(one, 2), round(two, 2)
    (1.06, 2.25)
    """
    check_delta(delta)
    if isinstance(group_size, bool) or group_size < 1:
        raise ConfigError(f"group_size must be at least 1, got {group_size}.")
    relation = NeighboringRelation(relation)
    if group_size == 1 or is_non_private(event):
        return epsilon(event, delta=delta, relation=relation)
    parts = _gaussian_parts(event)
    if parts is not None and all(rate == 1.0 for rate, _, _ in parts):
        return epsilon(_louder(parts, group_size), delta=delta, relation=relation)
    is_mixture = same_turns and relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    if parts is not None and is_mixture:
        usable = delta - rounding(sum(count for _, _, count in parts))
        if usable >= delta / 2:
            return _mixture_epsilon(tuple(parts), group_size, usable)
    return general_group_epsilon(
        event, group_size=group_size, delta=delta, relation=relation
    )


def general_group_epsilon(
    event: DpEvent, *, group_size: int, delta: float, relation: NeighboringRelation
) -> float:
    """Compute the epsilon of a group from that of one unit alone.

    **Formal guarantee**: the third row of `group_epsilon`'s table, with the largest
    delta of one unit from which the group's delta follows.

    Returns:
        Infinity where no bound within double precision exists.
    """
    check_delta(delta)
    if is_non_private(event):
        return math.inf
    high = low = math.log(delta / group_size)
    while not _group_holds(event, group_size, low, delta, relation):
        high, low = low, low - 2.0
        if low < _SMALLEST_LOG_DELTA:
            return math.inf
    for _ in range(10 if low < high else 0):
        middle = (low + high) / 2
        if _group_holds(event, group_size, middle, delta, relation):
            low = middle
        else:
            high = middle
    return group_size * epsilon(event, delta=math.exp(low), relation=relation)


def _gaussian_parts(event: DpEvent) -> list[_Part] | None:
    """Sample rate, noise multiplier and count of each step, None if others are in."""
    parts: list[_Part] = []
    for mechanism, count in mechanism_counts(event):
        inner, rate = mechanism, 1.0
        if isinstance(mechanism, dp_accounting.PoissonSampledDpEvent):
            inner, rate = mechanism.event, mechanism.sampling_probability
        if not isinstance(inner, dp_accounting.GaussianDpEvent):
            return None
        if rate > 0:
            parts.append((rate, inner.noise_multiplier, count))
    return parts


def _louder(parts: list[_Part], group_size: int) -> DpEvent:
    """Describe Gaussian steps with `group_size` times the sensitivity."""
    return merge_events(
        dp_accounting.SelfComposedDpEvent(
            event=dp_accounting.GaussianDpEvent(noise_multiplier=noise / group_size),
            count=count,
        )
        for _, noise, count in parts
    )


def _mixture_epsilon(parts: tuple[_Part, ...], group_size: int, delta: float) -> float:
    """Compose mixtures of Gaussians on grids that get finer."""

    def on_grid(interval: float) -> float:
        composed = functools.reduce(
            lambda first, second: first.compose(second),
            (_mixture(part, group_size, interval) for part in parts),
        )
        return float(composed.get_epsilon_for_delta(delta))

    if not parts:
        return 0.0
    return refine(on_grid, interval=_FIRST_INTERVAL, floor=_LEAST_INTERVAL).epsilon


def _mixture(
    part: _Part, group_size: int, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Loss distribution of one kind of step for the whole group."""
    rate, noise, count = part
    copies = range(group_size + 1)
    single = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise,
        [float(number) for number in copies],
        [float(stats.binom.pmf(number, group_size, rate)) for number in copies],
        value_discretization_interval=interval,
    )
    return single if count == 1 else single.self_compose(count)


def _group_holds(
    event: DpEvent,
    group_size: int,
    log_delta: float,
    target: float,
    relation: NeighboringRelation,
) -> bool:
    """Whether the group's delta at this delta of one unit is within the target."""
    try:
        single = epsilon(event, delta=math.exp(log_delta), relation=relation)
    except PrivacyError:
        return False
    if not math.isfinite(single):
        return False
    if single == 0.0:
        return log_delta + math.log(group_size) <= math.log(target)
    growth = _log_expm1(group_size * single) - _log_expm1(single)
    return log_delta + growth <= math.log(target)


def _log_expm1(value: float) -> float:
    """Compute ln(exp(value) - 1) without overflow."""
    return value if value > 700 else math.log(math.expm1(value))
