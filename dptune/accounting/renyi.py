"""Renyi divergences: of one step, and what a limit on them says of (epsilon, delta).

With Y the privacy loss and a > 1 the order, a divergence of at most B means
E exp((a - 1) Y) <= exp((a - 1) B). For all real e and y,

    (1 - exp(e - y))+ <= exp((a - 1) (y - e)) (1 - 1/a)^(a - 1) / a,

with equality where exp(e - y) = 1 - 1/a, so for every epsilon e

    delta(e) <= g(e) = exp((a - 1) (B - e)) (1 - 1/a)^(a - 1) / a.

References:
    Canonne, Kamath, Steinke (2020), Proposition 12, arXiv:2004.00010.
    Zhu, Dong, Wang (2022), Proposition 10: every convex profile has a pair,
    arXiv:2106.08567.
"""

import math
from collections.abc import Sequence

import numpy as np

from dptune.accounting.atoms import LossAtoms, bends, lattice
from dptune.accounting.events import RenyiFilterDpEvent
from dptune.accounting.pairs import Floats, gaussian_pairs
from dptune.accounting.quadrature import log_moment_of_pair
from dptune.errors import UnsupportedEventError
from dptune.privacy import NeighboringRelation

_LOG_NOTHING = -50.0
_SAFETY = 1e-9


def step_divergence(
    *,
    sample_rate: float,
    noise_multiplier: float,
    order: float,
    relation: NeighboringRelation,
) -> float:
    """Compute the Renyi divergence of one Poisson-sampled Gaussian step.

    The larger of both directions of the dominating pair. A pair that dominates in
    every hockey stick dominates in every Renyi divergence, so it holds for the step;
    unlike `dp_accounting`'s, it knows the replace relation.

    Returns:
        Infinity at noise multiplier 0 and 0 at sample rate 0; else the trapezoidal
        rule's value, raised by a billionth, more than its error.
    """
    if sample_rate == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    pairs = gaussian_pairs(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, relation=relation
    )
    worst = max(log_moment_of_pair(pair, order - 1) for pair in pairs) / (order - 1)
    return (1 + _SAFETY) * max(worst, 0.0) + 1e-15


def divergence_limit(*, epsilon: float, delta: float, order: float) -> float:
    """Compute the largest divergence at an order from which (epsilon, delta) follows.

    Negative where even no divergence at that order is enough.
    """
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


def filter_atoms(
    event: RenyiFilterDpEvent, relation: NeighboringRelation, interval: float
) -> LossAtoms:
    """Build a loss distribution that dominates whatever a filter let through.

    **Formal guarantee**: let h be the true profile as a function of c = exp(e). It is
    convex, falling, h(0) = 1 and h <= G, the sum of g over the orders (one part of the
    transcript for each). So h also lies below the line from (0, 1) to any point of G:
    the tangent line, and G after it, are convex and above h. That profile has a pair,
    and its atoms are placed by Connect-the-Dots.

    Raises:
        UnsupportedEventError: the filter kept another relation.
    """
    if relation.value != event.relation:
        raise UnsupportedEventError(
            f"renyi_filter of relation {event.relation} must be accounted under it, "
            f"got relation={relation.value}. A promise under one relation says nothing "
            "under the other: run the filter under the relation that you claim."
        )
    start, top = _tangent(event), _top(event)
    first = math.floor(start / interval)
    index = lattice(first, max(math.ceil(top / interval), first + 2))
    losses: Floats = np.asarray(index * interval, dtype=np.float64)
    height = float(_profile(event, np.array([start]))[0])
    values = np.where(
        losses <= start,
        1 - np.exp(losses - start) * (1 - height),
        _profile(event, np.maximum(losses, start)),
    )
    gaps = np.diff(losses)
    rise, fall = np.expm1(gaps), -np.expm1(-gaps)
    mass = np.concatenate(
        (
            [1 - values[0] + (values[1] - values[0]) / rise[0]],
            bends(values, rise, fall),
            [(values[-2] - values[-1]) / fall[-1]],
        )
    )
    mass = np.maximum(mass, 0.0)
    total = float(mass.sum() + values[-1])
    return LossAtoms(
        index=index, mass=mass / min(total, 1.0), infinity=float(values[-1])
    )


def filter_size(event: RenyiFilterDpEvent) -> tuple[float, float]:
    """Estimate root mean square and width of the losses, to choose a grid."""
    least = min(
        2 * limit / order
        for order, limit in zip(event.orders, event.divergences, strict=True)
    )
    return math.sqrt(least) + 1e-6, _top(event) - _tangent(event)


def _log_profile(order: float, limit: float, losses: Floats) -> Floats:
    """Compute ln g."""
    constant = (order - 1) * math.log1p(-1 / order) - math.log(order)
    return np.asarray(constant + (order - 1) * (limit - losses))


def _profile(event: RenyiFilterDpEvent, losses: Floats) -> Floats:
    """Compute G, at most 1."""
    terms: Sequence[Floats] = [
        _log_profile(order, limit, losses)
        for order, limit in zip(event.orders, event.divergences, strict=True)
    ]
    return np.asarray(np.exp(np.minimum(np.logaddexp.reduce(terms, axis=0), 0.0)))


def _top(event: RenyiFilterDpEvent) -> float:
    """Loss above which the profile is nothing."""
    return max(
        limit + (-_LOG_NOTHING) / (order - 1)
        for order, limit in zip(event.orders, event.divergences, strict=True)
    )


def _tangent(event: RenyiFilterDpEvent) -> float:
    """Loss at which the line from (0, 1) touches G: its slope is least there.

    Any point gives a sound line; the search only makes it tight, and the first point
    of a fine grid that does best is as good as the exact one.
    """
    low = min(event.divergences) - 1.0
    losses = np.linspace(low, _top(event), 20_001)
    height = _profile(event, losses)
    slope = (1 - height) * np.exp(-losses + low)
    return float(losses[int(np.argmax(slope))])
