"""The interval of the missing rate holds where misses come in clusters."""

import numpy as np
import pytest
from scipy import stats

from dptune.review.quality import MissCounts, count_misses, missing_rate


def clustered(rng, *, records=200, words=60, rate=0.01, spread=6.0):
    """Counts whose records differ: a beta law with mean `rate` per record."""
    size = rng.integers(words // 2, 2 * words, records)
    own = rng.beta(rate * spread, (1 - rate) * spread, records)
    return [
        MissCounts(missed=int(rng.binomial(n, p)), words=int(n))
        for n, p in zip(size, own, strict=True)
    ]


def plain_clopper_pearson(counts, *, confidence=0.95):
    """The broken twin: it takes words for independent."""
    hits, size = sum(c.missed for c in counts), sum(c.words for c in counts)
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else stats.beta.ppf(tail, hits, size - hits + 1)
    return low, stats.beta.ppf(1 - tail, hits + 1, size - hits)


def coverage(interval_of, *, draws=2000, **law):
    rng = np.random.default_rng(20)
    rate = law.get("rate", 0.01)
    hits = 0
    for _ in range(draws):
        low, high = interval_of(clustered(rng, **law))
        hits += low <= rate <= high
    return hits / draws


def ours(counts):
    _, interval = missing_rate(counts)
    return interval.low, interval.high


LAWS = [
    {"rate": 0.05, "records": 200},
    {"rate": 0.03, "records": 300, "spread": 20.0},
    {"rate": 0.02, "records": 500, "spread": 30.0},
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_interval_covers_at_its_nominal_level_under_clusters(law):
    assert coverage(ours, **law) >= 0.94  # 2,000 seeded draws: standard error .005


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_plain_interval_does_not_and_is_caught(law):
    assert coverage(plain_clopper_pearson, **law) < 0.85


def test_no_miss_gives_a_bound_that_counts_records_not_words():
    counts = [MissCounts(missed=0, words=100)] * 300
    rate, interval = missing_rate(counts)
    assert rate == interval.low == 0.0
    assert interval.high == pytest.approx(1 - 0.025 ** (1 / 300))


def test_no_word_says_nothing():
    rate, interval = missing_rate([])
    assert (rate, interval.low, interval.high) == (0.0, 0.0, 1.0)


def test_every_word_missed_is_one():
    rate, interval = missing_rate([MissCounts(missed=5, words=5)] * 20)
    assert rate == 1.0
    assert interval.high == pytest.approx(1.0)
    assert interval.low < 1.0


def test_interval_contains_its_estimate():
    rng = np.random.default_rng(1)
    for _ in range(50):
        rate, interval = missing_rate(clustered(rng, records=30))
        assert interval.low <= rate <= interval.high


TEXT = "Call Ann Lee at 555-0100 -- now"


@pytest.mark.parametrize(
    ("gold", "found", "missed"),
    [
        ([(5, 12)], [(5, 12)], 0),
        ([(5, 12)], [], 2),
        ([(5, 12)], [(5, 8)], 1),
        ([(5, 12)], [(5, 11)], 1),
        ([(5, 12)], [(0, 31)], 0),
        ([], [(0, 4)], 0),
        ([(24, 27)], [], 0),
        ([(16, 24)], [(16, 19), (20, 24)], 0),
        ([(5, 8), (16, 24)], [], 2),
        ([(5, 99)], [(5, 12)], 3),
    ],
)
def test_misses_are_words_with_a_letter_or_digit_in_the_open(gold, found, missed):
    assert count_misses(TEXT, gold, found) == MissCounts(missed=missed, words=7)
