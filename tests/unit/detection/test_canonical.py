"""Plain characters, and the way back to the written ones."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dptune.detection.patterns import PatternRecognizer, canonical
from dptune.detection.patterns.plain import odd_numbers, usual, without_glue
from dptune.detection.recognizer import Tier

GLUE = re.compile(  # what is around a sign before the sign: the same, and slow
    r"(?<=[\d)])_++|(?<!_)_++(?=[\d(+])|(?<!\w)_++(?=\w)|(?<=[^\W_])_++(?!\w)"
    r"|(?<=[:-][0-9a-f]{2})_++|(?<=-[0-9a-f]{12})_++"
    r"|(?<!_)_++(?=[0-9a-f]{2,8}[:-])"
    r"|(?<=[\d)])(?:[–—―]|--++)|(?:[–—―]|(?<!-)--++)(?=[\d(+])"
    r"|(?<=[./]\d\d)-(?=\d{1,2}[./]\d)"
    r"|(?<=[^\W\d_])[,;](?=[(+]|0\d|\d{1,6} )"
    r"|(?<=[^\W\d_])\.(?=\d{1,4}[./-]\d{1,2}[./-]\d)"
    r"|(?<!\d)·(?=[\d(+])|(?<=[\d)])·(?!\d)",
    re.IGNORECASE,
)


@given(st.text(alphabet="_-–—,;.·()+0123abfX :/", max_size=30))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_without_glue_blanks_what_the_plain_expression_finds(text):
    assert without_glue(text) == GLUE.sub(lambda found: " " * len(found[0]), text)


@given(st.text(alphabet="0123456789OolISB :=~*()./-,xA", max_size=40))
@settings(max_examples=500, deadline=None, derandomize=True)
@example("call 555 4I5 123=456=7890 now")
def test_usual_leaves_every_character_in_its_place(text):
    runs = odd_numbers(text)
    written = usual(text, runs)
    inside = {place for low, high in runs for place in range(low, high)}
    assert len(written) == len(text)
    assert all(written[i] == text[i] for i in range(len(text)) if i not in inside)


@pytest.mark.parametrize(
    "text",
    [
        "ISO 9001 and ISO 27001, IS 456 2000",
        "SOS 112 or SOS 911",
        "IBIS 2020 and IBIS 2021-2022",
        "the OSI 7 4 3 2 1 0 layers",
        "BIOS 1.0.2 and BIOS 2020.11",
        "SB 1070, LS1 4AP, BS1 5TR and BB1 1BB",
        "Galaxy S20 2021, S21 128 256",
        "SO2 100 200 300 and SIO2 10 20",
        "BIO101 and BIO201, rules S101 S102 B006",
        "World War II 1939-1945, Pentium III 500 600",
        "100l 200l 300l, 10B 70B 405B, 1S 2S 3S",
        "code 200|201|204|301|404",
        "10*20*30*40*50, 64:128:256:512, 100~200~300",
        "from 10:20:30 to 10:25:45, 2^10^20",
    ],
)
def test_odd_numbers_are_no_standards_models_amounts_or_lists(text):
    assert odd_numbers(text) == []
    beside = f"{text} tel O161 496 O772"
    assert odd_numbers(beside) == [(len(text) + 5, len(beside))]


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("4111", "4111"),
        ("４１１１", "4111"),
        ("٤١١١", "4111"),
        ("𝟒𝟏𝟏𝟏", "4111"),
        ("a–b‑c−d", "a-b-c-d"),
        ("a\u00a0b\u2009c", "a b c"),
        ("ann＠example．org", "ann@example.org"),
        ("a\u2028b", "a\nb"),
        ("1・2。3·4", "1.2.3.4"),
        ("4\u200b1\u00ad1\ufeff1", "4111"),
        ("İstanbul’da 5€ m² ½", "İstanbul’da 5€ m² ½"),
    ],
)
def test_canonical_plain_form(written, plain):
    assert canonical(written)[0] == plain


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_canonical_origins_rise_and_cover_the_plain_text(text):
    plain, origin = canonical(text)
    if origin is None:
        assert len(plain) == len(text)
    else:
        assert len(origin) == len(plain) + 1
        assert origin == sorted(set(origin))
        assert origin[-1] == len(text)


def test_recognize_span_covers_the_written_characters_without_width():
    text = "card 4111\u200b1111\u200b1111\u200b1111 ok"
    spans = PatternRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    assert ("CREDIT_CARD", text[5:24]) in {
        (s.entity_type, text[s.start : s.end]) for s in spans
    }
