"""Discrete distributions of privacy losses, and the lattice that they live on."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dptune.accounting.pairs import Floats

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
