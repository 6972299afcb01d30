"""Plain characters, and the way back to the written ones."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection.patterns import PatternRecognizer, canonical
from dptune.detection.patterns.plain import without_glue
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
