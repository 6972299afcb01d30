"""Poisson sampling follows its law, and twins that do not are caught.

False alarms: 1e-6 per bound, under new seeds. Escapes are asserted beside each twin.
"""

import numpy as np
import pytest

from dptune.dpsgd.sampling import PoissonSampler, ShuffledSampler, sampling_generator
from dptune.testing.statistics import (
    binomial_bounds,
    binomial_escape_probability,
    chi_square_bounds,
)

NUM_UNITS = 200
RATE = 0.1
NUM_STEPS = 5000
DRAWS = NUM_UNITS * NUM_STEPS


def draw(sampler, *, seed=11):
    """Membership matrix, `(steps, units)`."""
    generator = sampling_generator(fixed_seed=seed)
    joined = np.zeros((NUM_STEPS, NUM_UNITS), bool)
    for row in joined:
        row[sampler.sample(generator)] = True
    return joined


def poisson(rate=RATE):
    return draw(PoissonSampler(num_units=NUM_UNITS, sample_rate=rate))


def rate_is_right(joined):
    low, high = binomial_bounds(DRAWS, probability=RATE)
    return low <= joined.sum() <= high


def size_variance_is_right(joined):
    """Batch sizes scatter with variance n q (1 - q), nearly chi-square."""
    statistic = ((joined.sum(1) - NUM_UNITS * RATE) ** 2).sum()
    low, high = chi_square_bounds(NUM_STEPS)
    return low <= statistic / (NUM_UNITS * RATE * (1 - RATE)) <= high


def pairs_are_independent(joined):
    """Neighboring units join together with probability rate^2."""
    together = (joined[:, 0::2] & joined[:, 1::2]).sum()
    low, high = binomial_bounds(DRAWS // 2, probability=RATE**2)
    return low <= together <= high


def steps_are_independent(joined):
    """A unit joins two steps in a row with probability rate^2."""
    together = (joined[0::2] & joined[1::2]).sum()
    low, high = binomial_bounds(DRAWS // 2, probability=RATE**2)
    return low <= together <= high


def units_are_alike(joined):
    counts = joined.sum(0)
    expected = NUM_STEPS * RATE
    low, high = chi_square_bounds(NUM_UNITS)
    return low <= ((counts - expected) ** 2).sum() / (expected * (1 - RATE)) <= high


LAWS = [
    rate_is_right,
    size_variance_is_right,
    pairs_are_independent,
    steps_are_independent,
    units_are_alike,
]


@pytest.fixture(scope="module")
def truth():
    return poisson()


@pytest.mark.parametrize("law", LAWS)
def test_poisson_sampler_follows_the_law(law, truth):
    assert law(truth)


def test_rate_five_percent_off_is_caught():
    for error in (0.05, -0.05):
        assert not rate_is_right(poisson(RATE * (1 + error)))
        escapes = binomial_escape_probability(
            DRAWS, probability=RATE, relative_error=error
        )
        assert escapes < 1e-6


def test_shuffled_batches_are_caught():
    shuffled = draw(ShuffledSampler(num_units=NUM_UNITS, batch_size=20))
    assert rate_is_right(shuffled)
    assert not size_variance_is_right(shuffled)
    assert not steps_are_independent(shuffled)


def test_units_that_join_in_pairs_are_caught():
    half = PoissonSampler(num_units=NUM_UNITS // 2, sample_rate=RATE)
    generator = sampling_generator(fixed_seed=5)
    joined = np.zeros((NUM_STEPS, NUM_UNITS), bool)
    for row in joined:
        row[2 * half.sample(generator)] = True
        row[1::2] = row[0::2]
    assert not pairs_are_independent(joined)


def test_favored_unit_is_caught(truth):
    favored = truth.copy()
    favored[:, 0] = True
    assert not units_are_alike(favored)


def test_batch_may_be_empty_as_often_as_it_should():
    sampler = PoissonSampler(num_units=30, sample_rate=RATE)
    generator = sampling_generator(fixed_seed=1)
    empty = sum(len(sampler.sample(generator)) == 0 for _ in range(20_000))
    low, high = binomial_bounds(20_000, probability=(1 - RATE) ** 30)
    assert low <= empty <= high


def test_default_generator_is_not_seeded():
    sampler = PoissonSampler(num_units=1000, sample_rate=0.5)
    first, second = (set(sampler.sample(sampling_generator())) for _ in range(2))
    low, high = binomial_bounds(1000, probability=0.25)
    assert low <= len(first & second) <= high
