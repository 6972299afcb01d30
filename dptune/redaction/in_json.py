r"""Keeps JSON what it is where values in it are replaced.

`{"amount": <mask>}` is no JSON, and a model that reads such calls of tools learns to
write them. So what replaces a number is quoted unless it is a number itself, and what
replaces a part of a string is escaped as the string is.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dptune.conversation import turns_of
from dptune.json_places import (
    HOLE,
    escaped,
    is_value,
    json_in,
    quoted,
    unescaped,
    walk,
)
from dptune.redaction.operators import Replace
from dptune.text import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Bare:
    """A value without quotes of which something is replaced.

    Args:
        start, end: its code points.
        depth: how many strings of JSON it lies in.
    """

    start: int
    end: int
    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonPlaces:
    """Where the spans of a text stand in its JSON.

    **Formal guarantee.** Follows from the text outside of spans and from where they
    are; nothing in them is looked at.

    Args:
        bare: values without quotes that hold spans, in order.
        strings: in how many strings of JSON beside the innermost a span lies that is
            part of one, by its start.
    """

    bare: Sequence[Bare] = ()
    strings: dict[int, int] = field(default_factory=dict)


_NOWHERE: Final = JsonPlaces()


def json_places(text: str, spans: Sequence[Span]) -> JsonPlaces:
    """Find the JSON of a text or of the turns of a conversation that spans stand in.

    Args:
        text: the text.
        spans: sorted and disjoint.
    """
    if "{" not in text and "[" not in text:
        return _NOWHERE
    pieces: list[str] = []
    position = 0
    for span in spans:
        pieces += (text[position : span.start], HOLE * (span.end - span.start))
        position = span.end
    seen = "".join([*pieces, text[position:]])
    starts = [span.start for span in spans]
    bare: list[Bare] = []
    strings: dict[int, int] = {}
    parts = [
        (t.start, seen[t.start : t.start + len(t.content)]) for t in turns_of(text)
    ]
    for offset, part in parts or [(0, seen)]:
        for node in walk(json_in(part)):
            if node.kind not in ("bare", "string") or HOLE not in node.said:
                continue
            start, end = offset + node.start, offset + node.end
            if node.kind == "bare":
                bare.append(Bare(start=start, end=end, depth=node.depth))
                continue
            for place in starts[bisect_left(starts, start) : bisect_left(starts, end)]:
                strings[place] = max(strings.get(place, 0), node.depth)
    for value in bare:
        low, high = (bisect_left(starts, at) for at in (value.start, value.end))
        for place in starts[low:high]:
            strings.pop(place, None)
    return JsonPlaces(bare=sorted(bare, key=lambda b: b.start), strings=strings)


def in_strings(rule: Replace, places: JsonPlaces) -> Replace:
    """Let a rule read what strings say, and write what it makes as they are written."""

    def made(span: Span, written: str) -> str:
        depth = places.strings.get(span.start)
        said = None if depth is None else unescaped(written, depth)
        if said is None or depth is None:  # outside, or the span leaves the string
            return rule(span, written)
        return escaped(rule(span, said), depth)

    return made


def as_value(written: str, depth: int) -> str:
    """Quote what is no value of JSON."""
    return written if is_value(written, depth) else quoted(written, depth)
