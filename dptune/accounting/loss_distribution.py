"""Privacy loss distributions of single mechanisms, pessimistic, on a lattice.

Symbols: L, P, Q as in `pairs`, and

| symbol | meaning |
|---|---|
| d | `interval`, finest spacing of the lattice of losses |
| u(e) | P(L > e) - exp(e) Q(L > e), the hockey stick of the upper tail |
| v(e) | exp(e) Q(L <= e) - P(L <= e), so that u = 1 - exp(e) + v |

**Formal guarantee.** The discretisation is Connect-the-Dots: the tightest distribution
on a set of losses whose hockey stick lies above the true one everywhere, so composed
epsilons are upper bounds. Losses above the set count as infinite, losses below it are
rounded up.

The theorem takes any set of losses, not only an even grid. Ours holds every multiple
of d near zero, where the mass is, and every second, fourth, eighth, ... further out, so
that neighbors are never further apart than a 256th of their loss: some thousand atoms
instead of some hundred thousand. All are multiples of d, so they compose on one grid.

`dp_accounting` builds the same atoms one by one, and loses about 1e-16/d of mass in
each to cancellation below zero, which swamps tiny epsilons. Here the lower half is
built from v, which does not cancel.

References:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Algorithm 1, arXiv:2207.04380.
"""

import functools
import math
from collections.abc import Callable
from typing import Final

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.pld import privacy_loss_distribution

from dptune.accounting.atoms import LossAtoms, bends, lattice
from dptune.accounting.events import RenyiFilterDpEvent, event_from_json
from dptune.accounting.pairs import (
    Floats,
    GaussianPair,
    gaussian_pairs,
    truncation_parts,
)
from dptune.accounting.renyi import filter_atoms, filter_size
from dptune.errors import UnsupportedEventError
from dptune.privacy import NeighboringRelation

_MAX_POINTS: Final = 1_000_000


