"""Check digits of payment cards and bank accounts.

What looks for numbers decides by itself what it tries: only the arithmetic is shared,
and tests check it against numbers that their issuers publish.
"""

from typing import Final

IBAN_LENGTHS: Final = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
"""Length of an IBAN by country: ISO 13616 registry, release 99."""


def is_luhn_valid(digits: str) -> bool:
    """Check the Luhn digit of a card number (ISO/IEC 7812-1, annex B).

    >>> is_luhn_valid("4111111111111111"), is_luhn_valid("4111111111111112")
    (True, False)
    """
    total = 0
    for position, character in enumerate(reversed(digits)):
        value = int(character) * (1 + position % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def has_iban_digits(compact: str) -> bool:
    """Check the two digits of an IBAN without separators (ISO/IEC 7064, MOD 97-10).

    >>> has_iban_digits("DE89370400440532013000")
    True
    """
    rotated = compact[4:] + compact[:4]
    return int("".join(str(int(mark, 36)) for mark in rotated)) % 97 == 1
