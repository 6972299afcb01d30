import doctest
import math
import re
from decimal import Decimal

import numpy as np
import pytest

from dptune import rounding
from dptune.reports.formatting import lower, p_value, upper
from dptune.rounding import at_least, at_most, nearest, written_p_value

_POWERS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
_SCIENTIFIC = re.compile(rf"(?:(?P<head>[\d.]+)×)?10(?P<power>[{''.join(_POWERS)}]+)")
_NOISE = Decimal("1e-11")
"""A larger share than sums of floats are off by."""


def read(text):
    """Read a number as pages write it, such as `1,234` or `1.01×10⁻⁵`."""
    if text.startswith("\u2212"):
        return -read(text[1:])
    if found := _SCIENTIFIC.fullmatch(text):
        power = found["power"].translate(str.maketrans(_POWERS))
        return Decimal(f"{found['head'] or 1}e{power}")
    return Decimal(text.replace(",", ""))


def drawn():
    """Draw numbers of either sign, of all sizes and of usual ones."""
    rng = np.random.default_rng(3)
    powers = np.concatenate([rng.uniform(-300, 300, 9000), rng.uniform(-7, 7, 9000)])
    return (10**powers * rng.choice([-1.0, 1.0], powers.size)).tolist()


def last_digit(value):
    """Return the place of the last digit that is written of a number."""
    power = value.adjusted() - 2
    return Decimal(10) ** (min(power, 0) if value.adjusted() < 12 else power)


def test_bounds_hold_and_are_near_as_pages_write_them():
    for number in drawn():
        value = Decimal(repr(number))
        low, high = read(lower(number)), read(upper(number))
        noise = abs(value) * _NOISE
        assert low - noise <= value <= high + noise, number
        assert high - low <= last_digit(value), number


def test_bounds_hold_to_any_number_of_digits():
    for number in drawn()[::9]:
        for digits in (1, 2, 4, 6):
            low, high = at_least(number, digits=digits), at_most(number, digits=digits)
            assert low <= nearest(number, digits=digits) <= high
            assert low - 1e-11 * abs(number) <= number <= high + 1e-11 * abs(number)


@pytest.mark.parametrize("round_", [at_most, at_least, nearest])
def test_short_numbers_are_themselves(round_):
    for mantissa in range(1, 1000):
        for power in (-300, -12, -5, -4, -1, 0, 1, 9, 290):
            value = float(f"{mantissa}e{power}")
            assert round_(value) == value
            assert round_(-value) == -value


@pytest.mark.parametrize("round_", [at_most, at_least, nearest])
def test_noise_of_sums_is_no_digit(round_):
    assert round_(0.1 + 0.2) == 0.3
    assert round_(8 - 7.9) == 0.1
    assert round_(1 - 0.1 - 0.1) == 0.8
    assert round_(sum([0.1] * 80)) == 8


@pytest.mark.parametrize("value", [0.0, -0.0, math.inf, -math.inf])
def test_what_has_no_digits_is_itself(value):
    assert at_most(value) == at_least(value) == nearest(value) == value
    assert math.isnan(at_most(math.nan))


def test_no_digit_before_the_point_is_cut():
    assert (at_most(1234.5), at_least(1234.5), nearest(1234.4)) == (1235, 1234, 1234)


def test_doctests_hold():
    assert doctest.testmod(rounding).failed == 0


def test_p_values_are_at_a_level_exactly_where_they_are_written_so():
    levels = (0.0005, 0.001, 0.02, 0.05)
    for power in np.random.default_rng(5).uniform(-5, 0, 5000):
        value = float(10**power)
        written, page = (
            written_p_value(value),
            read(p_value(value).removeprefix("p = ")),
        )
        assert float(written) == float(page) >= value
        for level in levels:
            assert (value <= level) == (float(written) <= level), value
    assert written_p_value(0.0) == "1e-300"
