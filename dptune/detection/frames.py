r"""Marks end where strings and values of JSON do.

Quotes, braces and commas of JSON are nobody's data, and a mark that covers one leaves a
text that is no JSON. Rules that read lines or escapes may cross them.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dptune.json_places import Node, escaped, json_in
from dptune.text import Span

_SIGN = re.compile(r"[][{}\",:]")


def content_of(node: Node) -> tuple[int, int]:
    """Return where a string stands without its quotes; bare values as they are."""
    quote = len(escaped('"', node.depth - 1)) if node.kind == "string" else 0
    return node.start + quote, node.end - quote


def within_values(spans: Sequence[Span], text: str) -> Iterator[Span]:
    """Cut spans at the signs of JSON that they meet in part.

    **Formal guarantee.** Of what was marked nothing is left out but quotes, brackets,
    colons, commas and blanks between the values and keys of JSON, and none of JSON
    that is marked as a whole.

    >>> across = Span(start=7, end=17, entity_type="PERSON")
    >>> text = '{"a": "Ann", "b": 1}'
    >>> [text[s.start : s.end] for s in within_values([across], text)]
    ['Ann', 'b']

    Args:
        spans: disjoint and sorted.
        text: they are of.
    """
    has_json = "{" in text or "[" in text
    may_cross = has_json and any(_SIGN.search(text, s.start, s.end) for s in spans)
    roots = json_in(text) if may_cross else []
    if not roots:
        yield from spans
        return
    ranges: list[tuple[int, int]] = []
    last = 0
    for root in roots:
        ranges += ((last, root.start), *_contents(root))
        last = root.end
    ranges.append((last, len(text)))
    starts = [start for start, _ in ranges]
    outer = [root.start for root in roots]
    for span in spans:
        first = bisect_left(outer, span.start) - 1
        last = bisect_left(outer, span.end) - 1
        is_whole = first < 0 or roots[first].end <= span.start
        if is_whole and (last < 0 or roots[last].end <= span.end):
            yield span
            continue
        for number in range(bisect_right(starts, span.start) - 1, len(ranges)):
            start, end = ranges[number]
            if start >= span.end:
                break
            low, high = max(start, span.start), min(end, span.end)
            if low < high and not text[low:high].isspace():
                yield replace(span, start=low, end=high)


def _contents(root: Node) -> list[tuple[int, int]]:
    """Return in order where something is said in an object or a list."""
    found: list[tuple[int, int]] = []
    left = [root]
    while left:
        node = left.pop()
        left += (*node.keys, *node.values, *node.within)
        if node.kind in ("object", "array"):
            continue
        start, end = content_of(node)
        for inner in node.within:
            found.append((start, inner.start))
            start = inner.end
        found.append((start, end))
    return sorted(found)
