"""Intervals and corrections against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from dptune.errors import DataError
from dptune.statistics import clopper_pearson, holm, paired_bootstrap_upper


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (3, 20), (20, 20)])
def test_clopper_pearson_equals_scipy(hits, trials):
    expected = stats.binomtest(hits, trials).proportion_ci(method="exact")
    assert clopper_pearson(hits, trials) == pytest.approx(expected)


def test_clopper_pearson_without_trials_knows_nothing():
    assert clopper_pearson(0, 0) == (0.0, 1.0)


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
