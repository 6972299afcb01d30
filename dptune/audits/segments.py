"""The record of a run: what each process start saw, put together.

**Privacy**: verdicts and one-way digests of streams.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from dptune.audits.step_report import StepCheck
from dptune.results import Report


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
