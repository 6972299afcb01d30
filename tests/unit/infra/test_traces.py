"""Spans as a collector gets them: real HTTP, real OTLP, and no text of a record."""

import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from uuid import UUID

import pytest

from steps import _observing

RUN = UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
SECRET = "Maria Huber, access code 731 402"


@pytest.fixture
def collector(monkeypatch):
    """What was posted to a collector: path, content type and body."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield posted
    server.shutdown()
    server.server_close()


def end_step(monkeypatch, error):
    """Call the hook as ZenML does."""
    context = SimpleNamespace(
        pipeline_run=SimpleNamespace(id=RUN, name="nightly-2026"),
        step_run=SimpleNamespace(name="attack", start_time=datetime.now(tz=UTC)),
    )
    monkeypatch.setattr(_observing, "get_step_context", lambda: context)
    _observing.step_ended(error)


def read(posted):
    """Decode the only span, with the attributes of its resource."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )

    ((path, kind, body),) = posted
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (scope,) = resource.scope_spans
    (span,) = scope.spans
    return span, {a.key: a.value.string_value for a in resource.resource.attributes}


@pytest.mark.parametrize("error", [None, ValueError(SECRET)])
def test_span_says_which_step_of_which_run_and_the_kind_of_error(
    collector, monkeypatch, error
):
    end_step(monkeypatch, error)
    span, resource = read(collector)
    assert span.trace_id == RUN.bytes
    assert span.name == "attack"
    said = {a.key: a.value.string_value for a in span.attributes}
    assert said == {"dptune.run": "nightly-2026", "dptune.step": "attack"}
    assert not span.events  # where a trace of the stack would be
    assert span.status.message == ("" if error is None else type(error).__name__)
    assert resource["service.name"] == "dptune"


def test_no_text_of_an_error_reaches_the_collector(collector, monkeypatch):
    end_step(monkeypatch, ValueError(SECRET))
    ((*_, body),) = collector
    assert SECRET.encode() not in body
    assert b"Maria" not in body


def test_twin_that_quotes_its_error_is_told_apart(collector, monkeypatch):
    def quoting(exporter, *, error, **names):
        return sound(exporter, error=error and SECRET, **names)

    sound = _observing.record_span
    monkeypatch.setattr(_observing, "record_span", quoting)
    end_step(monkeypatch, ValueError(SECRET))
    ((*_, body),) = collector
    assert SECRET.encode() in body
