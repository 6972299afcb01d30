"""Which privacy units join a step."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dptune.dpsgd.randomness import RandomStream, numpy_generator, seed_sequence
from dptune.errors import ConfigError

UnitIndices = NDArray[np.int64]


class Sampler(Protocol):
    """Draws the units of one step."""

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
    to 2^-53, independently of all others and of all earlier draws.

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
    """

    def __init__(self, *, num_units: int, sample_rate: float) -> None:
        if not 0 < sample_rate <= 1:
            raise ConfigError(
                f"sample_rate must be in (0, 1], got sample_rate={sample_rate}. "
                "Use expected_batch_size / number of privacy units."
            )
        self._num_units = _checked_num_units(num_units)
        self._sample_rate = sample_rate

    def sample(self, generator: np.random.Generator) -> UnitIndices:
        """Draw one step's units, in ascending order."""
        joins = generator.random(self._num_units) < self._sample_rate
        return np.flatnonzero(joins).astype(np.int64)


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


def _checked_num_units(num_units: int) -> int:
    """Refuse to sample from nothing."""
    if num_units < 1:
        raise ConfigError(
            f"num_units must be at least 1, got num_units={num_units}. "
            "Check that the training split is not empty."
        )
    return num_units
