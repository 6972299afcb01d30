"""Few digits of a figure, such that what is claimed of the figure still holds."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context
from typing import Final

_EXACT: Final = Context(prec=12)
"""What differs behind these digits is the noise of sums, such as 0.1 + 0.2."""
_LEAST_P_VALUE: Final = 1e-300
"""Below it a double may be 0 where the p-value is not."""


def at_most(value: float, *, digits: int = 3) -> float:
    """Return the next number of so many significant digits that is not below.

    For what must not be understated: an epsilon, a delta, the upper end of an interval.

    | value | result |
    |---|---|
    | 8.0049 | 8.01 |
    | 1234.5 | 1235.0: no digit before the point is cut |
    | 0.1 + 0.2 | 0.3 |
    | -8.0049 | -8.0 |
    | 0, NaN, infinite | itself |

    Args:
        value: any number.
        digits: at least 1.

    >>> at_most(8.0049), at_most(8.0), at_most(1.0049e-5)
    (8.01, 8.0, 1.01e-05)
    """
    return _rounded(value, digits, ROUND_CEILING)


def at_least(value: float, *, digits: int = 3) -> float:
    """Return the next number of so many significant digits that is not above.

    For what must not be overstated: a lower bound, what is left of a budget.

    >>> at_least(8.0049), at_least(0.9999)
    (8.0, 0.999)
    """
    return _rounded(value, digits, ROUND_FLOOR)


def nearest(value: float, *, digits: int = 3) -> float:
    """Return the nearest number of so many significant digits.

    >>> nearest(8.0049), nearest(1234.4)
    (8.0, 1234.0)
    """
    return _rounded(value, digits, ROUND_HALF_EVEN)


def _rounded(value: float, digits: int, way: str) -> float:
    """Round the decimal that a float is written as, not its binary digits."""
    if not math.isfinite(value) or value == 0:
        return value
    exact = _EXACT.create_decimal(repr(float(value)))
    whole = exact.adjusted() + 1
    kept = max(digits, whole) if whole <= _EXACT.prec else digits
    return float(Context(prec=kept, rounding=way).create_decimal(exact))


def written_at_most(value: float, *, digits: int = 3) -> str:
    """Write `at_most` in a sentence, without digits that it has not.

    >>> written_at_most(1.0049e-5), written_at_most(8.00001, digits=4)
    ('1.01e-05', '8.001')
    """
    return f"{at_most(value, digits=digits):.12g}"


def written_at_least(value: float, *, digits: int = 3) -> str:
    """Write `at_least` in a sentence, without digits that it has not.

    >>> written_at_least(2.3499)
    '2.34'
    """
    return f"{at_least(value, digits=digits):.12g}"


def written_p_value(value: float, *, digits: int = 2) -> str:
    """Write a p-value in a sentence: never smaller than it is, and never 0.

    Rounded up, it is at or below a level of no more digits exactly if the p-value is.

    >>> written_p_value(0.0312), written_p_value(0.000502), written_p_value(0.0)
    ('0.032', '0.00051', '1e-300')
    """
    return written_at_most(max(value, _LEAST_P_VALUE), digits=digits)


def percent_at_most(share: float) -> str:
    """Write the upper end of a share in a sentence, in percent.

    >>> percent_at_most(0.012301)
    '1.24%'
    """
    return f"{100 * at_most(share):.12g}%"
