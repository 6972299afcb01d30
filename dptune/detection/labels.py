"""Names of values (`IBAN`, `SSN`, `DOB`) are public: a model learns what follows them.

A recognizer that takes one for a name is corrected where spans are united, whoever it
is. Only guesses are: a span with a checksum or an exact form never loses a letter.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import resources

from dptune.detection.words import CLOSED, reading_of
from dptune.text import Span

LABELS = (resources.files("dptune.detection") / "labels.json").read_text("utf8")
_TABLE = json.loads(LABELS)
_ALWAYS = frozenset(_TABLE["always"].split())
_AS_LABEL = frozenset(_TABLE["written_as_label"].split())
_BEFORE_SIGN = _ALWAYS | _AS_LABEL | frozenset(_TABLE["before_a_sign"].split())
GUESSED = frozenset(
    ["PERSON", "ORG", "ENTITY", "UNKNOWN", "GPE", "LOC", "FAC", "NORP", "PRODUCT"]
)
_WORD = re.compile(r"[^\W_]+(?:[./'’-][^\W_]+)*")
_SIGN = re.compile(
    r"\.?[\"')\]*]{0,3}\s{0,2}(?:[:=#]|(?:nos?|nr|numbers?|ids?|codes?)\b)",
    re.IGNORECASE,
)
_SURE = 1.0


def without_labels(spans: Iterable[Span], text: str) -> Iterator[Span]:
    """Cut labels off the edges of guessed names; what is nothing else goes.

    >>> ssn = Span(start=0, end=3, entity_type="ORG", confidence=0.5)
    >>> list(without_labels([ssn], "SSN 123-45-6789"))
    []

    Args:
        spans: what recognizers found in a text.
        text: the text.
    """
    for span in spans:
        if span.entity_type not in GUESSED or span.confidence >= _SURE:
            yield span
            continue
        start, end = _inside(text, span.start, span.end)
        if (start, end) == (span.start, span.end):
            yield span
        elif start < end:
            yield replace(span, start=start, end=end)


def _inside(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the range that is left of a span without labels at its edges."""
    whole = end
    while text[whole : whole + 1].isdigit():  # `IPv` of `IPv6`
        whole += 1
    words = [match.span() for match in _WORD.finditer(text, start, whole)]
    if not words or end - start > 80:
        return start, end
    if _SIGN.match(text, whole) and all(
        text[a:b].lower() in _BEFORE_SIGN for a, b in words
    ):
        return end, end
    first, last = 0, len(words)
    while first < last and _goes(text, *words[first], is_first=first == 0):
        first += 1
    behind = last
    while first < last and _goes(text, *words[last - 1], is_first=last == behind):
        last -= 1
    if first == last:
        return end, end
    return (
        words[first][0] if first else start,
        words[last - 1][1] if last < len(words) else end,
    )


def _goes(text: str, start: int, end: int, *, is_first: bool) -> bool:
    """Tell whether a word at the edge goes: a label, or what joins it to the next."""
    if _is_label(text, start, end):
        return True
    return not is_first and reading_of(text[start:end].lower()) & CLOSED > 0


def _is_label(text: str, start: int, end: int) -> bool:
    """Tell whether a whole word names a kind of value."""
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    if before.isalnum() or after.isalnum():
        return False
    word = text[start:end]
    lowered = word.lower()
    if lowered in _ALWAYS:
        return True
    return lowered in _AS_LABEL and (
        word.isupper() or _SIGN.match(text, end) is not None
    )
