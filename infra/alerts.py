"""Alerts to a webhook: what happened to a run, in figures and names, never in text.

The URL comes by reference (`DPTUNE_ALERT_URL`), since whoever has it can post. Any
server that takes JSON will do; Slack's incoming webhooks, and what speaks like them,
get the `text` that they show. An alert that cannot be sent never fails a run.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from dptune.errors import BudgetExceededError, GateFailedError

_LOG = logging.getLogger(__name__)
_SECONDS, _ATTEMPTS = 5.0, 3
_SLACK_HOSTS = (".slack.com", ".slack-gov.com")
BUDGET_SHARE = 0.8
"""Part of a data set's budget from which on every run says how much is left."""


class Event(StrEnum):
    """What an alert is about; `docs/OPERATIONS.md` has a runbook for each."""

    SUCCESS = "success"
    REFUSAL = "refusal"
    FAILURE = "failure"
    BUDGET = "budget"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One message.

    Args:
        event: what it is about.
        title: one line.
        fields: names and figures; never record text, ids of records, or tokens.
    """

    event: Event
    title: str
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """For people."""
        details = [f"• {name}: {value}" for name, value in self.fields.items()]
        return "\n".join([f"dptune {self.event}: {self.title}", *details])


def alert_refusal(error: BaseException, *, run: str, step: str = "") -> None:
    """Say that a run was refused or failed.

    A message is quoted only where it is made of figures: budgets and gates. Of any
    other error the kind is named; the rest stays in the run's own log.
    """
    kind = type(error).__name__
    fields = {"run": run, **({"step": step} if step else {}), "error": kind}
    if isinstance(error, BudgetExceededError | GateFailedError):
        refusal = Alert(
            event=Event.REFUSAL,
            title=f"{run} was refused",
            fields={**fields, "reason": str(error)[:1000]},
        )
        send_alert(refusal)
        return
    send_alert(Alert(event=Event.FAILURE, title=f"{run} failed", fields=fields))


def send_alert(alert: Alert, *, url: str | None = None) -> bool:
    """Post an alert, if there is anywhere to.

    Args:
        alert: what to say.
        url: where; `DPTUNE_ALERT_URL` by default.

    Returns:
        whether a server took it.
    """
    url = url or os.environ.get("DPTUNE_ALERT_URL")
    if not url:
        return False
    if urlsplit(url).scheme not in ("http", "https"):
        _LOG.warning("DPTUNE_ALERT_URL must be http or https; no alert was sent")
        return False
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.5 * attempt)
        done, again = _post(url, _body(alert, url))
        if done or not again:
            return done
    return False


def _body(alert: Alert, url: str) -> bytes:
    """Write the message; Slack takes only what it knows."""
    host = urlsplit(url).hostname or ""
    values: dict[str, object] = {"text": alert.text}
    if not host.endswith(_SLACK_HOSTS):
        values |= {"event": alert.event, "title": alert.title}
        values["fields"] = dict(alert.fields)
    return json.dumps(values).encode()


class _NoRedirect(HTTPRedirectHandler):
    """Refuse to carry an alert to another server."""

    def redirect_request(self, *_: object) -> None:
        """Follow nobody."""


def _post(url: str, body: bytes) -> tuple[bool, bool]:
    """Post once; returns whether it was taken, and whether to try again."""
    request = Request(  # noqa: S310 - http(s), checked by the caller
        url, data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with build_opener(_NoRedirect).open(request, timeout=_SECONDS) as answer:
            return answer.status < HTTPStatus.MULTIPLE_CHOICES, False
    except HTTPError as error:
        _LOG.warning("no alert was sent: the server answered %d", error.code)
        busy = error.code == HTTPStatus.TOO_MANY_REQUESTS
        return False, busy or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    except (URLError, OSError, ValueError) as error:
        _LOG.warning("no alert was sent: %s", type(error).__name__)
        return False, True
