"""What a page is made of: plain blocks that one template draws as HTML or Markdown.

Reports are turned into blocks by pure functions, so that a dashboard page, a privacy
card and the comparison page say the same thing in the same words.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias, TypeVar

ItemT = TypeVar("ItemT")


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
    """An inline `<svg>` from `dptune.reports.figures`, and what it shows.

    Args:
        svg: trusted markup; only the figure modules make it.
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


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What one training comes to, at the top of a page.

    Args:
        reason: of the verdict, in one sentence.
        figures: a few, set large.
        claims: a line for each.
    """

    title: str
    subtitle: str
    chip: Chip
    reason: str
    figures: Facts
    claims: Facts


@dataclass(frozen=True, kw_only=True)
class Headlines:
    """Headlines side by side."""

    kind: ClassVar[str] = "headlines"
    items: tuple[Headline, ...]


@dataclass(frozen=True, kw_only=True)
class Folds:
    """Pages that open on a click; Markdown leaves them out.

    Args:
        open_failed: show those at once whose verdict is no pass.
    """

    kind: ClassVar[str] = "folds"
    items: tuple["Page", ...]
    open_failed: bool = False


Block: TypeAlias = (
    Facts | Table | Plot | Plots | Notice | Prose | Bullets | Headlines | Folds
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a heading; none where the title is empty."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page.

    Args:
        label: what kind of page this is, above the title.
        subtitle: one or two sentences under the title.
    """

    title: str
    label: str = ""
    subtitle: str = ""
    chip: Chip | None = None
    sections: tuple[Section, ...] = ()


def page(
    *sections: Section | None,
    title: str,
    label: str = "",
    subtitle: str = "",
    chip: Chip | None = None,
) -> Page:
    """Return a page; None leaves a section out."""
    found = tuple(one for one in sections if one is not None)
    return Page(title=title, label=label, subtitle=subtitle, chip=chip, sections=found)


def section(title: str, *blocks: Block | None) -> Section | None:
    """Return a section of the blocks that there are; None leaves a block out."""
    found = tuple(block for block in blocks if block is not None)
    return Section(title=title, blocks=found) if found else None


def facts(*items: tuple[str, Cell] | tuple[str, Cell, str] | None) -> Facts:
    """Return facts from tuples `(label, value[, note])`; None leaves a row out."""
    found = [item for item in items if item is not None]
    return Facts(
        items=tuple(
            Fact(label=label, value=value, note="".join(note))
            for label, value, *note in found
        )
    )


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


def table_of(
    items: Iterable[ItemT],
    *columns: tuple[str, Callable[[ItemT], Cell]],
    numeric: Iterable[int] = (),
    caption: str = "",
) -> Table:
    """Return a table with a row for each item.

    Args:
        items: what the rows are about.
        columns: the head of each, and what fills it.
        numeric: columns that are set flush right.
        caption: below the table.

    >>> table_of([3], ("n", str), ("square", lambda n: str(n * n))).rows
    (('3', '9'),)
    """
    heads = [head for head, _ in columns]
    rows = ([fill(item) for _, fill in columns] for item in items)
    return table(heads, rows, numeric=numeric, caption=caption)


def side_by_side(*plots: Plot | None, caption: str = "") -> tuple[Block, ...]:
    """Return figures side by side below a caption of all; nothing for no figure."""
    found = tuple(plot for plot in plots if plot is not None)
    if not found:
        return ()
    above = (Prose(paragraphs=(caption,)),) if caption else ()
    return (*above, Plots(items=found))


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
