"""Composition on a grid: against direct sums, against dp_accounting, never below."""

import itertools
import math
import threading

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.accounting import accountants, composition
from dptune.accounting.accountants import Accountant, epsilon
from dptune.accounting.composition import (
    BoundedCache,
    Level,
    composed_epsilon,
    composition_levels,
)
from dptune.accounting.events import (
    event_from_json,
    event_to_json,
    merge_events,
)
from dptune.accounting.pairs import mechanism_distribution
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event
from tests.support.rounding import rounding_bounds

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
RELATIONS = [ADD, REPLACE]
THEIRS = {
    ADD: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE: dpa.NeighboringRelation.REPLACE_ONE,
}
LAWS = settings(derandomize=True, deadline=None, max_examples=12)


def step(rate, noise):
    return dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))


def level(event, count):
    return Level(event_json=event_to_json(event), count=count)


def schedule(*parts):
    return merge_events(
        poisson_gaussian_event(
            sample_rate=rate, noise_multiplier=noise, num_steps=count
        )
        for rate, noise, count in parts
    )


@pytest.fixture
def fresh():
    """Empty the caches before and after a test."""

    def clear():
        accountants._epsilon.cache_clear()
        composition._spectra.clear()

    clear()
    yield clear
    clear()


@pytest.mark.parametrize("relation", RELATIONS)
def test_composed_epsilon_equals_the_direct_sum_over_all_outcomes(relation):
    """Three small distributions, every triple of atoms, no transform."""
    interval, delta = 0.25, 1e-3
    events = [step(0.4, 1.0), step(0.2, 0.8), step(0.6, 2.0)]
    ours = composed_epsilon(
        [level(event, 1) for event in events],
        delta=delta,
        relation=relation,
        interval=interval,
        spread=1.0,
    )
    worst = 0.0
    for direction in range(1 if relation is REPLACE else 2):
        atoms = [
            mechanism_distribution(event_to_json(event), relation, interval)[direction]
            for event in events
        ]
        loss = np.array([0.0])
        mass = np.array([1.0])
        for part in atoms:
            loss = np.add.outer(loss, part.index * interval).ravel()
            mass = np.multiply.outer(mass, part.mass).ravel()
        infinity = 1 - math.prod(1 - part.infinity for part in atoms)

        def spent(at, loss=loss, mass=mass, infinity=infinity):
            return infinity + float(-np.expm1(-np.maximum(loss - at, 0)) @ mass)

        low, high = 0.0, 50.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if spent(middle) <= delta else (middle, high)
        worst = max(worst, high)
    assert worst * (1 - 1e-9) <= ours <= worst * 1.001


@LAWS
@given(
    parts=st.lists(
        st.tuples(st.floats(0.002, 0.5), st.floats(0.6, 5.0), st.integers(1, 300)),
        min_size=1,
        max_size=4,
    ),
    delta=st.sampled_from([1e-3, 1e-5, 1e-7]),
    relation=st.sampled_from(RELATIONS),
)
def test_epsilon_random_schedules_agree_with_dp_accounting(parts, delta, relation):
    """Their grid is coarser and theirs is an upper bound too, so it may be larger."""
    event = schedule(*parts)
    ours = epsilon(event, delta=delta, relation=relation)
    accountant = PLDAccountant(THEIRS[relation], 1e-3 if ours > 0.3 else 1e-4)
    theirs = float(accountant.compose(event).get_epsilon(delta))
    assert theirs * (1 - 2e-2) - 1e-3 <= ours <= theirs * (1 + 1.5e-3) + 1e-4


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_from_the_cache_is_bit_for_bit_the_cold_one(relation, fresh):
    parts = [(0.02, noise, 50) for noise in np.linspace(0.8, 2.0, 12)]
    cold = epsilon(schedule(*parts), delta=1e-5, relation=relation)
    fresh()
    for count in (3, 6, 12):
        warm = epsilon(schedule(*parts[:count]), delta=1e-5, relation=relation)
    assert warm == cold
    assert composition._spectra.num_bytes > 0


def test_epsilon_of_threads_is_that_of_one(fresh):
    parts = [(0.02, noise, 50) for noise in np.linspace(0.8, 2.0, 8)]
    events = [schedule(*parts[:count]) for count in range(1, 9)]
    expected = [epsilon(event, delta=1e-5, relation=ADD) for event in events]
    fresh()
    found = {}

    def work(index):
        found[index] = epsilon(events[index], delta=1e-5, relation=ADD)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(8)] == expected


