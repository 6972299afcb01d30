"""Numbers as people read them: three significant digits, and infinity in words."""

import math
import re
from typing import Final

from dptune.results import Interval
from dptune.rounding import at_least, at_most

NO_GUARANTEE = "∞ (no guarantee)"
MISSING = "–"
_MINUS = "\u2212"
_UNSEEN: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Controls, and what shows nothing or turns text around; joiners change letters."""


def number(value: float | None, *, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits; `–` where there is none.

    | value | text |
    |---|---|
    | None | `–` |
    | NaN | `not a number` |
    | infinite | `∞` |
    | 1234.5 | `1,234` (whole numbers are never cut) |
    | 0.00012 | `0.00012`; below 1e-4 in scientific form |

    >>> number(3.14159), number(1234.5), number(2e-6), number(0.3)
    ('3.14', '1,234', '2×10⁻⁶', '0.3')
    """
    if value is None:
        return MISSING
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10**digits:
        text = f"{size:,.0f}" if size < 1e12 else _scientific(size, digits)
    elif size < 1e-4:
        text = _scientific(size, digits)
    else:
        places = max(0, digits - 1 - math.floor(math.log10(size)))
        text = _without_zeros(f"{size:.{places}f}")
    return text if value > 0 else _MINUS + text


def count(value: int) -> str:
    """Return a whole number with thousands separators.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def percent(value: float | None, *, digits: int = 3) -> str:
    """Return a fraction in [0, 1] as a percentage.

    >>> percent(0.0123), percent(1.0), percent(None)
    ('1.23 %', '100 %', '–')
    """
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{number(100 * value, digits=digits)} %"


def epsilon(value: float | None) -> str:
    """Return an epsilon, rounded up; an infinite one says that there is no guarantee.

    >>> epsilon(7.9996), epsilon(8.0004), epsilon(float("inf"))
    ('8', '8.01', '∞ (no guarantee)')
    """
    if value is not None and math.isinf(value):
        return NO_GUARANTEE
    return upper(value)


def upper(value: float | None) -> str:
    """Return what must not be understated, such as a delta: rounded up.

    >>> upper(1.0049e-5), upper(1e-5)
    ('1.01×10⁻⁵', '10⁻⁵')
    """
    return number(None if value is None else at_most(value))


def lower(value: float | None) -> str:
    """Return what must not be overstated, such as what is left: rounded down.

    >>> lower(2.3499), lower(None)
    ('2.34', '–')
    """
    return number(None if value is None else at_least(value))


def between(bounds: Interval) -> str:
    """Return both ends of an interval, rounded outwards.

    >>> between(Interval(low=0.1239, high=0.5671, confidence=0.95))
    '0.123 to 0.568'
    """
    return f"{lower(bounds.low)} to {upper(bounds.high)}"


def p_value(value: float | None) -> str:
    """Return a p-value with its sign, rounded up; tiny ones as a bound.

    >>> p_value(0.0312), p_value(1e-30), p_value(None)
    ('p = 0.032', 'p < 10⁻⁹', '–')
    """
    if value is None or math.isnan(value):
        return number(value)
    if value < 1e-9:
        return "p < 10⁻⁹"
    return f"p = {number(at_most(value, digits=2), digits=2)}"


def interval(value: Interval | None, *, as_percent: bool = False) -> str:
    """Return a confidence interval with its confidence, rounded outwards.

    >>> interval(Interval(low=0.01, high=0.05, confidence=0.95), as_percent=True)
    '95 % CI [1 %, 5 %]'
    """
    if value is None:
        return MISSING
    form = percent if as_percent else number
    low, high = form(at_least(value.low)), form(at_most(value.high))
    return f"{percent(at_least(value.confidence))} CI [{low}, {high}]"


def duration(seconds: float) -> str:
    """Return a time span in the largest unit that fits.

    >>> duration(0.25), duration(75), duration(7200)
    ('0.25 s', '1 min 15 s', '2 h 0 min')
    """
    if not math.isfinite(seconds) or seconds < 60:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def short_digest(digest: str) -> str:
    """Return the first characters of a digest, enough to tell versions apart.

    >>> short_digest("sha256:" + "ab" * 32)
    'sha256:abababababab…'
    """
    head, _, tail = digest.rpartition(":")
    if len(tail) <= 16:
        return digest
    return f"{head}:{tail[:12]}…" if head else f"{tail[:12]}…"


def visible(text: str) -> str:
    r"""Return text with escapes for what shows nothing, or turns what follows around.

    A name with U+202E would write the rest of its line from right to left, a verdict
    too; one with U+200B would look like another name.

    >>> print(visible("a\u202eb\u200b"))
    a\u202eb\u200b
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def words(name: str) -> str:
    """Return an identifier as words.

    >>> words("add_or_remove_one")
    'add or remove one'
    """
    return name.replace("_", " ")


def sentence_case(text: str) -> str:
    """Return text with its first letter raised, the rest untouched.

    >>> sentence_case("record (DP)")
    'Record (DP)'
    """
    return text[:1].upper() + text[1:]


def _scientific(size: float, digits: int) -> str:
    """Return `a×10ⁿ` with a true superscript."""
    mantissa, _, power = f"{size:.{digits - 1}e}".partition("e")
    mantissa = _without_zeros(mantissa)
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else f"{mantissa}×10{raised}"


def _without_zeros(text: str) -> str:
    """Return a number without trailing zeros behind its point."""
    return text.rstrip("0").rstrip(".") if "." in text else text
