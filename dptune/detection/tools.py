"""Names of functions and parameters in calls of tools are a developer's, nobody's.

`{"name": "lookup_order", "arguments": {"phoneNumber": ...}}`: a recognizer takes the
first for a person, since it stands behind `name`, and the second for a company. Guesses
on such names are taken back where a conversation says that they are structure, and
nowhere else: what users type, plain text, values, and keys that may be somebody's stay.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, Literal

from dptune.conversation import Turn, turns_of
from dptune.detection import words as w
from dptune.detection.frames import content_of
from dptune.detection.labels import GUESSED
from dptune.detection.recognizer import is_firm
from dptune.json_places import Node, json_in, walk
from dptune.text import Span

_TAKEN_BACK: Final = GUESSED | {"EVENT", "WORK_OF_ART", "LAW", "LANGUAGE"}
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MOST_DIGITS: Final = 2
_NAME: Final = w.GIVEN_NAME | w.PERSONAL | w.PROPER_ONLY | w.PROPER_TOO | w.PLACE
_OF_SCHEMAS: Final = w.word_set(
    "id ids key keys name names type types kind status state date time at by on from"
    " to number num count total price amount cost rate code url uri path email phone"
    " zip address city country is has can should min max limit offset page size length"
    " width height index sort value values list item items unit units user customer"
    " account order payment query filter result results data info message text title"
    " description created updated enabled active valid required any one all of not"
)
"""Words that say what a field holds. Some are surnames as well, by themselves."""
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema", "arguments")
_RESULTS: Final = ("content", "result", "response", "output")
_BEFORE_CALL: Final = (">", "]", ";", "```", "```json")
_BEHIND_CALL: Final = ("<", "[", "{", ";", "```")
_REACH: Final = 40
_MARKED: Final = re.compile(
    r"(?:<function=|\[TOOL_CALLS\]\s{0,4})(?P<name>[A-Za-z][A-Za-z0-9_-]{0,63})"
    r"(?=>|\s{0,4}(?:\[ARGS\]|\{))"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a name stands that may be structure.

    Args:
        kind: a `function` that is called or declared, the one whose result was
            `returned`, or a `key`.
    """

    start: int
    end: int
    name: str
    kind: Literal["function", "returned", "key"]


@dataclass(kw_only=True, slots=True)
class _Structure:
    """What a conversation declares and calls.

    Args:
        functions, parameters: names that its system turns declare.
        places: where names stand.
    """

    functions: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    places: list[_Place] = field(default_factory=list)


def without_names_of_tools(spans: Sequence[Span], text: str) -> list[Span]:
    """Take back guesses on names of functions and on keys of a conversation.

    **Formal guarantee.** Taken back are guesses (no numbers, addresses of mail, user
    names, lists or known values) on identifiers that stand

    | where | taken back if |
    |---|---|
    | as the function that the assistant calls | declared; if nothing is, words alone |
    | as the function in what a tool returns | declared or called before |
    | as a key of assistant, tool or system | words alone, one of `_OF_SCHEMAS` |
    | as a parameter that is declared | it is |

    and that are no names: undeclared ones are two words or more, every one English, no
    name, and in no other mark of the conversation; of declared ones one word is.
    What users say and plain text keep every mark.

    Args:
        spans: what recognizers found in the contents, in any order.
        text: the record.
    """
    guesses = [s for s in spans if s.entity_type in _TAKEN_BACK and not is_firm(s)]
    if not guesses:
        return list(spans)
    turns = [t for t in turns_of(text) if t.role != "user" and "{" in t.content]
    found = _Structure()
    for turn in turns:
        _read(turn, found)
    is_met = _meets(guesses)
    if not any(is_met(place.start, place.end) for place in found.places):
        return list(spans)
    public = _public(found, _said_elsewhere(spans, found.places, text))
    return [
        piece
        for span in spans
        for piece in (
            _without(span, public, text)
            if span.entity_type in _TAKEN_BACK and not is_firm(span)
            else (span,)
        )
    ]


def _read(turn: Turn, found: _Structure) -> None:
    """Note the names in a turn."""
    roots = json_in(turn.content)

    def note(node: Node, kind: Literal["function", "returned", "key"]) -> None:
        if node.kind == "string" and _IDENTIFIER.fullmatch(node.said):
            start, end = (turn.start + at for at in content_of(node))
            place = _Place(start=start, end=end, name=node.said, kind=kind)
            found.places.append(place)

    nodes = list(walk(roots))
    for node in nodes:
        for key in node.keys:
            note(key, "key")
    if turn.speaker == "system":
        for name, schema in _declared(nodes):
            note(name, "function")
            found.functions.add(name.said)
            for parameter in _parameters(schema):
                note(parameter, "key")
                found.parameters.add(parameter.said)
    elif turn.role == "tool":
        for root in roots:
            returned = _of(root, "name")
            if returned and _of(root, *_RESULTS):
                note(returned, "returned")
    else:
        for name in _called(roots, turn.content):
            note(name, "function")
        for match in _MARKED.finditer(turn.content):
            start, end = (turn.start + at for at in match.span("name"))
            place = _Place(start=start, end=end, name=match["name"], kind="function")
            found.places.append(place)


def _of(node: Node | None, *keys: str) -> Node | None:
    """Return the value of an object's first key of some."""
    if node is not None and node.kind == "object":
        for key, value in zip(node.keys, node.values, strict=True):
            if key.said in keys:
                return value
    return None


