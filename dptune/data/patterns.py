"""Patterns of broken text and of personal data with a fixed form.

These check a redacted corpus from outside: they share no code with the detectors whose
work they judge.
"""

import re

# U+FFFD, control characters, and UTF-8 read as Latin-1 or Windows-1252.
MOJIBAKE = (
    "\ufffd|[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]"
    "|[\u00c2\u00c3][\u0080-\u00bf\u0152-\u0192\u2013-\u203a\u20ac\u2122]"
    "|\u00e2[\u0080\u20ac][\u0080-\u00bf\u0152-\u0192\u02c6-\u02dc\u2013-\u203a\u2122]"
)
# RFC 5321 mailbox, without quoted local parts.
EMAIL = r"[\w.%+\-]@(?:[A-Za-z0-9\-]+\.)+[A-Za-z]{2,}"
# Social Security Administration: no area 000, 666, 9xx, no group 00, no serial 0000.
US_SSN = (
    "(?<![0-9])(?<![0-9]-)(?!000|666|9)[0-9]{3}[- ](?!00)[0-9]{2}[- ]"
    "(?!0000)[0-9]{4}(?!-?[0-9])"
)

_DIGIT_GROUPS = re.compile(r"[0-9]+(?:[ -][0-9]+)*")
_CARD_PREFIX = re.compile(r"3[0-9]|4|5[0-9]|6|2[2-7]")
_IBAN_START = re.compile(r"(?<![A-Z0-9])[A-Z]{2}[0-9]{2}(?=[ -]?[A-Z0-9])")
# ISO 13616 registry: length by country.
_IBAN_LENGTHS = {
    country: int(entry[:2])
    for entry in (
        "15 NO", "16 BE", "18 DK FI FO GL NL", "19 MK SI",
        "20 AT BA EE KZ LT LU XK", "21 CH HR LI LV", "22 BG BH CR DE GB GE IE ME RS VA",
        "23 AE GI IL IQ OM TL", "24 AD CZ ES MD PK RO SA SE SK TN VG", "25 LY PT ST",
        "26 IS TR", "27 BI DJ FR GR IT MC MR SM", "28 AL AZ BY CY DO GT HU LB NI PL SV",
        "29 BR EG PS QA UA", "30 JO KW MU", "31 MT SC", "32 LC", "33 RU",
    )
    for country in entry[2:].split()
}  # fmt: skip


def has_card_number(text: str) -> bool:
    """Tell whether a text holds a payment card number with a valid check digit.

    Every run of whole digit groups of 13 to 19 digits in all is tried, so that a number
    beside a card does not hide it.

    >>> has_card_number("card 4111 1111 1111 1111 ok"), has_card_number("4111 1112")
    (True, False)

    References:
        ISO/IEC 7812-1:2017, annex B (Luhn).
    """
    return any(
        _is_card(digits)
        for match in _DIGIT_GROUPS.finditer(text)
        for digits in _joined_groups(re.split("[ -]", match.group()))
    )


def _joined_groups(groups: list[str]) -> list[str]:
    """Join neighboring groups to runs of 13 to 19 digits."""
    runs = []
    for first in range(len(groups)):
        digits = ""
        for group in groups[first : first + 19]:
            digits += group
            if len(digits) > 19:
                break
            if len(digits) >= 13:
                runs.append(digits)
    return runs


def _is_card(digits: str) -> bool:
    """Check prefix and Luhn digit."""
    if not _CARD_PREFIX.match(digits):
        return False
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    total = sum(doubled) + sum(int(digit) for digit in digits[::-2])
    return total % 10 == 0


def has_iban(text: str) -> bool:
    """Tell whether a text holds an IBAN of a known country with valid check digits.

    >>> has_iban("to DE89 3704 0044 0532 0130 00 please"), has_iban("DE89 3704 0044")
    (True, False)

    References:
        ISO 13616-1:2020; ISO/IEC 7064, MOD 97-10.
    """
    upper = text.upper()
    return any(_is_iban(upper, match.start()) for match in _IBAN_START.finditer(upper))


def _is_iban(text: str, start: int) -> bool:
    """Check the characters from `start`, past single spaces and hyphens."""
    length = _IBAN_LENGTHS.get(text[start : start + 2], 0)
    compact = re.sub("[ -]", "", text[start : start + 2 * length])[:length]
    if not length or not re.fullmatch(f"[A-Z0-9]{{{length}}}", compact):
        return False
    number = "".join(str(int(mark, 36)) for mark in compact[4:] + compact[:4])
    return int(number) % 97 == 1
