"""Logs for machines: one JSON object a line, on request (`DPTUNE_LOG_FORMAT=json`)."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

FORMAT = "DPTUNE_LOG_FORMAT"
_OURS = "dptune"


def wants_json() -> bool:
    """Whether lines are for machines."""
    return os.environ.get(FORMAT) == "json"


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON.

    An exception is named by its kind: its message may quote data, and its trace is in
    the step's own record in ZenML.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        values = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            values["error"] = record.exc_info[0].__name__
        return json.dumps(values, ensure_ascii=False)


def use_json_logs(stream: TextIO | None = None) -> None:
    """Let all loggers of this process write JSON; idempotent."""
    root = logging.getLogger()
    if any(isinstance(h.formatter, JsonFormatter) for h in root.handlers):
        return
    handler = logging.StreamHandler(stream or sys.__stderr__)
    handler.setFormatter(JsonFormatter())
    root.handlers[:] = [handler]


def log_event(event: str, *, stream: TextIO | None = None, **fields: object) -> None:
    """Write one event as JSON.

    Args:
        event: what happened, as a person would say it.
        stream: standard output by default, past whoever has wrapped it.
        **fields: figures and names; never record text.
    """
    values = {
        "time": _timestamp(datetime.now(tz=UTC).timestamp()),
        "level": "info",
        "logger": _OURS,
        "event": event,
        **fields,
    }
    out = stream or sys.__stdout__
    if out is not None:
        out.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")
        out.flush()


def _timestamp(seconds: float) -> str:
    """Write a time in UTC with milliseconds."""
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
