"""JSON that other people wrote, which must say one thing."""

import json
from typing import Any


class RepeatedKeyError(ValueError):
    """A key stands twice in one object, and nobody knows which value was meant."""


def parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Read JSON, refusing a key that an object has twice.

    `json.loads` takes the last value and drops the others without a word: gold spans,
    decisions or an id that were there would be none.

    >>> parse_json('{"spans": [[0, 3]]}')
    {'spans': [[0, 3]]}
    >>> parse_json('{"spans": [[0, 3]], "spans": []}')
    Traceback (most recent call last):
    dptune.jsons.RepeatedKeyError: every key must stand once in its object.

    Raises:
        RepeatedKeyError: a key stands twice; never quotes it.
        ValueError: it is no JSON, or lists in it lie too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("JSON must be nested less deeply.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a mapping of keys that differ."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RepeatedKeyError("every key must stand once in its object.")
    return found
