"""Spans: half-open ranges of code points of the original text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dptune.errors import DetectionError

MASK = "<mask>"
"""What redaction puts for a span, and the token that models read it as."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Span:
    """A half-open range `[start, end)` of code points that names somebody or something.

    Args:
        start: first code point.
        end: one past the last code point, greater than `start`.
        entity_type: `UPPER_SNAKE` type such as `PERSON` or `EMAIL`.
        recognizer: name of the recognizer that found it.
        confidence: in [0, 1]; 1.0 is kept for hits with a valid checksum or exact form.

    Raises:
        DetectionError: the range is empty or negative, or confidence is out of range.
    """

    start: int
    end: int
    entity_type: str
    recognizer: str = "unknown"
    confidence: float = 1.0

    def __post_init__(self) -> None:
        """Refuse empty ranges, so that no span can label nothing."""
        if not 0 <= self.start < self.end:
            raise DetectionError(
                f"span must satisfy 0 <= start < end, got start={self.start}, "
                f"end={self.end}. Drop empty matches before making spans."
            )
        if not 0.0 <= self.confidence <= 1.0:
            raise DetectionError(
                f"confidence must be in [0, 1], got confidence={self.confidence}."
            )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read one struct of the column `spans`; recognizer and confidence may lack.

        >>> Span.from_row({"start": 3, "end": 8, "entity_type": "PERSON"}).end
        8
        """
        return cls(**{**row, "confidence": float(row.get("confidence", 1.0))})
