"""Names in escapes are found, and no mark halves an escape."""

import textwrap
from dataclasses import replace
from itertools import pairwise

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection import escapes, union
from dptune.detection.engine import build_engine
from dptune.detection.escapes import (
    escapes_of,
    in_place,
    seen_alone,
    unescaped,
    wraps_of,
)
from dptune.detection.known_values import UnitValues
from dptune.detection.labelling import detect_dataset
from dptune.detection.patterns import PatternRecognizer
from dptune.detection.recognizer import Tier
from dptune.detection.union import unite
from dptune.text import Span
from tests.support.growth import grows_in_proportion

ENGINE = build_engine(tier=Tier.LOW_ENTITY)
MAIL, NAME = "ana.petrova@example.org", "Zoë Müller"
WRITTEN = [
    lambda c: c,
    lambda c: "".join(
        rf"\u{c.encode('utf-16-be').hex()[i : i + 4]}"
        for i in range(0, len(c.encode("utf-16-be")) * 2, 4)
    ),
    lambda c: rf"\\u{ord(c):04x}" if ord(c) < 1 << 16 else rf"\U{ord(c):08x}",
    lambda c: f"&#{ord(c)};",
    lambda c: f"&amp;#x{ord(c):x};",
    lambda c: "".join(f"%{byte:02X}" for byte in c.encode()),
    lambda c: "".join(rf"\x{byte:02x}" for byte in c.encode()),
]
PIECES = st.sampled_from(
    [
        *("we met ", r"\n", r"\t", r"\"", r"\\", "%", "%C3", "&", "=", "\\", "=?", "+"),
        *(r"\ud83d\ude00", r"\ud83d", "&iacute;", "=C3=A9", r"\u304b\u3099", r"\u00e9"),
        *("=?UTF-8?Q?Ren=C3=A9e_Hill?=", "=\n", "-- ", "1962 ", "\n", "of the ", "0"),
    ]
)


def masked(text, engine=ENGINE):
    """Return the code points that are marked, after a look at the spans."""
    spans = engine.detect([text])[0]
    places = [(span.start, span.end) for span in spans]
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert all(a[1] <= b[0] for a, b in pairwise(places))
    return {i for start, end in places for i in range(start, end)}


def halves(text):
    """Return the escapes of a text that are masked in part."""
    found = masked(text)
    return [
        text[a:b]
        for a, b, _ in escapes_of(text)
        if 0 < len(found & {*range(a, b)}) < b - a
    ]


@st.composite
def planted(draw):
    """Draw a text with an e-mail or a name in escapes, and where it stands."""
    before = "".join(draw(st.lists(PIECES, max_size=6)))
    value = draw(st.sampled_from([MAIL, NAME]))
    secret = "".join(draw(st.sampled_from(WRITTEN))(c) for c in value)
    text = f"{before}\nfrom {secret}, "
    start = len(before) + len("\nfrom ")
    return (
        text + "".join(draw(st.lists(PIECES, max_size=6))),
        start,
        start + len(secret),
    )


@given(planted())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_detect_values_in_random_escapes_are_covered_whole(case):
    text, start, end = case
    assert {*range(start, end)} <= masked(text)
    assert not halves(text)