@functools.lru_cache(maxsize=256)
def mechanism_distribution(
    event_json: str, relation: NeighboringRelation, interval: float
) -> tuple[LossAtoms, ...]:
    """Build the loss distribution of one use of one mechanism.

    Args:
        event_json: canonical JSON of a mechanism that is neither `NoOp`, nor
            non-private, nor a composition.
        relation: neighboring relation.
        interval: finest spacing of the losses, positive. Wider is looser, never
            smaller.

    Returns:
        One distribution for each direction of the relation: remove and add, or replace.

    Raises:
        UnsupportedEventError: the mechanism has no pair under this relation.
    """
    event = event_from_json(event_json)
    if isinstance(event, RenyiFilterDpEvent):
        return (filter_atoms(event, relation, interval),) * (
            1 if relation is NeighboringRelation.REPLACE_ONE else 2
        )
    if isinstance(event, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        return _truncated(event, relation, interval)
    q, inner = _sampling(event)
    if isinstance(inner, dp_accounting.LaplaceDpEvent):
        return _laplace(inner.noise_multiplier, q, relation, interval)
    return _gaussian(inner.noise_multiplier, q, relation, interval)


@functools.lru_cache(maxsize=16384)
def typical_loss(event_json: str, relation: NeighboringRelation) -> tuple[float, float]:
    """Estimate root mean square and width of the losses of one use, to choose a grid.

    The width is that of the finite part of the distribution.
    """
    event = event_from_json(event_json)
    if isinstance(event, RenyiFilterDpEvent):
        return filter_size(event)
    q, inner = _sampling(event)
    s = inner.noise_multiplier
    if isinstance(event, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        relation, s = NeighboringRelation.REPLACE_ONE, s / 2
    factor = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    spread = q * math.sqrt(math.expm1(min(1 / s**2, 50.0)))
    pairs = gaussian_pairs(sample_rate=q, noise_multiplier=s, relation=relation)
    width = max(high - low for low, high in (pair.bounds() for pair in pairs))
    return factor * min(spread, 1 / s), width


def interval_floor(width: float) -> float:
    """Smallest grid spacing that keeps one mechanism within the size limit."""
    return width / _MAX_POINTS


def _sampling(event: DpEvent) -> tuple[float, DpEvent]:
    """Split a mechanism into its sample rate and its noisy sum."""
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        return event.sampling_probability, event.event
    if isinstance(event, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        return event.sampling_probability, event
    return 1.0, event


def _gaussian(
    noise_multiplier: float,
    sample_rate: float,
    relation: NeighboringRelation,
    interval: float,
) -> tuple[LossAtoms, ...]:
    """Build the distribution of one sampled Gaussian, both directions if needed.

    Without sampling both have one law of losses, by reflection.
    """
    pairs = gaussian_pairs(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, relation=relation
    )
    if sample_rate == 1.0:
        return (_connect_the_dots(pairs[0], interval),) * len(pairs)
    return tuple(_connect_the_dots(pair, interval) for pair in pairs)


def _truncated(
    event: DpEvent, relation: NeighboringRelation, interval: float
) -> tuple[LossAtoms, ...]:
    """Mix the pair of a cut batch with that of a whole one."""
    whole = _gaussian(
        event.noise_multiplier, event.sampling_probability, relation, interval
    )
    binds, rate = truncation_parts(event)
    if binds == 0.0:
        return whole
    (cut,) = _gaussian(
        event.noise_multiplier / 2, rate, NeighboringRelation.REPLACE_ONE, interval
    )
    return tuple(
        LossAtoms(
            index=np.concatenate((cut.index, atoms.index)),
            mass=np.concatenate((binds * cut.mass, (1 - binds) * atoms.mass)),
            infinity=binds * cut.infinity + (1 - binds) * atoms.infinity,
        )
        for atoms in whole
    )


def _laplace(
    parameter: float,
    sample_rate: float,
    relation: NeighboringRelation,
    interval: float,
) -> tuple[LossAtoms, ...]:
    """Ask dp_accounting, which knows Laplace under add/remove only."""
    if relation is not NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(
            "laplace must be accounted under add_or_remove_one, got "
            f"relation={relation.value}. Describe it with twice the sensitivity, "
            "that is half the noise multiplier, and say so."
        )
    theirs = privacy_loss_distribution.from_laplace_mechanism(
        parameter, sampling_prob=sample_rate, value_discretization_interval=interval
    )
    pmfs = [theirs._pmf_remove, theirs._pmf_add]
    dense = [pmf.to_dense_pmf() for pmf in pmfs]
    return tuple(
        LossAtoms(
            index=pmf._lower_loss + np.arange(pmf.size),
            mass=np.asarray(pmf._probs, dtype=np.float64),
            infinity=float(pmf._infinity_mass),
        )
        for pmf in dense
    )


def _connect_the_dots(pair: GaussianPair, interval: float) -> LossAtoms:
    """Place the mass of P on the lattice (Doroshenko et al. 2022, Algorithm 1)."""
    low, high = pair.bounds()
    index = lattice(math.floor(low / interval), math.ceil(high / interval))
    losses: Floats = np.asarray(index * interval, dtype=np.float64)
    x = pair.inverse_loss(losses)
    split = int(np.clip(np.searchsorted(x, 0.0), 1, len(x) - 1))
    upper = _hockey_stick(pair.upper, x[split - 1 :], losses[split - 1 :], flip=False)
    lower = _hockey_stick(pair.lower, x[: split + 1], losses[: split + 1], flip=True)
    gaps = np.diff(losses)
    with np.errstate(over="ignore"):
        rise, fall = np.expm1(gaps), -np.expm1(-gaps)
    mass = np.concatenate(
        (
            [(lower[1] - lower[0]) / rise[0] - lower[0]],
            bends(lower, rise[:split], fall[:split]),
            bends(upper, rise[split - 1 :], fall[split - 1 :]),
            [(upper[-2] - upper[-1]) / fall[-1]],
        )
    )
    mass = np.maximum(mass, 0.0)
    total = float(mass.sum() + upper[-1])
    return LossAtoms(
        index=index, mass=mass / min(total, 1.0), infinity=float(upper[-1])
    )


def _hockey_stick(
    tails: Callable[[Floats], tuple[Floats, Floats]],
    x: Floats,
    losses: Floats,
    *,
    flip: bool,
) -> Floats:
    """Compute u, or v if `flip`, never below zero."""
    p, q = tails(x)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        far = np.exp(losses + np.log(q))
        weighted = np.where(losses < 600.0, np.exp(np.minimum(losses, 600.0)) * q, far)
    return np.maximum(weighted - p if flip else p - weighted, 0.0)
