"""Marks end where strings and values of JSON do, and lose nothing that is said."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.conversation import Turn, join_turns
from dptune.detection import union
from dptune.detection.engine import build_engine
from dptune.detection.frames import within_values
from dptune.detection.recognizer import Tier
from dptune.json_places import json_in, walk
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator
from dptune.text import Span
from tests.support.growth import grows_in_proportion
from tests.unit.test_json_places import NESTS

TEXT = 'x {"a": "Ann", "b": [1, 2]} y {"c": 3} z'
ADDRESS = r'{"address": "59, chemin Simon\nCity", "x": {"name": "ok", "zip": 12345}}'


def pieces(text, start, end):
    found = within_values([Span(start=start, end=end, entity_type="ID")], text)
    return [text[span.start : span.end] for span in found]


@pytest.mark.parametrize(
    ("marked", "left"),
    [
        ("Ann", ["Ann"]),
        ('Ann", "b": ', ["Ann", "b"]),
        ('"Ann"', ["Ann"]),
        ('x {"a', ["x ", "a"]),
        ('2]} y {"c":', ["2", " y ", "c"]),
        ("]} ", []),
        ('{"a": "Ann", "b": [1, 2]', ["a", "Ann", "b", "1", "2"]),
        ('{"a": "Ann", "b": [1, 2]}', ['{"a": "Ann", "b": [1, 2]}']),
        (TEXT, [TEXT]),
        (" z", [" z"]),
    ],
)
def test_marks_are_cut_at_the_signs_of_json(marked, left):
    start = TEXT.index(marked)
    assert pieces(TEXT, start, start + len(marked)) == left


@given(value=NESTS, cuts=st.lists(st.floats(0, 1), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_nothing_that_is_said_loses_its_mark(value, cuts):
    text = f"Ann {json.dumps(value, ensure_ascii=False)} Lee"
    places = sorted({round(cut * len(text)) for cut in cuts})
    spans = [
        Span(start=a, end=b, entity_type="ID")
        for a, b in zip(places[::2], places[1::2], strict=False)
    ]
    before = {i for s in spans for i in range(s.start, s.end)}
    cut = list(within_values(spans, text))
    assert cut == sorted(cut)
    lost = before - {i for s in cut for i in range(s.start, s.end)}
    said = {
        i
        for node in walk(json_in(text))
        if node.kind == "bare" or (node.kind == "string" and not node.within)
        for i in range(node.start, node.end)
        if text[i].isalnum()
    }
    assert not lost & said
    assert not {text[i] for i in lost} - set('"{}[]:,\\ \n')


@pytest.mark.parametrize("is_chat", [False, True])
def test_redacted_json_is_json_where_rules_read_over_a_quote(is_chat, monkeypatch):
    text = ADDRESS
    if is_chat:
        text = join_turns([Turn(role="tool", content=text)])
    engine = build_engine(tier=Tier.LOW_ENTITY)

    def made():
        (spans,) = engine.detect([text])
        return redact_text(text, spans, Operator.TYPED).text.partition("{")[2]

    assert json.loads("{" + made())["x"]["name"] == "ok"
    monkeypatch.setattr(union, "within_values", lambda spans, _text: spans)
    with pytest.raises(json.JSONDecodeError):
        json.loads("{" + made())


def test_time_grows_with_marks_and_values():
    def work(count):
        text = json.dumps({"a": [{"name": "Ann Lee", "n": 1}] * count})
        spans = [
            Span(start=i, end=i + 7, entity_type="ID")
            for i in range(0, len(text) - 7, 7)
        ]
        return list(within_values(spans, text))

    assert grows_in_proportion(work, 300)
