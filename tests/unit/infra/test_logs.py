"""JSON logs hold no trace, and spans of all pods make one trace."""

import io
import json
import logging
from datetime import UTC, datetime, timedelta
from uuid import UUID

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from infra.logs import JsonFormatter, log_event
from steps._observing import hooks, record_span

RUN = UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)


def line_of(log):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("somebody")
    logger.addHandler(handler)
    log(logger)
    (line,) = stream.getvalue().splitlines()
    return json.loads(line)


def test_a_record_is_one_line_of_json():
    found = line_of(lambda logger: logger.warning("a\nb %d", 3))
    assert found["event"] == "a\nb 3"
    assert (found["level"], found["logger"]) == ("warning", "somebody")
    assert datetime.fromisoformat(found["time"]).tzinfo is not None


def test_an_exception_is_named_and_not_quoted():
    def fail(logger):
        try:
            raise ValueError("Maria Huber")
        except ValueError:
            logger.exception("step failed")

    found = line_of(fail)
    assert found["error"] == "ValueError"
    assert "Maria" not in json.dumps(found)


def test_an_event_has_its_figures():
    stream = io.StringIO()
    log_event("step ended", stream=stream, step="attack", seconds=1.5)
    found = json.loads(stream.getvalue())
    assert (found["event"], found["seconds"]) == ("step ended", 1.5)


def test_hooks_are_set_only_where_they_are_wanted():
    assert set(hooks({})) == {"on_start"}
    assert set(hooks({"DPTUNE_LOG_FORMAT": "json"})) == {"on_start", "on_end"}
    assert hooks({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})


def test_steps_of_a_run_are_one_trace():
    spans = []
    started = datetime.now(tz=UTC) - timedelta(seconds=5)
    for step, error in (("ingest", None), ("attack", "ValueError")):
        exporter = InMemorySpanExporter()
        record_span(
            exporter, run_id=RUN, run="r", step=step, started=started, error=error
        )
        spans += exporter.get_finished_spans()
    assert [span.name for span in spans] == ["ingest", "attack"]
    assert {span.context.trace_id for span in spans} == {RUN.int}
    assert [span.status.is_ok for span in spans] == [True, False]
    assert spans[1].status.description == "ValueError"
    assert all(span.end_time - span.start_time >= 5e9 for span in spans)
    assert spans[0].resource.attributes["service.name"] == "dptune"
