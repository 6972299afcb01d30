"""Checksums against published examples, and one digit wrong."""

import pytest

from dptune.detection.patterns import PatternRecognizer
from dptune.detection.patterns import national_ids as n
from dptune.detection.recognizer import Tier

CHECKS = [
    (n.is_nhs_valid, "9434765919"),
    (n.is_cpf_valid, "52998224725"),
    (n.is_verhoeff_valid, "234123412346"),
    (n.is_dni_valid, "12345678z"),
    (n.is_dni_valid, "x1234567l"),
    (n.is_fiscal_code_valid, "rssmra85t10a562s"),
    (n.is_nir_valid, "255081416802538"),
    (n.is_pesel_valid, "44051401359"),
    (n.is_bsn_valid, "111222333"),
    (n.is_base58_address, "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),
    (n.is_bech32_address, "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
    (
        n.is_bech32_address,
        "bc1p5cyxnuxmeuwuvkwfem96lqzszd02n6xdcjrs20cac6yqjjwudpxqkedrcr",
    ),
]


@pytest.mark.parametrize(("check", "value"), CHECKS)
def test_checksum_accepts_the_published_example(check, value):
    assert check(value)


@pytest.mark.parametrize(("check", "value"), CHECKS)
def test_checksum_refuses_every_change_of_one_digit(check, value):
    digits = [i for i, c in enumerate(value) if c.isdecimal() and i > 1]
    wrong = 0
    for i in digits[:-1]:
        other = str((int(value[i]) + 1) % 10).replace("0", "2")
        if other != value[i]:
            wrong += not check(value[:i] + other + value[i + 1 :])
    tried = sum(
        str((int(value[i]) + 1) % 10).replace("0", "2") != value[i] for i in digits[:-1]
    )
    assert wrong >= 0.9 * tried


FOUND = [
    ("NINO AB 12 34 56 C", "NATIONAL_ID", "AB 12 34 56 C"),
    ("my nhs number is 943 476 5919", "NATIONAL_ID", "943 476 5919"),
    ("cpf 529.982.247-25.", "NATIONAL_ID", "529.982.247-25"),
    ("aadhaar 2341 2341 2346", "NATIONAL_ID", "2341 2341 2346"),
    ("SIN: 046 454 286", "NATIONAL_ID", "046 454 286"),
    ("DNI 12345678Z", "NATIONAL_ID", "12345678Z"),
    ("cf RSSMRA85T10A562S", "NATIONAL_ID", "RSSMRA85T10A562S"),
    ("PESEL 44051401359", "NATIONAL_ID", "44051401359"),
    ("tax id 12-3456789", "NATIONAL_ID", "12-3456789"),
    (
        "pay 0x52908400098527886E0F7030069857D2E4169EE7",
        "CRYPTO",
        "0x52908400098527886E0F7030069857D2E4169EE7",
    ),
]


@pytest.mark.parametrize(("text", "kind", "value"), FOUND)
def test_recognize_national_id_is_found(text, kind, value):
    spans = PatternRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    assert (kind, value) in {(s.entity_type, text[s.start : s.end]) for s in spans}


@pytest.mark.parametrize(
    "text",
    [
        "cpf 529.982.247-26",
        "aadhaar 2341 2341 2347",
        "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb",
    ],
)
def test_recognize_wrong_checksum_is_no_national_id(text):
    spans = PatternRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    assert {"NATIONAL_ID", "CRYPTO"}.isdisjoint(s.entity_type for s in spans)
