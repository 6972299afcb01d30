"""Accountants: from an event, a delta and a relation to an epsilon.

| accountant | relation | is |
|---|---|---|
| `PUBLISHED` | both | dp_accounting's PLD, an upper bound: a certificate cites it |
| `PLD` | both | our own: an upper bound, tight to about 0.1 %, in milliseconds |
| `RDP` | add or remove only | an upper bound, looser; refuses `replace_one` |
| `QUADRATURE` | both | an estimate, exact to about 0.01 % |

PLD is the pessimistic privacy loss distribution. Ours searches (calibration, what-if,
the budget store), since it answers a hundred times faster. A certificate is issued by
`cross_check` alone, which asks all of them, because no program can check itself:

* the published figure and ours must be within 0.2 % of each other (2 % above epsilon
  100, where our grids are coarse), and the larger of the two is certified, so that
  neither proves less than what is claimed;
* RDP must not be smaller, and where it has no formula (replace, truncated batches) the
  quadrature must not be larger.

Whoever contradicts another is not believed, and neither is the other: no certificate.
dp_accounting is not asked where it would take long or its rounding would be felt (see
`_published_epsilon`). Then ours is the figure, and the certificate says so.

Under add or remove, truncated batches are accounted for a data set that may lose a unit
and for one that may gain one, and the larger epsilon counts. An epsilon under one
relation says nothing under the other: with sample rate 0.02, noise multiplier 1.37,
1,000 steps and delta 1e-6, it is 2.57 for add/remove and 4.56 for replace.
"""

import functools
import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, rdp
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray

from dptune import __version__
from dptune.accounting.composition import (
    Level,
    composed_epsilon,
    composition_levels,
)
from dptune.accounting.events import (
    before_and_after,
    event_from_json,
    event_to_json,
    is_non_private,
    mechanism_counts,
    merge_events,
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
AGREEMENT: Final = 2e-3
"""How far two accountants may be apart, as a fraction of epsilon."""
_LARGE: Final = 100.0
_AGREEMENT_WHERE_LARGE: Final = 2e-2
"""Above `_LARGE` our grids end at .1 % to .7 % above dp_accounting, which composes
Gaussians in closed form. Both are upper bounds, and the larger is certified."""
_MOST_MECHANISMS: Final = 16
_MOST_LOSSES: Final = 600_000
_VERSION: Final = importlib.metadata.version("dp-accounting")
_THEIRS: Final = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: (
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ),
    NeighboringRelation.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}
_RDP_ORDERS: Final = tuple(rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)


class Accountant(StrEnum):
    """A way to turn an event into an epsilon."""

    PUBLISHED = "published"
    PLD = "pld"
    RDP = "rdp"
    QUADRATURE = "quadrature"


