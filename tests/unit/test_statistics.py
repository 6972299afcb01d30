"""Intervals and corrections against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from dptune.errors import DataError
from dptune.statistics import (
    clopper_pearson,
    fewest_hits_for,
    hit_rate_interval,
    holm,
    paired_bootstrap_upper,
    resampled_indices,
    welch_interval,
)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (3, 20), (20, 20)])
def test_clopper_pearson_equals_scipy(hits, trials):
    expected = stats.binomtest(hits, trials).proportion_ci(method="exact")
    assert clopper_pearson(hits, trials) == pytest.approx(expected)


def test_clopper_pearson_without_trials_knows_nothing():
    assert clopper_pearson(0, 0) == (0.0, 1.0)


NUM, SIDE = 500, 0.05
"""Records of each kind, and the chance that either side of an interval may miss."""


def misses(shift, side, *, position, bound):
    """Chance that a bound of normal scores misses the true rate, by quadrature.

    Non-members above a threshold of rank `position` have a share that follows a beta
    law; members above it are binomial given that share.
    """
    truth = stats.norm.sf(stats.norm.isf(0.01) - shift)
    shares = stats.beta(position + 1, NUM - position).ppf((np.arange(4000) + 0.5) / 4e3)
    found = stats.norm.sf(stats.norm.isf(shares) - shift)
    wrong = [h for h in range(150) if side * (truth - bound(h)) > 1e-12]
    if not wrong:
        return 0.0
    if side > 0:  # an upper bound below the truth: few were hit
        return float(stats.binom.cdf(max(wrong), NUM, found).mean())
    return float(stats.binom.sf(min(wrong) - 1, NUM, found).mean())  # all above too


def exact(hits):
    return hit_rate_interval(
        [hits] * 40,
        num_members=NUM,
        num_non_members=NUM,
        fpr=0.01,
        confidence=1 - 2 * SIDE,
    )


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_hit_rate_interval_misses_no_more_than_it_says(shift):
    last = int(stats.binom.isf(SIDE / 2, NUM, 0.01))
    first = int(stats.binom.ppf(SIDE / 2, NUM, 0.01)) - 1
    assert misses(shift, 1, position=last, bound=lambda h: exact(h)[1]) <= SIDE
    assert misses(shift, -1, position=first, bound=lambda h: exact(h)[0]) <= SIDE
    assert fewest_hits_for(NUM, 0.01) > last > 5 > first


def test_hit_rate_interval_of_a_twin_that_trusts_its_threshold_misses_more():
    """Clopper-Pearson alone does not know that the threshold was drawn too."""

    def twin(hits):
        return clopper_pearson(hits, NUM, confidence=1 - 2 * SIDE)

    shares = [
        misses(1.0, side, position=5, bound=lambda h, k=k: twin(h)[k])
        for side, k in ((1, 1), (-1, 0))
    ]
    assert max(shares) > 2 * SIDE


def test_hit_rate_interval_grows_with_confidence_and_knows_its_ends():
    hits = list(range(20, 60))

    def interval(confidence, hits=hits, num=500, num_choices=1):
        return hit_rate_interval(
            hits,
            num_members=num,
            num_non_members=num,
            fpr=0.01,
            confidence=confidence,
            num_choices=num_choices,
        )

    (low, high), (lower, higher) = interval(0.9), interval(0.99)
    assert lower < low < high < higher
    assert interval(0.9, num_choices=10) == (lower, high)
    assert interval(0.9, hits=[])[1] == 1.0
    assert interval(0.9, num=0) == (0.0, 1.0)
    assert interval(0.95, hits=[0] * 40)[0] == 0.0


def test_paired_bootstrap_upper_of_a_constant_change_is_that_change():
    tokens = np.arange(1, 101)
    champion = np.random.default_rng(0).normal(50, 20, 100)
    upper = paired_bootstrap_upper(champion, champion + 0.01 * tokens, tokens)
    assert upper == pytest.approx(0.01)


def test_paired_bootstrap_upper_grows_with_confidence_and_is_repeatable():
    generator = np.random.default_rng(0)
    champion, change = generator.normal(50, 20, 200), generator.normal(0, 1, 200)
    tokens = np.full(200, 10)
    low, high = (
        paired_bootstrap_upper(champion, champion + change, tokens, confidence=c)
        for c in (0.6, 0.99)
    )
    assert low < high
    normal = change.mean() / 10 + 2.326 * change.std() / math.sqrt(200) / 10
    assert high == pytest.approx(normal, abs=0.005)
    again = paired_bootstrap_upper(champion, champion + change, tokens, confidence=0.99)
    assert again == high


def changes_of_users(generator, *, users=50, records=10):
    """Losses of two models whose difference goes by the user, and whose record is."""
    units = np.repeat(np.arange(users), records)
    change = generator.normal(0, 0.1, users)[units]
    champion = generator.uniform(10, 30, len(units))
    noise = generator.normal(0, 0.02, len(units))
    return champion, champion + change + noise, np.ones(len(units)), units


def share_below_the_truth(*, told):
    generator = np.random.default_rng(0)
    below = 0
    for _ in range(300):
        champion, candidate, tokens, units = changes_of_users(generator)
        known = {"units": units} if told else {}
        upper = paired_bootstrap_upper(
            champion, candidate, tokens, num_resamples=400, **known
        )
        below += upper < 0  # the true change
    return below / 300


def test_paired_bootstrap_upper_holds_for_records_of_users():
    assert share_below_the_truth(told=True) < 0.1


def test_twin_that_takes_records_of_users_for_independent_is_caught():
    assert share_below_the_truth(told=False) > 0.2


@pytest.mark.parametrize("num", [2, 3, 5])
def test_paired_bootstrap_upper_of_few_units_is_below_the_truth_as_rarely_as_said(num):
    """What the bootstrap alone draws is below it in 28, 21 and 11 % of samples."""
    generator = np.random.default_rng(0)
    below = 0
    for _ in range(1000):
        tokens = generator.integers(5, 40, num)
        change = generator.normal(0, 1, num) * tokens
        upper = paired_bootstrap_upper(np.zeros(num), change, tokens, num_resamples=200)
        below += upper < 0
    assert below < 90  # of 1,000 at level .05; weights cost some degrees of freedom


def test_paired_bootstrap_upper_of_one_unit_is_infinite():
    assert paired_bootstrap_upper([5.0], [1.0], [10]) == math.inf
    units = {"units": (0, 0, 0)}
    assert paired_bootstrap_upper([5.0] * 3, [1.0] * 3, [9] * 3, **units) == math.inf


def test_paired_bootstrap_upper_nan_stays_nan():
    assert math.isnan(paired_bootstrap_upper([1.0, math.nan], [1.0, 1.0], [1, 1]))


@pytest.mark.parametrize("arguments", [([1.0], [1.0, 2.0], [1]), ([], [], [])])
def test_paired_bootstrap_upper_of_unpaired_or_no_records_raises(arguments):
    with pytest.raises(DataError):
        paired_bootstrap_upper(*arguments)


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ({"a": 0.01, "b": 0.04}, {"a", "b"}),
        ({"a": 0.03, "b": 0.04}, set()),
        ({"a": 0.02, "b": 0.06}, {"a"}),
        ({"a": math.nan, "b": 0.001}, set()),
        ({}, set()),
    ],
)
def test_holm_by_hand(p_values, rejected):
    assert holm(p_values, level=0.05) == rejected


@pytest.mark.parametrize(("num_planted", "num_controls"), [(10, 10), (100, 20)])
def test_welch_interval_of_few_controls_misses_as_often_as_said_and_its_twin_more(
    num_planted, num_controls
):
    def by_resampling(one, two):
        draws = resampled_indices(
            len(one),
            len(two),
            num_resamples=200,
            generator=np.random.default_rng(0),
        )
        found = [one[i].mean(axis=1) - two[j].mean(axis=1) for i, j in draws]
        return np.quantile(np.concatenate(found), (0.025, 0.975))

    rng = np.random.default_rng(3)
    missed, missed_by_twin = 0, 0
    for _ in range(800):
        one, two = rng.beta(1, 4, num_planted), rng.beta(1, 4, num_controls)
        low, high = welch_interval(one, two, confidence=0.95)
        missed += not low <= 0 <= high
        low, high = by_resampling(one, two)
        missed_by_twin += not low <= 0 <= high
    assert missed / 800 < 0.068  # .05 and 2.3 standard errors
    assert missed_by_twin > missed


def test_welch_interval_is_that_of_scipy_and_shows_no_spread_of_one_value():
    rng = np.random.default_rng(4)
    one, two = rng.random(7), rng.random(4)
    low, high = welch_interval(one, two, confidence=0.9)
    theirs = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.9)
    assert (low, high) == pytest.approx(tuple(theirs))
    assert welch_interval(one[:1], two, confidence=0.9) == (-math.inf, math.inf)
    assert welch_interval(np.ones(3), np.ones(2), confidence=0.9) == (0.0, 0.0)
