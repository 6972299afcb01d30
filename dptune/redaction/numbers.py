"""Invented numbers in the shape of the original, in its alphabet, with its checksum."""

import json
import random
import unicodedata
from functools import lru_cache
from importlib import resources
from typing import Final

from dptune.identifiers import IBAN_LENGTHS, has_iban_digits, is_luhn_valid

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
