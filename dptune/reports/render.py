"""Pages of blocks as self-contained HTML and as Markdown.

The HTML refers to nothing outside itself: one style sheet and all figures are inside,
there is no script, and every value is escaped; so is what would show nothing in it, or
turn its line around.
"""

from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dptune.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Chip,
    Facts,
    Notice,
    Page,
    Prose,
    Table,
)
from dptune.reports.formatting import visible

TEMPLATES: Final = Path(__file__).parent / "templates"
_MARKDOWN_ESCAPES: Final = str.maketrans(
    {c: "\\" + c for c in "\\`*[]|"} | {"<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "}
)


@cache
def environment() -> Environment:
    """Return the template environment: autoescape on, unknown names refused."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # drawn by our own figures, which escape
    found.filters["trusted_svg"] = Markup
    found.globals["style"] = Markup(  # noqa: S704 - our own style sheet
        (TEMPLATES / "style.css").read_text(encoding="utf-8")
    )
    return found


def _shown(value: object) -> object:
    """Return what a template writes, but our own markup, as it can be seen."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return visible(str(value)) if is_text else value


def page_html(page: Page) -> str:
    """Return a page as one self-contained HTML document."""
    return environment().get_template("report.html.j2").render(page=page)


def page_markdown(page: Page) -> str:
    """Return a page as Markdown; figures and what is folded are left out."""
    lines = [f"# {escaped(page.title)}", ""]
    if page.chip:
        lines += [f"**{escaped(page.chip.text)}**", ""]
    if page.subtitle:
        lines += [escaped(page.subtitle), ""]
    for section in page.sections:
        lines += [f"## {escaped(section.title)}", ""]
        for block in section.blocks:
            drawn = _markdown_block(block)
            lines += [*drawn, ""] if drawn else []
    return "\n".join(lines).rstrip() + "\n"


def _markdown_block(block: Block) -> list[str]:
    """Return one block's lines; none for figures."""
    if isinstance(block, Facts):
        rows = [
            (i.label, _cell(i.value) + (f" ({escaped(i.note)})" if i.note else ""))
            for i in block.items
        ]
        return ["| | |", "|---|---|", *(f"| {escaped(k)} | {v} |" for k, v in rows)]
    if isinstance(block, Table):
        return _markdown_table(block)
    if isinstance(block, Notice):
        title = f"**{escaped(block.title)}** " if block.title else ""
        return [f"> {title}{escaped(block.text)}"]
    if isinstance(block, Prose):
        return "\n\n".join(map(escaped, block.paragraphs)).split("\n")
    if isinstance(block, Bullets):
        mark = "1." if block.ordered else "-"
        return [f"{mark} {escaped(item)}" for item in block.items]
    return []


def _markdown_table(block: Table) -> list[str]:
    """Return a table's lines; group names become rows in bold."""
    rules = ["---:" if i in block.numeric else "---" for i in range(len(block.columns))]
    lines = [
        "| " + " | ".join(escaped(c) for c in block.columns) + " |",
        "|" + "|".join(rules) + "|",
    ]
    for name, rows in block.parts():
        if name:
            lines.append(f"| **{escaped(name)}** |" + " |" * (len(block.columns) - 1))
        lines += ["| " + " | ".join(_cell(c) for c in row) + " |" for row in rows]
    if block.caption:
        lines += ["", escaped(block.caption)]
    return lines


def _cell(value: Cell) -> str:
    """Return one cell in Markdown."""
    return f"**{escaped(value.text)}**" if isinstance(value, Chip) else escaped(value)


def escaped(text: str) -> str:
    """Escape what Markdown or HTML would read as markup, and what is not seen."""
    return visible(text).translate(_MARKDOWN_ESCAPES)
