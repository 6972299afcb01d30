"""Texts with gold spans, in the formats that people have them in.

* `{"text": "...", "spans": [{"start": 0, "end": 3, "entity_type": "PERSON"}]}`
* `{"text": "...", "entities": [[0, 3, "PERSON"]]}`; also under `label` or `labels`
* `{"full_text": "...", "spans": [{"start_position": 0, "end_position": 3}]}` (Presidio)
* IOB2 (`.iob2`, `.conll`, `.bio`): blocks of `number TAB word TAB tag` with
  `# text = ...`; words stand there in order, with signs at most between them. Words of
  one (`S-`, `U-`) and last words (`E-`, `L-`) may be told apart.

The first three may be JSON lines or one JSON list; all may be `.gz`. Ranges are
half-open, in code points of the text. A type may be called `entity_type`, `type` or
`label`; without one it is `SENSITIVE`.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dptune.data.textfile import read_up_to
from dptune.errors import DataError, DetectionError, Problem
from dptune.jsons import parse_json
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
        found, problems = _read_iob2(content)
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
            return raw.decode("utf-8-sig")
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
    """Yield parsed rows; None for one that is no JSON, or names a key twice."""
    if content.lstrip().startswith("["):
        try:
            whole = parse_json(content)
        except ValueError:
            whole = [None]
        yield from whole
        return
    for line in content.split("\n"):
        if line.strip():
            try:
                yield parse_json(line)
            except ValueError:
                yield None


def _gold_text(row: Any) -> GoldText:  # noqa: ANN401 - whatever a file holds
    """Read one row, under any of the names in use."""
    text = row[_first(row, _TEXTS)]
    if not isinstance(text, str):
        raise TypeError("text")
    lists = [row[name] for name in _SPANS if isinstance(row.get(name), list)]
    if len(lists) > 1:  # labels of the whole text are no spans
        lists = [x for x in lists if not all(isinstance(y, str) for y in x)] or [[]]
    found = [tuple(_span(raw, len(text)) for raw in given) for given in lists]
    if any({*spans} != {*found[0]} for spans in found):
        raise ValueError("spans")
    return GoldText(text=text, spans=found[0])


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


@dataclass(frozen=True, kw_only=True)
class _Word:
    """A word with its tag, and the number of its line."""

    line: int
    word: str = field(repr=False)
    mark: str
    kind: str


def _read_iob2(content: str) -> tuple[list[GoldText], list[Problem]]:
    """Read blocks of words; a block without `# text` is joined by blanks."""
    problems: list[Problem] = []
    found: list[GoldText] = []
    given, words = "", list[_Word]()
    lines = [line.removesuffix("\r") for line in content.split("\n")]
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip():
            if words:
                text = given or " ".join(word.word for word in words)
                found.append(_aligned(text, words, problems))
            given, words = "", []
        elif line.startswith("#"):
            given = given or line.partition("# text = ")[2]
        else:
            word = _word(line.split("\t"), number)
            if word is None:
                problems.append(_bad_word(number, "a number, a word and a known tag"))
            else:
                words.append(word)
    return found, problems


def _word(columns: list[str], line: int) -> _Word | None:
    """Read the columns of a word; None if one is absent or its tag says nothing."""
    word, tag = (*columns[1:3], "", "")[:2]
    mark, hyphen, kind = tag.partition("-")
    known = tag == "O" or (mark in {*"BISEUL"} and bool(kind or not hyphen))
    if not known or not word.strip():
        return None
    return _Word(line=line, word=word, mark=mark, kind=kind or _UNTYPED)


def _bad_word(line: int, wanted: str) -> Problem:
    return Problem(
        path=f"row {line}",
        message=f"must hold {wanted}, but does not.",
        next_step="docs/REVIEW.md has the formats.",
    )


def _aligned(text: str, words: list[_Word], problems: list[Problem]) -> GoldText:
    """Find words in their text; neighbors of one entity become one span.

    A word that does not come next is a problem, and those behind it are not looked for.
    """
    spans: list[Span] = []
    position, is_open = 0, False
    for one in words:
        start = text.find(one.word, position)
        if start < 0 or any(map(str.isalnum, text[position:start])):
            wanted = "the next word of its `# text`"
            problems.append(_bad_word(one.line, wanted))
            break
        position = end = start + len(one.word)
        goes_on = is_open and one.mark in {*"IEL"}
        if goes_on and spans[-1].entity_type == one.kind:
            is_near = not text[spans[-1].end : start].strip()
            start = spans.pop().start if is_near else start
        if one.mark != "O":
            spans.append(Span(start=start, end=end, entity_type=one.kind))
        is_open = one.mark in {"B", "I"}
    return GoldText(text=text, spans=tuple(spans))
