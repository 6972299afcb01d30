"""Refiners that read what stands around a candidate: dates, ages, amounts, files.

Like those of `validators`, they take a text and a range and return one, or None.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from dptune.detection import words
from dptune.detection.patterns.validators import (
    VOCABULARY,
    Range,
    Refiner,
    digits_of,
)
from dptune.detection.words import (
    GIVEN_NAME,
    LEXICAL,
    PERSONAL,
    reading_of,
    word_set,
)

_OF_PEOPLE = VOCABULARY["occupations"].replace(" ", "|")

_OF_ALL = f"{_OF_PEOPLE}|{VOCABULARY['occupations_of_things_too'].replace(' ', '|')}"

_TRADES = frozenset(
    trade + end for trade in _OF_ALL.split("|") for end in ("", "s")
) | word_set("job occupation profession trade")

_WHO = (
    "patient|victim|driver|suspect|defendant|applicant|passenger|resident|man|woman|boy"
    "|girl|son|daughter|brother|sister|mother|father|husband|wife|widow|widower|child"
    "|toddler|grandson|granddaughter|nephew|niece|teenager|student"
)

_BEFORE_AGE = re.compile(
    r"(?:(?P<name>[A-Z][\w'’-]+\.? (?:[A-Z][\w'’.-]* ){0,2}?(?:[A-Z][\w'’-]+|[A-Z]\.))"
    rf"|\b(?i:{_WHO})|(?P<one>[A-Z][a-z]{{2,20}})),? [(\[]?\Z"
)

_NO_NAME = word_set(
    "figure table chapter section page volume article clause part step line row item "
    "exhibit annex appendix paragraph rule note unit lesson question verse episode "
    "version level grade type phase volumes one two three four five six"
)


def _refine_age_of_name(text: str, start: int, end: int) -> Range | None:
    """Keep `Ann Lee, 42, of Leeds` and `my son (8)`: somebody stands in front."""
    before = _BEFORE_AGE.search(text[max(0, start - 60) : start])
    if before is None:
        return None
    words = (before["name"] or "").lower().split()
    if not _NO_NAME.isdisjoint(words):
        return None
    if before["one"] and not reading_of(before["one"].lower()) & GIVEN_NAME:
        return None
    goes_on = text[end : end + 2] == ", " or not words
    readings = [reading_of(word) for word in words]
    is_name = any(r & (GIVEN_NAME | PERSONAL) or not r & LEXICAL for r in readings)
    return (start, end) if goes_on or is_name else None


_CURRENCY = (
    "usd|eur|gbp|chf|cad|aud|nzd|inr|jpy|cny|rmb|sek|nok|dkk|pln|czk|huf|ron|zar|sgd|h"
    "kd|mxn|brl|krw|rub|aed|sar|try|thb|php|idr|myr|ngn|kes|rs\\.?|kr\\.?|zł|ft|lakhs?"
    "|crores?"
)

_IS_PRICE = re.compile(
    r"[ -]?(?:/ ?|(?:a|an|per|each|every) )(?:yr|year|month|mo|week|annum)"
)


def _refine_amount(text: str, start: int, end: int) -> Range | None:
    """Refuse the small counts that a month or an hour holds."""
    value = text[start:end]
    has_sign = re.search(
        rf"[$£€¥₹₩₽]|\b(?:{_CURRENCY}|[a-z]*(?:dollar|euro|pound|buck"
        rf"|yen|rupee|franc|kron|peso)[a-z]*)\b|thousand|million|lakh"
        rf"|crore",
        value,
    )
    digits = len(digits_of(value))
    is_wage = (
        digits >= 4
        or "thousand" in value
        or "million" in value
        or re.search(r"\d\s?k\b", value) is not None
    )
    if _IS_PRICE.match(text, end) and not is_wage:
        return None
    is_amount = has_sign is not None or is_wage
    return (start, end) if is_amount else None


_SMALL_FRACTION = re.compile(
    r"(?:[1-7]/[2-8]|1/1[026]|16/9|16/10|21/9|5/5|10/10|[0-9]/(?:5|10))\Z"
)

_SAYS_DATE = re.compile(
    r"(?:\b(?:on|by|since|from|until|till|due|before|after|dated?|dob|born|of|and|to"
    r"|the)"
    r"|[:(|\n])\s{0,2}\Z"
)

_BEFORE = 12


def _refine_short_date(text: str, start: int, end: int) -> Range | None:
    """Keep `3/14`; fractions and ratings need a word that says date."""
    value = text[start:end]
    if value == "24/7":
        return None
    if _SMALL_FRACTION.match(value):
        said = _SAYS_DATE.search(text, max(0, start - _BEFORE), start)
        after = text[end : end + 12].lstrip()
        is_share = after.startswith(("of", "cup", "inch", "star", "tsp", "tbsp", '"'))
        return (start, end) if said and not is_share else None
    day, _, month = value.partition("/")
    is_date = 0 < min(int(day), int(month)) <= 12 and max(int(day), int(month)) <= 31
    return (start, end) if is_date else None


def _refine_lone_day(text: str, start: int, end: int) -> Range | None:
    """Refuse `from the 14th to the 16th century`."""
    rest = re.split(r"[.!?\n]", text[end : end + 40], maxsplit=1)[0]
    return None if "centur" in rest or "floor" in rest else (start, end)


_PAIR = re.compile(r"([+-]?\d{1,3}\.(\d+))\D+?([+-]?\d{1,3}\.(\d+))\W*$")


def _refine_coordinates(text: str, start: int, end: int) -> Range | None:
    """Refuse pairs of decimals that are no place on earth, or have no sign of one."""
    value = text[start:end]
    pair = _PAIR.fullmatch(value)
    if pair is None:
        return start, end
    first, second = abs(float(pair[1])), abs(float(pair[3]))
    is_place = first <= 90 and second <= 180 and max(first, second) >= 10
    is_exact = min(len(pair[2]), len(pair[4])) >= 4
    return (start, end) if is_place and is_exact else None


_NUMBER_WORD = (
    r"(?:ids?|identifiers?|numbers?|nos?|num|nrs?|nummer|n[uú]mero|nro|numer|№|n[°º]|#"
    r"|codes?|akt|ref)"
)

_HAS_NUMBER_WORD = re.compile(rf"(?:\b{_NUMBER_WORD}|[#№°º])[\s.:)(#°º\"'=-]{{0,6}}\Z")

_IS_YEAR = re.compile(r"(?:1[89]|20)\d\d(?:s|[-/–]\d\d(?:\d\d)?)?")

_HAS_SIGN = re.compile(r"[a-z\d][/–-]\d|\d[/–-][a-z\d]")

_OF_LAW = re.compile(
    r"\b(?:laws?|acts?|decrees?|regulations?|directives?|articles?|protocols?"
    r"|resolutions?"
    r"|conventions?|treaty|ordinances?|rules?|codes?|statutes?|constitution|§)\b"
    r"[^.;\d]{0,14}(?:nos?\.? ?)?\Z"
)

_LONGEST_LAW = 32


def _is_number(value: str, fewest: int) -> bool:
    """Tell whether a value has digits enough to be a number of something."""
    return len(digits_of(value)) >= fewest and not _IS_YEAR.fullmatch(value)


def _refine_labelled(text: str, start: int, end: int) -> Range | None:
    """Keep a number behind its label; a count (`case 2`, `order 66`) is none."""
    value = text[start:end]
    said = _HAS_NUMBER_WORD.search(text, max(0, start - 16), start) is not None
    if said:
        return (start, end) if len(digits_of(value)) > 1 else None
    fewest = 3 if _HAS_SIGN.search(value) else 4
    return (start, end) if _is_number(value, fewest) else None


def _refine_numbered(text: str, start: int, end: int) -> Range | None:
    """Keep `no. 18403/91` and `no. 20123`, not `no. 11` or `nos. 1 and 12`."""
    value = text[start:end]
    fewest = 3 if _HAS_SIGN.search(value) else 4
    is_law = _OF_LAW.search(text, max(0, start - _LONGEST_LAW), start)
    return (start, end) if _is_number(value, fewest) and not is_law else None


def _refine_slashed(text: str, start: int, end: int) -> Range | None:
    """Keep `18403/91`, not the season `1998/99` or a size."""
    value = text[start:end]
    if _IS_YEAR.fullmatch(value) or "%" in text[end : end + 2]:
        return None
    if _OF_LAW.search(text, max(0, start - _LONGEST_LAW), start):
        return None
    return start, end


_ONES = "one|two|three|four|five|six|seven|eight|nine"

_SPOKEN = re.compile(rf"\b(?:{_ONES}|zero|oh|o|nought)\b|\d")

_VALUES = {w: i for i, w in enumerate(["zero", *_ONES.split("|")])} | {
    "oh": 0,
    "o": 0,
    "nought": 0,
}

_TWICE = re.compile(r"\b(?:double|triple|treble)\b")

_NUMBER_OF = re.compile(
    r"\b(?:phone|mobile|cell|tel|telephone|fax|number|pin|code|ssn|security|account"
    r"|acct|card|id|passport|mrn"
    r"|licen[cs]e|otp|call|text|dial|reach|extension|zip|postcode|digits|iban|cvv"
    r"|passcode|badge|reference|booking|registration|reg|plate|policy|member|ticket"
    r"|case|invoice)\b[^.!?\n]{0,30}\Z"
)

_UNLABELLED_WORDS, _LABELLED_WORDS, _UNLABELLED_DIGITS = 6, 3, 9


def _refine_spoken(text: str, start: int, end: int) -> Range | None:
    """Keep digits that are read out; counting up or down is none."""
    value = text[start:end]
    said = _SPOKEN.findall(value)
    values = [_VALUES[word] if word in _VALUES else int(word) for word in said]
    count = len(values) + len(_TWICE.findall(value))
    if _NUMBER_OF.search(text, max(0, start - 60), start):
        return (start, end) if count >= _LABELLED_WORDS else None
    is_plain = value.replace(" ", "").isdigit()
    fewest = _UNLABELLED_DIGITS if is_plain else _UNLABELLED_WORDS
    steps = {b - a for a, b in pairwise(values)}
    is_varied = len(steps) > 1 and len(set(values)) > 2
    return (start, end) if count >= fewest and is_varied else None


_NOBODY = word_set(
    "it that what there here who let he she everyone someone anyone company team today "
    "user customer client child kid student mother father teacher boss woman man"
)

_NO_HOST = re.compile(
    r"(?:win|mac|pc|ws|nb)-[a-z]{1,12}(?:-[a-z]+)?|\w+-(?:based|sized|class|only|first"
    r"|like|grade|style|ready|friendly|free|quality|side|top|bound|optimi[sz]ed"
    r"|specific"
    r"|compatible|related|powered|supported|wide|less)"
)


def _refine_host(text: str, start: int, end: int) -> Range | None:
    """Refuse words that are no part of a host: `it's mac`, `a win-win`."""
    value = text[start:end]
    is_word = value in _NOBODY or _NO_HOST.fullmatch(value) is not None
    return None if is_word else (start, end)


_IN_A_NAME = re.compile(r"[^\W\d_]{2,}")
_SAYS_A_PERSON = words.GIVEN_NAME | words.PROPER_TOO


def _refine_named_file(text: str, start: int, end: int) -> Range | None:
    """Keep `max_mustermann.pdf` and `john_cv.pdf`, not `final_report.pdf`.

    A word that is a name and something else says one beside what is no word.
    """
    found = [words.reading_of(part) for part in _IN_A_NAME.findall(text, start, end)]
    is_name = [bool(reading & words.PROPER_ONLY) for reading in found]
    may_be = [
        bool(reading & _SAYS_A_PERSON) and not reading & words.MONTH_OR_DAY
        for reading in found
    ]
    is_none = [not reading & words.LEXICAL for reading in found]
    pairs = zip(may_be, may_be[1:], is_none, is_none[1:], strict=False)
    is_pair = any(
        (one and (there or other)) or (other and here)
        for one, other, here, there in pairs
    )
    return (start, end) if any(is_name) or is_pair else None


def _refine_passenger(text: str, start: int, end: int) -> Range | None:
    """Keep `Okafor / Ngozi Ms`, not `Yes/No Ms`: English does not know a word of it."""
    *names, _title = _IN_A_NAME.findall(text, start, end)
    found = [words.reading_of(name.lower()) for name in names]
    is_name = any(not reading & words.LEXICAL for reading in found)
    return (start, end) if is_name else None


def _refine_spelled(text: str, start: int, end: int) -> Range | None:
    """Keep words of the spelling alphabet unless they are in its order."""
    first = [word[0] for word in _IN_A_NAME.findall(text, start, end)]
    has_digit = _SPOKEN.search(text, start, end) is not None
    return (start, end) if has_digit or first != sorted(first) else None


PARTS: Final[Mapping[str, str]] = {
    "CURRENCY": _CURRENCY,
    "NUMBER_WORD": _NUMBER_WORD,
    "OCCUPATIONS": _OF_PEOPLE,
    "OCCUPATIONS_OR_ROLES": _OF_ALL,
    "TRADES": "|".join(sorted(_TRADES)),
    "ONES": _ONES,
}
"""What expressions of rules and refiners share."""

REFINERS: Final[Mapping[str, Refiner]] = {
    "age_of_name": _refine_age_of_name,
    "amount": _refine_amount,
    "short_date": _refine_short_date,
    "lone_day": _refine_lone_day,
    "coordinates": _refine_coordinates,
    "labelled_file": _refine_labelled,
    "numbered_file": _refine_numbered,
    "slashed_file": _refine_slashed,
    "spoken": _refine_spoken,
    "host": _refine_host,
    "named_file": _refine_named_file,
    "passenger": _refine_passenger,
    "spelled": _refine_spelled,
}
"""By the name that a rule gives in `refine`."""
