"""The `schedule` commands: the same `train`, again and again, if the data changed."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from cli.options import ConfigPath, Overrides, ProfileName
from cli.printing import folding_table, say_next, speaker
from cli.stack import chosen_profile, open_profile
from dptune.errors import ConfigError, Problem
from infra.cron import Cron, parse_cron
from infra.timers import LocalSchedule, Timers, cron_line

if TYPE_CHECKING:
    from zenml.models import ScheduleResponse

    from infra.profiles import Profile

_PLACES = (
    "DPTUNE_HOME",
    "DPTUNE_DATA_ROOT",
    "DPTUNE_BUDGET_KEY_FILE",
    "DPTUNE_PROFILE",
)
"""Variables that say where things are; secrets stay in the environment file."""

_TIMERS = ("auto", "systemd", "cron")

Name = Annotated[str, typer.Argument(help="Of the schedule.", show_default=False)]


def build_schedule_app() -> typer.Typer:
    """Build the `schedule` commands."""
    app = typer.Typer(
        help="Train on a schedule: only if the data changed, never twice at once.",
        no_args_is_help=True,
    )
    for name, command in (
        ("create", create),
        ("list", list_schedules),
        ("pause", pause),
        ("resume", resume),
        ("delete", delete),
    ):
        app.command(name)(command)
    return app


def create(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits, dashes.")],
    config: ConfigPath,
    *,
    cron: Annotated[str, typer.Option(help='When, in UTC on a cluster: "0 3 * * 1".')],
    overrides: Overrides = None,
    deadline: Annotated[
        int, typer.Option(help="Minutes after which a run is ended.", min=1)
    ] = 4320,
    start_within: Annotated[
        int, typer.Option(help="Minutes that a run may start late.", min=1)
    ] = 60,
    timer: Annotated[
        str, typer.Option(help="On one machine: systemd, cron (prints), or auto.")
    ] = "auto",
    profile: ProfileName = None,
) -> None:
    """Create a schedule. A run starts only if the one before it has ended.

    A run whose data have not changed does nothing and says so; one that would exceed
    the budget of its data set is refused before it is given an accelerator.
    """
    from cli.detection import collecting
    from cli.runs import read_config

    problems: list[Problem] = []
    when, settings, chosen = None, None, None
    with collecting(problems):
        _check_name(name)
    with collecting(problems):
        when = parse_cron(cron)
    if timer not in _TIMERS:
        message = f"must be {' or '.join(_TIMERS)}, got {timer}."
        problems.append(Problem(path="--timer", message=message))
    with collecting(problems):
        settings = read_config(config, overrides or [])
    with collecting(problems):
        chosen = chosen_profile(profile)
    if problems or when is None or settings is None or chosen is None:
        raise ConfigError(problems)
    console = speaker()
    if chosen.stack is None:
        arguments = ["train", str(config.resolve()), "--if-changed"]
        for override in overrides or []:
            arguments += ["--set", override]
        _create_here(name, when, arguments, deadline=deadline, timer=timer)
        return
    _refuse_kubeflow(chosen)
    open_profile(chosen)
    _refuse_known(name)
    from infra.pods import run_options
    from pipelines.train import schedule_pipeline, step_names
    from steps._observing import hooks

    applied = chosen.applied_to(settings)
    options = with_schedule(
        run_options(chosen, step_names(applied)),
        deadline_seconds=60 * deadline,
        start_within_seconds=60 * start_within,
    )
    options |= hooks({**os.environ, **chosen.environment})
    schedule_pipeline(applied, name=name, cron=when.text, options=options)
    console.print(f"schedule {name} created; next run {_next(when)}")


def with_schedule(
    options: dict[str, Any], *, deadline_seconds: int, start_within_seconds: int
) -> dict[str, Any]:
    """Add to a run's options what its CronJob needs: Forbid, and deadlines."""
    settings = dict(options["settings"])
    settings["orchestrator.kubernetes"] = settings["orchestrator.kubernetes"] | {
        "concurrency_policy": "Forbid",
        "starting_deadline_seconds": start_within_seconds,
        "active_deadline_seconds": deadline_seconds,
        "successful_jobs_history_limit": 3,
        "failed_jobs_history_limit": 3,
    }
    return options | {"settings": settings}


def list_schedules(profile: ProfileName = None) -> None:
    """List schedules with their next and last runs."""
    chosen = chosen_profile(profile)
    columns = ("schedule", "cron", "state", "next", "last run")
    table = folding_table(f"schedules of profile {chosen.name}", *columns)
    for row in _rows_here() if chosen.stack is None else _rows_there(chosen):
        table.add_row(*row)
    console = speaker()
    console.print(table)
    if not table.rows:
        say_next(console, "dptune schedule create NAME CONFIG --cron '0 3 * * 1'")


