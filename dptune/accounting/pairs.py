"""What an attacker must tell apart, and the privacy losses that follow, on a lattice.

**Dominating pairs** of one Poisson-sampled Gaussian step, with

| symbol | meaning |
|---|---|
| P, Q | dominating pair: output with and without the unit, unit sensitivity |
| L(x) | privacy loss ln P(x)/Q(x), increasing in x |
| q, s | `sampling_probability`, `noise_multiplier` |
| d | `interval`, finest spacing of the lattice of losses |
| u(e) | P(L > e) - exp(e) Q(L > e), the hockey stick of the upper tail |
| v(e) | exp(e) Q(L <= e) - P(L <= e), so that u = 1 - exp(e) + v |

| direction | P | Q |
|---|---|---|
| remove | (1-q) N(0, s^2) + q N(1, s^2) | N(0, s^2) |
| add | N(0, s^2) | (1-q) N(0, s^2) + q N(-1, s^2) |
| replace | (1-q) N(0, s^2) + q N(1, s^2) | (1-q) N(0, s^2) + q N(-1, s^2) |

**Formal guarantee of their loss distributions.** The discretisation is
Connect-the-Dots: the tightest distribution on a set of losses whose hockey stick lies
above the true one everywhere, so composed epsilons are upper bounds. Losses above the
set count as infinite, losses below it are rounded up.

The theorem takes any set of losses, not only an even grid. Ours holds every multiple
of d near zero, where the mass is, and every second, fourth, eighth, ... further out, so
that neighbors are never further apart than a 256th of their loss: some thousand atoms
instead of some hundred thousand. All are multiples of d, so they compose on one grid.

`dp_accounting` builds the same atoms one by one, and loses about 1e-16/d of mass in
each to cancellation below zero, which swamps tiny epsilons. Here the lower half is
built from v, which does not cancel.

References:
    Zhu, Dong, Wang (2022), Theorem 11, arXiv:2106.08567 (add, remove).
    Schuchardt et al. (2024), arXiv:2403.04867 (replace under Poisson sampling).
    Ganesh (2025), arXiv:2508.15089 (truncated batches).
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Algorithm 1, arXiv:2207.04380.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import special, stats

from dptune.accounting.events import event_from_json
from dptune.privacy import NeighboringRelation

Direction = Literal["remove", "add", "replace"]
Floats = NDArray[np.float64]

_LOWER_Z: Final = 7.5
_UPPER_Z: Final = 9.5


def log_sum_exp(exponents: Floats, weights: Floats | float = 1.0) -> Floats:
    """Compute ln of the weighted sum of exp over the last axis, `(..., n)` to `(...,)`.

    `scipy.special.logsumexp` does too, to the last bit, in several times the time.

    Args:
        exponents: of which one is finite in each sum.
        weights: not negative, `(n,)`, or one for all.

    >>> float(log_sum_exp(np.array([0.0, 0.0]), np.array([1.0, 3.0])).round(4))
    1.3863
    """
    values = exponents
    if isinstance(weights, np.ndarray):
        values = np.where(weights, exponents, -np.inf)
    largest = values.max(axis=-1, keepdims=True)
    is_largest = values == largest
    terms = weights * np.exp(values - largest)
    terms[is_largest] = 0.0
    weight = (weights * is_largest).sum(axis=-1)
    found = np.log1p(terms.sum(axis=-1) / weight) + np.log(weight) + largest[..., 0]
    return np.asarray(found)


@dataclass(frozen=True, kw_only=True)
class GaussianPair:
    """One Poisson-sampled Gaussian mechanism seen in one direction.

    Args:
        direction: which of the two neighbors P is.
        sample_rate: q in (0, 1].
        noise_multiplier: s > 0, noise stddev / sensitivity of add or remove.
    """

    direction: Direction
    sample_rate: float
    noise_multiplier: float

    def loss(self, x: Floats) -> Floats:
        """Compute L(x)."""
        return self.log_p(x) - self.log_q(x)

    def log_p(self, x: Floats) -> Floats:
        """Compute ln P(x), up to the constant that P and Q share."""
        return self._log_density(x, 0.0 if self.direction == "add" else 1.0)

    def log_q(self, x: Floats) -> Floats:
        """Compute ln Q(x), up to the constant that P and Q share."""
        return self._log_density(x, 0.0 if self.direction == "remove" else -1.0)

    def inverse_loss(self, losses: Floats) -> Floats:
        """Compute the x at which the loss is reached, infinite where it never is."""
        q, variance = self.sample_rate, self.noise_multiplier**2
        if self.direction == "remove":
            return 0.5 + variance * _log_ratio(losses, q)
        if self.direction == "add":
            return -0.5 - variance * _log_ratio(-losses, q)
        if q == 1.0:
            return variance * losses / 2
        log_scale = math.log1p(-q) - math.log(q) + 0.5 / variance
        return variance * (losses / 2 + _asinh_scaled(log_scale, losses / 2))

    def upper(self, x: Floats) -> tuple[Floats, Floats]:
        """Compute P(X > x) and Q(X > x)."""
        return self._tails(-x, sign=-1.0)

    def lower(self, x: Floats) -> tuple[Floats, Floats]:
        """Compute P(X <= x) and Q(X <= x)."""
        return self._tails(x, sign=1.0)

    def bounds(self) -> tuple[float, float]:
        """Losses beyond which P has too little mass to matter."""
        s = self.noise_multiplier
        low = -_LOWER_Z * s
        high = _UPPER_Z * s + (0.0 if self.direction == "add" else 1.0)
        loss = self.loss(np.array([low, high]))
        return float(loss[0]), float(loss[1])

    def _log_density(self, x: Floats, mean: float) -> Floats:
        """Mixture density of weight q at `mean` and 1-q at 0, over that at 0."""
        s = self.noise_multiplier
        base = -0.5 * (x / s) ** 2
        if mean == 0.0:
            return base
        shifted = -0.5 * ((x - mean) / s) ** 2
        if self.sample_rate == 1.0:
            return shifted
        return np.logaddexp(
            math.log1p(-self.sample_rate) + base, math.log(self.sample_rate) + shifted
        )

    def _tails(self, x: Floats, *, sign: float) -> tuple[Floats, Floats]:
        """Mass of P and Q on one side; `x` and the means are mirrored by `sign`."""
        q, s = self.sample_rate, self.noise_multiplier
        base = special.ndtr(x / s)
        mixed = {
            mean: (1 - q) * base + q * special.ndtr((x - sign * mean) / s)
            for mean in (1.0, -1.0)
        }
        p = base if self.direction == "add" else mixed[1.0]
        other = base if self.direction == "remove" else mixed[-1.0]
        return p, other


def gaussian_pairs(
    *, sample_rate: float, noise_multiplier: float, relation: NeighboringRelation
) -> tuple[GaussianPair, ...]:
    """Directions that an epsilon must cover: two for add/remove, one for replace."""
    directions: tuple[Direction, ...] = ("replace",)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        directions = ("remove", "add")
    return tuple(
        GaussianPair(
            direction=direction,
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
        )
        for direction in directions
    )


def truncation_parts(event: DpEvent) -> tuple[float, float]:
    """Chance that the cap binds given the unit was drawn, and its rate when it does.

    Public mixture weights of Ganesh (2025): with the first chance the mechanism is a
    replace pair with half the noise multiplier and the second number as sample rate,
    else the plain sampled Gaussian.
    """
    cap, size, q = (
        event.truncated_batch_size,
        event.dataset_size,
        event.sampling_probability,
    )
    binds = float(stats.binom.sf(cap - 1, size - 1, q))
    if binds == 0.0:
        return 0.0, 0.0
    rate = float(stats.binom.sf(cap, size, q)) * cap / binds / size
    return binds, min(rate, 1.0)


def _log_ratio(losses: Floats, q: float) -> Floats:
    """Compute ln((exp(e) - 1 + q) / q), minus infinity where it has no value."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(losses, 30.0)) / q, -1.0))
        far = losses - math.log(q) + np.log1p(-(1 - q) * np.exp(-losses))
    return np.where(losses < 30.0, near, far)


