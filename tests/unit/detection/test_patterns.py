"""Tables of (text, found) with near misses, for every family of patterns."""

import time
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection.engine import build_engine
from dptune.detection.patterns import (
    _ALL_RULES,
    PatternRecognizer,
    lower_in_place,
    rules,
)
from dptune.detection.recognizer import Tier

RECOGNIZER = PatternRecognizer(tier=Tier.HIGH_ENTITY)
LOW = PatternRecognizer(tier=Tier.LOW_ENTITY)


def found(text, recognizer=RECOGNIZER):
    return {
        (span.entity_type, text[span.start : span.end])
        for span in recognizer.recognize([text])[0]
    }


FOUND = [
    ("write to ann.lee+x@mail.example.org!", "EMAIL", "ann.lee+x@mail.example.org"),
    ("from franz37...@mail.org", "EMAIL", "franz37...@mail.org"),
    ("cc: kim.park@mailhost", "EMAIL", "kim.park@mailhost"),
    ("ann (at) example (dot) org", "EMAIL", "ann (at) example (dot) org"),
    ("see https://example.org/a?b=1 now", "URL", "https://example.org/a?b=1"),
    ("see example.co.uk/path", "URL", "example.co.uk/path"),
    ("from 192.168.17.4 today", "IP", "192.168.17.4"),
    ("at 2001:db8::8a2e:370:7334 ok", "IP", "2001:db8::8a2e:370:7334"),
    ("mac 00:1B:44:11:3A:B7", "MAC", "00:1B:44:11:3A:B7"),
    (
        "id 123e4567-e89b-12d3-a456-426614174000",
        "UUID",
        "123e4567-e89b-12d3-a456-426614174000",
    ),
    ("key AKIAABCDEFGHIJKLMNOP", "SECRET", "AKIAABCDEFGHIJKLMNOP"),
    ("password: tulip-Window", "SECRET", "tulip-Window"),
    ("IBAN GB29 NWBK 6016 1331 9268 19 please", "IBAN", "GB29 NWBK 6016 1331 9268 19"),
    ("IBAN GB78 LGNL 8077 0941 4721 9 of", "IBAN", "GB78 LGNL 8077 0941 4721 9"),
    ("IBAN GB30 NWBK 6016 1331 9268 19", "ID", "GB30 NWBK 6016 1331 9268 19"),
    ("number 4111-1111-1111-1112", "ID", "4111-1111-1111-1112"),
    ("call 0171/6056275", "PHONE", "0171/6056275"),
    ("ring (01632) 960 652", "PHONE", "(01632) 960 652"),
    ("from 10\n.20\n.30\n.40", "IP", "10\n.20\n.30\n.40"),
    ("card 4111 1111 1111 1111 12/25", "CREDIT_CARD", "4111 1111 1111 1111"),
    ("amex 378282246310005", "CREDIT_CARD", "378282246310005"),
    ("ssn 123-45-6789", "SSN", "123-45-6789"),
    ("my social security number is 123456789", "SSN", "123456789"),
    ("call (977) 625-2661 now", "PHONE", "(977) 625-2661"),
    ("call +44 20 7946 0958", "PHONE", "+44 20 7946 0958"),
    ("980.322.8737 is my number", "PHONE", "980.322.8737"),
    ("dial 69.956.91.52", "PHONE", "69.956.91.52"),
    ("fax 212-555-0187 x22", "PHONE", "212-555-0187 x22"),
    ("my order id is 9287191760", "ORDER_ID", "9287191760"),
    ("It's 843-58572-7002.", "ID", "843-58572-7002"),
    ("Account ID is 6T4FLVGV4B and", "ACCOUNT_ID", "6T4FLVGV4B"),
    ("tracking number, which is AGZIM5T6KL.", "ID", "AGZIM5T6KL"),
    ("my access code is 341752", "ID", "341752"),
    ("pin 4821", "ID", "4821"),
    ("passport number is X1234567", "PASSPORT", "X1234567"),
    ("patient id 88213", "MRN", "88213"),
    ("lives at 6821 1st ave  san mateo, ny 75227", "ADDRESS", None),
    ("322 Khan Mews Allisonville, ME 20072", "ADDRESS", None),
    ("P.O. Box 1234", "ADDRESS", "P.O. Box 1234"),
    ("zip code is 30301-1234", "ZIP", "30301-1234"),
    ("london SW1A 1AA", "ZIP", "SW1A 1AA"),
    ("a 79 year old female", "AGE", "79 year old"),
    ("username: cminh730", "USERNAME", "cminh730"),
    ("ask @some_one", "USERNAME", "@some_one"),
    ("on 2019-11-06", "DATE", "2019-11-06"),
    ("on 14.04.2020", "DATE", "14.04.2020"),
    ("born May 3rd, 1984", "DATE", "May 3rd, 1984"),
    ("last Tuesday", "DATE", "last Tuesday"),
    ("three weeks ago", "DATE", "three weeks ago"),
    ("in 1977.", "DATE", "1977"),
    ("at 10:45 pm", "TIME", "10:45 pm"),
    ("it was $19.99", "MONEY", "$19.99"),
    ("it was 20 dollars", "MONEY", "20 dollars"),
    ("up 12.5%", "PERCENT", "12.5%"),
    ("for 12 miles", "QUANTITY", "12 miles"),
    ("the 3rd", "ORDINAL", "3rd"),
    ("seven of them", "CARDINAL", "seven"),
]