@dataclass(frozen=True, kw_only=True)
class CrossCheck:
    """What all accountants say of one event.

    Args:
        epsilon: what may be certified.
        method: the accountant of record, with its version; why, if it is our own.
        second_epsilon: of RDP or the quadrature; None where neither knows the event.
        second_method: that accountant, or why there is none.
    """

    epsilon: float
    method: str
    second_epsilon: float | None = None
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
        PrivacyError: a number is too small or too large for double precision.

    >>> import dp_accounting
    >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    >>> thousand = dp_accounting.SelfComposedDpEvent(step, 1000)
    >>> claim = {"delta": 1e-5, "relation": NeighboringRelation.ADD_OR_REMOVE_ONE}
    >>> round(epsilon(thousand, **claim), 2)
    1.83
    >>> round(epsilon(thousand, accountant="rdp", **claim), 2)
    2.1
    """
    check_delta(delta)
    relation, accountant = NeighboringRelation(relation), Accountant(accountant)
    text = event_to_json(merge_events([event]))
    try:
        return _epsilon(text, float(delta), relation, accountant)
    except (ArithmeticError, ValueError) as error:
        raise PrivacyError(
            "epsilon must be computed in double precision, for which a noise "
            "multiplier or sample rate is too small or too large "
            f"({type(error).__name__}). Choose one nearer to 1."
        ) from error


def cross_check(
    event: DpEvent, *, delta: float, relation: NeighboringRelation
) -> CrossCheck:
    """Compute what may be certified, and refuse to go on if accountants disagree.

    **Formal guarantee**: the epsilon is at least dp_accounting's and at least ours,
    each of which is an upper bound by itself.

    Raises:
        PrivacyError: the published figure and ours are more than 0.2 % apart, RDP came
            out below them, or the quadrature above. One is wrong, so there is no claim.

    >>> import dp_accounting
    >>> found = cross_check(
    ...     dp_accounting.GaussianDpEvent(1.0),
    ...     delta=1e-5,
    ...     relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    ... )
    >>> round(found.epsilon, 2), found.second_epsilon >= found.epsilon
    (4.38, True)
    """
    relation = NeighboringRelation(relation)
    found = epsilon(event, delta=delta, relation=relation)
    method = f"pld (dp_accounting {_VERSION})"
    try:
        published = epsilon(
            event, delta=delta, relation=relation, accountant=Accountant.PUBLISHED
        )
    except UnsupportedEventError as reason:
        method = f"pld (dptune {__version__}: {reason})"
    else:
        _require_agreement(found, published, Accountant.PUBLISHED)
        found = max(found, published)
    second = _second_opinion(event, delta, relation)
    if second is None:
        nobody = "none knows these mechanisms under this relation"
        return CrossCheck(epsilon=found, method=method, second_method=nobody)
    accountant, other = second
    _require_agreement(found, other, accountant)
    return CrossCheck(
        epsilon=found,
        method=method,
        second_epsilon=other,
        second_method=accountant.value,
    )


@dataclass(frozen=True, kw_only=True)
class Refined:
    """An upper bound of epsilon, and the spacing of the last grid that was tried."""

    epsilon: float
    interval: float


def refine(
    on_grid: Callable[[float], float], *, interval: float, floor: float
) -> Refined:
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
    return Refined(epsilon=best, interval=interval)


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
    sides = before_and_after(event, relation)
    return max(_one_side(side, delta, relation, accountant) for side in sides)


def _one_side(
    event: DpEvent,
    delta: float,
    relation: NeighboringRelation,
    accountant: Accountant,
) -> float:
    """Account an event against neighbors that are smaller by one, or of its size."""
    if accountant is Accountant.QUADRATURE:
        return quadrature_epsilon(event, delta=delta, relation=relation)
    if accountant is Accountant.PUBLISHED:
        return _published_epsilon(event, delta, relation)
    return _pld_epsilon(event, delta, relation)


def _published_epsilon(
    event: DpEvent, delta: float, relation: NeighboringRelation
) -> float:
    """Ask dp_accounting, on the grid on which our own distribution was fine enough.

    | it is not asked about | since |
    |---|---|
    | more than 16 kinds of mechanism | it composes them one after the other |
    | a grid of more than 600,000 losses | that takes it many seconds |
    | more steps than 1 % of delta / 1e-15 | it leaves the transforms' rounding out |

    Raises:
        UnsupportedEventError: it is not asked; the message says why.
    """
    used = _used_mechanisms(event)
    levels = composition_levels(used)
    if not levels:
        return 0.0
    if len(used) > _MOST_MECHANISMS:
        raise UnsupportedEventError(
            f"dp_accounting would compose {len(used)} kinds of mechanism one by one"
        )
    rounding = _rounding(levels)
    if rounding > _NOTICEABLE * delta:
        raise UnsupportedEventError(
            "dp_accounting leaves rounding out, which is felt at this delta"
        )
    spread, width = _sizes(levels, relation)
    interval = _on_grids(levels, delta - rounding, relation).interval
    # a composition reaches about eight standard deviations to either side
    num_losses = len(used) * (width + 16 * spread) / interval
    if num_losses > _MOST_LOSSES:
        raise UnsupportedEventError(
            f"dp_accounting would need a grid of {num_losses:.1g} losses"
        )
    accountant = PLDAccountant(_THEIRS[relation], interval)
    with np.errstate(over="ignore"):  # where epsilon is in the thousands
        accountant.compose(event)
        found = float(accountant.get_epsilon(delta))
    if math.isinf(found):
        raise UnsupportedEventError("dp_accounting finds no finite epsilon")
    return found


def _pld_epsilon(event: DpEvent, delta: float, relation: NeighboringRelation) -> float:
    """Compose by ourselves; where rounding is felt, RDP may have the smaller bound."""
    levels = composition_levels(_used_mechanisms(event))
    if not levels:
        return 0.0
    rounding = _rounding(levels)
    usable = delta - rounding
    if usable >= delta / 2:
        found = _on_grids(levels, usable, relation).epsilon
        if rounding <= _NOTICEABLE * delta:
            return found
        return min(found, _rdp_bound(event, delta, relation))
    bound = _rdp_bound(event, delta, relation)
    if math.isfinite(bound):
        return bound
    raise PrivacyError(
        f"delta must be above 2e-15 times the number of steps, got delta={delta}. "
        "Choose a larger delta or fewer steps."
    )


def rounding(num_steps: int) -> float:
    """Bound what the rounding of Fourier transforms may move delta by: 1e-15 a step."""
    return _FLOAT_ERROR * num_steps


def _rounding(levels: Sequence[Level]) -> float:
    """Bound it for a history."""
    return rounding(sum(level.count for level in levels))


def _sizes(
    levels: Sequence[Level], relation: NeighboringRelation
) -> tuple[float, float]:
    """Root mean square of the composed loss, and the widest loss of one mechanism."""
    sizes = [
        (typical_loss(level.event_json, relation), level.count) for level in levels
    ]
    spread = math.sqrt(sum(count * size**2 for (size, _), count in sizes))
    return spread, max(width for (_, width), _ in sizes)


def _on_grids(
    levels: Sequence[Level], delta: float, relation: NeighboringRelation
) -> Refined:
    """Compose on grids that get finer until the discretisation hardly costs.

    The first is a tenth of one step's typical loss, which the composed loss blurs away,
    but never so fine that one mechanism has more than a tenth of the points allowed.
    """
    spread, width = _sizes(levels, relation)
    floor = interval_floor(width)
    single = spread / math.sqrt(sum(level.count for level in levels))
    coarsest = max(_COARSEST, _COARSEST_SHARE * spread)
    interval = max(min(0.1 * single, coarsest), 10 * floor)

    def on_grid(interval: float) -> float:
        return composed_epsilon(
            levels, delta=delta, relation=relation, interval=interval, spread=spread
        )

    # powers of two: histories that share a mechanism then share its cached spectra
    return refine(on_grid, interval=2.0 ** math.floor(math.log2(interval)), floor=floor)


def _used_mechanisms(event: DpEvent) -> tuple[tuple[DpEvent, int], ...]:
    """Mechanisms that touch data: a sample rate of 0 is no mechanism."""
    return tuple(
        (mechanism, count)
        for mechanism, count in mechanism_counts(event)
        if getattr(mechanism, "sampling_probability", 1.0) > 0
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
        total += count * renyi_divergences(event_to_json(mechanism), _RDP_ORDERS)
    if not total.any():
        return 0.0
    bound, _ = rdp.compute_epsilon(np.array(_RDP_ORDERS), total, delta)
    return float(bound)


@functools.lru_cache(maxsize=2048)
def renyi_divergences(
    event_json: str, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the Renyi divergence of one use of a mechanism at every order."""
    accountant = rdp.RdpAccountant(orders=list(orders))
    try:
        with _no_warnings_of_skipped_orders():
            accountant.compose(event_from_json(event_json))
    except dp_accounting.UnsupportedEventError:
        raise UnsupportedEventError(
            f"rdp must be given a mechanism that it knows, got {event_json}. "
            "Use the PLD accountant."
        ) from None
    return np.asarray(accountant.rdp, dtype=np.float64)


@contextmanager
def _no_warnings_of_skipped_orders() -> Iterator[None]:
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
) -> tuple[Accountant, float] | None:
    """Ask RDP, or the quadrature where RDP does not know the event."""
    for method in (Accountant.RDP, Accountant.QUADRATURE):
        try:
            return method, epsilon(
                event, delta=delta, relation=relation, accountant=method
            )
        except (UnsupportedEventError, QuadratureError):
            continue
    return None


def _require_agreement(found: float, other: float, accountant: Accountant) -> None:
    """Refuse a claim on which two accountants contradict each other.

    RDP must not be smaller, the quadrature not larger, the published figure neither.
    """
    larger = max(other, found)
    share = AGREEMENT if larger <= _LARGE else _AGREEMENT_WHERE_LARGE
    slack = share * larger + _NEGLIGIBLE
    too_small = accountant is not Accountant.QUADRATURE and other < found - slack
    too_large = accountant is not Accountant.RDP and other > found + slack
    if other != found and (too_small or too_large):
        raise PrivacyError(
            f"{accountant} must confirm pld, got epsilon={other:.6g} against "
            f"{found:.6g}. One accountant is wrong: make no claim, report it."
        )
