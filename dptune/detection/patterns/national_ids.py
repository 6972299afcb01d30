"""Rules and checksums of national identifiers, and of crypto addresses.

The checks are short and public, so they are written out here: `python-stdnum`, which
has them too, is under the LGPL.
"""

import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

from dptune.detection.patterns.rules import Rule
from dptune.detection.patterns.validators import Range, Refiner, digits_of
from dptune.identifiers import is_luhn_valid

_LAW = "GDPR art. 87; "
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


_NATIONAL_RULES = (
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(
            r"\b(?!bg|gb|kn|nk|nt|tn|zz)[a-ceghj-prstw-z][a-ceghj-npr-tw-z]"
            r"(?P<s>[ -]?)\d\d(?P=s)\d\d(?P=s)\d\d(?P=s)[a-d]\b"
        ),
        citation=_LAW + "HMRC NIM39110, National Insurance number",
        confidence=0.95,
        needs_digit=True,
        min_digits=6,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(r"(?<![\w.-])[1-9]\d{2}[ -]\d{3}[ -]\d{4}(?![\w-])"),
        citation=_LAW + "NHS Data Dictionary, NHS number",
        confidence=0.92,
        refine=_if_valid(is_nhs_valid),
        needs=("nhs", "patient", "health"),
        needs_digit=True,
        min_digits=10,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(r"(?<![\w.-])\d{3}\.?\d{3}\.?\d{3}-\d{2}(?![\w-])"),
        citation=_LAW + "Receita Federal, CPF",
        confidence=1.0,
        refine=_if_valid(is_cpf_valid),
        needs_digit=True,
        min_digits=11,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(r"(?<![\w.-])[2-9]\d{3}[ -]\d{4}[ -]\d{4}(?![\w-]| \d)"),
        citation=_LAW + "UIDAI, Aadhaar number, Verhoeff check",
        confidence=0.97,
        refine=_if_valid(is_verhoeff_valid),
        needs_digit=True,
        min_digits=12,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(
            r"\b(?:sin|social insurance(?: number)?)\b[^\d\n]{0,16}"
            r"(?P<value>\d{3}[ -]?\d{3}[ -]?\d{3})(?!\w)"
        ),
        citation=_LAW + "Employment and Social Development Canada, SIN",
        confidence=0.97,
        refine=_if_valid(is_luhn_valid),
        needs=("sin", "social"),
        needs_digit=True,
        min_digits=9,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(r"\b(?:\d{8}|[xyz]-?\d{7})[ -]?[a-z]\b"),
        citation=_LAW + "Real Decreto 1553/2005, DNI and NIE",
        confidence=0.97,
        refine=_if_valid(is_dni_valid, _without_signs),
        needs_digit=True,
        min_digits=7,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(r"\b[a-z]{6}\d{2}[a-ehlmprst]\d{2}[a-z]\d{3}[a-z]\b"),
        citation=_LAW + "Decreto MF 23/12/1976, codice fiscale",
        confidence=1.0,
        refine=_if_valid(is_fiscal_code_valid, str),
        needs_digit=True,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(
            r"(?<![\w.-])[1-478] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-9]\d) ?\d{2} ?\d{3} ?\d{3}"
            r" ?\d{2}(?![\w-])"
        ),
        citation=_LAW + "INSEE, NIR with key",
        confidence=0.97,
        refine=_if_valid(is_nir_valid),
        needs_digit=True,
        min_digits=15,
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(r"\bpesel\b[^\d\n]{0,12}(?P<value>\d{11})(?!\w)"),
        citation=_LAW + "Ustawa z 24.9.2010, PESEL",
        confidence=0.97,
        refine=_if_valid(is_pesel_valid),
        needs=("pesel",),
    ),
    Rule(
        entity_type="NATIONAL_ID",
        pattern=re.compile(
            r"\b(?:bsn|burgerservicenummer)\b[^\d\n]{0,12}(?P<value>\d{9})(?!\w)"
        ),
        citation=_LAW + "Wet algemene bepalingen burgerservicenummer",
        confidence=0.97,
        refine=_if_valid(is_bsn_valid),
        needs=("bsn", "burgerservice"),
    ),
)


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


def _rules_of_table() -> tuple[Rule, ...]:
    """Make rules of the numbers of other countries: by label, by form, by checksum."""
    source = resources.files("dptune.detection.patterns") / "national_numbers.json"
    table = json.loads(source.read_text("utf8"))
    checked = tuple(table["checked"].values())
    forms = "|".join(check["form"] for check in checked)
    return (
        Rule(
            entity_type="NATIONAL_ID",
            pattern=re.compile(
                rf"\b(?:{'|'.join(table['labels'])})(?![\w-])(?:\s?(?:card|id|numbers?"
                rf"|nos?\.?"
                r"|nr\.?|#|code))?(?:\s(?:is|was))?[:=#\s\"'(.]{1,5}(?P<value>"
                r"(?:[a-z]{1,6}-?|(?!is|no|to|of|on|in|at|by)[a-z]{2} (?=\d\d\b))?"
                r"\d[\da-z]{0,17}"
                r"(?:[ ./+-]{1,2}(?=[\da-z]{0,5}\d)[\da-z]{1,12}){0,6}(?: ?\([\da-z]\)"
                r")?"
                r"(?:[ -][a-z]\b)?)(?<=\d[^a-z]|.\d|\d[a-z])"
            ),
            citation=_LAW + table["sources"],
            confidence=0.9,
            refine=_refine_labelled,
            needs_digit=True,
            min_digits=4,
        ),
        Rule(
            entity_type="NATIONAL_ID",
            pattern=re.compile(
                rf"(?<![\w.,$£€¥/+-])(?:{'|'.join(table['forms'].values())})(?![\w/]"
                rf"|[.-]\d)"
            ),
            citation=_LAW + table["sources"],
            confidence=0.93,
            needs_digit=True,
            min_digits=6,
        ),
        Rule(
            entity_type="NATIONAL_ID",
            pattern=re.compile(rf"(?<![\w.+-])(?:{forms})(?![\w-]| \d)"),
            citation=_LAW + table["sources"],
            confidence=0.97,
            refine=_if_valid(partial(_has_weights, checked), _without_signs),
            needs_digit=True,
            min_digits=9,
        ),
    )


def _refine_labelled(text: str, start: int, end: int) -> Range | None:
    """Keep what has digits enough for a number of a person."""
    return (start, end) if len(digits_of(text[start:end])) >= _FEWEST_DIGITS else None


NATIONAL_RULES = (*_NATIONAL_RULES, *_rules_of_table())


CRYPTO_RULES = (
    Rule(
        entity_type="CRYPTO",
        pattern=re.compile(
            r"\b(?:[13][1-9A-HJ-NP-Za-km-z]{25,34}|(?:bc|tb)1[a-z0-9]{14,74}"
            r"|0x[0-9a-fA-F]{40})\b"
        ),
        citation="BIP 13, BIP 173, BIP 350; ERC-55; GDPR recital 30",
        confidence=0.99,
        refine=_refine_crypto,
        cased=True,
        needs_digit=True,
    ),
)
