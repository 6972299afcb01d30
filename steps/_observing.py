"""ZenML hooks that observe: JSON logs and OpenTelemetry spans, where they are wanted.

All steps of a run make one trace: its id is the run's, so that pods that know nothing
of each other agree on it.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from zenml import get_step_context

from infra.logs import FORMAT, log_event, use_json_logs, wants_json
from infra.private import write_for_owner_only

if TYPE_CHECKING:
    from uuid import UUID

    from opentelemetry.sdk.trace.export import SpanExporter

_LOG = logging.getLogger(__name__)
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SHORT = 2**64 - 1


def hooks(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the hooks of steps: what guards their files, and what is asked for."""
    if environment.get(FORMAT) != "json" and not environment.get(_ENDPOINT):
        return {"on_start": step_started}
    return {"on_start": step_started, "on_end": step_ended}


def step_started() -> None:
    """Hook: a step starts, in its own process on a cluster."""
    write_for_owner_only()
    if not wants_json():
        return
    use_json_logs()
    context = get_step_context()
    run, step = context.pipeline_run.name, context.step_run.name
    log_event("step started", run=run, step=step)


def step_ended(exception: BaseException | None = None) -> None:
    """Hook: an attempt at a step ended, well or not."""
    context = get_step_context()
    started = context.step_run.start_time or datetime.now(tz=UTC)
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    error = None if exception is None else type(exception).__name__
    names = {"run": context.pipeline_run.name, "step": context.step_run.name}
    if wants_json():
        seconds = (datetime.now(tz=UTC) - started).total_seconds()
        log_event(
            "step ended",
            run=names["run"],
            step=names["step"],
            seconds=round(seconds, 3),
            error=error,
        )
    if os.environ.get(_ENDPOINT):
        with suppress(ImportError):
            record_span(
                _otlp(),
                run_id=context.pipeline_run.id,
                started=started,
                error=error,
                **names,
            )


def record_span(
    exporter: "SpanExporter",
    *,
    run_id: "UUID",
    run: str,
    step: str,
    started: datetime,
    error: str | None,
) -> None:
    """Export one span of a step that has just ended.

    Args:
        exporter: where to.
        run_id: of the run: the id of its trace.
        run: name of the run.
        step: name of the step.
        started: when it started.
        error: kind of its error; None where it succeeded.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "dptune"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent = trace.SpanContext(
        trace_id=run_id.int,
        span_id=(run_id.int & _SHORT) or 1,
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    span = provider.get_tracer("dptune").start_span(
        step,
        context=trace.set_span_in_context(trace.NonRecordingSpan(parent)),
        start_time=int(started.timestamp() * 1e9),
        attributes={"dptune.run": run, "dptune.step": step},
    )
    if error is not None:
        span.set_status(trace.StatusCode.ERROR, error)
    span.end()
    provider.shutdown()


def _otlp() -> "SpanExporter":
    """Make the exporter that the environment describes."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
    except ImportError:
        _LOG.warning("no trace: pip install opentelemetry-exporter-otlp-proto-http")
        raise
    exporter: SpanExporter = OTLPSpanExporter(timeout=5)
    return exporter
