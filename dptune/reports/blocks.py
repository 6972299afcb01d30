"""What a page is made of: plain blocks that one template draws as HTML or Markdown.

Reports are turned into blocks by pure functions, so that a dashboard page, a privacy
card and the comparison page say the same thing in the same words.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias


class Tone(StrEnum):
    """What a mark means; each has a color, a shape and a word, never color alone."""

    PASS = "pass"  # noqa: S105 - a verdict
    BLOCK = "block"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    NEUTRAL = "neutral"


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A word with a shape and a color, such as a verdict."""

    kind: ClassVar[str] = "chip"
    text: str
    tone: Tone = Tone.NEUTRAL


Cell: TypeAlias = str | Chip


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One labelled value, with a remark in small type."""

    label: str
    value: Cell
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A list of labelled values."""

    kind: ClassVar[str] = "facts"
    items: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; columns named in `numeric` are set flush right.

    Args:
        columns: heads, one for each cell of a row.
        groups: how many rows each named group has, in order; none by default.
    """

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()
    caption: str = ""
    groups: tuple[tuple[str, int], ...] = ()
    row_heads: bool = True

    def parts(self) -> tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]:
        """Return the rows by group; one unnamed group where there are none."""
        if not self.groups:
            return (("", self.rows),)
        found = []
        start = 0
        for name, size in self.groups:
            found.append((name, self.rows[start : start + size]))
            start += size
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """An inline `<svg>` from `dptune.reports.plots`, and what it shows.

    Args:
        svg: trusted markup; only the figure module makes it.
    """

    kind: ClassVar[str] = "plot"
    svg: str
    caption: str = ""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Plots:
    """Figures side by side, where the page is wide enough."""

    kind: ClassVar[str] = "plots"
    items: tuple[Plot, ...]


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A sentence that must not be overlooked."""

    kind: ClassVar[str] = "notice"
    text: str
    tone: Tone = Tone.NEUTRAL
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Prose:
    """Paragraphs."""

    kind: ClassVar[str] = "prose"
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    items: tuple[str, ...]
    ordered: bool = False


Block: TypeAlias = Facts | Table | Plot | Plots | Notice | Prose | Bullets


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page.

    Args:
        kicker: what kind of page this is, above the title.
        lede: one or two sentences under the title.
        folds: pages that open on a click, below the sections.
        folds_title: heading above them.
    """

    title: str
    kicker: str = ""
    lede: str = ""
    chip: Chip | None = None
    sections: tuple[Section, ...] = ()
    folds: tuple["Page", ...] = ()
    folds_title: str = ""


def facts(*items: tuple[str, Cell] | tuple[str, Cell, str] | None) -> Facts:
    """Return facts from tuples `(label, value[, note])`; None leaves a row out."""
    return Facts(items=tuple(_fact(item) for item in items if item is not None))


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[Cell]],
    *,
    numeric: Iterable[int] = (),
    caption: str = "",
) -> Table:
    """Return a table from any iterables."""
    return Table(
        columns=tuple(columns),
        rows=tuple(tuple(row) for row in rows),
        numeric=frozenset(numeric),
        caption=caption,
    )


def verdict_chip(outcome: str) -> Chip:
    """Return the chip of a gate outcome; unknown words are neutral.

    >>> verdict_chip("pass").tone
    <Tone.PASS: 'pass'>
    """
    word = outcome.lower()
    tone = Tone(word) if word in set(Tone) else Tone.NEUTRAL
    return Chip(text=outcome.upper(), tone=tone)


def yes_no(*, good: bool, yes: str = "met", no: str = "not met") -> Chip:
    """Return a green `yes` or a red `no`."""
    return Chip(text=yes, tone=Tone.PASS) if good else Chip(text=no, tone=Tone.BLOCK)


def _fact(item: tuple[str, Cell] | tuple[str, Cell, str]) -> Fact:
    """Return one fact."""
    return Fact(label=item[0], value=item[1], note=item[2] if len(item) == 3 else "")
