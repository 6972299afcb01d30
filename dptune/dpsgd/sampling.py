"""Which privacy units join a step."""

import math
from enum import StrEnum
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dptune.dpsgd.randomness import RandomStream, numpy_generator, seed_sequence
from dptune.errors import ConfigError

UnitIndices = NDArray[np.int64]
_ROUNDING: Final = 1e-9


class SamplingKind(StrEnum):
    """How units are drawn for noisy steps."""

    POISSON = "poisson"
    TRUNCATED_POISSON = "truncated_poisson"
    CYCLIC_POISSON = "cyclic_poisson"


class Sampler(Protocol):
    """Draws the units of one step after another; a run makes one and keeps it."""

    def sample(self, generator: np.random.Generator) -> UnitIndices:
        """Return indices of units, `(drawn,)`; may be empty."""
        ...


def sampling_generator(
    *, fixed_seed: int | None = None, attempt: int = 0
) -> np.random.Generator:
    """Return a generator for sampling, secret unless a seed is given explicitly.

    **Privacy**: amplification by subsampling holds only against those who do not know
    who was drawn. `fixed_seed` is for tests and for training without privacy.
    """
    return numpy_generator(
        seed_sequence(RandomStream.SAMPLING, seed=fixed_seed, attempt=attempt)
    )


class PoissonSampler:
    """Every unit joins independently with probability `sample_rate`.

    **Formal guarantee**: each unit is in the result with probability `sample_rate`, up
    to 2^-69, independently of all others and of all earlier draws.

    | case | result |
    |---|---|
    | `sample_rate` 1 | every unit, every time |
    | nobody is drawn | an empty array: the step is noise only |

    **Privacy**: the result, its length included, is private.

    Args:
        num_units: number of privacy units in the data, at least 1.
        sample_rate: in (0, 1].

    Raises:
        ConfigError: a value is out of range.

    >>> sampler = PoissonSampler(num_units=5, sample_rate=1.0)
    >>> sampler.sample(np.random.default_rng(0)).tolist()
    [0, 1, 2, 3, 4]
    """

    def __init__(self, *, num_units: int, sample_rate: float) -> None:
        self._num_units = _checked_num_units(num_units)
        self._sample_rate = _checked_rate(sample_rate)

    def sample(self, generator: np.random.Generator) -> UnitIndices:
        """Draw one step's units, in ascending order."""
        return _tossed(generator, self._num_units, self._sample_rate)


def _tossed(generator: np.random.Generator, num_units: int, rate: float) -> UnitIndices:
    """Toss a coin for each unit; return those that join, in ascending order.

    16 bits decide nearly all: below the whole part of 2^16 rate a unit joins, above it
    does not. Where they equal it, 53 bits more are asked for the fraction. Both parts
    are exact in binary, so that the chance is `rate` up to 2^-69.
    """
    share, whole = math.modf(rate * 2**16)
    coins = generator.integers(2**16, size=num_units, dtype=np.uint16)
    joined = np.flatnonzero(coins <= int(whole)).astype(np.int64, copy=False)
    is_tied = coins[joined] == int(whole)
    stays = ~is_tied
    stays[is_tied] = generator.random(int(is_tied.sum())) < share
    drawn: UnitIndices = joined[stays]
    return drawn


class TruncatedPoissonSampler:
    """Poisson sampling with a public cap on the batch.

    When more than `max_batch_size` units join, a uniformly random subset of that size
    stays. A batch then fits in memory whatever the coins say.

    **Formal guarantee**: one step is dominated by the mechanism of
    `TruncatedSubsampledGaussianDpEvent` with `dataset_size` = `num_places`, for all
    data sets of at most `num_places` units. Epsilon is not monotone in that size: with
    sample rate .01, cap 26, noise multiplier .8 and 1,000 steps it is 8.1 at 1,600,
    23.6 at 3,200 and 9.0 at 16,000. So places that no unit has are drawn, and cut, like
    the others, and add nothing. Truncation lets one unit push another out, which moves
    the sum by 2C: a cap near the mean is dear.

    *Proof.* The draw is one over `num_places` places, whoever sits there. Replace: the
    data sets have as many places, and an empty one is a unit of gradient zero. Add or
    remove: one place holds g, of norm at most C, or nothing. Fix whether the others
    that join fill the cap, which does not depend on that place. If not, the step is the
    Poisson-sampled Gaussian. If so, the kept others are uniform, and one fewer where
    the place is kept, with chance p: beside the same others, the laws are (1 - p) N(y)
    + p N(g) and (1 - p) N(y) + p N(0) with some y of norm at most C. Their means are
    within 2C of that of N(y), so that the replace pair at 2C, which the event charges,
    dominates them.

    | case | result |
    |---|---|
    | at most `max_batch_size` join | all of them, as `PoissonSampler` |
    | `max_batch_size` of `num_places` or more | never cut |

    **Privacy**: the result, its length included, is private; the cap is public.

    Args:
        num_units: number of privacy units in the data, at least 1.
        sample_rate: in (0, 1].
        max_batch_size: at least 1.
        num_places: public bound of `num_units`.

    Raises:
        ConfigError: a value is out of range.

    References:
        Ganesh (2025), https://arxiv.org/abs/2508.15089.
    """

    def __init__(
        self,
        *,
        num_units: int,
        sample_rate: float,
        max_batch_size: int,
        num_places: int,
    ) -> None:
        if not 1 <= num_units <= num_places:
            raise ConfigError(
                "num_units must be in [1, num_places], which truncation was accounted "
                f"for, got num_places={num_places} and other num_units. Raise "
                "data.public_units, or plan again."
            )
        if max_batch_size < 1:
            raise ConfigError(
                "max_batch_size must be at least 1, got "
                f"max_batch_size={max_batch_size}."
            )
        self._poisson = PoissonSampler(num_units=num_places, sample_rate=sample_rate)
        self._max_batch_size = max_batch_size
        self._num_units = num_units

    def sample(self, generator: np.random.Generator) -> UnitIndices:
        """Draw one step's units, in ascending order."""
        joined = self._poisson.sample(generator)
        if len(joined) > self._max_batch_size:
            joined = np.sort(
                generator.choice(joined, self._max_batch_size, replace=False)
            )
        return joined[joined < self._num_units]


