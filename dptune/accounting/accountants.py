"""Accountants: from an event, a delta and a relation to an epsilon.

The accountant of record is the pessimistic privacy loss distribution (PLD). Two others
give a second opinion, since one program cannot check itself:

| accountant | relation | is |
|---|---|---|
| `PLD` | both | an upper bound, tight to about 0.1 % |
| `RDP` | add or remove only | an upper bound, looser; refuses `replace_one` |
| `QUADRATURE` | both, Gaussian mechanisms | an estimate, exact to about 0.01 % |

| event | PLD | RDP | quadrature |
|---|---|---|---|
| `gaussian`, alone or Poisson-sampled | both | add or remove | both |
| `truncated_subsampled_gaussian` | both | refused: it has no formula for it | both |
| `laplace`, alone or Poisson-sampled | add or remove | alone, add or remove | refused |
| `renyi_filter` | its own relation | refused | refused |

The quadrature integrates Gaussian pairs; Laplace has kinks and atoms. RDP could add up
a filter's limit at one order, and come out below PLD, which knows the whole profile:
neither would be wrong, so it could confirm nothing. PLD refuses Laplace under replace,
since the L1 sensitivity doubles there and the event does not say whose it was.

Under add or remove, truncated batches are accounted for a data set that may lose a unit
and for one that may gain one, and the larger epsilon counts.

So on every certificate RDP must not be smaller than PLD, and the quadrature must not be
larger. An epsilon under one relation says nothing under the other: with sample rate
0.02, noise multiplier 1.37, 1,000 steps and delta 1e-6, it is 2.57 for add/remove and
4.56 for replace.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, rdp
from numpy.typing import NDArray

from dptune import __version__
from dptune.accounting.composition import composed_epsilon, composition_levels
from dptune.accounting.events import (
    event_from_json,
    event_to_json,
    is_non_private,
    mechanism_counts,
    merge_events,
    with_one_more_unit,
)
from dptune.accounting.pairs import interval_floor, typical_loss
from dptune.accounting.quadrature import QuadratureError, quadrature_epsilon
from dptune.errors import ConfigError, PrivacyError, UnsupportedEventError
from dptune.privacy import NeighboringRelation

_COARSEST: Final = 5e-3
_COARSEST_SHARE: Final = 1e-4
_ACCURACY: Final = 1e-3
_NEGLIGIBLE: Final = 1e-6
_MAX_REFINEMENTS: Final = 6
_FLOAT_ERROR: Final = 1e-15
_NOTICEABLE: Final = 1e-2
_AGREEMENT: Final = 2e-3
_RDP_ORDERS: Final = tuple(rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)


class Accountant(StrEnum):
    """A way to turn an event into an epsilon."""

    PLD = "pld"
    RDP = "rdp"
    QUADRATURE = "quadrature"


@dataclass(frozen=True, kw_only=True)
class CrossCheck:
    """Two accountants on one event.

    Args:
        epsilon: of the accountant of record.
        second_epsilon: of the other one; None where none could give an opinion.
        second_method: the other accountant, or why there is none.
    """

    epsilon: float
    second_epsilon: float | None
    second_method: str


def epsilon(
    event: DpEvent,
    *,
    delta: float,
    relation: NeighboringRelation,
    accountant: Accountant | str = Accountant.PLD,
) -> float:
    """Compute the epsilon of an event.

    **Formal guarantee** (PLD, RDP): a mechanism described by `event` is
    (epsilon, delta)-DP under `relation`, also when each mechanism was chosen
    adaptively among those with the same event.

    | event | epsilon |
    |---|---|
    | nothing, `no_op`, sample rate 0 | 0 |
    | `non_private`, noise multiplier 0 | infinity |
    | above about 700, where exp(epsilon) overflows | that, or infinity |
    | unknown mechanism | refused |

    Args:
        event: what ran; equal histories in any order give the same answer.
        delta: in (0, 1).
        relation: neighboring relation.
        accountant: PLD unless a second opinion is wanted.

    Raises:
        ConfigError: delta is out of range.
        UnsupportedEventError: the accountant does not know a sub-event (named), or
            does not know it under this relation.
        PrivacyError: delta is too small for double precision.
    """
    check_delta(delta)
    return _epsilon(
        event_to_json(merge_events([event])),
        float(delta),
        NeighboringRelation(relation),
        Accountant(accountant),
    )


def cross_check(
    event: DpEvent, *, delta: float, relation: NeighboringRelation
) -> CrossCheck:
    """Compute epsilon and a second opinion, and refuse to go on if they disagree.

    Add or remove: RDP, or the quadrature where RDP does not know the event. Replace:
    the quadrature.

    Raises:
        PrivacyError: RDP came out below PLD, or the quadrature above it. One of the
            two is wrong, so there is no claim.
    """
    first = epsilon(event, delta=delta, relation=relation)
    method, second = _second_opinion(event, delta, NeighboringRelation(relation))
    check = CrossCheck(epsilon=first, second_epsilon=second, second_method=method)
    _require_agreement(check)
    return check


def refine(
    on_grid: Callable[[float], float], *, interval: float, floor: float
) -> float:
    """Refine a grid until the discretisation costs less than about 0.1 %.

    Every grid gives an upper bound, so the least of them is one. The error falls with
    the square of the spacing: two grids tell how much is left.

    Args:
        on_grid: epsilon for a grid spacing, an upper bound.
        interval: first spacing worth trying.
        floor: spacing below which a grid is too long.
    """
    ratio, previous = 2.0, on_grid(2 * interval)
    best = previous
    for _ in range(_MAX_REFINEMENTS):
        current = on_grid(interval)
        best = min(best, current)
        if math.isinf(current):
            break
        left = (previous - current) / (ratio**2 - 1)
        if left <= max(_ACCURACY * current, _NEGLIGIBLE) or interval <= floor:
            break
        ratio, previous, interval = 4.0, current, interval / 4
    return best


def accountant_version() -> str:
    """Version of this library, whose PLD is the accountant of record."""
    return __version__


def check_delta(delta: float) -> None:
    """Refuse a delta that is not in (0, 1)."""
    if not 0 < delta < 1:
        raise ConfigError(
            f"delta must be in (0, 1), got delta={delta}. "
            "Choose less than 1 / number of privacy units."
        )


@functools.lru_cache(maxsize=2048)
def _epsilon(
    event_json: str,
    delta: float,
    relation: NeighboringRelation,
    accountant: Accountant,
) -> float:
    """Dispatch, cached on the canonical event."""
    event = event_from_json(event_json)
    if is_non_private(event):
        return math.inf
    if accountant is Accountant.RDP:
        return _rdp_epsilon(event, delta, relation)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        larger = with_one_more_unit(event)
        if larger is not None:
            sides = (_one_side(e, delta, relation, accountant) for e in (event, larger))
            return max(sides)
    return _one_side(event, delta, relation, accountant)


def _one_side(
    event: DpEvent,
    delta: float,
    relation: NeighboringRelation,
    accountant: Accountant,
) -> float:
    """Account an event against neighbors that are smaller by one, or of its size."""
    if accountant is Accountant.QUADRATURE:
        return quadrature_epsilon(event, delta=delta, relation=relation)
    return _pld_epsilon(event, delta, relation)


def _pld_epsilon(event: DpEvent, delta: float, relation: NeighboringRelation) -> float:
    """Compose on grids that get finer until the discretisation hardly costs."""
    levels = composition_levels(_used_mechanisms(event))
    if not levels:
        return 0.0
    rounding = _FLOAT_ERROR * sum(level.count for level in levels)
    usable = delta - rounding
    if usable < delta / 2:
        return _beyond_precision(event, delta, relation)
    sizes = [
        (typical_loss(level.event_json, relation), level.count) for level in levels
    ]
    spread = math.sqrt(sum(count * size**2 for (size, _), count in sizes))
    floor = max(interval_floor(width) for (_, width), _ in sizes)
    single = spread / math.sqrt(sum(count for _, count in sizes))

    def on_grid(interval: float) -> float:
        return composed_epsilon(
            levels, delta=usable, relation=relation, interval=interval, spread=spread
        )

    coarsest = max(_COARSEST, _COARSEST_SHARE * spread)
    interval = max(min(0.1 * single, coarsest), 10 * floor)
    interval = 2.0 ** math.floor(math.log2(interval))
    found = refine(on_grid, interval=interval, floor=floor)
    if rounding > _NOTICEABLE * delta:
        return min(found, _rdp_bound(event, delta, relation))
    return found


def _used_mechanisms(event: DpEvent) -> tuple[tuple[DpEvent, int], ...]:
    """Mechanisms that touch data: a sample rate of 0 is no mechanism."""
    return tuple(
        (mechanism, count)
        for mechanism, count in mechanism_counts(event)
        if getattr(mechanism, "sampling_probability", 1.0) > 0
    )


def _beyond_precision(
    event: DpEvent, delta: float, relation: NeighboringRelation
) -> float:
    """Where rounding in the convolution is as large as delta, fall back or refuse."""
    bound = _rdp_bound(event, delta, relation)
    if math.isfinite(bound):
        return bound
    raise PrivacyError(
        f"delta must be above 2e-15 times the number of steps, got delta={delta}. "
        "Choose a larger delta or fewer steps."
    )


def _rdp_bound(event: DpEvent, delta: float, relation: NeighboringRelation) -> float:
    """Return the bound by Renyi composition, infinity where it knows none."""
    try:
        return _rdp_epsilon(event, delta, relation)
    except UnsupportedEventError:
        return math.inf


def _rdp_epsilon(event: DpEvent, delta: float, relation: NeighboringRelation) -> float:
    """Add up the Renyi divergences of all mechanisms and convert."""
    if relation is not NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(
            f"rdp must be given add_or_remove_one, got relation={relation.value}. "
            "Use the PLD accountant, or the quadrature as a second opinion."
        )
    total = np.zeros(len(_RDP_ORDERS))
    for mechanism, count in _used_mechanisms(event):
        total += count * _renyi_divergences(event_to_json(mechanism))
    if not total.any():
        return 0.0
    bound, _ = rdp.compute_epsilon(np.array(_RDP_ORDERS), total, delta)
    return float(bound)


@functools.lru_cache(maxsize=2048)
def _renyi_divergences(event_json: str) -> NDArray[np.float64]:
    """Renyi divergence of one use of a mechanism at every order."""
    accountant = rdp.RdpAccountant(orders=_RDP_ORDERS)
    try:
        with no_warnings_of_skipped_orders():
            accountant.compose(event_from_json(event_json))
    except dp_accounting.UnsupportedEventError:
        raise UnsupportedEventError(
            f"rdp must be given a mechanism that it knows, got {event_json}. "
            "Use the PLD accountant."
        ) from None
    return np.asarray(accountant.rdp, dtype=np.float64)


@contextmanager
def no_warnings_of_skipped_orders() -> Iterator[None]:
    """Drop a log line per order that RDP leaves out, which only loosens its bound."""

    def keep(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in str(record.msg)

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _second_opinion(
    event: DpEvent, delta: float, relation: NeighboringRelation
) -> tuple[str, float | None]:
    """Ask the accountants that are not of record, in order of preference."""
    methods = [Accountant.RDP, Accountant.QUADRATURE]
    if relation is NeighboringRelation.REPLACE_ONE:
        methods = [Accountant.QUADRATURE]
    for method in methods:
        try:
            return method.value, epsilon(
                event, delta=delta, relation=relation, accountant=method
            )
        except (UnsupportedEventError, QuadratureError):
            continue
    return "none knows these mechanisms under this relation", None


def _require_agreement(check: CrossCheck) -> None:
    """Refuse a claim on which two accountants contradict each other."""
    second = check.second_epsilon
    if second is None or second == check.epsilon:
        return
    slack = _AGREEMENT * max(second, check.epsilon) + _NEGLIGIBLE
    if check.second_method == Accountant.RDP:
        wrong = second < check.epsilon - slack
    else:
        wrong = second > check.epsilon + slack
    if wrong:
        raise PrivacyError(
            f"{check.second_method} must confirm pld, got epsilon={second:.6g} against "
            f"{check.epsilon:.6g}. One accountant is wrong: make no claim, report it."
        )
