"""Checksums of national numbers, described by data: weights, modulus, alphabet.

References:
    ISO/IEC 7064 (mod 11,10; mod 11-2), ISO/IEC 7812-1 annex B (Luhn), and the laws that
    `national_numbers.json` names beside each number.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from dptune.detection.languages.tables import read_data
from dptune.identifiers import is_luhn_valid


def _mod_11_10(digits: str) -> bool:
    """ISO/IEC 7064, hybrid system mod 11,10: the German tax number."""
    product = 10
    for digit in digits[:-1]:
        total = (int(digit) + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == int(digits[-1])


def _mod_11_2(code: str) -> bool:
    """ISO/IEC 7064, mod 11-2: the Chinese resident number, whose last may be X."""
    total = 0
    for character in code[:-1]:
        total = 2 * (total + int(character))
    return "10X98765432"[total % 11] == code[-1].upper()


def _tckn(digits: str) -> bool:
    """Both check digits of the Turkish identity number."""
    values = [int(digit) for digit in digits]
    tenth = (7 * sum(values[0:9:2]) - sum(values[1:8:2])) % 10
    return values[0] != 0 and values[9] == tenth and sum(values[:10]) % 10 == values[10]


def _my_number(digits: str) -> bool:
    """Check digit of the Japanese individual number."""
    total = sum(
        int(digit) * (place + 1 if place < 7 else place - 5)
        for place, digit in enumerate(reversed(digits[:11]), 1)
    )
    rest = total % 11
    return int(digits[11]) == (0 if rest <= 1 else 11 - rest)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "luhn": is_luhn_valid,
    "mod_11_10": _mod_11_10,
    "mod_11_2": _mod_11_2,
    "tckn": _tckn,
    "my_number": _my_number,
}


def _weighted(rule: Mapping[str, Any], digits: str) -> bool:
    """Compare the weighted sum with the last digit, or with zero."""
    weights = rule["weights"]
    total = sum(int(d) * weight for d, weight in zip(digits, weights, strict=False))
    if rule.get("sums_to_zero"):
        return bool(total % rule["modulus"] == 0)
    rest = total % rule["modulus"]
    if rule.get("complement"):
        rest = (rule["modulus"] - rest) % rule["modulus"]
    return int(digits[-1]) == (0 if rest >= 10 else rest)


def is_valid(rule: Mapping[str, Any], text: str) -> bool:
    """Check a candidate; a number without a checksum is what its form says.

    Args:
        rule: of `national_numbers.json`.
        text: the candidate, with its signs.
    """
    compact = "".join(c for c in text if c.isalnum())
    if not compact.isalpha() and "weights" in rule:
        return _weighted(rule, compact)
    name = rule.get("check", "")
    return _CHECKS[name](compact) if name else True


@lru_cache
def rules_of(code: str) -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    """Return the compiled rules of a language."""
    found = read_data("national_numbers")["rules"]
    return tuple(
        (re.compile(rule["pattern"], re.IGNORECASE), rule)
        for rule in found
        if code in rule["languages"].split()
    )
