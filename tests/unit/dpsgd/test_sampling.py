import numpy as np
import pytest

from dptune.dpsgd.sampling import (
    PoissonSampler,
    ShuffledSampler,
    sampling_generator,
)
from dptune.errors import ConfigError


def test_rate_one_draws_everybody():
    sampler = PoissonSampler(num_units=7, sample_rate=1.0)
    drawn = sampler.sample(sampling_generator())
    assert drawn.tolist() == list(range(7))


def test_batch_may_be_empty():
    sampler = PoissonSampler(num_units=2, sample_rate=1e-9)
    drawn = sampler.sample(sampling_generator())
    assert drawn.shape == (0,)
    assert drawn.dtype == np.int64


def test_sampling_without_seed_is_fresh_and_with_seed_repeats_per_attempt():
    def one(**options):
        sampler = PoissonSampler(num_units=200, sample_rate=0.5)
        return tuple(sampler.sample(sampling_generator(**options)))

    assert one() != one()
    assert one(fixed_seed=1) == one(fixed_seed=1)
    assert one(fixed_seed=1) != one(fixed_seed=1, attempt=1)


def test_shuffled_epochs_hold_every_unit_once():
    sampler = ShuffledSampler(num_units=10, batch_size=4)
    generator = sampling_generator(fixed_seed=0)
    batches = [sampler.sample(generator) for _ in range(5)]
    assert [len(batch) for batch in batches] == [4] * 5
    stream = np.concatenate(batches)
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))


def test_shuffled_batch_larger_than_the_data_repeats_units():
    sampler = ShuffledSampler(num_units=3, batch_size=6)
    assert sorted(sampler.sample(sampling_generator())) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_invalid_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="sample_rate"):
        PoissonSampler(num_units=3, sample_rate=rate)


def test_empty_data_and_empty_batches_are_refused():
    with pytest.raises(ConfigError, match="num_units"):
        PoissonSampler(num_units=0, sample_rate=0.5)
    with pytest.raises(ConfigError, match="batch_size"):
        ShuffledSampler(num_units=3, batch_size=0)
