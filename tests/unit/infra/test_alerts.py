"""Alerts against a real local server: what is said, and what never is."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dptune.errors import BudgetExceededError, DataError, GateFailedError, Problem
from infra import alerts
from infra.alerts import Alert, Event, alert_refusal, send_alert

SECRET = "Maria Huber, 4711"


@pytest.fixture
def webhook(monkeypatch):
    """A server that keeps what it is sent; answers `statuses` in turn, then 200."""
    monkeypatch.setattr(alerts.time, "sleep", lambda _: None)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            self.server.received.append(json.loads(self.rfile.read(length)))
            status = self.server.statuses.pop(0) if self.server.statuses else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{self.server.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
    served.received, served.statuses = [], []
    served.url = f"http://127.0.0.1:{served.server_port}"
    monkeypatch.setenv("DPTUNE_ALERT_URL", f"{served.url}/hook")
    yield served
    served.shutdown()
    served.server_close()


def test_alert_is_for_people_and_for_programs(webhook):
    alert = Alert(event=Event.BUDGET, title="85% spent", fields={"data set": "a"})
    assert send_alert(alert)
    (body,) = webhook.received
    assert body["text"] == "dptune budget: 85% spent\n• data set: a"
    assert body["event"] == "budget"
    assert body["fields"] == {"data set": "a"}


def test_slack_gets_nothing_but_text():
    alert = Alert(event=Event.SUCCESS, title="x")
    body = json.loads(alerts._body(alert, "https://hooks.slack.com/services/T/B/x"))
    assert body == {"text": "dptune success: x"}


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (BudgetExceededError("left 0.5, asked 4"), "refusal"),
        (GateFailedError("version 3: BLOCK"), "refusal"),
        (DataError([Problem(path=f"row 3 ({SECRET})", message=SECRET)]), "failure"),
        (ValueError(SECRET), "failure"),
        (KeyboardInterrupt(), "failure"),
    ],
)
def test_refusals_are_told_from_failures_and_quote_figures_only(webhook, error, event):
    alert_refusal(error, run="mine, jft", step="ingest")
    (body,) = webhook.received
    assert body["event"] == event
    assert SECRET not in json.dumps(body)
    assert type(error).__name__ in body["text"]
    assert ("reason" in body["fields"]) == (event == "refusal")


@pytest.mark.parametrize(
    ("statuses", "sent", "tries"),
    [
        ([], True, 1),
        ([503], True, 2),
        ([429, 500], True, 3),
        ([500, 500, 500], False, 3),
        ([400], False, 1),
        ([302], False, 1),
    ],
)
def test_busy_servers_are_asked_again_and_redirects_not_followed(
    webhook, statuses, sent, tries
):
    webhook.statuses += statuses
    assert send_alert(Alert(event=Event.SUCCESS, title="x")) is sent
    assert len(webhook.received) == tries


def test_server_that_is_gone_fails_nothing_and_its_url_is_not_logged(webhook, caplog):
    webhook.shutdown()
    webhook.server_close()
    assert not send_alert(Alert(event=Event.FAILURE, title="x"))
    assert webhook.url not in caplog.text
    assert "no alert was sent" in caplog.text


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://x/", "gopher:x"])
def test_url_of_another_kind_is_not_opened(url):
    assert not send_alert(Alert(event=Event.SUCCESS, title="x"), url=url)


def test_nothing_is_sent_where_nothing_is_configured(monkeypatch):
    monkeypatch.delenv("DPTUNE_ALERT_URL", raising=False)
    assert not send_alert(Alert(event=Event.SUCCESS, title="x"))
