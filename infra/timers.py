"""Schedules of one machine: systemd timers of the user, or a line for cron."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dptune.errors import ConfigError
from infra.cron import Cron, on_calendar
from infra.workspace import REPOSITORY, project_folder

_PREFIX = "dptune-"

Systemctl = Callable[..., bool]
"""Runs `systemctl --user` with arguments; whether it succeeded."""


@dataclass(frozen=True, kw_only=True)
class LocalSchedule:
    """One command that this machine runs again and again.

    Args:
        name: of the schedule.
        cron: when.
        arguments: of `dptune`.
        deadline_minutes: after which a run is ended.
        environment: variables that say where things are; nothing secret.
    """

    name: str
    cron: Cron
    arguments: tuple[str, ...]
    deadline_minutes: int
    environment: Mapping[str, str]

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command."""
        return (sys.executable, str(REPOSITORY / "run.py"), *self.arguments)


def cron_line(schedule: LocalSchedule) -> str:
    """Return a line for `crontab -e`: never two at once, never longer than allowed."""
    settings = [f"{k}={shlex.quote(v)}" for k, v in schedule.environment.items()]
    lock = f"/var/lock/{_PREFIX}{schedule.name}.lock"
    parts = [
        *("env", *settings, "flock", "--nonblock", lock),
        *("timeout", f"{schedule.deadline_minutes}m"),
        *map(shlex.quote, schedule.command),
    ]
    command = " ".join(parts).replace("%", r"\%")  # cron ends a line there
    folder = shlex.quote(str(project_folder())).replace("%", r"\%")
    return f"{schedule.cron.text} cd {folder} && {command}"


def unit_files(schedule: LocalSchedule) -> dict[str, str]:
    """Return the user's systemd units by file name.

    A service that still runs is not started again (Forbid), and one that takes longer
    than the deadline is ended. Secrets come from a file that only the user may read.
    """
    name = f"{_PREFIX}{schedule.name}"
    environment = "".join(
        f"Environment={_quoted(f'{key}={value}')}\n"
        for key, value in sorted(schedule.environment.items())
    )
    service = (
        f"[Unit]\nDescription=dptune schedule {schedule.name}\n\n"
        "[Service]\nType=oneshot\n"
        f"WorkingDirectory={str(project_folder()).replace('%', '%%')}\n"
        f"{environment}"
        "EnvironmentFile=-%h/.config/dptune/environment\n"
        f"ExecStart={' '.join(map(_quoted, schedule.command))}\n"
        f"TimeoutStartSec={schedule.deadline_minutes}min\n"
        "Nice=10\n"
    )
    timer = (
        f"# cron: {schedule.cron.text}\n"
        f"[Unit]\nDescription=dptune schedule {schedule.name}\n\n"
        f"[Timer]\nOnCalendar={on_calendar(schedule.cron)}\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    return {f"{name}.service": service, f"{name}.timer": timer}


def systemctl(*arguments: str) -> bool:
    """Run `systemctl --user`; False where there is none."""
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            ["systemctl", "--user", *arguments],  # noqa: S607 - the system's own
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


class Timers:
    """The user's timers.

    Args:
        folder: of the units.
        run: how systemd is told.
    """

    def __init__(self, folder: Path | None = None, run: Systemctl = systemctl) -> None:
        self._folder = folder or Path.home() / ".config" / "systemd" / "user"
        self._run = run

    @property
    def are_possible(self) -> bool:
        """Whether this machine has a user's systemd."""
        return self._run("show-environment")

    def install(self, schedule: LocalSchedule) -> None:
        """Write units and start the timer.

        Raises:
            ConfigError: a schedule of that name exists, or systemd refuses it.
        """
        if schedule.name in self.schedules():
            raise ConfigError(
                f"schedule {schedule.name} must not exist yet. Delete it first."
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in unit_files(schedule).items():
            (self._folder / name).write_text(text, encoding="utf-8")
        if not (self._run("daemon-reload") and self._enable(schedule.name)):
            self.delete(schedule.name)
            raise ConfigError(
                f"systemd must take schedule {schedule.name}, but refused. Use "
                "--timer cron."
            )

    def schedules(self) -> dict[str, str]:
        """Name the schedules and their cron expressions."""
        found = {}
        for file in sorted(self._folder.glob(f"{_PREFIX}*.timer")):
            first = file.read_text(encoding="utf-8").partition("\n")[0]
            found[file.stem.removeprefix(_PREFIX)] = first.removeprefix("# cron: ")
        return found

    def is_active(self, name: str) -> bool:
        """Whether a timer fires."""
        return self._run("is-enabled", "--quiet", f"{_PREFIX}{name}.timer")

    def pause(self, name: str) -> None:
        """Stop a timer from firing; a run that is on goes on."""
        self._require(name)
        self._run("disable", "--now", f"{_PREFIX}{name}.timer")

    def resume(self, name: str) -> None:
        """Let a timer fire again."""
        self._require(name)
        self._enable(name)

    def delete(self, name: str) -> None:
        """Remove a schedule; a run that is on goes on."""
        self._require(name)
        self._run("disable", "--now", f"{_PREFIX}{name}.timer")
        for kind in ("service", "timer"):
            (self._folder / f"{_PREFIX}{name}.{kind}").unlink(missing_ok=True)
        self._run("daemon-reload")

    def _enable(self, name: str) -> bool:
        return self._run("enable", "--now", f"{_PREFIX}{name}.timer")

    def _require(self, name: str) -> None:
        """Refuse a name that is none.

        Raises:
            ConfigError: there is no such schedule here.
        """
        known = self.schedules()
        if name not in known:
            names = ", ".join(known) or "there is none"
            raise ConfigError(f"schedule must be one of {names}, got {name}.")


def _quoted(text: str) -> str:
    """Quote a word for systemd, which also expands `%` and `$`."""
    for mark, escape in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(mark, escape)
    return f'"{text}"'
