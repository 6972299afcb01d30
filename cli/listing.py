"""The `configs` command."""

from rich.console import Console
from rich.table import Table

from cli.runs import CONFIGS
from dptune.configfile import read_yaml


def list_configs() -> None:
    """Print every configuration with its first comment and the command that runs it."""
    console = Console(highlight=False)
    for folder, hint in (
        ("train", "dptune train configs/train/{name}.yaml"),
        ("compare", "dptune compare configs/compare/{name}.yaml"),
        ("recipes", "--set recipe={name}"),
        ("gates", "--set gate={name}"),
        ("profiles", "--profile {name}"),
    ):
        table = Table(title=f"configs/{folder}", title_justify="left", box=None)
        table.add_column("name", style="bold")
        table.add_column("what")
        table.add_column("use", style="dim")
        for file in sorted((CONFIGS / folder).glob("*.yaml")):
            values = read_yaml(file)
            lines = file.read_text(encoding="utf-8").splitlines()
            comment = next((ln[2:] for ln in lines[1:] if ln.startswith("# ")), "")
            what = str(values.get("title") or comment)
            table.add_row(file.stem, what, hint.format(name=file.stem))
        console.print(table)
        console.print()
