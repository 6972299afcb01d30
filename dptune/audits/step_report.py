"""What step-level checks found: plain figures, no data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from pydantic import TypeAdapter

from dptune.results import Report

FALSE_ALARM_RATE: Final = 1e-6
"""Probability that a check fails on a sound engine."""


class StepCheck(Report):
    """One check of the engine.

    Args:
        name: such as `sensitivity`.
        passed: whether the engine does what the plan says.
        measured: the figure, if it is one.
        limit: what it was compared with.
        detail: what the figure is.
    """

    name: str
    passed: bool
    measured: float | None = None
    limit: float | None = None
    detail: str

    @classmethod
    def failed(cls: type[Self], name: str, detail: str) -> Self:
        """A check that fails without a figure."""
        return cls(name=name, passed=False, detail=detail)


class StepAudit(Report):
    """All step-level checks of one stage.

    Args:
        stage: name of the stage.
        recipe: that it belongs to.
        data_fingerprint: of the corpus that the steps were run on.
        checks: in the order in which they ran.
        is_private: whether the stage has noise to look at.
        num_steps: of the stage.
        num_recorded: steps that were looked at while the stage trained; None where
            nobody could.
        unrecorded: why nobody could.
        seconds: that the checks took after the stage had trained.
    """

    stage: str
    recipe: str
    data_fingerprint: str
    checks: tuple[StepCheck, ...]
    is_private: bool = True
    num_steps: int = 0
    num_recorded: int | None = None
    unrecorded: str = ""
    seconds: float = 0.0

    @property
    def failed(self: Self) -> tuple[str, ...]:
        """Names of the checks that did not pass."""
        return tuple(check.name for check in self.checks if not check.passed)

    @property
    def summary(self: Self) -> str:
        """One line: what was found."""
        if not self.checks:
            return "not audited"
        failed = self.failed
        return f"failed: {', '.join(failed)}" if failed else "passed"

    @property
    def passed(self: Self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)


class Segment(Report):
    """What one process start saw up to its last checkpoint.

    Args:
        attempt: number of the process start.
        first_step: where it began.
        num_steps: that it saw.
        streams: one-way digests of its secrets.
        checks: verdicts.
    """

    attempt: int
    first_step: int
    num_steps: int
    streams: tuple[str, ...]
    checks: tuple[StepCheck, ...]


_SEGMENTS: Final = TypeAdapter(tuple[Segment, ...])


def read_segments(file: Path) -> tuple[Segment, ...]:
    """Read what the process starts of a run saw; nothing if nobody looked on."""
    return _SEGMENTS.validate_json(file.read_bytes()) if file.is_file() else ()


def merged_checks(segments: Sequence[Segment]) -> list[StepCheck]:
    """Return one check of each name: the first that failed, or the last."""
    found: dict[str, StepCheck] = {}
    for check in (check for segment in segments for check in segment.checks):
        earlier = found.get(check.name)
        if earlier is None or earlier.passed:
            found[check.name] = check
    return [c.model_copy(update={"name": f"run_{n}"}) for n, c in found.items()]


def count_steps(segments: Sequence[Segment]) -> int:
    """Count the steps of a run, from its first on, that somebody saw."""
    seen = 0
    for segment in sorted(segments, key=lambda s: s.first_step):
        if segment.first_step <= seen:
            seen = max(seen, segment.first_step + segment.num_steps)
    return seen