def test_epsilon_twin_that_drops_what_lies_above_the_grid_is_caught(fresh, monkeypatch):
    """The broken twin: a short grid without its tail as infinite loss."""
    event = schedule((0.01, 0.7, 3))
    sound = epsilon(event, delta=1e-5, relation=ADD)
    whole = composition._window

    def short(parts, delta, where, scale):
        window = whole(parts, delta, where, scale)
        top = round(0.8 * sound / where[2])
        return composition._Window(
            first=window.first, size=top - window.first, infinity=0.0
        )

    def dropped(parts, window, where):
        atoms = composition._atoms(parts[0].event_json, where)
        mass = np.zeros(window.size)
        keep = atoms.index - window.first < window.size
        np.add.at(mass, atoms.index[keep] - window.first, atoms.mass[keep])
        return mass

    accountants._epsilon.cache_clear()
    monkeypatch.setattr(composition, "_window", short)
    monkeypatch.setattr(composition, "_composed_mass", dropped)
    assert epsilon(event, delta=1e-5, relation=ADD) < sound * (1 - 1e-2)


@pytest.mark.parametrize("relation", RELATIONS)
def test_window_leaves_out_no_more_than_it_says(relation):
    """Mass outside the grid, by direct convolution, is below the Chernoff term."""
    event, count, interval, delta = step(0.05, 0.8), 40, 2e-3, 1e-5
    for direction in range(1 if relation is REPLACE else 2):
        where = (relation, direction, interval)
        window = composition._window([level(event, count)], delta, where, 8.0)
        atoms = composition._atoms(event_to_json(event), where)
        low = int(atoms.index.min())
        dense = np.zeros(int(np.ptp(atoms.index)) + 1)
        np.add.at(dense, atoms.index - low, atoms.mass)
        pmf, size = np.array([1.0]), 2**18
        pmf = np.fft.irfft(np.fft.rfft(dense, size) ** count, size)
        assert len(dense) * count < size or pmf[-1] < 1e-12
        above = pmf[max(window.first + window.size - low * count, 0) :].sum()
        below = pmf[: max(window.first - low * count, 0)].sum()
        assert abs(above) <= 1e-4 * delta + 1e-12
        assert abs(below) <= 1e-4 * delta + 1e-12
        assert window.infinity >= 1e-4 * delta


def test_composition_levels_plain_gaussians_merge_exactly():
    counts = ((dpa.GaussianDpEvent(2.0), 4), (dpa.GaussianDpEvent(1.0), 3))
    (merged,) = composition_levels(counts)
    assert merged.count == 1
    noise = event_from_json(merged.event_json).noise_multiplier
    assert noise == pytest.approx((4 / 4 + 3) ** -0.5)


def wandering(number, seed=0):
    rng = np.random.default_rng(seed)
    noises = np.exp(rng.uniform(0, 1, number))
    rates = rng.choice([0.01, 0.013, 0.02], number)
    return tuple(
        (step(float(rate), float(noise)), 1)
        for rate, noise in zip(rates, noises, strict=True)
    )


def test_composition_levels_few_stay_as_they_are():
    counts = wandering(50)
    kept = {x.event_json for x in composition_levels(counts, most=50)}
    assert kept == {event_to_json(event) for event, _ in counts}


def test_composition_levels_many_are_rounded_to_what_costs_more():
    counts = wandering(400)
    rounded = composition_levels(counts, most=100)
    assert len(rounded) <= 100
    assert sum(x.count for x in rounded) == 400
    found = sorted(
        event_from_json(x.event_json).event.noise_multiplier for x in rounded
    )
    given_noises = sorted(event.event.noise_multiplier for event, _ in counts)
    assert found[0] <= given_noises[0]
    assert found[-1] <= given_noises[-1]


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_rounded_levels_are_dearer_within_the_bound(relation):
    """Three histories: rounded to cheaper ones, as it is, rounded to dearer ones."""
    counts = wandering(150)
    true = epsilon(
        dpa.ComposedDpEvent([event for event, _ in counts]),
        delta=1e-5,
        relation=relation,
    )
    low, high = (
        epsilon(event, delta=1e-5, relation=relation)
        for event in rounding_bounds(counts, most=80)
    )
    assert low <= true * (1 + 1e-3)
    assert true <= high * (1 + 1e-3)
    assert high <= low * 1.2


