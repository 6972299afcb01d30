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
| levels beyond `MAX_LEVELS` | rounded to fewer that cost no less |

Wrapping: circular convolution gives g(k) + g(k + size) + g(k - size) + ... at k,
never less than g(k); only mass above the grid can come out lower than it is, and that
is in the Chernoff term as a whole.

Equal levels give equal bits: the product runs in the caller's order, and what comes
from the cache is what would be computed.

**Levels.** Plain Gaussians merge exactly: n of noise multiplier s compose to one of
s / sqrt(n), and 1/s^2 adds up over different ones. A controller that moves the noise at
every step leaves as many Poisson-sampled levels as steps. Where there are more than
`MAX_LEVELS`, noise multipliers are rounded *down* to a geometric lattice, so that
levels fall together; so are, *up*, sample rates, if there are more than a few. Neither
makes epsilon smaller:

* Noise: more Gaussian noise is post-processing of less.
* Rate: with w = q/q', the pair of rate q is w times that of rate q' plus 1 - w times a
  pair of two equal distributions, in all three directions. The hockey stick is jointly
  convex, and that of equal distributions is the least there is.

Rounding the other way gives a history that costs no more than the true one: the two
enclose it (`tests/support/rounding.py`).

References:
    Koskela, Jälkö, Honkela (2020), Fourier accountant, arXiv:1906.03049.
    Balle, Barthe, Gaboardi (2018), advanced joint convexity, arXiv:1807.01647.
"""

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import fft, signal

from dptune.accounting.events import event_to_json
from dptune.accounting.pairs import (
    Floats,
    LossAtoms,
    log_sum_exp,
    mechanism_distribution,
)
from dptune.privacy import NeighboringRelation

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key, in this process, safe across threads.

    Two threads that miss the same key both compute it; values are pure functions of
    their keys, so it does not matter whose is kept.

    Args:
        max_bytes: of all values together; a larger value is not kept.
        size_of: bytes of one value.
    """

    def __init__(self, *, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all values now kept."""
        return self._bytes

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made now if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        self._keep(key, value)
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _keep(self, key: K, value: V) -> None:
        """Add a value and make room for it."""
        size = self._size_of(value)
        with self._lock:
            if key in self._values or size > self._max_bytes:
                return
            self._values[key] = value
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, oldest = self._values.popitem(last=False)
                self._bytes -= self._size_of(oldest)


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
        log_moments=log_sum_exp(exponents),
        bottom=float(losses.min()),
        top=float(losses.max()),
        infinity=atoms.infinity,
    )


def _composed_mass(levels: Sequence[Level], window: _Window, where: _Where) -> Floats:
    """Compose all levels on the grid, the least loss first."""
    product = np.ones(window.size // 2 + 1, dtype=np.complex128)
    for level in levels:
        key = (level.event_json, level.count, window.size, where)
        power = _spectra.get(  # cut behind the last frequency that matters
            key, functools.partial(_make_power, level, window.size, where)
        )
        product = product[: len(power)] * power[: len(product)]
    mass = fft.irfft(product, window.size)
    return np.asarray(np.maximum(np.roll(mass, -(window.first % window.size)), 0.0))


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


MAX_LEVELS: Final = 1024
_FINEST: Final = 1024
_FEW_RATES: Final = 16

Counts = tuple[tuple[DpEvent, int], ...]
_Grouped = dict[tuple[float, float], int]


def composition_levels(counts: Counts, *, most: int | None = None) -> tuple[Level, ...]:
    """Describe a history by at most about `most` levels, which cost no less.

    Args:
        counts: distinct mechanisms and how often each ran.
        most: number of Poisson-sampled Gaussian levels above which they are rounded,
            `MAX_LEVELS` if None; a wide range of noise can leave more, never more than
            there were.
    """
    sampled, others, inverse_variance = _sort(counts)
    limit = MAX_LEVELS if most is None else most
    grouped = _rounded(sampled, limit, math.floor, math.ceil)
    if inverse_variance > 0:
        others.append((dp_accounting.GaussianDpEvent(inverse_variance**-0.5), 1))
    return tuple(
        Level(event_json=event_to_json(event), count=count)
        for event, count in (*_events(grouped), *others)
    )


def _sort(counts: Counts) -> tuple[_Grouped, list[tuple[DpEvent, int]], float]:
    """Split into sampled Gaussians, other mechanisms, and 1/s^2 of plain Gaussians."""
    sampled: _Grouped = {}
    others: list[tuple[DpEvent, int]] = []
    inverse_variance = 0.0
    for event, count in counts:
        if isinstance(event, dp_accounting.GaussianDpEvent):
            inverse_variance += count / event.noise_multiplier**2
        elif isinstance(event, dp_accounting.PoissonSampledDpEvent) and isinstance(
            event.event, dp_accounting.GaussianDpEvent
        ):
            rate, noise = event.sampling_probability, event.event.noise_multiplier
            sampled[rate, noise] = sampled.get((rate, noise), 0) + count
        else:
            others.append((event, count))
    return sampled, others, inverse_variance


def _rounded(
    sampled: _Grouped,
    most: int,
    of_noise: Callable[[float], int],
    of_rate: Callable[[float], int],
) -> _Grouped:
    """Round on lattices that get coarser until few enough levels are left."""
    per_octave, grouped = _FINEST, sampled
    keep_rates = len({rate for rate, _ in sampled}) <= _FEW_RATES
    while len(grouped) > most and per_octave >= 8:
        grouped = {}
        for (rate, noise), count in sampled.items():
            snapped = rate if keep_rates else _snap(rate, per_octave, of_rate)
            key = (min(snapped, 1.0), _snap(noise, per_octave, of_noise))
            grouped[key] = grouped.get(key, 0) + count
        per_octave //= 2
    return grouped


def _snap(value: float, per_octave: int, rounding: Callable[[float], int]) -> float:
    """Round to a power of 2^(1/per_octave), values on the lattice to themselves.

    The direction is checked on the result, so that it holds in floating point.
    """
    step = rounding(math.log2(value) * per_octave)
    snapped: float = 2.0 ** (step / per_octave)
    if (rounding is math.floor and snapped > value) or (
        rounding is math.ceil and snapped < value
    ):
        return value
    return snapped


def _events(grouped: _Grouped) -> Iterable[tuple[DpEvent, int]]:
    """Describe groups, in the order of their numbers."""
    for (rate, noise), count in sorted(grouped.items()):
        gaussian = dp_accounting.GaussianDpEvent(noise)
        yield dp_accounting.PoissonSampledDpEvent(rate, gaussian), count
