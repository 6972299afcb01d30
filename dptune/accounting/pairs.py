"""Dominating pairs of Gaussian mechanisms: what an attacker must tell apart.

Symbols, as in the papers below:

| symbol | meaning |
|---|---|
| P, Q | dominating pair: output with and without the unit, unit sensitivity |
| L(x) | privacy loss ln P(x)/Q(x), increasing in x |
| q, s | `sampling_probability`, `noise_multiplier` |

Dominating pairs of one Poisson-sampled Gaussian step:

| direction | P | Q |
|---|---|---|
| remove | (1-q) N(0, s^2) + q N(1, s^2) | N(0, s^2) |
| add | N(0, s^2) | (1-q) N(0, s^2) + q N(-1, s^2) |
| replace | (1-q) N(0, s^2) + q N(1, s^2) | (1-q) N(0, s^2) + q N(-1, s^2) |

References:
    Zhu, Dong, Wang (2022), Theorem 11, arXiv:2106.08567 (add, remove).
    Schuchardt et al. (2024), arXiv:2403.04867 (replace under Poisson sampling).
    Ganesh (2025), arXiv:2508.15089 (truncated batches).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import special, stats

from dptune.privacy import NeighboringRelation

Direction = Literal["remove", "add", "replace"]
Floats = NDArray[np.float64]

_LOWER_Z: Final = 7.5
_UPPER_Z: Final = 9.5


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
