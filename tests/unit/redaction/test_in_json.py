r"""Redaction leaves JSON where JSON was, whatever the operator, and tells no more."""

import json
import random
import re
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.conversation import Turn, join_turns, turns_of
from dptune.json_places import escaped, json_in, walk
from dptune.redaction import engine
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator, OperatorSettings
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.text import MASK, Span
from tests.unit.test_json_places import NESTS

PSEUDONYMS = Pseudonyms(key=b"0123456789abcdef", encryption_key=bytes(16))
TYPES = (
    *("PERSON", "ID", "DATE", "EMAIL", "AMOUNT", "ORG", "ADDRESS", "CREDIT_CARD"),
    *("SSN", "IBAN", "IP", "URL", "USERNAME", "GPE", "NORP"),
)
WAYS = [
    *((operator, {}) for operator in Operator),
    (
        Operator.PARTIAL,
        {t: OperatorSettings(operator="partial", character='"') for t in TYPES},
    ),
    (
        Operator.PARTIAL,
        {t: OperatorSettings(operator="partial", character="\\") for t in TYPES},
    ),
    (
        Operator.MASK,
        {
            "ID": OperatorSettings(operator="keep"),
            "AMOUNT": OperatorSettings(operator="pseudonym"),
        },
    ),
]
redact = partial(redact_text, pseudonyms=PSEUDONYMS, unit_id="u")


def span(start, end, entity_type="ID"):
    return Span(start=start, end=end, entity_type=entity_type)


def marked(text, *values):
    """Mark each value where it stands first."""
    return [span(at := text.index(v), at + len(v)) for v in values]


def pieces_of(node, text):
    """Cut what a leaf says where no escape is halved; return the cuts."""
    quote = len(escaped('"', node.depth - 1)) if node.kind == "string" else 0
    start, end = node.start + quote, node.end - quote
    signs = re.finditer(
        r"\\+u[dD][89ABab]..\\+u[dD][C-Fc-f]..|\\+u....|\\+.|.", text[start:end], re.S
    )
    return [*(start + sign.start() for sign in signs), end]


def drawn_spans(text, seed):
    """Mark some leaves of JSON, whole or in part, and some values with their quotes."""
    draw = random.Random(seed)  # noqa: S311 - a seed
    spans, last = [], 0
    leaves = sorted(
        (n for n in walk(json_in(text)) if n.kind in ("bare", "string")),
        key=lambda n: (n.start, -n.end),
    )
    for node in leaves:
        cuts = pieces_of(node, text)
        if node.start < last or node.within or len(cuts) < 2 or draw.random() < 0.4:
            continue
        low, high = 0, len(cuts) - 1
        if draw.random() < 0.4:
            low, high = sorted(draw.sample(range(len(cuts)), 2))
        spans.append(span(cuts[low], cuts[high], draw.choice(TYPES)))
        last = spans[-1].end
    return spans


def holds(made, value):
    """Whether values nest as before, also in strings, whatever scalars say now."""
    if isinstance(value, str):
        try:
            inside = read(value)
        except ValueError:
            inside = None
        if not isinstance(inside, tuple | list):
            return not isinstance(made, tuple | list)
        return isinstance(made, str) and holds(read(made), inside)
    if isinstance(value, tuple):
        value, made = [inner for _, inner in value], [inner for _, inner in made]
    if isinstance(value, list):
        return len(made) == len(value) and all(map(holds, made, value))
    return not isinstance(made, tuple | list)


def read(text):
    """Read JSON; keys may be equal once they are masked."""
    return json.loads(text, object_pairs_hook=tuple)


def keeps_json(text, spans, operator, by_type, *, merge=True):
    """Whether JSON with its nesting is left, and edits are what was done."""
    found = redact(text, spans, operator, by_type=by_type, merge_adjacent=merge)
    old = new = 0
    for edit in found.edits:
        if text[old : edit.start] != found.text[new : edit.new_start]:
            return False
        old, new = edit.end, edit.new_end
    inside = all(
        any(e.start <= s.start and s.end <= e.end for e in found.edits) for s in spans
    )
    if not inside or text[old:] != found.text[new:]:
        return False
    try:
        return holds(read(found.text), read(text))
    except (TypeError, ValueError):
        return False