def pause(name: Name, profile: ProfileName = None) -> None:
    """Start no more runs until `resume`; a run that is on goes on."""
    _switch(name, profile, active=False)


def resume(name: Name, profile: ProfileName = None) -> None:
    """Start runs again."""
    _switch(name, profile, active=True)


def delete(name: Name, profile: ProfileName = None) -> None:
    """Remove a schedule; its runs stay."""
    chosen = chosen_profile(profile)
    if chosen.stack is None:
        Timers().delete(name)
    else:
        from zenml.client import Client

        open_profile(chosen)
        Client().delete_schedule(_known(name).id)
    speaker().print(f"schedule {name} deleted")


def _create_here(
    name: str, when: Cron, arguments: Sequence[str], *, deadline: int, timer: str
) -> None:
    """Install a systemd timer, or print a line for cron."""
    console, timers = speaker(), Timers()
    schedule = LocalSchedule(
        name=name,
        cron=when,
        arguments=tuple(arguments),
        deadline_minutes=deadline,
        environment={n: os.environ[n] for n in _PLACES if n in os.environ},
    )
    if timer == "systemd" or (timer == "auto" and timers.are_possible):
        timers.install(schedule)
        console.print(f"timer dptune-{name} installed; next run {_next(when)}")
        say_next(console, "loginctl enable-linger  (to run while nobody is logged in)")
        return
    typer.echo(cron_line(schedule))  # alone on standard output, to be piped
    Console(stderr=True, highlight=False).print(
        "add this line with `crontab -e`; cron itself lists, pauses and removes it",
        style="dim",
    )


def _switch(name: str, profile: str | None, *, active: bool) -> None:
    """Pause or resume."""
    chosen = chosen_profile(profile)
    if chosen.stack is None:
        timers = Timers()
        (timers.resume if active else timers.pause)(name)
    else:
        from zenml.client import Client

        open_profile(chosen)
        Client().update_schedule(_known(name).id, active=active)
    state = "resumed" if active else "paused"
    speaker().print(f"schedule {name} {state}")


def _rows_here() -> list[tuple[str, ...]]:
    """Schedules of this machine."""
    timers = Timers()
    return [
        (
            name,
            text,
            "active" if timers.is_active(name) else "paused",
            _next(parse_cron(text)) if timers.is_active(name) else "",
            "journalctl --user -u dptune-" + name,
        )
        for name, text in timers.schedules().items()
    ]


def _rows_there(profile: "Profile") -> list[tuple[str, ...]]:
    """Schedules of the ZenML server."""
    from zenml.client import Client

    open_profile(profile)
    rows: list[tuple[str, ...]] = []
    for schedule in Client().list_schedules(size=100).items:
        runs = Client().list_pipeline_runs(
            schedule_id=schedule.id, sort_by="desc:created", size=1
        )
        last = f"{runs.items[0].name}: {runs.items[0].status}" if runs.items else ""
        text = str(schedule.cron_expression or "")
        active = bool(schedule.active) and bool(text)
        following = _next(parse_cron(text)) if active else ""
        state = "active" if schedule.active else "paused"
        rows.append((schedule.name, text, state, following, last))
    return rows


def _known(name: str) -> "ScheduleResponse":
    """Find a schedule of the server.

    Raises:
        ConfigError: there is none of that name.
    """
    from zenml.client import Client

    try:
        return Client().get_schedule(name, allow_name_prefix_match=False)
    except KeyError:
        names = ", ".join(s.name for s in Client().list_schedules(size=100).items)
        raise ConfigError(
            f"schedule must be one of {names or 'none there is'}, got {name}."
        ) from None


def _refuse_known(name: str) -> None:
    """Refuse a name that is taken."""
    from zenml.client import Client

    if any(s.name == name for s in Client().list_schedules(name=name).items):
        raise ConfigError(f"schedule {name} must not exist yet. Delete it first.")


def _refuse_kubeflow(profile: "Profile") -> None:
    """Refuse recurring runs: their pods would go on when the data have not changed."""
    stack = profile.production_stack()
    if stack is not None and stack.kubeflow is not None:
        raise ConfigError(
            f"--profile must be one without kubeflow, got {profile.name}. Let cron run "
            f"`dptune train CONFIG --if-changed --profile {profile.name}`, where "
            "Kubeflow's SDK is installed."
        )


def _check_name(name: str) -> None:
    """Refuse names that a timer or a cluster would not take: it is a label there."""
    from infra.profiles import Label

    try:
        TypeAdapter(Label).validate_python(name)
    except ValidationError:
        raise ConfigError(
            "the schedule's name must be at most 63 lower-case letters, digits and "
            f"dashes, with a letter or digit at both ends, got {name[:80]!r}."
        ) from None


def _next(cron: Cron) -> str:
    """Say when a schedule fires next."""
    return cron.next_after(datetime.now(tz=UTC)).strftime("%Y-%m-%d %H:%M UTC")
