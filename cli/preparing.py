"""What precedes every command, but not `--help`: a process and folder of its own."""

from rich.console import Console

from infra.private import close_to_others
from infra.workspace import current_workspace


def prepare() -> None:
    """Prepare the process and the project folder for a command."""
    from infra.stacks.local import isolate

    errors = Console(stderr=True, highlight=False)
    workspace = current_workspace()
    isolate(workspace)
    closed = close_to_others(workspace.root)
    if closed.changed:
        errors.print(
            f"The project folder was open to other users of this machine: "
            f"{closed.changed} files and folders are their owner's alone now.",
            style="dim",
        )
    if closed.left:
        errors.print(
            f"[bold]{closed.left} files or folders of the project folder belong to "
            "another account[/] and stay open to others; let their owner run "
            "`chmod -R go= ` on them."
        )
