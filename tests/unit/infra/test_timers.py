"""Schedules of one machine: the line for cron, and a timer's whole life."""

import shutil
import subprocess

import pytest

from dptune.errors import ConfigError
from infra.cron import parse_cron
from infra.timers import LocalSchedule, Timers, cron_line, unit_files

SCHEDULE = LocalSchedule(
    name="weekly",
    cron=parse_cron("0 3 * * 1"),
    arguments=("train", "my own.yaml", "--if-changed", "--set", 'name=50%$"x'),
    deadline_minutes=90,
    environment={"DPTUNE_HOME": "/srv/my dptune"},
)


def test_cron_line_never_runs_twice_at_once_and_ends_late_runs():
    line = cron_line(SCHEDULE)
    assert line.startswith("0 3 * * 1 cd ")
    for part in ("flock --nonblock", "timeout 90m", "'my own.yaml'", "--if-changed"):
        assert part in line
    assert "50\\%$" in line
    assert "\n" not in line


def test_cron_line_means_to_a_shell_what_was_said():
    command = cron_line(SCHEDULE).partition(" 90m ")[2].replace("\\%", "%")
    done = subprocess.run(
        ["sh", "-c", f"printf '%s|' {command}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("|")[2:-1] == list(SCHEDULE.arguments)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_takes_the_units(tmp_path):
    for name, text in unit_files(SCHEDULE).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    ours = [line for line in done.stderr.splitlines() if "weekly" in line]
    assert ours == []


class Systemd:
    """Remembers what it was told, and what is enabled."""

    def __init__(self, *, works=True):
        self.enabled, self.told, self.works = set(), [], works

    def __call__(self, *arguments):
        self.told.append(arguments)
        match arguments:
            case ("enable", "--now", unit):
                self.enabled.add(unit)
            case ("disable", "--now", unit):
                self.enabled.discard(unit)
            case ("is-enabled", "--quiet", unit):
                return unit in self.enabled
        return self.works


def test_a_timers_whole_life(tmp_path):
    systemd = Systemd()
    timers = Timers(tmp_path / "units", systemd)
    assert timers.schedules() == {}
    timers.install(SCHEDULE)
    assert timers.schedules() == {"weekly": "0 3 * * 1"}
    assert timers.is_active("weekly")
    with pytest.raises(ConfigError, match="must not exist"):
        timers.install(SCHEDULE)
    timers.pause("weekly")
    assert not timers.is_active("weekly")
    timers.resume("weekly")
    assert timers.is_active("weekly")
    timers.delete("weekly")
    assert list((tmp_path / "units").iterdir()) == []
    for change in (timers.pause, timers.resume, timers.delete):
        with pytest.raises(ConfigError, match="there is none"):
            change("weekly")


def test_refusal_by_systemd_leaves_nothing(tmp_path):
    timers = Timers(tmp_path, Systemd(works=False))
    with pytest.raises(ConfigError, match="--timer cron"):
        timers.install(SCHEDULE)
    assert list(tmp_path.iterdir()) == []


def test_units_hold_no_secret_and_forbid_two_runs(tmp_path):
    files = unit_files(SCHEDULE)
    service = files["dptune-weekly.service"]
    assert "Type=oneshot" in service  # a second start waits for the first to end
    assert "TimeoutStartSec=90min" in service
    assert '"name=50%%$$\\"x"' in service
    assert "EnvironmentFile=-%h/.config/dptune/environment" in service
