"""Recognizer of the languages that have tables, and of words in other scripts."""

from collections.abc import Iterator, Sequence

from dptune.detection.languages.cased import find_cased_names
from dptune.detection.languages.foreign import find_foreign_words
from dptune.detection.languages.identify import (
    ENGLISH,
    UNDETERMINED,
    language_of,
    parts_of,
)
from dptune.detection.languages.spaced import find_spaced_names
from dptune.detection.languages.tables import (
    CASED,
    LANGUAGES,
    SPACED,
    data_bytes,
    lower,
    plain,
)
from dptune.detection.languages.unspaced import find_unspaced_names
from dptune.detection.languages.values import Found, find_values
from dptune.detection.recognizer import (
    Tier,
    code_digest,
    entity_types,
    fingerprint_of,
)
from dptune.detection.settings import UnknownLanguage
from dptune.text import Span

_FIRST_OTHER = "\u0250"
"""Where the Latin letters end: the language itself judges decomposed words of it."""
_MODULES = tuple(
    f"languages/{name}"
    for name in (
        *(
            "cased",
            "foreign",
            "identify",
            "namelike",
            "numbers",
            "recognizer",
            "segment",
        ),
        *("spaced", "tables", "unspaced", "values"),
    )
)


_LONGEST_OPEN = 400


class LanguageRecognizer:
    """Finds names and values in the languages that have tables.

    Args:
        tier: keeps the types that count in it.
        known: languages that any recognizer of the detector knows.
        unknown: `mask` covers a text in another one whole, `keep` leaves it alone.
    """

    name = "languages"

    def __init__(
        self,
        *,
        tier: Tier,
        known: frozenset[str] = frozenset((ENGLISH, *LANGUAGES)),
        unknown: UnknownLanguage = UnknownLanguage.REFUSE,
    ) -> None:
        self._types = entity_types(tier)
        self._known = known
        self._unknown = unknown
        self.fingerprint = fingerprint_of(
            (
                *(self.name, tier, unknown, *sorted(known)),
                *(code_digest(*_MODULES, "words"), *data_bytes()),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text, in any order; they may overlap."""
        return [list(self._spans(text)) for text in texts]

    def _spans(self, text: str) -> Iterator[Span]:
        parts = parts_of(text)
        if len(parts) == 1 and parts[0].language == ENGLISH and text.isascii():
            return
        if language_of(text) not in (self._known | {UNDETERMINED}):
            if self._unknown is UnknownLanguage.KEEP:
                return
            if self._unknown is UnknownLanguage.MASK and text.strip():
                yield self._span(0, len(text), "UNKNOWN", 0.5)
                return
        for part in parts:
            own = text[part.start : part.end]
            for start, end, kind, confidence in _found(own, part.language):
                if kind in self._types and start < end:
                    yield self._span(
                        part.start + start, part.start + end, kind, confidence
                    )

    def _span(self, start: int, end: int, kind: str, confidence: float) -> Span:
        return Span(
            start=start,
            end=end,
            entity_type=kind,
            recognizer=self.name,
            confidence=confidence,
        )


def _found(text: str, code: str) -> Iterator[Found]:
    """Yield what a part in one language holds, by places of the part."""
    if code not in LANGUAGES:
        yield from find_foreign_words(text)
        if code == UNDETERMINED and len(text) <= _LONGEST_OPEN:
            yield from _dates_and_ages(text)
        return
    view, origin = plain(text, code)
    for start, end, kind, confidence in _in_view(view, code):
        if origin is None:
            yield start, end, kind, confidence
        else:
            yield origin[start], origin[end], kind, confidence
    if code in CASED:
        yield from (
            found
            for found in find_foreign_words(text)
            if text[found[0]] >= _FIRST_OTHER
        )


def _dates_and_ages(text: str) -> Iterator[Found]:
    """Yield dates and ages in the words of any language, of a text too short to tell.

    Its words are unknown to English, and masked; the digits beside them are not.
    """
    if not any(map(str.isdecimal, text)):
        return
    for code in LANGUAGES:
        view, origin = plain(text, code)
        if origin is None:
            for found in find_values(view, lower(view, code), code):
                if found[2] in {"DATE", "AGE"}:
                    yield found


def _in_view(view: str, code: str) -> Iterator[Found]:
    lowered = lower(view, code)
    yield from find_values(view, lowered, code)
    if code in CASED:
        yield from find_cased_names(view, lowered, code)
    elif code in SPACED:
        yield from find_spaced_names(view, code)
    else:
        yield from find_unspaced_names(view, code)
