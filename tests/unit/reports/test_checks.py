"""The page checks themselves must fail on broken pages."""

import pytest

from dptune.reports.blocks import Bullets, Notice, Page, Section, Table, facts, table
from dptune.reports.render import page_html, page_markdown

from .checks import check_page

GOOD = Page(title="t", sections=(Section(title="s", blocks=(facts(("a", "b")),)),))


def test_check_page_accepts_a_good_page():
    check_page(page_html(GOOD))


@pytest.mark.parametrize(
    "broken",
    [
        "<script>1</script>",
        '<img src="x.png">',
        '<a href="https://example.org">x</a>',
        '<p onclick="x()">x</p>',
        "<p>",
        "</div>",
        "<h1>again</h1>",
        '<i id="a"></i><i id="a"></i>',
        "<style>@import 'x.css';</style>",
        "<style>p { background: url(x.png) }</style>",
        "<p>None</p>",
    ],
)
def test_check_page_catches_broken_pages(broken):
    with pytest.raises(AssertionError):
        check_page(page_html(GOOD).replace("</main>", f"{broken}</main>"))


def test_markdown_table_with_groups_and_caption():
    grouped = Table(
        columns=("a", "b"),
        rows=(("1", "2"), ("3", "4")),
        numeric=frozenset({1}),
        groups=(("first", 1), ("second", 1)),
        caption="why | so",
    )
    page = Page(
        title="t",
        subtitle="l",
        sections=(
            Section(
                title="s",
                blocks=(
                    grouped,
                    Bullets(items=("x", "y"), ordered=True),
                    Notice(text="n"),
                    table(("c",), ()),
                ),
            ),
        ),
    )
    text = page_markdown(page)
    assert "|---|---:|" in text
    assert "| **first** | |\n| 1 | 2 |\n| **second** | |" in text
    assert "why \\| so" in text
    assert "1. x\n1. y" in text
    assert "> n" in text
