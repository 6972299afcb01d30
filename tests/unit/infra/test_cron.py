"""Cron expressions: what is refused, and what systemd makes of the rest."""

import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from dptune.errors import ConfigError
from infra.cron import on_calendar, parse_cron

CALENDARS = {
    "0 3 * * 1": "Mon *-*-* 03:00:00",
    "*/20 * * * *": "*-*-* *:00,20,40:00",
    "30 2 1 * *": "*-*-01 02:30:00",
    "0 0 1 1,7 *": "*-01,07-01 00:00:00",
    "5 4 * * sat-sun": "Sun,Sat *-*-* 04:05:00",
    "0 12 * * 1-5": "Mon,Tue,Wed,Thu,Fri *-*-* 12:00:00",
}


@pytest.mark.parametrize(("text", "calendar"), CALENDARS.items())
def test_cron_becomes_a_calendar(text, calendar):
    assert on_calendar(parse_cron(text)) == calendar


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
@pytest.mark.parametrize("text", CALENDARS)
def test_systemd_fires_when_cron_does(text):
    cron, moment = parse_cron(text), datetime(2026, 2, 27, 13, 7, tzinfo=UTC)
    command = ["systemd-analyze", "calendar", "--iterations=4", "--base-time"]
    done = subprocess.run(
        [*command, "2026-02-27 13:07:00 UTC", on_calendar(cron)],
        capture_output=True,
        text=True,
        check=True,
        env={"TZ": "UTC"},
    )
    for _ in range(4):
        moment = cron.next_after(moment)
        assert f"{moment:%Y-%m-%d %H:%M}:00" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        *("", "daily", "@daily", "* * * *", "* * * * * *", "60 * * * *", "0 24 * * *"),
        *("0 0 32 * *", "0 0 31 2 *", "0 0 * 13 *", "0 0 * * 8", "a b c d e"),
        *("0 0 L * *", "0 0 * * 1#2", "; rm -rf", "*/0 * * * *", "5-1 * * * * x"),
    ],
)
def test_what_never_fires_or_is_no_plain_cron_is_refused(text):
    with pytest.raises(ConfigError, match="--cron"):
        parse_cron(text)


def test_systemd_cannot_have_either_day():
    both = parse_cron("0 0 13 * 5")
    with pytest.raises(ConfigError, match="at once"):
        on_calendar(both)
