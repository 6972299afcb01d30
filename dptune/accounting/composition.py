"""Composition of many loss distributions: one Fourier transform for each level.

A *level* is one mechanism and how often it ran. With a grid of `size` losses, let f_i
be the spectrum of level i, its distribution wrapped around the grid and transformed.
The composition's spectrum is the product of f_i^count, and one transform back gives the
composed distribution: a level costs milliseconds however often it ran, and once its
power is cached, hardly anything. Only the low frequencies of a power are not zero, so
a thousand cached levels take some megabytes.

**Formal guarantee**: an upper bound of epsilon, cached or not. Each place where
something is left out errs upwards:

| left out | what is done |
|---|---|
| mass above the grid | bounded by Chernoff, counted as an infinite loss |
| mass below the grid | wraps to its top: counted as a larger loss |
| frequencies below exp(-80) | far below the rounding error |
| rounding of the transforms | the caller lowers delta by 1e-15 for each step |
| negative mass, from rounding | set to zero |

Wrapping: circular convolution gives g(k) + g(k + size) + g(k - size) + ... at k,
never less than g(k); only mass above the grid can come out lower than it is, and that
is in the Chernoff term as a whole.

Equal levels give equal bits: the product runs in the caller's order, and what comes
from the cache is what would be computed.

References:
    Koskela, Jälkö, Honkela (2020), Fourier accountant, arXiv:1906.03049.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft, signal, special

from dptune.accounting.atoms import LossAtoms
from dptune.accounting.cache import BoundedCache
from dptune.accounting.loss_distribution import mechanism_distribution
from dptune.accounting.pairs import Floats
from dptune.privacy import NeighboringRelation

_CUT: Final = 80.0
_TAIL: Final = 1e-4
_OCTAVES: Final = np.arange(-16, 4)
_OCTAVES_DOWN: Final = np.concatenate((np.arange(-16, -5, 2), np.arange(-5, 4)))
_MAX_CACHED_BYTES: Final = 128 * 2**20

Spectrum = NDArray[np.complex128]


@dataclass(frozen=True, kw_only=True)
class Level:
    """One mechanism, as canonical JSON, and how often it ran."""

    event_json: str
    count: int


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """What a window needs to know of one use of a level in one direction.

    Args:
        log_moments: ln E exp(order * loss) of the finite losses, for each order.
        bottom, top: least and largest finite loss.
        infinity: probability of an infinite loss.
    """

    log_moments: Floats
    bottom: float
    top: float
    infinity: float


@dataclass(frozen=True, kw_only=True)
class _Window:
    """A grid that holds all but a negligible part of a composition.

    Args:
        first: least loss, in multiples of the interval.
        size: number of losses.
        infinity: probability of an infinite loss, what lies above the grid included.
    """

    first: int
    size: int
    infinity: float


_spectra: Final[BoundedCache[tuple[object, ...], Spectrum]] = BoundedCache(
    max_bytes=_MAX_CACHED_BYTES, size_of=lambda spectrum: spectrum.nbytes
)


def composed_epsilon(
    levels: Sequence[Level],
    *,
    delta: float,
    relation: NeighboringRelation,
    interval: float,
    spread: float,
) -> float:
    """Compute an upper bound of epsilon on one grid, the larger of both directions.

    Args:
        levels: distinct mechanisms, at least one.
        delta: in (0, 1), after the caller took off the rounding error.
        relation: neighboring relation.
        interval: spacing of the grid of losses.
        spread: root mean square of the composed loss, roughly; only speed and the
            size of the grid depend on it.
    """
    directions = 1 if relation is NeighboringRelation.REPLACE_ONE else 2
    scale = 2.0 ** round(math.log2(8 / spread))
    found = 0.0
    for direction in range(directions):
        window = _window(levels, delta, (relation, direction, interval), scale)
        mass = _composed_mass(levels, window, (relation, direction, interval))
        found = max(found, _epsilon(mass, window, delta, interval))
    return found


_Where = tuple[NeighboringRelation, int, float]


def _atoms(event_json: str, where: _Where) -> LossAtoms:
    """Loss distribution of one use of a level in one direction."""
    relation, direction, interval = where
    return mechanism_distribution(event_json, relation, interval)[direction]


def _window(
    levels: Sequence[Level], delta: float, where: _Where, scale: float
) -> _Window:
    """Bound both tails by Chernoff, and choose a grid between."""
    interval, orders = where[2], _orders(scale)
    log_moments = np.zeros(len(orders))
    bottom = top = log_finite = 0.0
    for level in levels:
        profile = _profile(level.event_json, where, scale)
        log_moments += level.count * profile.log_moments
        bottom += level.count * profile.bottom
        top += level.count * profile.top
        log_finite += level.count * math.log1p(-profile.infinity)
    tail = _TAIL * delta
    bounds = (log_moments - math.log(tail)) / orders
    high = min(top, float(bounds[orders > 0].min()))
    low = max(bottom, float(bounds[orders < 0].max()))
    first = math.floor(low / interval)
    needed = math.ceil(high / interval) - first + 1
    return _Window(
        first=first, size=_grid_size(needed), infinity=tail - math.expm1(log_finite)
    )


def _grid_size(needed: int) -> int:
    """Smallest 2^k or 3 * 2^k that is enough: few sizes, so that caches hit."""
    power = 1 << max(needed - 1, 7).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= needed else power


@functools.lru_cache(maxsize=64)
def _orders(scale: float) -> Floats:
    """Orders of the moments, around the one that Gaussians ask for.

    Rare losses far below the others ask for much smaller ones, on either side.
    """
    return scale * np.concatenate((2.0**_OCTAVES, -(2.0**_OCTAVES_DOWN)))


@functools.lru_cache(maxsize=16384)
def _profile(event_json: str, where: _Where, scale: float) -> _Profile:
    """Summarise one use of a level."""
    atoms, interval = _atoms(event_json, where), where[2]
    keep = atoms.mass > 0
    losses, log_mass = atoms.index[keep] * interval, np.log(atoms.mass[keep])
    exponents = np.outer(_orders(scale), losses) + log_mass
    return _Profile(
        log_moments=np.asarray(special.logsumexp(exponents, axis=1)),
        bottom=float(losses.min()),
        top=float(losses.max()),
        infinity=atoms.infinity,
    )


def _composed_mass(levels: Sequence[Level], window: _Window, where: _Where) -> Floats:
    """Compose all levels on the grid, the least loss first."""
    product = np.ones(window.size // 2 + 1, dtype=np.complex128)
    for level in levels:
        power = _power(level, window.size, where)
        product = product[: len(power)] * power[: len(product)]
    mass = fft.irfft(product, window.size)
    return np.asarray(np.maximum(np.roll(mass, -(window.first % window.size)), 0.0))


def _power(level: Level, size: int, where: _Where) -> Spectrum:
    """Spectrum of a level, cached, cut behind its last frequency that matters."""
    key = (level.event_json, level.count, size, where)
    return _spectra.get(key, lambda: _make_power(level, size, where))


def _make_power(level: Level, size: int, where: _Where) -> Spectrum:
    """Transform one use of a level and raise it to its count."""
    atoms = _atoms(level.event_json, where)
    wrapped = np.bincount(atoms.index % size, weights=atoms.mass, minlength=size)
    spectrum = np.asarray(fft.rfft(wrapped))
    power = spectrum.real**2 + spectrum.imag**2
    matters = np.flatnonzero(power > math.exp(-2 * _CUT / level.count))
    spectrum = spectrum[: int(matters[-1]) + 1]
    if level.count == 1:
        return spectrum.copy()
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        raised = np.exp(level.count * np.log(spectrum))
    return np.where(spectrum == 0, 0, raised)


def _epsilon(mass: Floats, window: _Window, delta: float, interval: float) -> float:
    """Find where the hockey stick of a distribution meets delta.

    With losses l_j, tail(j) = P(L >= l_j), weight(j) = E exp(l_j - L) over L >= l_j
    and below(j) = E max(1 - exp(l_j - L), 0), running from the largest loss down,
    weight(j) = mass(j) + exp(-d) weight(j+1) and
    below(j) = exp(-d) below(j+1) + (1 - exp(-d)) tail(j+1). All terms are positive: no
    cancellation, no overflow. Between two losses the hockey stick is
    tail(j) - exp(epsilon - l_j) weight(j), which is solved for epsilon.
    """
    if window.infinity > delta:
        return math.inf
    start = max(window.first, 0)
    falling = mass[start - window.first :][::-1]
    shrink = math.exp(-interval)
    tail = np.cumsum(falling)
    weight = signal.lfilter([1.0], [1.0, -shrink], falling)
    above = np.concatenate(([0.0], tail[:-1]))
    below = signal.lfilter([-math.expm1(-interval)], [1.0, -shrink], above)
    last = int(np.flatnonzero(window.infinity + below <= delta)[-1])
    loss = (start + len(falling) - 1 - last) * interval
    excess = window.infinity + float(tail[last]) - delta
    if excess <= 0:
        return 0.0
    if weight[last] == 0:
        return loss
    return min(max(loss + math.log(excess / float(weight[last])), 0.0), loss)
