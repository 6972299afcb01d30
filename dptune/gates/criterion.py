"""One line of a decision: measured, threshold, verdict, reason, next step."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from dptune.results import Interval, Report


class Verdict(StrEnum):
    """What one criterion says. `NOT_APPLICABLE` is never used for missing evidence."""

    PASS = "PASS"  # noqa: S105 - a verdict
    BLOCK = "BLOCK"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_APPLICABLE = "NOT_APPLICABLE"


class GateOutcome(StrEnum):
    """What the gate says."""

    PASS = "PASS"  # noqa: S105 - an outcome
    BLOCK = "BLOCK"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class Criterion(Report):
    """A check, and what it found.

    Args:
        name: such as `memorization`.
        verdict: what it says.
        measured: the figure that was compared.
        interval: its confidence interval, if it has one.
        threshold: what it was compared with.
        reason: one sentence.
        what_would_change_it: one sentence in the imperative; empty on a pass.
    """

    name: str
    verdict: Verdict
    measured: float | None = None
    interval: Interval | None = None
    threshold: float | None = None
    reason: str
    what_would_change_it: str = ""


def missing(name: str, what: str) -> Criterion:
    """Evidence that should be there and is not."""
    return Criterion(
        name=name,
        verdict=Verdict.INCONCLUSIVE,
        reason=f"There is no {what}.",
        what_would_change_it=f"Run the step that writes the {what}.",
    )


def broken(name: str, reason: str) -> Criterion:
    """Evidence that contradicts itself, holds NaN, or is of something else."""
    return Criterion(
        name=name,
        verdict=Verdict.INVALID,
        reason=reason,
        what_would_change_it="Measure again on this model, and look for the fault.",
    )


def holds_nan(value: object) -> bool:
    """Whether a NaN is anywhere in a dumped report."""
    if isinstance(value, float):
        return math.isnan(value)
    if value is None or isinstance(value, str | int):  # most are, and Mapping is slow
        return False
    if isinstance(value, Mapping):
        return any(map(holds_nan, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_nan, value))


def any_nan(values: Iterable[float | None]) -> bool:
    """Whether a value is NaN."""
    return any(value is not None and math.isnan(value) for value in values)


def canonical_digest(report: Report) -> str:
    """SHA-256 of a report's JSON with sorted keys; NaN and infinity are strings."""
    values = json.loads(report.model_dump_json())
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
