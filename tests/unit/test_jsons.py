"""JSON that says two things is refused, and none of it is quoted."""

import json

import pytest

from dptune.jsons import RepeatedKeyError, parse_json


@pytest.mark.parametrize(
    "text",
    [
        '{"name": 1, "name": 1}',
        '{"name": 1, "\\u006eame": 2}',
        '[{"a": {"name": 1, "b": 2, "name": 3}}]',
    ],
)
def test_key_that_stands_twice_is_refused_unquoted(text):
    assert json.loads(text)  # what took the last one, and said nothing
    with pytest.raises(RepeatedKeyError) as refused:
        parse_json(text)
    assert "name" not in str(refused.value)


def test_same_key_in_two_objects_is_read():
    assert parse_json('[{"a": {"a": 1}}, {"a": 2}]') == [{"a": {"a": 1}}, {"a": 2}]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "1" * 5000])
def test_what_cannot_be_read_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"nested|Expecting|digits"):
        parse_json(text)
