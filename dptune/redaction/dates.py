"""Dates a number of days off, in the format that they were written in.

The distance between two whole dates of one unit stays as it is. A date that says less
(a month, a year, a day without a year) moves to the month, year or day that its middle
falls on; where that is the same one, or the format is unknown, there is no date to
write.
"""

import re
from datetime import date, timedelta
from typing import Final

_LONG: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_WEEK: Final = (
    *("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
)
_MONTHS: Final = {
    name.casefold(): number
    for number, long in enumerate(_LONG, 1)
    for name in (long, long[:3])
} | {"sept": 9}
_DAYS: Final = "|".join([*_WEEK, *(day[:3] for day in _WEEK)])
_NAMES: Final = "|".join(sorted(_MONTHS, key=len, reverse=True))
_YEAR: Final = r"(?P<year>\d{4})"
_DAY: Final = r"(?P<day>\d{1,2})(?P<th>st|nd|rd|th)?"
_MONTH: Final = rf"(?P<month>{_NAMES})(?P<dot>\.?)"
_WEEKDAY: Final = rf"(?P<weekday>(?:{_DAYS})\.?,?\s+)?"

_ISO: Final = re.compile(
    rf"{_YEAR}(?P<sign>[-/.])(?P<month>\d{{1,2}})(?P=sign)(?P<day>\d{{1,2}})"
    r"(?P<time>[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?\s?(?:Z|[+-]\d{2}:?\d{2})?)?"
)
_NUMERIC: Final = re.compile(
    r"(?P<one>\d{1,2})(?P<sign>[-/.])(?P<two>\d{1,2})"
    r"(?:(?P=sign)(?P<year>\d{4}|\d{2}))?"
)
_WORDED: Final = tuple(
    re.compile(_WEEKDAY + form, re.IGNORECASE)
    for form in (
        rf"{_MONTH}(?P<a>\s+(?:the\s+)?){_DAY}(?:(?P<b>,?\s+){_YEAR})?",
        rf"(?P<the>the\s+)?{_DAY}(?P<a>\s+(?:of\s+)?){_MONTH}(?:(?P<b>,?\s+){_YEAR})?",
        rf"{_MONTH}(?:(?P<b>,?\s+){_YEAR})?",
        _YEAR,
    )
)
_LEAP: Final = 2024
_COMMON: Final = 2023
_CENTURY: Final = 69
"""Two digits from here on are of the last century, as POSIX has it."""


def shifted(value: str, days: int, *, month_first: bool) -> str | None:
    """Return a date so many days off; None where there is none to write.

    >>> shifted("March 3rd, 2020", 30, month_first=True)
    'April 2nd, 2020'
    >>> shifted("31.12.1999", 1, month_first=False)
    '01.01.2000'

    Args:
        value: a date without blanks around it.
        days: not 0; may be negative.
        month_first: how to read `3/4/2020`.
    """
    try:
        if match := _ISO.fullmatch(value):
            return _iso(match, days)
        if match := _NUMERIC.fullmatch(value):
            return _numeric(match, days, month_first=month_first)
        for form in _WORDED:
            if (match := form.fullmatch(value)) and (made := _worded(match, days)):
                return made
    except (ValueError, OverflowError):  # 31 April, or a year that no calendar has
        pass
    return None


def _iso(match: re.Match[str], days: int) -> str:
    when = date(*(int(match[part]) for part in ("year", "month", "day")))
    when += timedelta(days=days)
    width = 2 if len(match["month"]) == len(match["day"]) == 2 else 0
    parts = (f"{when.year:04}", f"{when.month:0{width}}", f"{when.day:0{width}}")
    return match["sign"].join(parts) + (match["time"] or "")


def _numeric(match: re.Match[str], days: int, *, month_first: bool) -> str | None:
    one, two = int(match["one"]), int(match["two"])
    first = month_first and match["sign"] != "."
    if one > 12 or two > 12:
        first = two > 12
    month, day = (one, two) if first else (two, one)
    year = _year(match["year"], month, day)
    when = date(year, month, day) + timedelta(days=days)
    if not match["year"] and (when.month, when.day) == (month, day):
        return None
    padded = "0" in (match["one"][0], match["two"][0]) or min(one, two) > 9
    width = 2 if padded else 0
    parts = [f"{when.month:0{width}}", f"{when.day:0{width}}"]
    parts = parts if first else parts[::-1]
    if match["year"]:
        short = len(match["year"]) == 2
        parts.append(f"{when.year % 100:02}" if short else f"{when.year:04}")
    return match["sign"].join(parts)


def _year(written: str | None, month: int, day: int) -> int:
    """Return the year, or one that has the day where none is written."""
    if written is None:
        return _LEAP if (month, day) == (2, 29) else _COMMON
    year = int(written)
    if len(written) > 2:
        return year
    return year + (1900 if year >= _CENTURY else 2000)


def _worded(match: re.Match[str], days: int) -> str | None:
    """Write a date with the name of a month, or a year alone; None if it stays."""
    found = match.groupdict()
    month = _MONTHS[found["month"].casefold()] if found.get("month") else 7
    day = int(found["day"]) if found.get("day") else 15 if found.get("month") else 1
    old = date(_year(found.get("year"), month, day), month, day)
    when = old + timedelta(days=days)
    said = [name for name in ("year", "month", "day") if found.get(name)]
    if all(getattr(old, name) == getattr(when, name) for name in said):
        return None  # also where it is written otherwise: `Sept` becomes `Sep`
    new = {"year": f"{when.year:04}", "day": str(when.day), "th": _ordinal(when.day)}
    if found.get("month"):
        is_long = found["month"].title() in _LONG
        name = _LONG[when.month - 1]
        new["month"] = _cased(name if is_long else name[:3], found["month"])
    if found.get("weekday"):
        written = found["weekday"]
        bare = written.rstrip(" ,.\t\n")
        name = _WEEK[when.weekday()]
        name = name if len(bare) > 3 else name[:3]
        new["weekday"] = _cased(name, bare) + written[len(bare) :]
    text = match[0]
    parts = [name for name in new if found.get(name)]
    for name in sorted(parts, key=match.start, reverse=True):
        start, end = match.span(name)
        text = text[:start] + new[name] + text[end:]
    return text


def _ordinal(day: int) -> str:
    if day // 10 == 1:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _cased(made: str, written: str) -> str:
    if written.islower():
        return made.lower()
    return made.upper() if written.isupper() else made
