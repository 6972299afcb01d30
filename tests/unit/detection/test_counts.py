"""Counts under differential privacy: bounded, noisy as said, over a public list."""

import random
import statistics

import pytest

from dptune.detection.scoring import (
    PUBLIC_TYPES,
    release_counts,
    score_entity_types,
)
from dptune.errors import ConfigError

UNITS = [{"PERSON": 3, "EMAIL": 4}, {"PERSON": 1}, {}]


def test_release_counts_every_public_type_and_the_event():
    released = release_counts(UNITS, noise_multiplier=1e-9)
    assert set(released.counts) == set(PUBLIC_TYPES)
    assert released.counts["PERSON"] == 4
    assert released.event.noise_multiplier == 1e-9
    table = score_entity_types(
        released.counts, counts_are_public=False, counts_are_released=True
    )
    assert table.counts == "released"


def test_release_counts_one_unit_moves_the_sum_by_its_bound_at_most():
    big = {"PERSON": 300, "EMAIL": 400, "NO_SUCH_TYPE": 10**6}
    counts = release_counts([big], noise_multiplier=1e-9, max_norm=10.0).counts
    assert (counts["PERSON"], counts["EMAIL"]) == (6, 8)


def test_release_counts_noise_has_the_stated_spread():
    draw = random.Random(0)  # noqa: S311  # seeded test
    totals = [{"PERSON": 1}] * 1000
    values = [
        release_counts(
            totals, noise_multiplier=2.0, max_norm=5.0, generator=draw
        ).counts["PERSON"]
        for _ in range(2000)
    ]
    assert statistics.mean(values) == pytest.approx(1000, abs=1.2)
    assert statistics.stdev(values) == pytest.approx(10.0, rel=0.08)
    halved = [value / 2 for value in values]  # a twin that forgets half of the noise
    assert statistics.stdev(halved) != pytest.approx(10.0, rel=0.08)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_release_counts_impossible_number_is_refused(bad):
    with pytest.raises(ConfigError, match="noise_multiplier must be"):
        release_counts(UNITS, noise_multiplier=bad)
    with pytest.raises(ConfigError, match="max_norm must be"):
        release_counts(UNITS, noise_multiplier=1.0, max_norm=bad)