@pytest.mark.parametrize(("operator", "by_type"), WAYS)
@given(value=NESTS, seed=st.integers(0, 999), ascii_only=st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_json_stays_json_with_its_nesting(operator, by_type, value, seed, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=[None, 1][seed % 2])
    spans = drawn_spans(text, seed)
    assert keeps_json(text, spans, operator, by_type, merge=seed % 3 > 0)


def test_the_law_catches_marks_without_quotes_and_without_escapes(monkeypatch):
    """The twins: as it was before, bare marks and cut escapes."""
    number = '{"amount": 1234567890, "ok": true}'
    name = r'{"to": "Ren\u00e9e \/ Lee"}'
    of_number = marked(number, "1234567890")
    of_name = marked(name, r"Ren\u00e9e \/ Lee")
    assert keeps_json(number, of_number, Operator.MASK, {})
    assert keeps_json(name, of_name, Operator.PARTIAL, {})
    monkeypatch.setattr(engine, "as_value", lambda written, _depth: written)
    monkeypatch.setattr(engine, "in_strings", lambda rule, _places: rule)
    assert not keeps_json(number, of_number, Operator.MASK, {})
    assert not keeps_json(name, of_name, Operator.PARTIAL, {})


@pytest.mark.parametrize(
    ("text", "values", "operator", "wanted"),
    [
        ('{"a": 1234567, "b": {}}', ["1234567"], "mask", '{"a": "<mask>", "b": {}}'),
        ('{"a": -12.50}', ["12"], "mask", '{"a": "-<mask>.50"}'),
        ('{"a": 12.50}', ["12", "50"], "typed", '{"a": "<ID>.<ID>"}'),
        ("[55, 1234567890]", ["1234567890"], "delete", '[55, ""]'),
        ('{"a": 1234}', ["23"], "delete", '{"a": 14}'),
        ('{"a": null}', ["null"], "numbered", '{"a": "<ID_1>"}'),
        (r'{"x": "{\"a\": 123}"}', ["123"], "mask", r'{"x": "{\"a\": \"<mask>\"}"}'),
        (r'{"n": "Zo\u00eb"}', [r"Zo\u00eb"], "mask", '{"n": "<mask>"}'),
        ("call [Ann]", ["Ann"], "mask", "call [<mask>]"),
        ("{a: 12}", ["12"], "mask", "{a: <mask>}"),
        ("he owes {12}", ["12"], "mask", "he owes {<mask>}"),
        ('x {"a": 12} y', ["12"], "keep", 'x {"a": 12} y'),
    ],
)  # fmt: skip
def test_what_replaces_bare_values(text, values, operator, wanted):
    assert redact(text, marked(text, *values), Operator(operator)).text == wanted


@pytest.mark.parametrize("number", ["1234567890", "-417302", "1017.25", "5"])
def test_pseudonyms_of_numbers_are_numbers(number):
    text = f'{{"amount": {number}}}'
    for unit in range(40):
        made = redact_text(
            text,
            marked(text, number),
            Operator.PSEUDONYM,
            pseudonyms=PSEUDONYMS,
            unit_id=f"u{unit}",
        ).text
        value = json.loads(made)["amount"]
        assert isinstance(value, int | float), made
        assert made != text


@pytest.mark.parametrize("operator", [Operator.MASK, Operator.DELETE])
@given(value=NESTS, seed=st.integers(0, 999), other=st.text('1a"\\{[,:<mask> \n'))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_result_follows_from_what_is_outside_of_spans(operator, value, seed, other):
    """Also where the secret is no JSON, another length, or looks like a mask."""
    text = json.dumps(value)
    spans = drawn_spans(text, seed)
    assert follows_from_outside(text, spans, operator, other or "7")


def follows_from_outside(text, spans, operator, other):
    """Whether a record with other secrets reads the same."""
    pieces, moved, position, length = [], [], 0, 0
    for one in spans:
        gap = text[position : one.start]
        length += len(gap)
        moved.append(span(length, length + len(other), one.entity_type))
        length += len(other)
        pieces += (gap, other)
        position = one.end
    twin = "".join([*pieces, text[position:]])
    return redact(text, spans, operator).text == redact(twin, moved, operator).text


def test_the_law_catches_a_look_at_the_secret(monkeypatch):
    """The twin quotes what was JSON with its secrets, as one is tempted to."""
    text = '{"a": 12}'
    spans = marked(text, "12")
    assert follows_from_outside(text, spans, Operator.MASK, "x y")
    said = '{"a": "12"}'
    assert follows_from_outside(said, marked(said, "12"), Operator.MASK, r"\u003cmask>")
    places = engine.json_places

    def looks(text, spans):
        try:
            json.loads(text)
        except ValueError:
            return places("", [])
        return places(text, spans)

    monkeypatch.setattr(engine, "json_places", looks)
    assert not follows_from_outside(text, spans, Operator.MASK, "x y")


@pytest.mark.parametrize(("operator", "by_type"), WAYS)
def test_calls_of_tools_in_conversations_stay_json(operator, by_type):
    arguments = json.dumps({"user": 12345678, "name": 'Zoë "Z" Lee'})
    call = json.dumps({"name": "look_up", "arguments": arguments})
    answer = "[1234567890, 55]"
    text = join_turns(
        [
            Turn(role="user", content='{"see [1234567890'),
            Turn(role="assistant", content=f"<tool_call>\n{call}\n</tool_call>"),
            Turn(role="tool", content=answer),
        ]
    )
    values = ["12345678,", r"Zo\\u00eb", "1234567890, 55"]
    spans = [
        span(at := text.rindex(v), at + len(v.split(",")[0]), kind)
        for v, kind in zip(values, ("ID", "PERSON", "AMOUNT"), strict=True)
    ]
    made = turns_of(redact(text, spans, operator, by_type=by_type).text)
    said = [turn.said()[0] for turn in made]
    assert said[0] == '{"see [1234567890'
    read = json.loads(said[1].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert set(json.loads(read["arguments"])) == {"user", "name"}
    assert json.loads(said[2])[1] == 55
    if operator is Operator.MASK and not by_type:
        assert json.loads(read["arguments"])["user"] == MASK


def test_equal_values_are_equal_however_json_writes_them():
    text = '{"a": "Ren\\u00e9e", "b": "Renée"}'
    spans = marked(text, "Ren\\u00e9e", "Renée")
    for operator in (Operator.NUMBERED, Operator.HASH, Operator.PSEUDONYM):
        made = json.loads(redact(text, spans, operator).text)
        assert made["a"] == made["b"]
