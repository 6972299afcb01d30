"""The `init` command: a folder to work in, made of what comes with the program."""

from pathlib import Path

from rich.console import Console

from infra.workspace import REPOSITORY, STATE

_IGNORED = f"/{STATE}/\n/data/\n"
_README = """A project of dptune. `dptune --help` lists the commands.

| here | is |
|---|---|
| `configs/train/` | runs: copy `own_text.yaml` or `own_chat.yaml`, and say six things |
| `configs/recipes/`, `configs/gates/` | what a run trains by, and what it must pass |
| `data/` | texts; paths in configurations start from this folder |
| `.dptune/` | what runs leave: text, models, and **the record of spent budget** |

    dptune quickstart                          # the whole product on invented text
    dptune invent                              # letters, chats and a small model to try
    dptune calibrate configs/train/mine.yaml   # what it will cost, and what is wrong
    dptune train configs/train/mine.yaml       # from raw text to a verdict

`data/` and `.dptune/` hold personal text: they are in `.gitignore`, and their owner's
alone. Deleting `.dptune/` forgets what was spent.
"""


def make_project(folder: Path) -> None:
    """Make a project; files that are there stay as they are.

    Args:
        folder: made if it is not there.
    """
    made, kept = [], 0
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        folder / "configs" / file.relative_to(REPOSITORY / "configs"): file.read_bytes()
        for file in sorted((REPOSITORY / "configs").rglob("*.yaml"))
    }
    wanted |= {folder / "README.md": _README.encode()}
    wanted |= {folder / ".gitignore": _IGNORED.encode()}
    for target, content in wanted.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as sink:
                sink.write(content)
            made.append(target)
        except FileExistsError:
            kept += 1
    for private in ("data", STATE):
        (folder / private).mkdir(mode=0o700, exist_ok=True)
    console = Console(highlight=False)
    console.print(f"project {folder.resolve()}", soft_wrap=True)
    console.print(f"{len(made)} files made, {kept} were there and stay as they are")
    console.print("next    dptune quickstart", style="dim")
    console.print(
        "        cp configs/train/own_text.yaml configs/train/mine.yaml  (edit, train)",
        style="dim",
    )
