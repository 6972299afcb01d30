"""Dates a number of days off, and invented numbers: in the format of the original.

The distance between two whole dates of one unit stays as it is. A date that says less
(a month, a year, a day without a year) moves to the month, year or day that its middle
falls on; where that is the same one, or the format is unknown, there is no date to
write. Numbers keep shape, alphabet and checksum.
"""

import json
import random
import re
import unicodedata
from datetime import date, timedelta
from functools import lru_cache
from importlib import resources
from typing import Final

from dptune.identifiers import IBAN_LENGTHS, has_iban_digits, is_luhn_valid

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


_ISSUER_DIGITS: Final = 6
"""Digits of a card number that name its issuer (ISO/IEC 7812-1)."""
_BANK_DIGITS: Final = 4


def in_shape(draw: random.Random, value: str) -> str:
    """Redraw every letter and digit in its own alphabet; signs and blanks stay.

    Accents and vowel signs go: they would say which letter stood there. So do signs
    that nobody sees, which equal values may have or not.
    """
    made = []
    for character in value:
        if character.isdecimal():
            zero = ord(character) - unicodedata.decimal(character)
            made.append(chr(zero + draw.randrange(10)))
        elif character.isalpha():
            made.append(_letter(draw, character))
        elif character.isnumeric():
            made.append(draw.choice("0123456789"))
        elif unicodedata.category(character) not in {"Mn", "Mc", "Cf"}:
            made.append(character)
    return "".join(made)


def _letter(draw: random.Random, character: str) -> str:
    """Draw a letter of the same alphabet and case."""
    script, is_upper = script_of(character), character.isupper()
    for first, last in _alphabets():
        if script_of(first) == script and first.isupper() == is_upper:
            while not (drawn := chr(draw.randint(ord(first), ord(last)))).isalpha():
                pass
            return drawn
    letter = draw.choice("abcdefghijklmnopqrstuvwxyz")
    return letter.upper() if is_upper else letter


@lru_cache(maxsize=1)
def _alphabets() -> tuple[tuple[str, str], ...]:
    source = resources.files("dptune.redaction").joinpath("alphabets.json")
    return tuple((first, last) for first, last in json.loads(source.read_text("utf8")))


@lru_cache(maxsize=4096)
def script_of(word: str) -> str:
    """Return a name for the script of a word's first letter, empty without any."""
    letter = next(filter(str.isalpha, word), "")
    return unicodedata.name(letter, "").partition(" ")[0] if letter else ""


def _with_digits(value: str, digits: str) -> str:
    """Put digits in the places of a number's own."""
    left = iter(digits)
    return "".join(next(left) if c.isdecimal() else c for c in value)


def card_number(draw: random.Random, value: str) -> str:
    """Keep shape, first digit and whether the checksum holds.

    Digits 2 to 6, which name the issuer, are zeros: no card has such a number.
    """
    digits = "".join(str(unicodedata.decimal(c)) for c in value if c.isdecimal())
    if len(digits) <= _ISSUER_DIGITS + 1:
        return in_shape(draw, value)
    free = "".join(draw.choices("0123456789", k=len(digits) - _ISSUER_DIGITS - 1))
    body = digits[0] + "0" * (_ISSUER_DIGITS - 1) + free
    right = next(c for c in "0123456789" if is_luhn_valid(body + c))
    if not is_luhn_valid(digits):
        right = str((int(right) + draw.randint(1, 9)) % 10)
    return _with_digits(value, body + right)


def social_security(draw: random.Random, value: str) -> str:
    """Keep the shape; area 000 is never issued."""
    made = "".join(c for c in in_shape(draw, value) if c.isdecimal())
    return _with_digits(value, "000" + made[3:])


def iban(draw: random.Random, value: str) -> str:
    """Keep shape, country and whether the check digits hold; the bank is zeros.

    The account number is drawn anew. Where the country is none, so is the number.
    """
    places = [i for i, character in enumerate(value) if character.isalnum()]
    compact = "".join(value[i] for i in places).upper()
    country = compact[:2]
    if not country.isascii() or not country.isalpha() or len(places) <= 8:
        return in_shape(draw, value)
    body = in_shape(draw, compact[4:])
    bank = 0
    made = ""
    for character in body:
        is_bank = character.isdecimal() and bank < _BANK_DIGITS
        bank += is_bank
        made += "0" if is_bank else character
    is_valid = (
        IBAN_LENGTHS.get(country) == len(compact)
        and compact.isascii()
        and compact[2:4].isdecimal()
        and has_iban_digits(compact)
    )
    checks = [f"{n:02}" for n in range(2, 99)]
    right = next(c for c in checks if has_iban_digits(country + c + made))
    if not is_valid:
        right = draw.choice([c for c in checks if c != right])
    whole = country + right + made
    written = list(value)
    for place, character in zip(places, whole, strict=True):
        is_low = value[place].islower()
        written[place] = character.lower() if is_low else character
    return "".join(written)
