"""Levels: the distinct mechanisms of a history, few enough to compose.

Plain Gaussians merge exactly: n of noise multiplier s compose to one of s / sqrt(n),
and 1/s^2 adds up over different ones.

A controller that moves the noise at every step leaves as many Poisson-sampled levels as
steps. Where there are more than `MAX_LEVELS`, noise multipliers are rounded *down*
to a geometric lattice, so that levels fall together; so are, *up*, sample rates, if
there are more than a few.

**Formal guarantee**: rounding never makes epsilon smaller.

* Noise: more Gaussian noise is post-processing of less.
* Rate: with w = q/q', the pair of rate q is w times that of rate q' plus 1 - w times a
  pair of two equal distributions, in all three directions. The hockey stick is jointly
  convex, and that of equal distributions is the least there is.

How much larger it makes epsilon, `rounding_bounds` tells for a given history: rounding
the other way gives a history that costs no more than the true one.

References:
    Balle, Barthe, Gaboardi (2018), advanced joint convexity, arXiv:1807.01647.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.composition import Level
from dptune.accounting.events import event_to_json

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


def rounding_bounds(event_counts: Counts, *, most: int) -> tuple[DpEvent, DpEvent]:
    """Enclose a history between two of few levels, one cheaper and one dearer.

    Returns:
        Events whose epsilons are at most, and at least, that of the history.
    """
    sampled, others, inverse_variance = _sort(event_counts)
    if inverse_variance > 0:
        others.append((dp_accounting.GaussianDpEvent(inverse_variance**-0.5), 1))
    cheaper = _rounded(sampled, most, math.ceil, math.floor)
    dearer = _rounded(sampled, most, math.floor, math.ceil)
    low, high = (
        dp_accounting.ComposedDpEvent(
            events=[
                dp_accounting.SelfComposedDpEvent(event=event, count=count)
                for event, count in (*_events(grouped), *others)
            ]
        )
        for grouped in (cheaper, dearer)
    )
    return low, high


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
