import math
from fractions import Fraction

import numpy as np
import pytest

from dptune.dpsgd.sampling import (
    CyclicPoissonSampler,
    PoissonSampler,
    SamplingKind,
    ShuffledSampler,
    TruncatedPoissonSampler,
    rate_in_turn,
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


def truncated(num_units, *, cap, num_places=None):
    return TruncatedPoissonSampler(
        num_units=num_units,
        sample_rate=0.5,
        max_batch_size=cap,
        num_places=num_places or num_units,
    )


def test_places_that_no_unit_has_are_cut_like_the_others_and_add_nothing():
    padded, whole = truncated(20, cap=15, num_places=50), truncated(50, cap=15)
    draws = []
    for sampler in (padded, whole):
        generator = sampling_generator(fixed_seed=3)
        draws.append([sampler.sample(generator) for _ in range(40)])
    for short, full in zip(*draws, strict=True):
        assert short.tolist() == [unit for unit in full if unit < 20]
        assert len(full) <= 15
    for outside in (0, 51):
        with pytest.raises(ConfigError, match="public_units"):
            truncated(outside, cap=15, num_places=50)


def test_truncated_batch_is_a_subset_of_the_poisson_batch():
    cut = truncated(50, cap=9)
    whole = PoissonSampler(num_units=50, sample_rate=0.5)
    first, second = (s.sample(sampling_generator(fixed_seed=3)) for s in (cut, whole))
    assert len(first) == 9 < len(second)
    assert set(first) <= set(second)
    assert first.tolist() == sorted(set(first))


def test_cap_that_never_binds_changes_nothing():
    cut = truncated(50, cap=50)
    whole = PoissonSampler(num_units=50, sample_rate=0.5)
    draws = []
    for sampler in (cut, whole):
        generator = sampling_generator(fixed_seed=3)
        draws.append([sampler.sample(generator).tolist() for _ in range(20)])
    assert draws[0] == draws[1]


def test_everybody_has_one_turn_a_cycle_at_the_largest_rate():
    sampler = CyclicPoissonSampler(num_units=30, sample_rate=1 / 3, num_groups=3)
    generator = sampling_generator(fixed_seed=0)
    batches = [sampler.sample(generator) for _ in range(6)]
    assert sorted(np.concatenate(batches[:3])) == list(range(30))
    assert [b.tolist() for b in batches[:3]] == [b.tolist() for b in batches[3:]]


def test_two_groups_take_turns():
    sampler = CyclicPoissonSampler(num_units=30, sample_rate=1 / 2, num_groups=2)
    generator = sampling_generator(fixed_seed=0)
    first, second = (sampler.sample(generator).tolist() for _ in range(2))
    assert first
    assert second
    assert sorted(first + second) == list(range(30))


def test_one_group_draws_what_poisson_draws():
    draws = []
    for sampler in (
        CyclicPoissonSampler(num_units=40, sample_rate=0.3, num_groups=1),
        PoissonSampler(num_units=40, sample_rate=0.3),
    ):
        generator = sampling_generator(fixed_seed=2)
        draws.append([sampler.sample(generator).tolist() for _ in range(5)])
    assert draws[0] == draws[1]


def test_more_groups_than_units_leave_steps_empty():
    sampler = CyclicPoissonSampler(num_units=1, sample_rate=0.125, num_groups=8)
    generator = sampling_generator()
    assert sum(len(sampler.sample(generator)) for _ in range(8)) == 1


def test_rate_in_turn_is_at_most_one():
    assert rate_in_turn(0.1, num_groups=4) == 0.4
    assert rate_in_turn(0.1 + 1e-12, num_groups=10) == 1.0
    with pytest.raises(ConfigError, match="at most 3"):
        rate_in_turn(0.3, num_groups=4)


def test_impossible_caps_and_groups_are_refused():
    with pytest.raises(ConfigError, match="max_batch_size"):
        truncated(3, cap=0)
    with pytest.raises(ConfigError, match="num_groups"):
        CyclicPoissonSampler(num_units=3, sample_rate=0.5, num_groups=0)
    with pytest.raises(ConfigError, match="sample_rate"):
        CyclicPoissonSampler(num_units=3, sample_rate=0.0, num_groups=2)


def test_names_of_samplers_are_those_of_recipes_and_ledgers():
    assert {*SamplingKind} == {"poisson", "truncated_poisson", "cyclic_poisson"}


class Coins:
    """A generator whose numbers are known: 16 bits, and more for those that tie."""

    def __init__(self, first, more):
        self._first, self._more = np.array(first, np.uint16), np.array(more)

    def integers(self, high, *, size, dtype):
        assert (high, size, dtype) == (2**16, len(self._first), np.uint16)
        return self._first

    def random(self, count):
        assert count == len(self._more)
        return self._more


def samplers(rate):
    """Samplers of six units that toss one coin for each."""
    return (
        PoissonSampler(num_units=6, sample_rate=rate),
        CyclicPoissonSampler(num_units=6, sample_rate=rate, num_groups=1),
    )


def test_unit_whose_coin_is_exactly_the_rate_stays_out():
    """A quarter of 16 bits lies below the rate; its fraction decides a tie."""
    first = [2**14, 2**14 - 1, 0, 2**16 - 1, 2**14, 2**14]
    below = np.nextafter(0.5, 0)
    for sampler in samplers(0.25):
        assert sampler.sample(Coins(first, [0.0, below, 0.5])).tolist() == [1, 2]
    for sampler in samplers(0.25 + 2**-17):
        drawn = sampler.sample(Coins(first, [0.0, below, 0.5])).tolist()
        assert drawn == [0, 1, 2, 4]


@pytest.mark.parametrize("rate", [1e-7, 3.3e-5, 0.3, 1 - 2**-53, 1.0])
def test_share_of_coins_that_win_is_the_rate(rate):
    """Whole numbers and ties together: the chance is the rate, to the last bit."""
    share, whole = math.modf(rate * 2**16)
    assert Fraction(int(whole)) + Fraction(share) == Fraction(rate) * 2**16
    draws = np.random.default_rng(3)
    num = 400_000
    joined = len(PoissonSampler(num_units=num, sample_rate=rate).sample(draws))
    assert abs(joined - num * rate) <= 5 * math.sqrt(num * rate * (1 - rate)) + 1


def test_one_unit_is_enough_for_every_sampler():
    once = {"num_units": 1, "sample_rate": 1.0}
    for sampler in (
        PoissonSampler(**once),
        CyclicPoissonSampler(**once, num_groups=1),
        TruncatedPoissonSampler(**once, max_batch_size=1, num_places=1),
        ShuffledSampler(num_units=1, batch_size=1),
    ):
        assert sampler.sample(sampling_generator()).tolist() == [0]


def test_rate_in_turn_may_be_above_one_by_rounding_only():
    assert rate_in_turn((1 + 1e-9) / 2, num_groups=2) == 1.0
    with pytest.raises(ConfigError, match="at most 1"):
        rate_in_turn((1 + 1.1e-9) / 2, num_groups=2)
