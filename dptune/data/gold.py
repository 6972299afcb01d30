"""Texts with gold spans, in the formats that people have them in.

* `{"text": "...", "spans": [{"start": 0, "end": 3, "entity_type": "PERSON"}]}`
* `{"text": "...", "entities": [[0, 3, "PERSON"]]}`; also under `label` or `labels`
* `{"full_text": "...", "spans": [{"start_position": 0, "end_position": 3}]}` (Presidio)
* IOB2 (`.iob2`, `.conll`): blocks of `number TAB word TAB tag` with `# text = ...`

The first three may be JSON lines or one JSON list; all may be `.gz`. Ranges are
half-open, in code points of the text. A type may be called `entity_type`, `type` or
`label`; without one it is `SENSITIVE`.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dptune.data.textfile import read_up_to
from dptune.errors import DataError, DetectionError, Problem
from dptune.text import Span

_MOST_PROBLEMS: Final = 20
_MAX_BYTES: Final = 1 << 30
_TEXTS: Final = ("text", "full_text")
_SPANS: Final = ("spans", "entities", "label", "labels")
_STARTS: Final = ("start", "start_position", "start_offset")
_ENDS: Final = ("end", "end_position", "end_offset")
_TYPES: Final = ("entity_type", "type", "label")
_UNTYPED: Final = "SENSITIVE"


@dataclass(frozen=True, kw_only=True)
class GoldText:
    """One text, hidden from `repr`, and what is sensitive in it."""

    text: str = field(repr=False)
    spans: tuple[Span, ...]


def read_gold(path: Path) -> list[GoldText]:
    """Read a file of gold spans.

    Raises:
        DataError: with every row that cannot be used, by its number, and no text.
    """
    content = _content(path)
    name = path.name.removesuffix(".gz")
    if name.endswith((".iob2", ".conll", ".bio")):
        found, problems = list(_read_iob2(content)), list[Problem]()
    else:
        found, problems = _read_rows(content)
    if not found and not problems:
        problems = [Problem(path=path.name, message="must hold a text, but has none.")]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        shown = problems[:_MOST_PROBLEMS]
        if more > 0:
            shown.append(Problem(path=path.name, message=f"has {more} problems more."))
        raise DataError(shown)
    return found


def _content(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            raw = read_up_to(stream, _MAX_BYTES)
        if raw is not None:
            return raw.decode("utf-8")
        message = f"must hold at most {_MAX_BYTES:,} bytes when unpacked, got more."
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        message = "must be a readable file of UTF-8 text, plain or .gz, but is not."
    raise DataError([Problem(path=path.name, message=message)])


def _read_rows(content: str) -> tuple[list[GoldText], list[Problem]]:
    """Read JSON lines, or one JSON list."""
    problems: list[Problem] = []
    found: list[GoldText] = []
    for number, row in enumerate(_rows(content), 1):
        try:
            found.append(_gold_text(row))
        except (KeyError, TypeError, ValueError, IndexError, DetectionError):
            problems.append(
                Problem(
                    path=f"row {number}",
                    message="must have a text and half-open spans inside it, but does "
                    "not.",
                    next_step="docs/REVIEW.md has the formats.",
                )
            )
    return found, problems


def _rows(content: str) -> Iterator[Any]:
    """Yield parsed rows; None for one that is no JSON."""
    if content.lstrip().startswith("["):
        try:
            whole = json.loads(content)
        except ValueError:
            whole = [None]
        yield from whole
        return
    for line in content.splitlines():
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                yield None


def _gold_text(row: Any) -> GoldText:  # noqa: ANN401 - whatever a file holds
    """Read one row, under any of the names in use."""
    text = row[_first(row, _TEXTS)]
    if not isinstance(text, str):
        raise TypeError("text")
    named = [name for name in _SPANS if isinstance(row.get(name), list)]
    spans = tuple(_span(raw, len(text)) for raw in row[named[0]])
    return GoldText(text=text, spans=spans)


def _span(raw: Any, length: int) -> Span:  # noqa: ANN401 - whatever a file holds
    """Read one span: a mapping, or a list of start, end and type."""
    if isinstance(raw, list):
        start, end, kind = raw[0], raw[1], raw[2] if len(raw) > 2 else _UNTYPED
    else:
        start, end = raw[_first(raw, _STARTS)], raw[_first(raw, _ENDS)]
        kind = next((raw[name] for name in _TYPES if raw.get(name)), _UNTYPED)
    whole = type(start) is int and type(end) is int and isinstance(kind, str)
    if not whole or end > length:
        raise ValueError("span")
    return Span(start=start, end=end, entity_type=kind)


def _first(row: Any, names: tuple[str, ...]) -> str:  # noqa: ANN401
    if not isinstance(row, dict):
        raise TypeError("row")
    return next((name for name in names if name in row), names[0])


def _read_iob2(content: str) -> Iterator[GoldText]:
    """Read blocks of words; a block without `# text` is joined by blanks."""
    for block in content.replace("\r\n", "\n").split("\n\n"):
        lines = block.split("\n")
        rows = [x.split("\t") for x in lines if x and not x.startswith("#")]
        words = [(row[1], row[2]) for row in rows if len(row) > 2]
        if words:
            given = next((x[9:] for x in lines if x.startswith("# text = ")), None)
            yield _aligned(given or " ".join(word for word, _ in words), words)


def _aligned(text: str, words: list[tuple[str, str]]) -> GoldText:
    """Find words in their text; neighbors of one entity become one span."""
    spans: list[Span] = []
    position = 0
    for word, tag in words:
        start = text.find(word, position)
        if start < 0:
            continue
        position = start + len(word)
        mark, _, kind = tag.partition("-")
        if mark == "I" and spans and not text[spans[-1].end : start].strip():
            start = spans.pop().start
        if mark in {"B", "I"}:
            spans.append(Span(start=start, end=position, entity_type=kind or _UNTYPED))
    return GoldText(text=text, spans=tuple(spans))