class CyclicPoissonSampler:
    """Poisson sampling from one of `num_groups` groups at a time, in turn.

    Every unit is put into a group when the first step is drawn, uniformly and
    independently of all others: adding or removing a unit moves nobody. In step t (the
    t-th call, from 0) the units of group t mod `num_groups` join, each with probability
    `num_groups` times `sample_rate`.

    **Formal guarantee**: a unit joins at most once in any `num_groups` consecutive
    steps, and can join in at most ceil(k / `num_groups`) of k steps, each time by a
    coin of its own. Banded noise needs the first, its accounting the second.

    | case | result |
    |---|---|
    | one group | the same draws as `PoissonSampler` |
    | an empty group | an empty array |

    **Privacy**: the groups and the result are private. The guarantee of a plan holds
    even against those who know all groups.

    Args:
        num_units: number of privacy units in the data, at least 1.
        sample_rate: in (0, 1 / `num_groups`]: chance that a unit joins a step, over
            its group and its coin.
        num_groups: at least 1.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, *, num_units: int, sample_rate: float, num_groups: int) -> None:
        if num_groups < 1:
            raise ConfigError(
                f"num_groups must be at least 1, got num_groups={num_groups}."
            )
        self._num_units = _checked_num_units(num_units)
        self._rate_in_turn = rate_in_turn(sample_rate, num_groups=num_groups)
        self._num_groups = num_groups
        self._groups: UnitIndices | None = None
        self._step = 0

    def sample(self, generator: np.random.Generator) -> UnitIndices:
        """Draw the next step's units, in ascending order."""
        if self._groups is None:
            self._groups = self._assign(generator)
        turn = self._step % self._num_groups
        self._step += 1
        joined = _tossed(generator, self._num_units, self._rate_in_turn)
        drawn: UnitIndices = joined[self._groups[joined] == turn]
        return drawn

    def _assign(self, generator: np.random.Generator) -> UnitIndices:
        """Draw the group of every unit, `(num_units,)`."""
        if self._num_groups == 1:
            return np.zeros(self._num_units, dtype=np.int64)
        return generator.integers(self._num_groups, size=self._num_units)


def rate_in_turn(sample_rate: float, *, num_groups: int) -> float:
    """Return the chance that a unit joins when its group has its turn.

    Raises:
        ConfigError: the rate is not in (0, 1], or the groups are too many for it.

    >>> rate_in_turn(0.125, num_groups=4)
    0.5
    """
    rate = _checked_rate(sample_rate) * num_groups
    if rate > 1 + _ROUNDING:
        raise ConfigError(
            "num_groups * sample_rate must be at most 1, got "
            f"num_groups={num_groups} and sample_rate={sample_rate:g}. A group would "
            f"be too small for the batch: use at most {math.floor(1 / sample_rate)}."
        )
    return min(1.0, rate)


class ShuffledSampler:
    """Batches of one size from an endless run of shuffled epochs.

    Only for training without privacy: shuffled batches are not Poisson batches. A batch
    may span the end of an epoch, so that every batch has the same size.

    Args:
        num_units: number of units in the data, at least 1.
        batch_size: units per batch, at least 1.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, *, num_units: int, batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(
                f"batch_size must be at least 1, got batch_size={batch_size}."
            )
        self._num_units = _checked_num_units(num_units)
        self._batch_size = batch_size
        self._waiting = np.empty(0, dtype=np.int64)

    def sample(self, generator: np.random.Generator) -> UnitIndices:
        """Take the next batch; shuffle a new epoch when too few units wait."""
        while len(self._waiting) < self._batch_size:
            epoch = generator.permutation(self._num_units)
            self._waiting = np.concatenate([self._waiting, epoch])
        batch, self._waiting = np.split(self._waiting, [self._batch_size])
        return batch


def _checked_rate(sample_rate: float) -> float:
    """Refuse what is no chance."""
    if not 0 < sample_rate <= 1:
        raise ConfigError(
            f"sample_rate must be in (0, 1], got sample_rate={sample_rate}. "
            "Use expected_batch_size / number of privacy units."
        )
    return sample_rate


def _checked_num_units(num_units: int) -> int:
    """Refuse to sample from nothing."""
    if num_units < 1:
        raise ConfigError(
            f"num_units must be at least 1, got num_units={num_units}. "
            "Check that the training split is not empty."
        )
    return num_units
