"""Checksums of national identifiers, and of crypto addresses.

The checks are short and public, so they are written out here: `python-stdnum`, which
has them too, is under the LGPL.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from typing import Any, Final

from dptune.detection.patterns.validators import Range, Refiner, digits_of
from dptune.identifiers import is_luhn_valid

_FEWEST_DIGITS = 4


def _weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(d) * weight for d, weight in zip(digits, weights, strict=False))


def is_nhs_valid(digits: str) -> bool:
    """Check an NHS number: ten digits, weights 10 to 2, modulo 11."""
    rest = 11 - _weighted(digits, tuple(range(10, 1, -1))) % 11
    return rest != 10 and int(digits[9]) == rest % 11


def is_cpf_valid(digits: str) -> bool:
    """Check both digits of a Brazilian CPF."""
    if len(set(digits)) == 1:
        return False
    for length in (9, 10):
        rest = _weighted(digits, tuple(range(length + 1, 1, -1))) * 10 % 11 % 10
        if rest != int(digits[length]):
            return False
    return True


_VERHOEFF_PRODUCT = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_VERHOEFF_ROW = (
    "0123456789", "1576283094", "5803796142", "8916043527",
    "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip


def is_verhoeff_valid(digits: str) -> bool:
    """Check a number by Verhoeff's scheme (Aadhaar)."""
    check = 0
    for position, digit in enumerate(reversed(digits)):
        moved = int(_VERHOEFF_ROW[position % 8][int(digit)])
        check = int(_VERHOEFF_PRODUCT[check][moved])
    return check == 0


def is_dni_valid(compact: str) -> bool:
    """Check the letter of a Spanish DNI or NIE."""
    number = compact[:-1].translate(str.maketrans("xyz", "012"))
    return "trwagmyfpdxbnjzsqvhlcke"[int(number) % 23] == compact[-1]


_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10,
        22, 25, 24, 23)  # fmt: skip


def is_fiscal_code_valid(compact: str) -> bool:
    """Check the last letter of an Italian codice fiscale."""
    total = 0
    for position, character in enumerate(compact[:15]):
        value = int(character, 36) - (10 if character.isalpha() else 0)
        total += value if position % 2 else _ODD[value]
    return chr(ord("a") + total % 26) == compact[15]


def is_nir_valid(digits: str) -> bool:
    """Check the key of a French NIR (INSEE number) of 15 digits."""
    return 97 - int(digits[:13]) % 97 == int(digits[13:])


def is_pesel_valid(digits: str) -> bool:
    """Check the last digit of a Polish PESEL."""
    total = _weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3))
    return (10 - total % 10) % 10 == int(digits[10])


def is_bsn_valid(digits: str) -> bool:
    """Check a Dutch BSN by its eleven test."""
    return _weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def is_base58_address(text: str) -> bool:
    """Check the four checksum bytes of a Bitcoin address (Base58Check)."""
    number = 0
    for character in text:
        number = number * 58 + _BASE58.index(character)
    if number.bit_length() > 200:
        return False
    data = number.to_bytes(25, "big")
    twice = hashlib.sha256(hashlib.sha256(data[:-4]).digest()).digest()
    return twice[:4] == data[-4:]


_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_STEPS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)


def is_bech32_address(text: str) -> bool:
    """Check a segwit address (BIP 173 and BIP 350)."""
    prefix, _, data = text.lower().rpartition("1")
    if any(character not in _BECH32 for character in data):
        return False
    values = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    check = 1
    for value in (*values, *(_BECH32.index(c) for c in data)):
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, step in enumerate(_BECH32_STEPS):
            check ^= step if (top >> bit) & 1 else 0
    return check in {1, 0x2BC830A3}


def _keep_if(
    check: Callable[[str], bool],
    of: Callable[[str], str],
    text: str,
    start: int,
    end: int,
) -> Range | None:
    """Keep a candidate of which `check` holds, once `of` took the signs out."""
    return (start, end) if check(of(text[start:end])) else None


def _if_valid(
    check: Callable[[str], bool], of: Callable[[str], str] = digits_of
) -> Refiner:
    """Make a refiner, which can be copied, of a checksum; signs are no digits."""
    return partial(_keep_if, check, of)


def _without_signs(text: str) -> str:
    """Return letters and digits."""
    return "".join(filter(str.isalnum, text))


def _refine_crypto(text: str, start: int, end: int) -> Range | None:
    address = text[start:end]
    is_hex = address[:2] == "0x"
    is_segwit = address[:3].lower() in {"bc1", "tb1"}
    is_valid = (
        is_bech32_address(address)
        if is_segwit
        else not is_hex and (is_base58_address(address))
    )
    return (start, end) if is_hex or is_valid else None


def _has_weights(checks: tuple[dict[str, Any], ...], compact: str) -> bool:
    """Check a number of which the weighted sums leave the right rest; X is ten."""
    values = [10 if mark in "xX" else int(mark) for mark in compact]
    return any(
        len(values) == len(check["weights"][-1])
        and all(
            sum(v * w for v, w in zip(values, weights, strict=False)) % check["modulus"]
            == check["remainder"]
            for weights in check["weights"]
        )
        for check in checks
    )


def _refine_labelled(text: str, start: int, end: int) -> Range | None:
    """Keep what has digits enough for a number of a person."""
    return (start, end) if len(digits_of(text[start:end])) >= _FEWEST_DIGITS else None


_TABLE: Final[Mapping[str, Any]] = json.loads(
    (resources.files("dptune.detection.patterns") / "national_numbers.json").read_text(
        "utf8"
    )
)
_CHECKED: Final = tuple(_TABLE["checked"].values())

PARTS: Final[Mapping[str, str]] = {
    "NATIONAL_LABELS": "|".join(_TABLE["labels"]),
    "NATIONAL_FORMS": "|".join(_TABLE["forms"].values()),
    "NATIONAL_CHECKED": "|".join(check["form"] for check in _CHECKED),
}
"""Numbers of other countries, for expressions: by label, by form, by checksum."""

REFINERS: Final[Mapping[str, Refiner]] = {
    "nhs": _if_valid(is_nhs_valid),
    "cpf": _if_valid(is_cpf_valid),
    "verhoeff": _if_valid(is_verhoeff_valid),
    "luhn": _if_valid(is_luhn_valid),
    "dni": _if_valid(is_dni_valid, _without_signs),
    "fiscal_code": _if_valid(is_fiscal_code_valid, str),
    "nir": _if_valid(is_nir_valid),
    "pesel": _if_valid(is_pesel_valid),
    "bsn": _if_valid(is_bsn_valid),
    "weights": _if_valid(partial(_has_weights, _CHECKED), _without_signs),
    "labelled_national_id": _refine_labelled,
    "crypto": _refine_crypto,
}
"""By the name that a rule gives in `refine`."""