@pytest.mark.parametrize(("text", "entity_type", "value"), FOUND)
def test_recognize_identifier_is_found(text, entity_type, value):
    hits = found(text)
    if value is None:
        assert entity_type in {kind for kind, _ in hits}
    else:
        assert (entity_type, value) in hits


NEAR_MISSES = [
    ("card 4111 1111 1111 1112", "CREDIT_CARD"),
    ("number 4111111111111112", "CREDIT_CARD"),
    ("IBAN GB30 NWBK 6016 1331 9268 19", "IBAN"),
    ("000-12-3456", "SSN"),
    ("666-12-3456", "SSN"),
    ("123-00-4567", "SSN"),
    ("ISBN 978-0-306-40615-7", "PHONE"),
    ("ISBN 978-0-306-40615-7", "ID"),
    ("ISBN-10 0-306-40615-2", "PHONE"),
    ("9780306406157", "CREDIT_CARD"),
    ("9780306406157", "ID"),
    ("version 1.2.3.4", "IP"),
    ("Version: 1.2.3.4", "IP"),
    ("app 7.16.112.248 released", "IP"),
    ("driver 469.18.96", "PHONE"),
    ("build 42645", "ZIP"),
    ("ISBN13 9780306406157", "USERNAME"),
    ("63 975 254 kr", "PHONE"),
    ("55493 SEK", "ID"),
    ("v10.0.19045", "ID"),
    ("Python 3.11.4", "PHONE"),
    ("999.1.1.1", "IP"),
    ("it costs $1,234.56", "PHONE"),
    ("it costs $341752", "ID"),
    ("it costs 1,299.00", "ID"),
    ("std::vector", "IP"),
    ("at 10:30:15", "IP"),
    ("2019-11-06", "PHONE"),
    ("between 1999-2004", "PHONE"),
    ("the password is incorrect", "SECRET"),
    ("100 000 people", "PHONE"),
    ("a rate of 90909.0902 per day", "PHONE"),
    ("wait 10 minutes on the way", "ADDRESS"),
    ("e.g. this", "URL"),
    ("react@18.2.0", "EMAIL"),
    ("well-known", "ID"),
    ("1500meters", "ID"),
]


@pytest.mark.parametrize(("text", "entity_type"), NEAR_MISSES)
def test_recognize_near_miss_is_not_found(text, entity_type):
    assert entity_type not in {kind for kind, _ in found(text)}


@pytest.mark.parametrize(
    "number",
    [
        "000-12-3456",
        "4111-1111-1111-1112",
        "3782 822463 10006",
        "221.837.106.219",
        "GB30 NWBK 6016 1331 9268 19",
    ],
)
def test_detect_number_with_a_wrong_checksum_is_just_some_number(number):
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns",))
    (span,) = engine.detect([f"it is {number}, ok"])[0]
    assert (span.entity_type, span.start, span.end) == ("ID", 6, 6 + len(number))


