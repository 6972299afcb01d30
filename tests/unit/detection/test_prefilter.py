"""What the prefilter leaves out finds nothing, in any script, case or disguise."""

import gzip
import json
import random
import re

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection import patterns
from dptune.detection.patterns import prefilter
from dptune.detection.patterns.plain import apart, canonical
from dptune.detection.recognizer import HIGH_ENTITY_TYPES, Tier
from tests.unit.detection.test_cases import TABLES, parse
from tests.unit.detection.test_patterns import FOUND

RULES = patterns._ALL_RULES
WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})
ODD = [
    *"٠٣९３①②Ⅳ〇五ßẞİıſKÅﬁéüñłΣςа中ア가",
    *"\u00ad\u200b\u200d\u2060\ufeff\u0301\u20e3\u202e\x00\x01\x1f\x85\u2028",
    *"\t\n\r\v\f\u00a0\u3000\u2003·．。’‘“”–—−°º№£€$@#%&=+_~^|/\\:;,.!?'\"()[]{}<>*Z",
    *("1962", "0", "12/5", "3:45 pm", "+1 (555) 123-4567", "123-45-6789", "no. 12/34"),
    *("May 5, ", " at ", " old", "five ", "P.O. Box 9", "12 Elm St", "zip 12345"),
    *("a@b.org", "www.", "GB29 NWBK 6016 1331 9268 19", "0x", "Az. ", "Müllerstraße 4"),
    *("x" * 60, "9" * 40, "ab-" * 40, " " * 9),
]


def changed(text, draw):
    """Return a text with another case, other digits or odd characters in it."""
    form = draw.random()
    if form < 0.3:
        text = draw.choice((str.upper, str.swapcase, str.title))(text)
    for _ in range(draw.randrange(6)):
        place, size = draw.randrange(len(text) + 1), draw.randrange(12)
        middle = text[place : place + size]
        new = draw.choice((middle.translate(WIDE), middle.upper(), "", *ODD))
        text = text[:place] + new + text[place + size :]
    return text


def made_up():
    """Return the lines of the tables, as they are and changed."""
    draw = random.Random(0)  # noqa: S311 - nothing is secret
    lines = [row[0] for row in FOUND]
    lines += [parse(line)[0] for t in TABLES.values() for p in t.values() for line in p]
    return [*lines, *(changed(line, draw) for line in lines for _ in range(3))]


def left_out(texts, built=None):
    """Tell which rules match in a text though the prefilter leaves them out."""
    built = built or patterns._prefilter(HIGH_ENTITY_TYPES)
    for text in texts:
        plain = apart(canonical(text)[0])
        lowered = patterns.lower_in_place(plain)
        places = patterns._Places(plain, lowered)
        for number in {*range(len(RULES))} - {*built.candidates(lowered)}:
            rule = RULES[number]
            read = plain if rule.cased else lowered
            if places.may_hold(rule) and any(
                True for _ in patterns._matches(rule, read, places)
            ):
                yield number


def test_prefilter_leaves_out_no_rule_that_matches():
    texts = made_up()
    assert len(texts) > 3_500
    assert not {*left_out(texts)}


@given(st.lists(st.one_of(st.sampled_from([*ODD, *(r[0] for r in FOUND)]), st.text())))
@settings(deadline=None)
def test_prefilter_leaves_out_no_rule_in_any_text(pieces):
    assert not {*left_out(["".join(pieces), " ".join(pieces)])}


@pytest.mark.parametrize(
    "file", ["abcd/valid.jsonl.gz", "customersim/valid.jsonl.gz", "imdb/test.parquet"]
)
def test_prefilter_leaves_out_no_rule_in_real_text(shared_data, file):
    if file.endswith("parquet"):
        texts = pq.read_table(shared_data / file)["text"].to_pylist()[::250]
    else:
        with gzip.open(shared_data / file, "rt", encoding="utf8") as lines:
            texts = [text_of(json.loads(line)) for line, _ in zip(lines, range(150))]  # noqa: B905
    draw = random.Random(1)  # noqa: S311 - nothing is secret
    assert not {*left_out([*texts, *(changed(text, draw) for text in texts)])}


def text_of(row):
    """Return all strings of a row, one a line."""
    if isinstance(row, str):
        return row
    inner = row.values() if isinstance(row, dict) else row
    return "\n".join(map(text_of, inner)) if isinstance(row, dict | list) else ""


def test_most_rules_are_left_out_of_a_plain_text():
    text = "thank you so much, we will look into it and write to you soon."
    found = patterns._prefilter(HIGH_ENTITY_TYPES).candidates(text)
    assert len(found) < 6