def _declared(nodes: Iterable[Node]) -> Iterator[tuple[Node, Node]]:
    """Yield the names of functions that are declared, and the schemas beside them."""
    for node in nodes:
        name, schema = _of(node, "name"), _of(node, *_SCHEMAS)
        if name and name.kind == "string" and schema and _of(schema, "properties"):
            yield name, schema


def _parameters(schema: Node) -> Iterator[Node]:
    """Yield where a schema names parameters."""
    for node in walk([schema]):
        names = _of(node, "properties")
        if names is not None and names.kind == "object":
            known = {key.said for key in names.keys}
            required = _of(node, "required")
            yield from names.keys
            for name in required.values if required else ():
                if name.said in known:
                    yield name


def _called(roots: Sequence[Node], content: str) -> Iterator[Node]:
    """Yield the names of functions that a turn calls; prose about one is no call."""
    low = 0
    for root in roots:
        start = max(low, root.start - _REACH)
        before = content[start : root.start].rstrip()
        behind = content[root.end : root.end + _REACH].lstrip()
        if not before.endswith(_BEFORE_CALL) and (before or start > low):
            continue
        if not behind.startswith(_BEHIND_CALL) and behind:
            continue
        low = root.end
        for one in root.values if root.kind == "array" else [root]:
            listed = _of(one, "tool_calls")
            for call in listed.values if listed else [one]:
                inner = _of(call, "function", "function_call") or call
                name, given = _of(inner, "name"), _of(inner, *_ARGUMENTS)
                if name and given and (given.kind == "object" or given.within):
                    yield name


def _meets(spans: Sequence[Span]) -> Callable[[int, int], bool]:
    """Return what tells whether one of some spans meets a range."""
    ordered = sorted(spans)
    starts = [span.start for span in ordered]
    reach = list(accumulate((span.end for span in ordered), max))

    def is_met(start: int, end: int) -> bool:
        last = bisect_left(starts, end) - 1
        return last >= 0 and reach[last] > start

    return is_met


def _said_elsewhere(
    spans: Sequence[Span], places: Sequence[_Place], text: str
) -> set[str]:
    """Return the words of marks outside of places, in lower case."""
    ranges = sorted((place.start, place.end) for place in places)
    words: set[str] = set()
    for span in spans:
        for piece in _without(span, ranges, text):
            words.update(p.lower() for p in _WORD.findall(text, piece.start, piece.end))
    return words


def _public(found: _Structure, elsewhere: set[str]) -> list[tuple[int, int]]:
    """Return the ranges of names that are structure, in order."""
    called = {
        place.name
        for place in found.places
        if place.kind == "function" and _is_function(place.name, found, elsewhere)
    }
    return sorted(
        {
            (place.start, place.end)
            for place in found.places
            if (
                _is_key(place.name, found, elsewhere)
                if place.kind == "key"
                else place.name in called
            )
        }
    )


def _is_function(name: str, found: _Structure, elsewhere: set[str]) -> bool:
    """Tell whether a name that stands where functions do is the name of one."""
    if found.functions:
        return name in found.functions and _may_be_declared(name, elsewhere)
    return len(_plain_words(name, elsewhere)) > 1


def _is_key(name: str, found: _Structure, elsewhere: set[str]) -> bool:
    """Tell whether a key is the name of a field, and nobody's."""
    if name in found.parameters and _may_be_declared(name, elsewhere):
        return True
    words = _plain_words(name, elsewhere)
    return len(words) > 1 and not _OF_SCHEMAS.isdisjoint(words)


def _may_be_declared(name: str, elsewhere: set[str]) -> bool:
    """Tell whether a declared name holds a word that is none of a person."""
    words = _words(name)
    others = [word for word in words if not _is_plain(word)]
    return len(others) < len(words) and elsewhere.isdisjoint(others)


def _plain_words(name: str, elsewhere: set[str]) -> list[str]:
    """Return the words of a name; none if one may be of a person."""
    words = _words(name)
    said = [word for word in words if word in elsewhere]
    is_plain = all(map(_is_plain, words)) and all(word in _OF_SCHEMAS for word in said)
    return words if is_plain else []


def _words(name: str) -> list[str]:
    """Return the words of an identifier in lower case; none of a number's."""
    parts = _PART.findall(name)
    if any(part.isdigit() and len(part) > _MOST_DIGITS for part in parts):
        return []
    return [part.lower() for part in parts if not part.isdigit()]


def _is_plain(word: str) -> bool:
    """Tell whether English has a word that is nobody's name."""
    reading = w.reading_of(word)
    return word in _OF_SCHEMAS or bool(reading & w.LEXICAL and not reading & _NAME)


def _without(
    span: Span, ranges: Sequence[tuple[int, int]], text: str
) -> Iterator[Span]:
    """Yield what is left of a span, without signs at edges where it was cut."""
    start, cuts = span.start, []
    number = max(0, bisect_right(ranges, span.start, key=_first) - 1)
    while number < len(ranges) and ranges[number][0] < span.end:
        low, high = ranges[number]
        if high > start:
            cuts.append((start, low))
            start = high
        number += 1
    if not cuts:
        yield span
        return
    for low, high in (*cuts, (start, span.end)):
        said = [at for at in range(low, high) if text[at].isalnum()]
        if said:
            yield replace(span, start=said[0], end=said[-1] + 1)


def _first(place: tuple[int, int]) -> int:
    return place[0]
