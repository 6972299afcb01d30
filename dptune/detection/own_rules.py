"""What a configuration itself says: patterns, lists of words, types on and off.

They stand in the YAML of a run and are taken as public, like every other setting: do
not read them off private records. Values of the records' own are `known_values`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dptune.detection.bounded_regex import compiled
from dptune.detection.recognizer import (
    code_digest,
    fingerprint_of,
    is_demanded,
    without_allowed,
)
from dptune.detection.settings import PatternSettings
from dptune.spellings import KnownValue, Spellings, source_digest
from dptune.text import Span

PATTERNS: Final = "own_patterns"
DENY_LISTS: Final = "deny_lists"
_DENIED: Final = 0.9


class OwnPatternRecognizer:
    """Marks what the patterns of a configuration find.

    Args:
        patterns: their expressions are bounded, see `bounded_regex`.
    """

    name = PATTERNS

    def __init__(self, patterns: Sequence[PatternSettings]) -> None:
        self._patterns = [
            (p, compiled(p.regex, ignore_case=p.ignore_case), _context(p))
            for p in patterns
        ]
        self.fingerprint = fingerprint_of(
            (
                code_digest("own_rules", "bounded_regex"),
                *(pattern.model_dump_json() for pattern in patterns),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text."""
        return [
            [
                span
                for pattern, expression, context in self._patterns
                for match in expression.finditer(text)
                if (span := _span(match, pattern, context)) is not None
            ]
            for text in texts
        ]


def _context(pattern: PatternSettings) -> re.Pattern[str] | None:
    """Compile the words beside a hit; longest first, so that none hides another."""
    words = sorted(map(re.escape, pattern.context), key=len, reverse=True)
    whole = rf"(?<!\w)(?:{'|'.join(words)})(?!\w)"
    return re.compile(whole, re.IGNORECASE) if words else None


def _span(
    match: re.Match[str], pattern: PatternSettings, context: re.Pattern[str] | None
) -> Span | None:
    """Return the span of a hit, if it counts."""
    is_named = "value" in match.re.groupindex and match.group("value")
    start, end = match.span("value") if is_named else match.span()
    reach = pattern.context_characters
    text = match.string
    beside = context is not None and (
        context.search(text[max(0, start - reach) : start])
        or context.search(text[end : end + reach])
    )
    if pattern.needs_context and not beside:
        return None
    return Span(
        start=start,
        end=end,
        entity_type=pattern.entity_type,
        recognizer=PATTERNS,
        confidence=pattern.context_score if beside else pattern.score,
    )


class DenyListRecognizer:
    """Marks the phrases of a configuration's lists.

    Args:
        lists: phrases by type.
    """

    name = DENY_LISTS

    def __init__(self, lists: Mapping[str, Sequence[str]]) -> None:
        self._spellings = _spellings(lists)
        parts = [text for kind in sorted(lists) for text in (kind, *lists[kind])]
        code = fingerprint_of((code_digest("own_rules"), source_digest()))
        self.fingerprint = fingerprint_of((code, *parts))

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text."""
        return [
            [
                Span(
                    start=found.start,
                    end=found.end,
                    entity_type=found.entity_type,
                    recognizer=DENY_LISTS,
                    confidence=_DENIED,
                )
                for found in self._spellings.find(text)
            ]
            for text in texts
        ]


def _spellings(lists: Mapping[str, Sequence[str]]) -> Spellings:
    return Spellings(
        [
            KnownValue(value=phrase, entity_type=kind)
            for kind, phrases in lists.items()
            for phrase in phrases
        ],
        parts=False,
    )


class OwnRulesFilter:
    """Takes back marks of types that are off, below their threshold, or allowed.

    **Formal guarantee.** What a deny list, a known value or a recognizer that could not
    judge demands stays, whatever types and allow list say; what has a checksum stays
    whatever the allow list says.

    Args:
        entity_types: by type, whether it counts, or its least confidence.
        allow_list: phrases.
    """

    def __init__(
        self, *, entity_types: Mapping[str, bool | float], allow_list: Sequence[str]
    ) -> None:
        self._least = {kind: _least(value) for kind, value in entity_types.items()}
        self._allowed = _spellings({"ALLOWED": allow_list})
        types = [f"{kind}={value}" for kind, value in sorted(self._least.items())]
        code = fingerprint_of((code_digest("own_rules", "recognizer"), source_digest()))
        self.fingerprint = fingerprint_of((code, *types, "allow", *allow_list))

    def keep(self, spans: Sequence[Span], text: str) -> list[Span]:
        """Return the spans that stay."""
        counted = [span for span in spans if self._counts(span)]
        ranges = [(f.start, f.end) for f in self._allowed.find(text)]
        if not ranges:
            return counted
        # A part of a longer name is not cut out of it.
        whole = [
            (start, end)
            for start, end in ranges
            if not any(_reaches_beyond(span, start, end) for span in counted)
        ]
        return without_allowed(counted, whole)

    def _counts(self, span: Span) -> bool:
        is_enough = span.confidence >= self._least.get(span.entity_type, 0.0)
        return is_enough or is_demanded(span)


def _least(value: bool | float) -> float:  # noqa: FBT001
    """Return the least confidence of a type; above 1 where it is off."""
    if isinstance(value, bool):
        return 0.0 if value else 2.0
    return value


def _reaches_beyond(span: Span, start: int, end: int) -> bool:
    """Whether a mark covers a range and more than it."""
    return (
        span.start < end
        and start < span.end
        and not (start <= span.start and span.end <= end)
    )
