"""A page for any report: its public fields as tables, text-bearing ones left out."""

from collections.abc import Iterator, Mapping
from enum import Enum

from pydantic import BaseModel

from dptune.errors import ArtifactError
from dptune.reports.blocks import Block, Page, Section, facts, table
from dptune.reports.formatting import MISSING, count, number, words

_LONGEST_TEXT = 200
_MOST_ROWS = 200
_HIDDEN = "hidden"


def generic_page(report: BaseModel) -> Page:
    """Show every public field of a report.

    Privacy: fields declared with `repr=False` hold text or secrets by the convention of
    this library; they are shown as `hidden`, at any depth. Types marked `restricted`
    have no page at all.

    Raises:
        ArtifactError: the type is restricted.
    """
    refuse_restricted(report)
    plain: list[tuple[str, str]] = []
    sections: list[Section] = []
    for name, value in public_fields(report):
        if isinstance(value, tuple | list | Mapping | BaseModel):
            blocks = tuple(_nested(value))
            sections += [Section(title=_title(name), blocks=blocks)] if blocks else []
        else:
            plain.append((_title(name), _text(value)))
    first = [Section(title="Values", blocks=(facts(*plain),))] if plain else []
    return Page(
        kicker="Report",
        title=_spaced_name(type(report).__name__),
        sections=(*first, *sections),
    )


def refuse_restricted(report: BaseModel) -> None:
    """Raise for types that hold secrets.

    Raises:
        ArtifactError: the type is restricted.
    """
    if getattr(type(report), "restricted", False):
        raise ArtifactError(
            f"report must not be restricted, got {type(report).__name__}. It holds "
            "secrets and has no page; show the report of the attack that used it."
        )


def public_fields(report: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield names and values, `hidden` for fields that are not for display."""
    for name, field in type(report).model_fields.items():
        if name != "schema_version":
            yield name, getattr(report, name) if field.repr else _HIDDEN


def _nested(value: object) -> Iterator[Block]:
    """Yield a table for a mapping, a sequence or a nested report."""
    if isinstance(value, BaseModel):
        yield facts(*((_title(k), _text(v)) for k, v in public_fields(value)))
    elif isinstance(value, Mapping):
        rows = [(_text(k), _text(v)) for k, v in list(value.items())[:_MOST_ROWS]]
        yield table(("Name", "Value"), rows, numeric=(1,), caption=_cut(len(value)))
    elif isinstance(value, tuple | list) and value:
        yield _sequence(list(value))


def _sequence(values: list[object]) -> Block:
    """Return a sequence of reports as one table, of plain values as one column."""
    shown = values[:_MOST_ROWS]
    caption = _cut(len(values))
    first = shown[0]
    if isinstance(first, BaseModel):
        columns = [name for name, _ in public_fields(first)]
        found = [dict(public_fields(v)) for v in shown if isinstance(v, BaseModel)]
        rows = [[_text(row.get(name)) for name in columns] for row in found]
        return table(map(_title, columns), rows, caption=caption)
    return table(("Value",), ([_text(v)] for v in shown), caption=caption)


def _text(value: object) -> str:
    """Return one value for display; anything nested is only counted."""
    if isinstance(value, bool):
        found = "yes" if value else "no"
    elif isinstance(value, Enum):
        found = words(str(value.value))
    elif isinstance(value, int):
        found = count(value)
    elif value is None or isinstance(value, float):
        found = number(value)
    elif isinstance(value, str):
        found = value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…"
    elif isinstance(value, tuple | list | Mapping):
        found = f"{count(len(value))} entries" if value else MISSING
    else:
        found = _spaced_name(type(value).__name__)
    return found


def _cut(size: int) -> str:
    """Say how much is shown."""
    return f"First {_MOST_ROWS} of {count(size)}." if size > _MOST_ROWS else ""


def _title(name: str) -> str:
    """Return a field's name as a label."""
    return words(name).capitalize()


def _spaced_name(name: str) -> str:
    """Return a class name as words."""
    parts = "".join(f" {c.lower()}" if c.isupper() else c for c in name)
    return parts.strip().capitalize()