@given(
    st.lists(PIECES, max_size=20).map("".join)
    | st.text("\\u0dx3%C&=#;Aan", max_size=40)
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_detect_any_escapes_are_never_halved(text):
    assert not halves(text)
    view = unescaped(text)
    if view is not None:
        assert len(view.text) == len(view.starts) == len(view.ends) <= len(text)
        assert len(in_place(text, escapes_of(text))) == len(text)


FOUND = {
    r'{"m":"\u041c\u0430\u0440\u0438\u044f wrote"}': r"\u041c\u0430\u0440\u0438\u044f",
    r'{"name":"\u738b\u5c0f\u660e"}': r"\u738b\u5c0f\u660e",
    r'{"text":"Zo\u00eb M\u00fcller called"}': r"Zo\u00eb M\u00fcller",
    r'{"author": "Ren\u00e9e"}': r"Ren\u00e9e",
    "Garc&iacute;a called": "Garc&iacute;a",
    "q?name=Jos%C3%A9+Garc%C3%ADa&x=1": "Jos%C3%A9+Garc%C3%ADa",
    "From: =?UTF-8?Q?Ren=C3=A9e_Hill?= here": "=?UTF-8?Q?Ren=C3=A9e_Hill?=",
    "From: =?utf-8?B?UmVuw6llIEhpbGw=?= here": "=?utf-8?B?UmVuw6llIEhpbGw=?=",
    r"hello\nmark wood\tcalled": "mark wood",
    r"C:\\Users\\grace\\Desktop": "grace",
    r"{\"name\": \"mark wood\"}": "mark wood",
    r"b'Jos\xc3\xa9 Garc\xeda'": r"Jos\xc3\xa9 Garc\xeda",
    r'"Jos\303\251 Garcia.txt"': r"Jos\303\251 Garcia",
    "Ren=C3=A9e Hi=\nll said": "Ren=C3=A9e Hi=\nll",
    r'{"a":"12\/03\/1990"}': r"12\/03\/1990",
}


@pytest.mark.parametrize("text", FOUND)
def test_detect_name_in_escapes_is_covered(text):
    start = text.index(FOUND[text])
    assert {*range(start, start + len(FOUND[text]))} <= masked(text)


@pytest.mark.parametrize(
    "text",
    [
        r"we write \nabla \theta and \rho for the rest",
        r"C:\temp\new\readme.txt is the file",
        "the price is 100% of a=b & c &amp; d",
        r"%E9 \ud800 =FF &nosuch; \u{ffffff} =?zlib?Q?x?= %C3-",
    ],
)
def test_unescaped_what_is_no_escape_stays_as_it_is(text):
    view = unescaped(text)
    assert view is None or view.text == text.replace("&amp;", "&")


def is_exact(text=r"hello\nmark wood\tcalled"):
    return masked(text) == {*range(text.index("mark"), text.index(r"\tcalled"))}


def test_unite_line_end_in_escape_is_no_part_of_the_name(monkeypatch):
    assert is_exact()
    monkeypatch.setattr(union, "in_place", lambda text, _escapes: text)
    assert not is_exact()


def is_found(text=r'text: "\u00c9va M\u00fcller\u00e9\n"'):
    name = r"\u00c9va M\u00fcller\u00e9"
    start = text.index(name)
    return masked(text) == {*range(start, start + len(name))} and not halves(text)


@pytest.mark.parametrize("offset", [-1, 1])
def test_escape_law_catches_a_map_that_is_off_by_one(monkeypatch, offset):
    assert is_found()
    right = escapes.Unescaped.original

    def wrong(view, span):
        place = right(view, span)
        return replace(place, start=place.start + offset, end=place.end + offset)

    monkeypatch.setattr(escapes.Unescaped, "original", wrong)
    assert not is_found()


def test_unite_half_of_an_escape_is_covered_whole(monkeypatch):
    half = Span(start=4, end=9, entity_type="ID")
    text = r"x \u738b\u5c0f y"
    assert [(s.start, s.end) for s in unite([half], text)] == [(2, 14)]
    monkeypatch.setattr(union, "whole_escapes", lambda spans, _escapes: spans)
    assert [(s.start, s.end) for s in unite([half], text)] != [(2, 14)]


def test_escapes_are_part_of_every_fingerprint(monkeypatch):
    before = ENGINE.fingerprint
    monkeypatch.setattr(escapes, "code_digest", lambda *_: "other")
    assert ENGINE.fingerprint != before
    assert all(type(part) is escapes.EscapeReader for part in ENGINE.parts)


def test_values_of_a_unit_are_found_in_escapes():
    known = [{"value": "Blé Roux", "entity_type": "PERSON"}]
    rows = {"text": [r"the bl\u00e9 roux"], "unit_id": ["a"], "known_values": [known]}
    found = UnitValues.of(datasets.Dataset.from_dict(rows))
    assert (4, 17) in [(s.start, s.end) for s in found.spans(rows["text"][0], "a")]


@pytest.mark.parametrize(
    "piece",
    ["\\", r"\u", r"\ud83d", "%C3", "&amp;", "=?utf-8?Q?", "=", "&", "+%41", "C:\\a"],
)
def test_unescaped_ten_times_the_text_takes_about_ten_times_as_long(piece):
    assert grows_in_proportion(
        lambda length: unescaped(piece * (length // len(piece))), 20_000
    )


@pytest.mark.parametrize("quote", ['"', '\\"'])
def test_value_in_a_string_ends_where_its_own_quote_is_closed(quote):
    call = '{"name": "odalys prieto", "phone": "3055550199", "limit": 10}'
    text = f'"arguments": {call}'.replace('"', quote)
    spans = PatternRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    assert {text[s.start : s.end] for s in spans} == {"odalys prieto", "3055550199"}


@pytest.mark.parametrize("quote", ['"', '\\"', '\\\\\\"'])
@pytest.mark.parametrize(
    ("call", "values"),
    [
        ('"url": "https://shop.example.com/u?token=Zk39Qp1x"', 1),
        ('"url": "shop.example.com/u/a"', 1),
        ('"password": "Zk39Qp1x"', 1),
    ],
)
def test_links_and_secrets_in_a_string_leave_its_quotes(quote, call, values):
    text = f'{{{call}, "limit": 10}}'.replace('"', quote)
    spans = unite(PatternRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0], text)
    assert len(spans) == values
    assert not any({*text[s.start : s.end]} & {*'\\"}'} for s in spans)


@pytest.mark.parametrize("quote", ['"', '\\"'])
def test_values_of_a_list_end_at_the_quotes_that_they_began_with(quote):
    call = """{"name": ["odalys o'prieto", "zelko vrabie"], "limit": 10}"""
    text = f"call: {call}".replace('"', quote)
    spans = PatternRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    found = {text[s.start : s.end] for s in spans}
    assert found == {"odalys o'prieto", "zelko vrabie"}


SIGNS = ["\x00", "\x07", "\ufff9", "\u17b5", "\U000e0061", "\ufe0f"]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("value", [MAIL, "123-45-6789", "4111111111111111"])
def test_sign_that_nobody_sees_hides_no_value(value, sign):
    written = sign.join(value)
    masked = {
        i
        for span in ENGINE.detect([f"it: {written}"])[0]
        for i in range(span.start, span.end)
    }
    letters = {i for i, c in enumerate(written, 4) if c.isalnum()}
    assert letters <= masked


def test_corpus_is_read_as_single_texts_are(tmp_path):
    blank, thin = "\u00a0", "\u2009"
    texts = [
        f"Mail{blank}from Grace{blank}Hill, tel{blank}0171{thin}5550{thin}041.",
        f"She lives at 12{thin}Elm{blank}St, Oxford.",
        "Card 4111\x00 1111 1111 1111, \x1b[31mGrace Hill\x1b[0m",
    ]
    corpus = datasets.Dataset.from_dict({"id": ["0", "1", "2"], "text": texts})
    rows = detect_dataset(corpus, ENGINE, cache_dir=tmp_path)["spans"]
    places = [{(span["start"], span["end"]) for span in row} for row in rows]
    plain = [text.replace(blank, " ").replace(thin, " ") for text in texts]
    for read in (texts, plain):
        assert places == [
            {(s.start, s.end) for s in row} for row in ENGINE.detect(read)
        ]


@pytest.mark.parametrize("sign", ["**", "*", "_", "~", "~~"])
def test_emphasis_hides_no_value_and_stays(sign):
    text = (
        f"ask {sign}priya{sign} ({sign}42{sign} yo) on {sign}0161 496 0772{sign} today"
    )
    masked = {i for s in ENGINE.detect([text])[0] for i in range(s.start, s.end)}
    values = {
        text.index(v) + i for v in ("priya", "42", "0161 496 0772") for i in (0, 1)
    }
    assert values <= masked
    assert not masked & {text.index("priya") - 1, text.index("priya") + 5}


def test_line_ends_of_two_signs_are_read_as_those_of_one():
    text = "Tel.\n0161 496\n0772, born 3 May\n1960\n\nGrace Hill\n12 Elm St\nOxford"
    found = [
        {v for s in ENGINE.detect([t])[0] for v in t[s.start : s.end].split()}
        for t in (text, text.replace("\n", "\r\n"))
    ]
    assert found[0] == found[1]
    assert {"1960", "Hill", "Elm"} <= {v.strip(",") for v in found[0]}


@pytest.mark.parametrize(
    "text", ["f(**kwargs, *args) = a ** b ** c", "__init__ *p, *q"]
)
def test_signs_of_code_are_no_emphasis(text):
    assert seen_alone(text) is None


@pytest.mark.parametrize(
    "piece",
    ["*a ", "**", "_a ", "~a", "*a* ", "\r\n", "\x00a", "*" * 9, "a" * 50 + "\n"],
)
def test_emphasis_takes_time_in_proportion(piece):
    assert grows_in_proportion(
        lambda length: seen_alone(piece * (length // len(piece))), 20_000
    )


WORDS = (
    "we were glad to hear from you and write again soon, so please ring {} in the "
    "evening, or else come round when the shop on the corner is open again, as told"
)


@pytest.mark.parametrize("mark", ["", "> ", "    ", "| "])
@pytest.mark.parametrize(
    "value", ["0161 496 0772", "14 Larkspur Close", "3 May 1960", "Joy Field"]
)
def test_value_is_found_where_a_line_was_cut(value, mark):
    """Every width cuts elsewhere; at some the cut is in the value."""
    cut = 0
    for width in range(48, 76):
        lines = textwrap.wrap(WORDS.format(value), width)
        text = "".join(f"{mark}{line}\n" for line in lines)
        masked = {i for s in ENGINE.detect([text])[0] for i in range(s.start, s.end)}
        first, last = value.split(" ")[0], value.rsplit(" ", maxsplit=1)[-1]
        assert {text.index(first), text.index(last)} <= masked
        cut += value not in text
    assert cut > 2


@pytest.mark.parametrize(
    "text",
    [
        "a list of things that is as long as that one\n- another thing",
        "12:30 a message that is as long as a message\n12:31 another one",
        "2024-05-01 error of the server that is at work\n2024-05-02 error again",
        "export the_name_of_the_thing_and_its_place\nPASSWORD = marigold",
        "ann,lee,1980,oxford,a thing as long as that\nbob,hill,1981,leeds,b",
        "Please bring the keys to the house of Mister\n\nHill",
        "short line\nof words",
    ],
)
def test_line_end_that_somebody_made_stays(text):
    assert list(wraps_of(text)) == []
