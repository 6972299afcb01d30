import doctest
import math

import pytest

from dptune.reports import formatting
from dptune.reports.formatting import (
    between,
    duration,
    epsilon,
    interval,
    lower,
    number,
    p_value,
    percent,
    short_digest,
    upper,
)
from dptune.results import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (1.0, "1"),
        (2.50, "2.5"),
        (3.14159, "3.14"),
        (0.04, "0.04"),
        (0.000123, "0.000123"),
        (99.96, "100"),
        (999.6, "1000"),
        (1234.5, "1,234"),
        (-2.5, "−2.5"),
        (1e-5, "10⁻⁵"),
        (2.04e-6, "2.04×10⁻⁶"),
        (1e15, "10¹⁵"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "not a number"),
    ],
)
def test_number_three_significant_digits(value, text):
    assert number(value) == text


def test_epsilon_infinite_says_no_guarantee():
    assert epsilon(math.inf) == "∞ (no guarantee)"
    assert epsilon(7.99961) == "8"
    assert epsilon(None) == "–"


def test_percent_has_a_space():
    assert [percent(v) for v in (0.0, 0.0123, 1.0)] == ["0 %", "1.23 %", "100 %"]
    assert percent(math.nan) == "not a number"


def test_p_value_tiny_is_a_bound():
    assert p_value(0.0) == "p < 10⁻⁹"
    assert p_value(0.5) == "p = 0.5"


def test_interval_states_confidence():
    value = Interval(low=0.0, high=0.0299, confidence=0.95)
    assert interval(value, as_percent=True) == "95 % CI [0 %, 2.99 %]"


def test_duration_picks_unit():
    assert [duration(s) for s in (3.456, 61, 3661)] == [
        "3.46 s",
        "1 min 1 s",
        "1 h 1 min",
    ]


def test_short_digest_keeps_short_ones():
    assert short_digest("abc") == "abc"
    assert short_digest("f" * 64) == "ffffffffffff…"


def test_doctests_hold():
    assert doctest.testmod(formatting).failed == 0


def test_epsilon_and_delta_are_not_understated():
    assert (epsilon(8.0001), upper(1.0049e-5)) == ("8.01", "1.01×10⁻⁵")
    assert (epsilon(8.0), epsilon(0.1), upper(1e-5)) == ("8", "0.1", "10⁻⁵")
    assert (lower(8.009), lower(None), upper(math.nan)) == ("8", "–", "not a number")


def test_interval_is_rounded_outwards_and_never_certain():
    value = Interval(low=0.12349, high=0.56701, confidence=0.9999)
    assert interval(value) == "99.9 % CI [0.123, 0.568]"
    assert between(value) == "0.123 to 0.568"
    assert interval(Interval(low=0, high=1, confidence=1 - 2 * 0.0125)).startswith(
        "97.5 % CI"
    )
