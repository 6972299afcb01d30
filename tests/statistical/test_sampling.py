"""Samplers follow their laws, and twins that do not are caught.

False alarms: 1e-6 per bound, under new seeds. Escapes are asserted beside each twin.
"""

import numpy as np
import pytest
from scipy import stats

from dptune.dpsgd.sampling import (
    CyclicPoissonSampler,
    PoissonSampler,
    ShuffledSampler,
    TruncatedPoissonSampler,
    sampling_generator,
)
from tests.support.statistics import (
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


CAP = 24
FULL = float(stats.binom.sf(CAP - 1, NUM_UNITS, RATE))
KEPT_RATE = float(
    np.minimum(np.arange(NUM_UNITS + 1), CAP)
    @ stats.binom.pmf(np.arange(NUM_UNITS + 1), NUM_UNITS, RATE)
    / NUM_UNITS
)


class CutBy:
    """A truncated sampler whose rule for who stays is `keep`."""

    def __init__(self, keep):
        self._poisson = PoissonSampler(num_units=NUM_UNITS, sample_rate=RATE)
        self._keep = keep

    def sample(self, generator):
        return self._keep(self._poisson.sample(generator), generator)


def cap_holds(joined):
    return joined.sum(1).max() <= CAP


def batches_are_full_as_often_as_they_should_be(joined):
    """P(Binomial(n, q) >= cap) = .22 of the steps."""
    low, high = binomial_bounds(NUM_STEPS, probability=FULL)
    return low <= (joined.sum(1) == CAP).sum() <= high


def kept_units_are_alike(joined):
    """Everybody stays with the same chance; units of a step are nearly independent."""
    expected = NUM_STEPS * KEPT_RATE
    low, high = chi_square_bounds(NUM_UNITS)
    statistic = ((joined.sum(0) - expected) ** 2).sum() / expected / (1 - KEPT_RATE)
    return low <= statistic <= high


TRUNCATED_LAWS = [
    cap_holds,
    batches_are_full_as_often_as_they_should_be,
    kept_units_are_alike,
]


@pytest.mark.parametrize("law", TRUNCATED_LAWS)
def test_truncated_sampler_follows_the_law(law):
    sampler = TruncatedPoissonSampler(
        num_units=NUM_UNITS,
        sample_rate=RATE,
        max_batch_size=CAP,
        num_places=NUM_UNITS,
    )
    assert law(draw(sampler))


def test_forgotten_cap_is_caught():
    joined = draw(CutBy(lambda units, generator: units))
    assert not cap_holds(joined)
    assert not batches_are_full_as_often_as_they_should_be(joined)


def test_cap_that_keeps_the_first_units_is_caught():
    joined = draw(CutBy(lambda units, generator: units[:CAP]))
    assert cap_holds(joined)
    assert not kept_units_are_alike(joined)


def test_full_batches_five_percent_off_are_caught():
    """A rate that is 5 % off moves the share of full batches by 27 %."""
    for rate in (0.95 * RATE, 1.05 * RATE):
        sampler = TruncatedPoissonSampler(
            num_units=NUM_UNITS,
            sample_rate=rate,
            max_batch_size=CAP,
            num_places=NUM_UNITS,
        )
        assert not batches_are_full_as_often_as_they_should_be(draw(sampler))
        actual = float(stats.binom.sf(CAP - 1, NUM_UNITS, rate))
        escapes = binomial_escape_probability(
            NUM_STEPS, probability=FULL, relative_error=actual / FULL - 1
        )
        assert escapes < 1e-3


GROUPS = 4


def cyclic(rate=RATE, *, twin=CyclicPoissonSampler, num_groups=GROUPS):
    return draw(twin(num_units=NUM_UNITS, sample_rate=rate, num_groups=num_groups))


class ByParity(CyclicPoissonSampler):
    """Groups by position: without unit 0 everybody else moves."""

    def _assign(self, generator):
        return np.arange(self._num_units) % self._num_groups


class NewGroupsEveryCycle(CyclicPoissonSampler):
    """A unit can be last in one cycle and first in the next."""

    def sample(self, generator):
        if self._step % self._num_groups == 0:
            self._groups = None
        return super().sample(generator)


class RateOfPlainSampling(CyclicPoissonSampler):
    """Forgets that only one group in `num_groups` has its turn."""

    def __init__(self, **options):
        super().__init__(**options)
        self._rate_in_turn = options["sample_rate"]


def turns_are_apart(joined):
    """Nobody joins twice in any `GROUPS` consecutive steps: exact, never by chance."""
    windows = np.lib.stride_tricks.sliding_window_view(joined, GROUPS, axis=0)
    return windows.sum(-1).max() <= 1


def groups_of(joined):
    """Group of every unit that ever joined, read off its first step."""
    return joined.argmax(0) % GROUPS


def groups_are_drawn_by_coin(sampler):
    """Two neighbors share a group with probability 1 / GROUPS, over 400 samplers."""
    together = 0
    for seed in range(400):
        generator = sampling_generator(fixed_seed=seed)
        drawn = sampler(num_units=NUM_UNITS, sample_rate=0.25, num_groups=GROUPS)
        group = np.empty(NUM_UNITS, int)
        for step in range(GROUPS):  # at this rate everybody joins in turn
            group[drawn.sample(generator)] = step
        together += (group[0::2] == group[1::2]).sum()
    low, high = binomial_bounds(400 * NUM_UNITS // 2, probability=1 / GROUPS)
    return low <= together <= high


def test_cyclic_sampler_follows_the_law():
    joined = cyclic()
    assert rate_is_right(joined)
    assert turns_are_apart(joined)
    assert groups_are_drawn_by_coin(CyclicPoissonSampler)
    steps = np.arange(NUM_STEPS)[:, None] % GROUPS
    assert (joined <= (steps == groups_of(joined))).all()


def test_groups_by_parity_are_caught():
    assert turns_are_apart(cyclic(twin=ByParity))
    assert not groups_are_drawn_by_coin(ByParity)


def test_unit_that_joins_twice_within_the_bands_is_caught():
    assert not turns_are_apart(cyclic(twin=NewGroupsEveryCycle))
    assert not turns_are_apart(poisson())


def test_cyclic_rate_that_forgets_the_groups_is_caught():
    assert not rate_is_right(cyclic(twin=RateOfPlainSampling))
    for error in (0.05, -0.05):
        assert not rate_is_right(cyclic(RATE * (1 + error)))


def test_groups_of_two_starts_are_independent():
    """A resumed run must not meet the groups that an earlier one may have shown."""
    options = {"num_units": NUM_UNITS, "sample_rate": RATE, "num_groups": GROUPS}
    first, second = (
        groups_of(draw(CyclicPoissonSampler(**options), seed=seed)) for seed in (1, 2)
    )
    low, high = binomial_bounds(NUM_UNITS, probability=1 / GROUPS)
    assert low <= (first == second).sum() <= high
