"""Recognizer of the languages that have tables, and of words in other scripts.

In English text every word in another script is an unknown word, and so is one whose
letters carry marks of their own unless English knows its composed form. Marks join
the letters before them, so that no word is cut into pieces.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from dptune.detection import words as w
from dptune.detection.languages.cased import find_cased_names
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
from dptune.detection.languages.values import Found, find_read_out, find_values
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
        *("cased", "identify", "namelike", "recognizer", "spaced"),
        *("tables", "unspaced", "values"),
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
            yield from _read_out(text)
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


def _read_out(text: str) -> Iterator[Found]:
    """Yield what is read out in any language, of a text too short to tell."""
    lowered = text.lower()
    if len(lowered) == len(text):
        yield from find_read_out(text, lowered)


def _in_view(view: str, code: str) -> Iterator[Found]:
    lowered = lower(view, code)
    yield from find_values(view, lowered, code)
    if code in CASED:
        yield from find_cased_names(view, lowered, code)
    elif code in SPACED:
        yield from find_spaced_names(view, code)
    else:
        yield from find_unspaced_names(view, code)


_OTHER = (
    "\u0370-\u037d\u037f-\u0386\u0388-\u0559\u0561-\u0588\u0591-\u05bd\u05bf\u05c1-\u05c2"
    "\u05c4-\u05c5\u05c7-\u05f4\u0610-\u061a\u0620-\u0669\u066e-\u06d3\u06d5-\u06ff"
    "\u0710-\u0963\u0966-\u0e2e\u0e30-\u0e3a\u0e40-\u0e4e\u0e50-\u0f03\u0f18-\u0f33"
    "\u0f35-\u0f39\u0f3e-\u1049\u1050-\u1360\u1369-\u169a\u16a0-\u16ea\u1700-\u17d3"
    "\u17d7\u17dc-\u17ff\u1810-\u1dff\u1f00-\u1fff\u2c00-\u2dff\u3005-\u3007\u3031-\u3035"
    "\u3041-\u30fa\u30fc-\ua4cf\ua4d0-\ua4fd\ua500-\ua60c\ua610-\ua672\ua674-\ua67d"
    "\ua67f-\ua6f1\ua720-\ua873\ua880-\ua8cd\ua8d0-\ua8f7\ua8fb-\uabea\uabec-\ud7ff"
    "\uf900-\ufd3d\ufd50-\ufdff\ufe70-\ufefc\uff66-\uffdc"
    "\U00010000-\U000100ff\U00010280-\U0001bfff\U00020000-\U0003ffff"
)
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f"
_RUN = re.compile(
    f"[{_OTHER}][{_OTHER}{_MARKS}\u200c\u200d]*"
    f"(?:[ '’.\u00b7-]{{1,2}}[{_OTHER}][{_OTHER}{_MARKS}\u200c\u200d]*)*"
)
_HAS_OTHER = re.compile(f"[{_OTHER}]")
_HAS_MARK = re.compile(f"[{_MARKS}]")
_LATIN_RUN = re.compile(f"(?:[^\\W\\d_]|[{_MARKS}])+")


def find_foreign_words(text: str) -> Iterator[Found]:
    """Yield runs of words in scripts other than Latin, and unknown marked words.

    Args:
        text: as it is, of a part whose language is written in Latin letters or open.
    """
    if text.isascii():
        return
    if _HAS_OTHER.search(text):
        for match in _RUN.finditer(text):
            if any(map(str.isalpha, match.group())):
                yield *match.span(), "UNKNOWN", 0.5
    if _HAS_MARK.search(text):
        for match in _LATIN_RUN.finditer(text):
            word = match.group()
            if _HAS_MARK.search(word) and any(map(str.isalpha, word)):
                composed = unicodedata.normalize("NFC", word).lower()
                if not w.reading_of(composed) & w.LEXICAL:
                    yield *match.span(), "UNKNOWN", 0.5
