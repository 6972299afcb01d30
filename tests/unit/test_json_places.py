"""JSON in texts: found whole, at its place, at every depth, and in proportion."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.json_places import (
    HOLE,
    escaped,
    is_value,
    json_in,
    quoted,
    unescaped,
    walk,
)
from tests.support.growth import grows_in_proportion

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text('aé"\\\n\u2028😀{}[]:,x1 ', max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text('k"\\é{', max_size=3), inner, max_size=4),
        inner.map(json.dumps),
    ),
    max_leaves=12,
)
NESTS = VALUES.filter(lambda value: isinstance(value, dict | list))


def read(node):
    """What a node says, as the standard library would."""
    match node.kind:
        case "object":
            pairs = zip(node.keys, node.values, strict=True)
            return {key.said: read(value) for key, value in pairs}
        case "array":
            return [read(value) for value in node.values]
        case "string":
            return node.said
    return json.loads(node.said)


@given(value=NESTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_json_is_read_as_the_standard_library_does(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    (root,) = json_in(text)
    assert (root.start, root.end) == (0, len(text))
    for node in walk([root]):
        written = text[node.start : node.end]
        assert json.loads(unescaped(written, node.depth - 1)) == read(node)
    around = json_in(f'It is 5" (see [x] or {{y}}): {text}, no [')
    assert [read(node) for node in around] == ([value] if root.has_words else [])
    assert read(root) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[Ann] said {so}", []),
        ("as in [1] and [2]", []),
        ("<r>[1, 2]</r>", ["[1, 2]"]),
        (" [1, 2]\n", ["[1, 2]"]),
        ('[x] ["a", 1]', ['["a", 1]']),
        ('{"a": {"b": 1}, "c": {"d": 2}, oops', ['{"b": 1}', '{"d": 2}']),
        ('{"a": 01} {"b": 1}', ['{"b": 1}']),
        ('{"a": 1,} {"b": 1', []),
        (f'{{"a": {HOLE}.5}}', [f'{{"a": {HOLE}.5}}']),
        (f'{{"a": {HOLE} {HOLE}}}', []),
        (f'{{"a\\{HOLE}": 1}}', []),
        ("{}", ["{}"]),
        ("", []),
    ],
)
def test_json_in_text_is_told_from_brackets_of_prose(text, found):
    assert [text[n.start : n.end] for n in json_in(text)] == found


@given(said=st.text('a"\\\né\ud83d', max_size=6), depth=st.integers(0, 3))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_escapes_are_read_as_they_are_written(said, depth):
    assert unescaped(escaped(said, depth), depth) == said
    assert is_value(quoted(said, depth), depth)
    escaped(said, depth).encode()


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        '{"a":',
        '{"',
        '{"x{',
        '["a',
        "[1,",
        '{"a":[{}],',
        '{"a":"{',
        '[" ',
        '{"\\"{',
        "[1] ",
    ],
)
def test_time_grows_with_text_whatever_never_closes(piece):
    assert grows_in_proportion(lambda count: json_in(piece * count), 5_000)


def test_what_nests_too_deep_is_read_from_within():
    text = "[" * 1000 + '{"a": [1]}' + "]" * 1000
    assert any(n.kind == "object" for n in walk(json_in(text)))


def test_what_lies_too_deep_is_no_value():
    assert not is_value("[" * 100_000 + "]" * 100_000, 0)
    assert is_value("9" * 10_000, 0)
