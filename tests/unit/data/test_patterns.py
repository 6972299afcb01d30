"""Patterns of personal data with a fixed form, and of broken text."""

import re
import time

import pytest

from dptune.data.validation import EMAIL, MOJIBAKE, US_SSN, has_card_number, has_iban


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4111111111111111", True),
        ("a 4111 1111 1111 1111.", True),
        ("4111-1111-1111-1111", True),
        ("378282246310005", True),
        ("3782 822463 10005", True),
        ("order 77 4111 1111 1111 1111 12", True),
        ("5500000000000004 and 123", True),
        ("6011000000000004", True),
        ("2223000048400011", True),
        ("4111111111111112", False),
        ("411111111111", False),
        ("1111 1111 1111 1117", False),
        ("0000000000000000", False),
        ("41111111111111111111111", False),
        ("843-58572-7002", False),
        ("", False),
    ],
)
def test_has_card_number_follows_luhn(text, found):
    assert has_card_number(text) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("DE89370400440532013000", True),
        ("de89 3704 0044 0532 0130 00", True),
        ("GB29-NWBK-6016-1331-9268-19", True),
        ("pay NO93 8601 1117 947 NOW", True),
        ("MT84MALT011000012345MTLCAST001S", True),
        ("DE89370400440532013001", False),
        ("DE89 3704 0044", False),
        ("XX89370400440532013000", False),
        ("ADE89370400440532013000", False),
        ("", False),
    ],
)
def test_has_iban_follows_mod_97(text, found):
    assert has_iban(text) is found


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (EMAIL, "mail a.b+c@d-e.example.org!", True),
        (EMAIL, "a@b", False),
        (EMAIL, "@home.now", False),
        (EMAIL, "<EMAIL> at example.org", False),
        (US_SSN, "078-05-1120", True),
        (US_SSN, "is 078 05 1120.", True),
        (US_SSN, "000-12-3456", False),
        (US_SSN, "666-12-3456", False),
        (US_SSN, "912-12-3456", False),
        (US_SSN, "123-00-3456", False),
        (US_SSN, "123-45-0000", False),
        (US_SSN, "843-58-57270", False),
        (US_SSN, "1-234-56-7890", False),
        (MOJIBAKE, "cafÃ©", True),
        (MOJIBAKE, "itâ€™s", True),
        (MOJIBAKE, "itâ\x80\x99s", True),
        (MOJIBAKE, "5Â°", True),
        (MOJIBAKE, "a\ufffdb", True),
        (MOJIBAKE, "a\x07b", True),
        (MOJIBAKE, "café, naïve, São, Ângela, NÃO, 5 €\t\r\n", False),
    ],
)
def test_pattern_finds_form_and_no_near_miss(pattern, text, found):
    assert bool(re.search(pattern, text)) is found


@pytest.mark.parametrize(
    "text", ["a" * 20_000, "a." * 9000, "4 " * 9000, "DE12" * 5000, "@" * 20_000]
)
def test_patterns_take_linear_time(text):
    start = time.process_time()
    for pattern in (EMAIL, US_SSN, MOJIBAKE):
        re.search(pattern, text)
    has_card_number(text)
    has_iban(text)
    # A quadratic pattern would take minutes.
    assert time.process_time() - start < 5
