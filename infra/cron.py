"""Cron expressions: checked, explained, and as systemd writes them."""

import re
from dataclasses import dataclass
from datetime import datetime

from croniter import CroniterError, croniter

from dptune.errors import ConfigError, Problem

_NUM_FIELDS = 5
_PLAIN = re.compile(r"[\w*,/ -]+")
_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")


@dataclass(frozen=True, kw_only=True)
class Cron:
    """A cron expression that fires some day.

    Args:
        text: five fields, as given.
        fields: for each of them its values; `None` where any will do.
    """

    text: str
    fields: tuple[tuple[int, ...] | None, ...]

    def next_after(self, moment: datetime) -> datetime:
        """Return when it fires next."""
        found: datetime = croniter(self.text, moment).get_next(datetime)
        return found


def parse_cron(text: str) -> Cron:
    """Read a cron expression: minute, hour, day of month, month, day of week.

    Raises:
        ConfigError: it is none, has seconds or other extensions, or never fires.
    """
    text = " ".join(text.split())
    if len(text.split(" ")) != _NUM_FIELDS or not _PLAIN.fullmatch(text):
        raise _refused(text, "must have five plain fields")
    try:
        expanded = croniter.expand(text)[0]
        croniter(text, datetime(2024, 1, 1)).get_next()  # noqa: DTZ001 - any will do
    except (CroniterError, ValueError, KeyError):
        raise _refused(text, "must be a cron expression that fires") from None
    fields = []
    for values in expanded:
        if not all(isinstance(value, int) or value == "*" for value in values):
            raise _refused(text, "must be plain cron, which every cluster knows")
        fields.append(None if "*" in values else tuple(sorted(map(int, values))))
    return Cron(text=text, fields=tuple(fields))


def on_calendar(cron: Cron) -> str:
    """Write a cron expression as systemd's OnCalendar.

    Raises:
        ConfigError: it names days of the month and of the week, of which cron takes
            either and systemd both.
    """
    minutes, hours, days, months, weekdays = cron.fields
    if days is not None and weekdays is not None:
        raise _refused(
            cron.text, "must not restrict days of month and week at once for systemd"
        )
    days_of_week = sorted({number % 7 for number in weekdays or ()})  # Sunday: 0 or 7
    week = "" if weekdays is None else ",".join(_DAYS[n] for n in days_of_week) + " "
    return f"{week}*-{_list(months)}-{_list(days)} {_list(hours)}:{_list(minutes)}:00"


def _list(values: tuple[int, ...] | None) -> str:
    """Write values of one field."""
    return "*" if values is None else ",".join(f"{value:02d}" for value in values)


def _refused(text: str, constraint: str) -> ConfigError:
    """Say what is wrong with an expression."""
    return ConfigError(
        [
            Problem(
                path="--cron",
                message=f"{constraint}, got {text!r}.",
                next_step='Such as "0 3 * * 1": Mondays at three.',
            )
        ]
    )
