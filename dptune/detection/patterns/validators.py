"""Checks that tell a real identifier from digits that look like one.

A refiner takes a text and a candidate range `[start, end)`, and returns the range of
the identifier in it, or None. Refiners are pure and never look outside
`[start - 96, end + 300)`.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Final

from dptune.detection.words import GIVEN_NAME, KNOWN, LEXICAL, PERSONAL, reading_of
from dptune.identifiers import IBAN_LENGTHS, has_iban_digits, is_luhn_valid

Range = tuple[int, int]
Refiner = Callable[[str, int, int], Range | None]

IBAN_COUNTRIES = "|".join(sorted(IBAN_LENGTHS)).lower()
VOCABULARY: dict[str, str] = json.loads(
    (resources.files("dptune.detection.patterns") / "vocabulary.json").read_text("utf8")
)
PUBLIC_STEMS = frozenset(VOCABULARY["public_stems"].split())
_DIGITS = re.compile(r"\d+")
_ISBN_10 = re.compile(r"(?:\d{1,7}[ -]){3}[\dx]|\d{9}x", re.IGNORECASE)


def digits_of(text: str) -> str:
    """Return only the decimal digits of a text."""
    return "".join(_DIGITS.findall(text))


def is_isbn(text: str) -> bool:
    """Check for an ISBN-13, or an ISBN-10 in its four groups (ISO 2108).

    Ten bare digits, with no X at their end, are never called an ISBN: one order number
    in eleven would pass.
    """
    digits = digits_of(text)
    if len(digits) == 13 and digits.startswith(("978", "979")):
        weighted = sum(int(d) * (1 + 2 * (i % 2)) for i, d in enumerate(digits))
        return weighted % 10 == 0
    if _ISBN_10.fullmatch(text) and len(digits) == 10 - (text[-1] in "xX"):
        values = [*map(int, digits), 10][:10]
        return sum((10 - i) * value for i, value in enumerate(values)) % 11 == 0
    return False


def refine_card(text: str, start: int, end: int) -> Range | None:
    """Find the longest run of whole digit groups that is a valid card number.

    Groups that more than one blank or hyphen part must have three digits or more, but
    for the last, so that columns of small numbers are no card.
    """
    groups = [match.span() for match in _DIGITS.finditer(text, start, end)]
    best: Range | None = None
    for first in range(len(groups)):
        digits = ""
        is_tight = True
        for position, (low, high) in enumerate(groups[first:], first):
            if position > first:
                gap = text[groups[position - 1][1] : low]
                is_tight = is_tight and gap in (" ", "-")
            digits += text[low:high]
            if len(digits) > 19:
                break
            longer = best is None or high - groups[first][0] > best[1] - best[0]
            has_shape = is_tight or (
                len(digits) > 12 and all(b - a > 2 for a, b in groups[first:position])
            )
            is_whole = first == 0 and position == len(groups) - 1
            if longer and has_shape and _is_card(digits, is_whole=is_whole):
                best = (groups[first][0], high)
    return best


_ISSUERS = re.compile(r"[2-6]\d{12}|1800|5[06-9]|6")


def _is_card(digits: str, *, is_whole: bool) -> bool:
    """Check issuer (ISO/IEC 7812-1, annex A), Luhn digit, and that it is no ISBN.

    Twelve digits are a card only if no further digits stand beside them.
    """
    if len(digits) < (12 if is_whole else 13):
        return False
    is_issued = _ISSUERS.match(digits) is not None and len(set(digits)) > 1
    return is_issued and not is_isbn(digits) and is_luhn_valid(digits)


_IBAN_GROUPS = re.compile(
    r"[a-z]{2}\s?\d\d(?:[\s./_-]{0,3}[a-z]{4})?"
    r"(?:[\s./_-]{0,3}(?=[a-z]{0,3}\d)[a-z0-9]{1,30}){1,10}",
    re.IGNORECASE,
)


def refine_iban(text: str, start: int, end: int) -> Range | None:
    """Cut a candidate to the length of its country and check it.

    A country may have changed its length: groups with digits whose remainder is right
    are an IBAN too.
    """
    length = IBAN_LENGTHS.get(text[start : start + 2].upper(), 0)
    compact = ""
    for position in range(start, end):
        if text[position].isalnum():
            compact += text[position]
        if len(compact) == length:
            if has_iban_digits(compact):
                return start, position + 1
            break
    groups = _IBAN_GROUPS.match(text, start, end)
    compact = "".join(filter(str.isalnum, groups.group())) if groups else ""
    if groups and 15 <= len(compact) <= 34 and has_iban_digits(compact):
        return groups.span()
    return None


_HAS_SPELLED_SIGN = re.compile(r"[(\[{<]|\sdot\s")


_ENDS_HOST = re.compile(
    r"[)\]}]\s{0,2}[\w-]{2,24}\Z|[. ](?:com|org|net|edu|gov|mil|int|info|biz|name|app"
    r"|dev"
    r"|online|shop|example|test|(?!(?:of|to|in|on|at|by|as|or|so|we|he)\b)[a-z]{2})\Z"
)


def refine_spelled_email(text: str, start: int, end: int) -> Range | None:
    """Keep `ann (at) example (dot) org`; `at` alone needs `dot` or a mail host."""
    value = text[start:end]
    if _HAS_SPELLED_SIGN.search(value):
        is_mail = "dot " not in value or _ENDS_HOST.search(value) is not None
        return (start, end) if is_mail else None
    host = value.rpartition(" at ")[2]
    is_host = re.fullmatch(r"[\w-]+\.(?:com|org|net|edu|gov|io|uk|de|fr)", host)
    name = value.partition(" ")[0]
    has_sign = re.search(r"[\d._+-]", name) is not None
    return (start, end) if is_host and has_sign else None


def refine_spaced_email(text: str, start: int, end: int) -> Range | None:
    """Keep `ann . lee @ example . org`; drop words of a sentence before the name."""
    value = text[start:end]
    name = value.partition("@")[0].strip()
    if ". " in name and " . " not in name:
        start += value.index(name) + name.rindex(". ") + 2
    return start, end


def refine_ssn(text: str, start: int, end: int) -> Range | None:
    """Keep numbers that the SSA or, for 9xx (ITIN), the IRS may issue."""
    digits = digits_of(text[start:end])
    issued = (
        len(digits) == 9
        and digits[:3] not in ("000", "666")
        and digits[3:5] != "00"
        and digits[5:] != "0000"
    )
    return (start, end) if issued else None


def refine_ip(text: str, start: int, end: int) -> Range | None:
    """Keep what parses as an IPv4 or IPv6 address, RFC 791 and RFC 4291."""
    written = re.sub(r"[\s\[\](){}]", "", text[start:end]).replace("dot", ".")
    try:
        address = ipaddress.ip_address(
            written.split("/", maxsplit=1)[0].split("%", maxsplit=1)[0]
        )
    except ValueError:
        return None
    is_trivial = address.version == 6 and sum(map(str.isalnum, text[start:end])) < 3
    return None if is_trivial else (start, end)


def refine_phone(text: str, start: int, end: int) -> Range | None:
    """Keep 7 to 15 digits (ITU-T E.164, 6.2) that are no date, ISBN or plain count."""
    while end > start and (
        text[end - 1] in " .-(/\n"
        or (text[end - 1] == ")" and "(" not in text[start:end])
    ):
        end -= 1
    body = re.split(r"(?i)\s?(?:x|ext\.?)\s?\d{1,6}$", text[start:end])[0]
    digits = digits_of(body)
    if not 7 <= len(digits) <= 16 or is_isbn(body):
        return None
    return None if _LOOKS_LIKE_DATE.fullmatch(body) else (start, end)


_LOOKS_LIKE_DATE = re.compile(
    r"(?:1[0-9]|20)\d\d[-/. ](?:1[0-9]|20)\d\d"
    r"|(?:1[0-9]|20)\d\d[-/.]\d\d?[-/.]\d\d?(?: \d\d)?"
    r"|\d\d?[-/.]\d\d?[-/.](?:\d{4}|\d\d)(?: \d\d)?|[1-9]\d{0,2}(?: 000)+"
)


def refine_shape(text: str, start: int, end: int) -> Range | None:
    """Keep what has the form of a number with a checksum, and enough digits."""
    is_number = len(digits_of(text[start:end])) >= 7 and not is_isbn(text[start:end])
    return (start, end) if is_number else None


def refine_digit_run(text: str, start: int, end: int) -> Range | None:
    """Keep bare digits unless they are an ISBN."""
    return None if is_isbn(text[start:end]) else (start, end)


def refine_digit_groups(text: str, start: int, end: int) -> Range | None:
    """Keep hyphenated digits with seven or more digits that are no date and no ISBN."""
    digits = digits_of(text[start:end])
    if len(digits) < 7 or is_isbn(text[start:end]):
        return None
    return None if _LOOKS_LIKE_DATE.fullmatch(text[start:end]) else (start, end)


_LETTERS_THEN_DIGITS = re.compile(
    r"[a-z]{3,}-?(?:19|20)\d\d|(?:[a-z]{3,5}-)?\d{2,4}s(?:-\d{2,4}s)?", re.IGNORECASE
)
_NUMBER_WITH_UNIT = re.compile(
    r"(?:\d{1,4}-)?\d+-?(?:st|nd|rd|th|s|am|pm|bits?|fold|way|lead|core|inch|page|point|step|year"
    r"|day|hrs?|min|mins|secs?|days?|weeks?|months?|years?|yrs?"
    r"|kms?|kmh|mph|kg|lbs?|feet|ft|inch|mm|cm|px|bit|mb|gb|tb|kb|mah|hz|mhz|ghz|usd"
    r"|degrees|miles|metres|meters|hours|minutes|pack|percent|x\d+)",
    re.IGNORECASE,
)


def refine_mixed_code(text: str, start: int, end: int) -> Range | None:
    """Keep letters mixed with digits; numbers with a unit are no code."""
    code = text[start:end]
    letters = sum(character.isalpha() for character in code)
    digits = sum(character.isdecimal() for character in code)
    if not letters or not digits or letters + digits < 6:
        return None
    is_word = _NUMBER_WITH_UNIT.fullmatch(code) or _LETTERS_THEN_DIGITS.fullmatch(code)
    is_hyphenated_word = digits < 3 and "-" in code
    is_version = digits == 1 and (code.islower() or code.istitle())
    is_public = is_word or is_hyphenated_word or is_version or is_public_code(code)
    return None if is_public else (start, end)


_POWERS = frozenset(["8", "16", "32", "64", "128", "256", "384", "512", "1024", "2048"])
_STEM = re.compile(r"([a-z]+)-?(\d+)(?:[a-z]{0,3}|-\d{1,3})", re.IGNORECASE)


def is_public_code(code: str) -> bool:
    """Tell whether letters and digits name a standard, a format or a unit, as `sha256`.

    A word of up to four letters with one or two digits (`area51`) is none of a person.
    """
    parts = _STEM.fullmatch(code)
    if parts is None:
        return False
    stem, number = parts[1].lower(), parts[2]
    is_standard = stem in PUBLIC_STEMS and len(number) <= 4
    if is_standard or (number in _POWERS and code.islower()):
        return not reading_of(stem) & GIVEN_NAME
    is_short = len(stem) <= 4 and len(number) < 3
    reading = reading_of(stem)
    return is_short and bool(reading & KNOWN) and not reading & (GIVEN_NAME | PERSONAL)


def refine_username(text: str, start: int, end: int) -> Range | None:
    """Keep `cminh730`; standards and formats are no names."""
    return None if is_public_code(text[start:end]) else (start, end)


def refine_labelled_username(text: str, start: int, end: int) -> Range | None:
    """Keep a name after `username:`; after `is` it must not be a plain word."""
    is_told = re.search(r"[:=]\s{0,3}['\"]?$", text[max(0, start - 8) : start])
    reading = reading_of(text[start:end].rstrip(".,"))
    return (start, end) if is_told or not reading & KNOWN else None


_WEAK_MIDDLE = re.compile(
    r"\b(?:to|in|on|for|and|a|an|at|from|per|more|than|my|your|is|are|was|with|that"
    r"|this|or|by|it|as|if|not|days?|hours?|minutes?|weeks?|months?|years?|times?"
    r"|dollars?|people|percent|items?|am|pm|i|you|he|she|they|we)\b",
    re.IGNORECASE,
)


_STREET_END = re.compile(
    r"\b(?:street|st|avenue|ave|road|rd|boulevard|blvd|drive|dr|lane|ln|terrace|ter"
    r"|parkway|pkwy|highway|hwy|crescent)\b\.?"
)


def refine_street(text: str, start: int, end: int) -> Range | None:
    """Keep a house number with a street name; sentences between the two are none."""
    street = re.split(r"[,\n]", text[start:end], maxsplit=1)[0]
    weak = _WEAK_MIDDLE.search(street)
    if weak is None:
        return _with_town(text, start, end)
    named = _STREET_END.search(text, start, start + weak.start())
    return None if named is None else _with_town(text, start, named.end())


def _with_town(text: str, start: int, end: int) -> Range:
    """Extend a street over the town behind it that a postcode ends."""
    town = _TOWN.match(text, end)
    return start, town.end() if town else end


_STOP = (
    r"(?!(?i:in|on|for|and|an?|at|from|per|more|than|my|your|is|are|was|with|that|this"
    r"|or"
    r"|by|it|as|if|not|to|has|have|had|will|the|of|please|thanks?|mobile|phone|tel|fax"
    r"|office|email|but|so|we|i|he|she|they|you|its|our|their|were|be|can|located|lives"
    r"|address)\b)"
)
_WORD = rf"{_STOP}[^\W\d_][\w.'’()/∆-]{{0,24}}"
_GAP = r"[,\s>?|]{1,14}"
_LINE = (
    rf"(?:[ ,]{{0,3}}\n[ >?|\t,]{{0,8}}{_WORD}(?: {_WORD}){{0,2}}(?=\s{{0,3}}(?:[\n?.,"
    rf"]|\Z)))"
)
_BEFORE_UNIT = re.compile(
    rf"(?<![\w.])(?:(?:\d{{1,6}}[a-z]?,? ){{1,2}}(?:{_WORD} ){{0,4}}(?:{_WORD}"
    rf"|\d{{1,5}}\.?)"
    rf"|(?:{_WORD} ){{1,4}}\d{{1,5}}\.?),?[ \n>?|\t]{{1,12}}\Z"
)
_TOWN = re.compile(
    rf"(?=\.? ?[,\n])\.?(?:{_GAP}(?:{_WORD}|\d{{1,3}})){{1,9}}?{_GAP}\d{{4,6}}(?!\w"
    rf"|[-.,]\d)"
)
_AFTER_UNIT = re.compile(
    rf"(?:{_GAP}(?:{_WORD}|\d{{1,3}})){{0,9}}?{_GAP}\d{{4,6}}(?!\w|[-.,]\d)"
    rf"|(?:,? {{1,3}}{_WORD}){{1,3}}(?=\s{{0,3}}(?:[.,?!\n]|\Z)){_LINE}{{0,3}}"
    rf"|{_LINE}{{1,3}}"
)
_LONGEST_STREET = 80


def refine_unit(text: str, start: int, end: int) -> Range | None:
    """Extend `suite 245` over the street in front of it and the town behind it."""
    before = _BEFORE_UNIT.search(text, max(0, start - _LONGEST_STREET), start)
    after = _AFTER_UNIT.match(text, end)
    return before.start() if before else start, after.end() if after else end


_BEFORE_HOUSE = re.compile(r"[^\W\d_]+(?= \d)")


def refine_compound_street(text: str, start: int, end: int) -> Range | None:
    """Keep `hersnapvej 18`: no English word ends like that."""
    named = _BEFORE_HOUSE.search(text, start, end)
    if named is None:
        return None
    name = named.group()
    is_foreign = not reading_of(name.lower()) & LEXICAL
    is_street = is_foreign or name in _KINDS_OF_STREET
    return _with_town(text, start, end) if is_street else None


_KINDS_OF_STREET = frozenset(["strasse", "straße", "platz", "allee", "gasse", "straat"])


def refine_labelled_secret(text: str, start: int, end: int) -> Range | None:
    """Keep a value after `password:`; after `is` it must not be a plain word."""
    while end > start and text[end - 1] in ".,;:!?)\"'":
        end -= 1
    if end - start < 4:
        return None
    if text[start:end].isalpha() and not re.search(
        r"[:=]\s{0,3}$", text[max(0, start - 8) : start]
    ):
        return None
    return start, end


_MONTH_OR_UNIT = re.compile(
    r"(?i)\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\b"
    r"|\b(?:and|or|to|of|for|from|version|chapter|page|section|between|than|with)\b"
)


def refine_foreign_street(text: str, start: int, end: int) -> Range | None:
    """Keep `number Street number`; the street has a capital or the number 4 digits."""
    words = text[start:end].split()
    if _MONTH_OR_UNIT.search(text[start:end]) or _WEAK_MIDDLE.search(text[start:end]):
        return None
    if words[0] == "0,":  # a score: `Rovers 0, United 1`
        return None
    names = words[1:-1]
    has_capital = any(word[0].isupper() for word in names)
    is_foreign = bool(names) and all(
        not reading_of(word.strip(".,").lower()) & LEXICAL
        for word in names
        if word[0].isalpha()
    )
    is_long = len(words[0].strip(",")) >= 4
    is_street = has_capital or is_foreign or is_long
    return _with_town(text, start, end) if is_street else None


REFINERS: Final[Mapping[str, Refiner]] = {
    "card": refine_card,
    "iban": refine_iban,
    "spelled_email": refine_spelled_email,
    "spaced_email": refine_spaced_email,
    "ssn": refine_ssn,
    "ip": refine_ip,
    "phone": refine_phone,
    "shape": refine_shape,
    "digit_run": refine_digit_run,
    "digit_groups": refine_digit_groups,
    "mixed_code": refine_mixed_code,
    "username": refine_username,
    "labelled_username": refine_labelled_username,
    "street": refine_street,
    "unit": refine_unit,
    "compound_street": refine_compound_street,
    "labelled_secret": refine_labelled_secret,
    "foreign_street": refine_foreign_street,
}
"""By the name that a rule gives in `refine`."""