def classes(nodes, flags):
    """Yield the parts of an expression that match one character."""
    for op, value in nodes:
        if op in prefilter._ONE:
            yield op, value, flags
        inner = value if isinstance(value, tuple | list) else ()
        own = (flags | value[1]) & ~value[2] if str(op) == "SUBPATTERN" else flags
        for part in (*inner, *(inner[1] if str(op) == "BRANCH" else ())):
            if isinstance(part, prefilter._parser.SubPattern):
                yield from classes(part, own)


def test_classes_hold_the_symbol_of_every_character_that_they_match():
    codes = [*range(0x3100), *range(0xA640, 0xAC00), *range(0xD7A0, 0xD800)]
    codes += [
        *range(0xF900, 0x10000),
        *range(0x10000, 0x20000, 7),
        *range(0x4E00, 0x9FFF, 99),
    ]
    plain = "".join({mark for code in codes for mark in apart(canonical(chr(code))[0])})
    assert not any(mark.isdecimal() and not mark.isascii() for mark in plain)
    lowered = patterns.lower_in_place(plain)
    pairs = zip(plain, lowered, strict=True)
    assert all(
        a.isalnum() == b.isalnum() and a.isascii() >= b.isascii() for a, b in pairs
    )
    seen = set()
    for rule in RULES:
        tree = prefilter._parser.parse(rule.pattern.pattern, rule.pattern.flags)
        text = plain if rule.cased else lowered
        for op, value, flags in classes(tree, tree.state.flags):
            if (key := (repr((op, value)), flags, rule.cased)) in seen:
                continue
            seen.add(key)
            state = prefilter._parser.State()
            state.flags = flags
            node = prefilter._parser.SubPattern(state, [(op, value)])
            one = prefilter._compiler.compile(node, flags)
            matched = patterns.lower_in_place("".join(one.findall(text)))
            wide = re.compile(prefilter.one_of(op, value, flags))
            assert all(map(wide.match, prefilter.symbols(matched))), key
    assert len(seen) > 300


TWINS = {
    "letters of other scripts": ("_beyond", lambda *_: frozenset()),
    "ends of lines taken for those of texts": ("_place", lambda *_: r"\z"),
    "a short end for a long repeat": ("_times", lambda least, _most: f"{{{least}}}"),
    "what may stand before, turned round": (
        "_before",
        lambda value, flags: prefilter.one_of(*value[1][0], flags),
    ),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_twin_that_narrows_an_expression_leaves_rules_out(monkeypatch, twin):
    monkeypatch.setattr(prefilter, "_classes", {})
    monkeypatch.setattr(prefilter, *twin)
    narrow = prefilter.Prefilter(
        [[[rule.pattern] for rule in family] for family in patterns._FAMILIES]
    )
    assert any(True for _ in left_out(made_up()[::3], narrow))


def test_prefilter_returns_everything_where_a_window_may_cut_a_word(monkeypatch):
    pattern, text = re.compile(r"1[a-z]+\b"), "1" + "a" * 200 + "_"
    built = prefilter.Prefilter([[[pattern]]])
    assert pattern.search(text, 0, 100)
    assert list(built.candidates(text)) == [0]
    monkeypatch.setattr(prefilter, "_BLOCK", 1 << 20)
    assert list(built.candidates(text)) == []  # as it would be without the check


def test_prefilter_returns_everything_where_an_automaton_ran_out_of_memory(monkeypatch):
    built = prefilter.Prefilter([[[re.compile("a")]], [[re.compile("b")]]])
    assert list(built.candidates("x")) == []
    names, automaton = built._sets[1]

    class Full:
        @staticmethod
        def Match(_data):
            return None

    monkeypatch.setattr(built, "_sets", [built._sets[0], (names, Full())])
    assert list(built.candidates("x")) == [0, 1]
    assert automaton.Match(b"x") == [0]


@pytest.mark.parametrize("tier", [Tier.LOW_ENTITY, Tier.HIGH_ENTITY])
def test_recognizer_finds_the_same_without_the_prefilter(monkeypatch, tier):
    texts = made_up()[::7]
    recognizer = patterns.PatternRecognizer(tier=tier)
    found = recognizer.recognize(texts)

    class Everything:
        @staticmethod
        def candidates(_lowered):
            return range(len(recognizer._rules))

    monkeypatch.setattr(patterns, "_prefilter", lambda _kept: Everything())
    assert found == recognizer.recognize(texts)