CODES = ["341752", "9287191760", "843-58572-7002", "6T4FLVGV4B", "AGZIM5T6KL"]
FRAMES = [
    "{}",
    "USR: {}\nSYS: ok",
    "My ID is {}.",
    "so it is {}, right?",
    "({})",
    "id:{}",
]


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("code", CODES)
def test_detect_code_is_found_in_every_tier_and_frame(tier, code):
    engine = build_engine(tier=tier)
    texts = [frame.format(code) for frame in FRAMES]
    for text, spans in zip(texts, engine.detect(texts), strict=True):
        start = text.index(code)
        covered = {i for s in spans for i in range(s.start, s.end)}
        assert covered >= {i for i in range(start, start + len(code)) if text[i] != "-"}


@given(st.integers(0, 10**14 - 1), st.integers(6, 14))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_recognize_any_run_of_six_digits_is_found(number, width):
    digits = f"{number % 10**width:0{width}d}"
    text = f"USR: {digits} is it"
    spans = LOW.recognize([text])[0]
    covered = {i for s in spans for i in range(s.start, s.end)}
    is_isbn = len(digits) == 13 and digits.startswith(("978", "979"))
    assert is_isbn or covered >= set(range(5, 5 + width))


def test_low_entity_keeps_structured_types_and_drops_amounts():
    kinds = {kind for kind, _ in found("$5 at 10:45, ann@example.org, 2019", LOW)}
    assert kinds == {"EMAIL", "URL", "DATE"}


UNITS = ["1", "1 ", "a1", "1-", "(1", "a.", "a@", "Aa ", "1 Aa ", "1 000 ", ":", "f:"]
UNITS += ["$1 341752 ", "password: ", "eyJaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----"]
UNITS += ["the corner of a and ", "\n", "http://", "a'a", "account id ", "ny 1", " at "]


@pytest.mark.parametrize("unit", UNITS)
def test_recognize_adversarial_text_takes_little_time(unit):
    """16,000 characters take 0.25 s when quiet; quadratic backtracking takes minutes.

    The bound is for a machine that does much besides.
    """
    text = unit * (16_000 // len(unit))
    started = time.process_time()
    RECOGNIZER.recognize([text])
    assert time.process_time() - started < 10


@given(st.text(max_size=120))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_recognize_any_text_gives_spans_inside_it(text):
    for span in RECOGNIZER.recognize([text])[0]:
        assert 0 <= span.start < span.end <= len(text)


def test_lower_in_place_keeps_every_position():
    text = "Aİß ΑΣ"
    assert len(lower_in_place(text)) == len(text)
    assert lower_in_place(text)[0] == "a"


def test_every_rule_cites_a_standard():
    assert all(len(rule.citation) > 8 for rule in _ALL_RULES)


def test_rule_files_hold_no_part_and_code_no_refiner_that_no_rule_names():
    texts = rules.rule_texts()
    parts = {name for text in texts for name in tomllib.loads(text).get("parts", ())}
    named = {name for text in texts for name in rules._PART.findall(text)}
    implied = {"NUMBER_WORD", "VALUE"}  # of labels
    assert parts | rules._PARTS.keys() == named | implied
    used = {row.get("refine") for t in texts for row in tomllib.loads(t)["rule"]}
    assert used == {None, *rules._REFINERS}
    assert {path.stem for path in rules._FOLDER.iterdir()} == set(rules.FAMILIES)


@pytest.mark.parametrize("row", [{"refine": "nobody"}, {"needs_digits": True}])
def test_rule_with_an_unknown_name_is_refused(row):
    whole = {"entity_type": "ID", "pattern": "a", "citation": "b", "confidence": 0.5}
    with pytest.raises((KeyError, TypeError)):
        rules._rule(whole | row, {})


def test_name_of_an_account_behind_part_is_no_code_of_a_thing():
    (spans,) = PatternRecognizer(tier=Tier.LOW_ENTITY).recognize(
        ["Part james85421 left"]
    )
    assert any(s.start == 5 and s.end == 15 for s in spans)
