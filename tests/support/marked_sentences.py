"""Sentences with their values in brackets, one on each line.

A title, a rank or a word of kinship before a name is no part of the value, nor is a
day of the week without a date. An age is the number, with or without its unit.
"""

import re
from pathlib import Path

_PIECE = re.compile(r"(\[[^\]]*\])")


def read_marked(path: Path) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return texts, and the half-open ranges of their values."""
    rows = []
    for line in filter(str.strip, path.read_text("utf8").splitlines()):
        text, ranges = "", []
        for piece in _PIECE.split(line):
            is_value = piece.startswith("[")
            own = piece[1:-1] if is_value else piece
            if is_value:
                ranges.append((len(text), len(text) + len(own)))
            text += own
        rows.append((text, ranges))
    return rows


def coverage(rows, found) -> tuple[int, int, int, int]:
    """Count values found and all, other letters masked and all.

    Args:
        rows: of `read_marked`.
        found: spans of each text.
    """
    hit = values = masked = others = 0
    for (text, gold), spans in zip(rows, found, strict=True):
        covered = {i for s in spans for i in range(s.start, s.end)}
        inside = {i for start, end in gold for i in range(start, end)}
        values += len(gold)
        hit += sum(
            all(i in covered or not text[i].isalnum() for i in range(start, end))
            for start, end in gold
        )
        rest = [i for i, c in enumerate(text) if c.isalpha() and i not in inside]
        others += len(rest)
        masked += sum(i in covered for i in rest)
    return hit, values, masked, others
