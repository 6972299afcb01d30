"""What commands print is what was meant: brackets of settings and names stay."""

import pytest
from rich.console import Console
from rich.table import Table

from cli.printing import folding_table, say_next, speaker

COMMAND = "dptune train --set 'gate.accepted_statuses=[certified, conditional]'"


def printed(action, capsys):
    action()
    return "".join(capsys.readouterr().out.split())


def test_lists_in_a_command_stay(capsys):
    found = printed(lambda: say_next(speaker(), COMMAND), capsys)
    assert found == "next" + COMMAND.replace(" ", "")


@pytest.mark.parametrize("name", ["runs[old]", "[bold]", "[/]", "a[link=x]b"])
def test_names_with_brackets_stay(capsys, name):
    table = folding_table(name, "column")
    table.add_row(name)
    found = printed(lambda: speaker().print(table), capsys)
    assert found.count(name) == 2


def test_twin_that_reads_brackets_as_styles_is_caught(capsys):
    loose = Console(highlight=False)
    table = Table("column")
    table.add_row("runs[old]")
    assert "[certified" not in printed(lambda: say_next(loose, COMMAND), capsys)
    assert "[old]" not in printed(lambda: loose.print(table), capsys)
