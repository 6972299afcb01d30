"""Declarations of functions that a conversation may call, each an object of JSON.

Names of functions and of parameters, keys, types and bounds are a developer's, as roles
are. What may be somebody's are texts (descriptions, titles, notes) and the values that
are preset or allowed.
"""

import re
from functools import lru_cache
from typing import Final

from dptune.json_places import Node, json_in

_NAMES: Final = frozenset(
    ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"]
)
"""What holds schemas by their names."""
_STRUCTURE: Final = frozenset(["name", "type", "format", "required", "$ref", "$schema"])
_IDENTIFIER: Final = re.compile(r"[^\W\d][\w.$#/:-]{0,63}|[$#][\w.$#/:-]{0,255}")
_VALUES: Final = frozenset(["default", "enum", "const", "examples", "example"])


@lru_cache(maxsize=256)
def said_places(declaration: str) -> tuple[tuple[int, int], ...] | None:
    """Return in order where a declaration says what may be somebody's.

    >>> text = '{"name": "f", "description": "Of Ann", "default": {"n": 7}}'
    >>> [text[start:end] for start, end in said_places(text)]
    ['Of Ann', '7']

    Args:
        declaration: an object of JSON.

    Returns:
        Contents of strings, without quotes, and numbers of values; None if it is no
        object of JSON, or one that nests too deeply to be read.
    """
    roots = json_in(declaration)
    if [(r.kind, r.start, r.end) for r in roots] != [("object", 0, len(declaration))]:
        return None
    found: list[tuple[int, int]] = []
    left: list[tuple[Node, bool]] = [(roots[0], False)]
    while left:
        node, is_value = left.pop()
        if node.kind == "string" and node.said:
            found.append((node.start + 1, node.end - 1))
        elif node.kind == "bare" and is_value and node.said[-1].isdigit():
            found.append((node.start, node.end))
        elif node.kind == "array":
            left += [(value, is_value) for value in node.values]
        for key, value in zip(node.keys, node.values, strict=False):
            if key.said in _NAMES and value.kind == "object" and not is_value:
                left += [(inner, False) for inner in value.values]
            elif is_value or not (key.said in _STRUCTURE and _names(value)):
                left.append((value, is_value or key.said in _VALUES))
    return tuple(sorted(found))


def _names(node: Node) -> bool:
    """Tell whether a value is a name, or a list of some."""
    named = node.values if node.kind == "array" else [node]
    return all(n.kind == "string" and _IDENTIFIER.fullmatch(n.said) for n in named)


def emptied(declaration: str) -> str:
    """Return a declaration that says nothing, as deletion may leave it."""
    text = declaration
    for start, end in reversed(said_places(declaration) or ()):
        new = "" if declaration[start - 1] == '"' else '""'
        text = f"{text[:start]}{new}{text[end:]}"
    return text