def test_composition_levels_twin_that_rounds_noise_up_is_cheaper():
    counts = wandering(150)
    true = epsilon(
        dpa.ComposedDpEvent([event for event, _ in counts]), delta=1e-5, relation=ADD
    )
    twin, _ = rounding_bounds(counts, most=30)
    assert epsilon(twin, delta=1e-5, relation=ADD) < true * (1 - 5e-3)


def test_epsilon_of_a_noise_that_moves_at_every_step_is_within_its_bounds(monkeypatch):
    """More distinct levels than are composed one by one."""
    monkeypatch.setattr(composition, "MAX_LEVELS", 128)
    rng = np.random.default_rng(3)
    event = merge_events(step(0.01, float(1 + 0.5 * rng.random())) for _ in range(600))
    counts = accountants._used_mechanisms(event)
    got = epsilon(event, delta=1e-5, relation=REPLACE)
    least = epsilon(
        rounding_bounds(counts, most=16)[0],
        delta=1e-5,
        relation=REPLACE,
        accountant=Accountant.QUADRATURE,
    )
    assert least * (1 - 2e-4) <= got <= least * 1.15


def test_bounded_cache_forgets_the_oldest_and_never_exceeds_its_size():
    cache = BoundedCache(max_bytes=10, size_of=len)
    made = []

    def value(key):
        return lambda: made.append(key) or b"1234"

    for key in ("a", "b", "a", "c", "a", "b"):
        assert cache.get(key, value(key)) == b"1234"
        assert cache.num_bytes <= 10
    assert made == ["a", "b", "c", "b"]
    assert cache.get("large", lambda: b"x" * 11) == b"x" * 11
    assert cache.num_bytes == 8
    cache.clear()
    assert cache.num_bytes == 0


def test_grid_sizes_are_few_and_enough():
    sizes = {composition._grid_size(needed) for needed in range(1, 5000)}
    assert all(composition._grid_size(needed) >= needed for needed in range(1, 5000))
    assert len(sizes) < 25
    assert all(b <= 1.6 * a for a, b in itertools.pairwise(sorted(sizes)))


@pytest.mark.parametrize("relation", RELATIONS)
def test_grid_of_rare_losses_is_small(fresh, relation, monkeypatch):
    """At rate 1e-6 and noise .3 it once had 25 million losses and took 27 seconds.

    Losses are near zero, but for one in a million of up to ten. Orders of moments that
    fit the many alone bound the sum of the rare ones by a thousand times the rarest.
    """
    sizes = []
    honest = composition._composed_mass

    def watch(levels, window, where):
        sizes.append(window.size)
        return honest(levels, window, where)

    monkeypatch.setattr(composition, "_composed_mass", watch)
    event = schedule((1e-6, 0.3, 1000))
    found = epsilon(event, delta=1e-6, relation=relation)
    assert max(sizes) <= 2**18
    # by sampling under a tilted law (benchmarks/corners.py): delta is .9998 of 1e-6
    assert found == pytest.approx(1.5710, abs=2e-4)


def test_grid_of_large_losses_is_small(fresh, monkeypatch):
    """Half a million losses of some ten each need no grid of five thousandths."""
    sizes = []
    honest = composition._composed_mass

    def watch(levels, window, where):
        sizes.append(window.size)
        return honest(levels, window, where)

    monkeypatch.setattr(composition, "_composed_mass", watch)
    assert epsilon(schedule((0.5, 0.3, 500_000)), delta=1e-6, relation=REPLACE) > 1e5
    assert max(sizes) <= 2**21


def test_cache_keeps_what_just_fits_and_drops_the_oldest_for_more():
    made = []

    def value(name):
        return cache.get(name, lambda: made.append(name) or name)

    cache = BoundedCache(max_bytes=4, size_of=len)
    for name in ("aa", "bb", "aa", "c", "aa", "bb"):
        assert value(name) == name
    assert made == ["aa", "bb", "c", "bb"]  # "bb" was the one not asked for longest
    assert cache.num_bytes == 4
    assert value("large") == value("large") == "large"
    assert made[4:] == ["large"] * 2
    cache.clear()
    assert cache.num_bytes == 0
    assert value("full") == value("full") == "full"
    assert made[6:] == ["full"]
