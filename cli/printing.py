"""How commands speak: plain text, tables whose cells fold, and what comes next."""

from rich import box
from rich.console import Console
from rich.table import Table


def speaker() -> Console:
    """Return what prints results as they are: names and settings may hold brackets."""
    return Console(highlight=False, markup=False)


def say_next(console: Console, *lines: str) -> None:
    """Say what one will want now, a command a line, to be copied."""
    for line in lines:
        console.print(f"next    {line}", style="dim", soft_wrap=True)


def folding_table(title: str, *columns: str) -> Table:
    """Return a table whose cells break where the terminal is narrow."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left"
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
