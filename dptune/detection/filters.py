"""What takes marks back before they are united, and what no list may take back."""

from collections.abc import Iterable, Sequence
from typing import Final

from dptune.detection.recognizer import UNAVAILABLE, SpanFilter, fingerprint_of
from dptune.text import Span

CHECKSUM_CONFIDENCE: Final = 0.95
"""Spans from here on have a valid checksum or an exact form: nobody takes them back."""

_DEMANDING: Final = frozenset(["deny_list", "deny_lists", "known_values"])
"""Recognizers that mark what somebody said must be marked."""


def is_demanded(span: Span) -> bool:
    """Whether somebody said that it must be marked, or nobody could judge it."""
    return span.entity_type == UNAVAILABLE or span.recognizer in _DEMANDING


def is_firm(span: Span) -> bool:
    """Whether no list may take a span back."""
    return is_demanded(span) or span.confidence >= CHECKSUM_CONFIDENCE


def without_allowed(
    spans: Sequence[Span], allowed: Iterable[tuple[int, int]]
) -> list[Span]:
    """Take back the spans that lie inside an allowed range, unless they are firm."""
    ranges = tuple(allowed)
    return [
        span
        for span in spans
        if is_firm(span)
        or not any(start <= span.start and span.end <= end for start, end in ranges)
    ]


class Filters:
    """Several filters, one after another."""

    def __init__(self, filters: Sequence[SpanFilter]) -> None:
        self._filters = tuple(filters)
        self.fingerprint = fingerprint_of(f.fingerprint for f in self._filters)

    def keep(self, spans: Sequence[Span], text: str) -> Sequence[Span]:
        """Return the spans that every filter keeps."""
        for one in self._filters:
            spans = one.keep(spans, text)
        return spans


def chained(*filters: SpanFilter | None) -> SpanFilter | None:
    """Return one filter for all that are given; None for none."""
    given = [one for one in filters if one is not None]
    if len(given) < 2:
        return given[0] if given else None
    return Filters(given)
