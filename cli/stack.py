"""The `stack` commands: where runs go, registered from a file, and what it lacks."""

from typing import TYPE_CHECKING

import typer
from rich.text import Text

from cli.options import ProfileName
from cli.printing import folding_table, say_next, speaker
from infra.private import keep_temporary_files_in
from infra.workspace import current_workspace

if TYPE_CHECKING:
    from infra.profiles import Profile


def build_stack_app() -> typer.Typer:
    """Build the `stack` commands."""
    app = typer.Typer(
        help="Register where runs go, see what is missing there, remove it.",
        no_args_is_help=True,
    )
    for command in (up, check, down):
        app.command()(command)
    return app


def up(profile: ProfileName = None) -> None:
    """Register the profile's stack in the ZenML server, or mend it. Idempotent."""
    from infra.stacks.local import ensure_local_stack

    chosen = chosen_profile(profile)
    console = speaker()
    stack = chosen.production_stack()
    if stack is None:
        ensure_local_stack(current_workspace())
        console.print("the local stack is ready")
        return
    from infra.stacks.production import register

    _connect_quietly()
    changes = register(stack)
    for change in changes:
        console.print(change)
    if not changes:
        console.print(f"stack {stack.name} is as the file says")
    say_next(console, f"dptune stack check --profile {chosen.name}")


def check(profile: ProfileName = None) -> None:
    """Say in one table what is missing and how to get it. Changes nothing.

    Exit 0 if nothing is missing, 1 if something is.
    """
    chosen = chosen_profile(profile)
    console = speaker()
    stack = chosen.production_stack()
    if stack is None:
        console.print("the local profile needs nothing but this machine")
        return
    from infra.stacks.checks import check_stack
    from infra.stacks.findings import State

    _connect_quietly()
    found = check_stack(stack, chosen)
    columns = ("needed", "state", "found", "how to get it")
    table = folding_table(f"stack {stack.name}", *columns)
    colors = {State.OK: "green", State.MISSING: "red", State.UNKNOWN: "yellow"}
    for line in found:
        state = Text(line.state, colors[line.state])
        table.add_row(line.name, state, line.found, line.how)
    console.print(table)
    missing = sum(line.state is State.MISSING for line in found)
    if missing:
        console.print(f"{missing} missing")
        raise typer.Exit(1)
    say_next(console, f"dptune train CONFIG --profile {chosen.name}")


def down(profile: ProfileName = None) -> None:
    """Remove the profile's stack from the ZenML server; runs and artifacts stay."""
    chosen = chosen_profile(profile)
    console = speaker()
    stack = chosen.production_stack()
    if stack is None:
        console.print("the local stack goes with its folder; nothing was changed")
        return
    from infra.stacks.production import unregister

    _connect_quietly()
    for change in unregister(stack) or [f"stack {stack.name} was not registered"]:
        console.print(change)


def chosen_profile(name: str | None) -> "Profile":
    """Read the profile of a command; None is the default one."""
    from infra.profiles import default_profile, read_profile

    return read_profile(name or default_profile())


def open_profile(profile: "Profile") -> None:
    """Make the profile's stack active, and the project folder if there is none.

    Raises:
        ConfigError: the stack is not registered.
    """
    from infra.stacks.local import ensure_local_stack

    keep_temporary_files_in(current_workspace())
    stack = profile.production_stack()
    if stack is None:
        ensure_local_stack(current_workspace())
        return
    from infra.stacks.production import activate

    _connect_quietly()
    activate(stack)


def _connect_quietly() -> None:
    """Connect to ZenML without telling its makers."""
    current_workspace().zenml.mkdir(parents=True, exist_ok=True)
    from zenml.config.global_config import GlobalConfiguration

    GlobalConfiguration().analytics_opt_in = False