def _asinh_scaled(log_scale: float, losses: Floats) -> Floats:
    """Compute asinh(exp(log_scale) sinh(e)) without overflow."""
    size = np.abs(losses)
    with np.errstate(divide="ignore"):
        log_value = log_scale + size + np.log(-np.expm1(-2 * size)) - math.log(2)
    large = log_value > 300.0
    exact = np.arcsinh(np.exp(np.where(large, 0.0, log_value)))
    return np.sign(losses) * np.where(large, log_value + math.log(2), exact)


_PER_OCTAVE: Final = 256


@dataclass(frozen=True, kw_only=True)
class LossAtoms:
    """A discrete distribution of losses in one direction.

    Args:
        index: losses in multiples of the interval, not always sorted or distinct.
        mass: their probabilities, not negative.
        infinity: probability of an infinite loss.
    """

    index: NDArray[np.int64]
    mass: Floats
    infinity: float

    def delta(self, epsilon: float, *, interval: float) -> float:
        """Compute the hockey stick at one epsilon."""
        excess = np.maximum(self.index * interval - epsilon, 0.0)
        return self.infinity + float(-np.expm1(-excess) @ self.mass)


def lattice(first: int, last: int) -> NDArray[np.int64]:
    """Rising integers from at most `first` to at least `last`, sparse far from 0.

    Every integer up to 256, every second up to 512, every fourth up to 1024, ...
    """
    size = max(abs(first), abs(last), 2)
    parts = [np.arange(_PER_OCTAVE + 1)]
    step, start = 2, _PER_OCTAVE
    while start < size:
        parts.append(np.arange(start + step, 2 * start + 1, step))
        step, start = 2 * step, 2 * start
    half = np.concatenate(parts)
    whole = np.concatenate((-half[:0:-1], half))
    begin = max(int(np.searchsorted(whole, first, side="right")) - 1, 0)
    end = int(np.searchsorted(whole, max(last, whole[begin] + 2)))
    return np.asarray(whole[begin : max(end, begin + 2) + 1], dtype=np.int64)


def bends(values: Floats, rise: Floats, fall: Floats) -> Floats:
    """Mass of the inner atoms: how much the hockey stick bends there."""
    steps = np.diff(values)
    return np.asarray(steps[1:] / rise[1:] - steps[:-1] / fall[:-1])


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
    """
    event = event_from_json(event_json)
    if isinstance(event, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        return _truncated(event, relation, interval)
    q, inner = _sampling(event)
    return _gaussian(inner.noise_multiplier, q, relation, interval)


@functools.lru_cache(maxsize=16384)
def typical_loss(event_json: str, relation: NeighboringRelation) -> tuple[float, float]:
    """Estimate root mean square and width of the losses of one use, to choose a grid.

    The width is that of the finite part of the distribution.
    """
    event = event_from_json(event_json)
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
