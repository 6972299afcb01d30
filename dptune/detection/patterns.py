"""Recognizer of personal data that has a form: regular expressions and checksums."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from dptune.detection.canonical import canonical
from dptune.detection.national_ids import CRYPTO_RULES, NATIONAL_RULES
from dptune.detection.place_rules import PLACE_RULES
from dptune.detection.recognizer import Tier, entity_types, fingerprint_of
from dptune.detection.rules import STRUCTURED_RULES, Rule
from dptune.detection.time_rules import AMOUNT_RULES, DATE_RULES, TIME_RULES
from dptune.text import Span

_VERSION = "1"
_ALL_RULES: tuple[Rule, ...] = (
    *STRUCTURED_RULES,
    *NATIONAL_RULES,
    *CRYPTO_RULES,
    *PLACE_RULES,
    *DATE_RULES,
    *TIME_RULES,
    *AMOUNT_RULES,
)
_DIGIT = re.compile(r"\d")
_NO_END = 1 << 62
_EDGE = " \t\r\n,;:.!?"

# Numbers that look like identifiers and are none: ISO 2108 book numbers, software
# versions, prices. No structured span may lie wholly inside one that is labelled; one
# that only has the shape gives way to a date.
_PUBLIC_NUMBER = re.compile(
    r"(?P<labelled>\bisbn(?:-1[03])?:?\s{0,2}[\dx][\dx -]{8,20}"
    r"|\b(?:v|ver|version|release|firmware|build|section|chapter|rfc|iso)\.?\s?"
    r"\d{1,4}(?:[.-]\d{1,6}){0,4}(?:[.-]?(?:rc|alpha|beta|dev|post)\.?\d{0,4})?(?!\w)"
    r"|(?:[$£€¥₹]|\b(?:usd|eur|gbp|cad|aud|chf|inr|jpy|rs|price|costs?)\b[:.]?)\s?"
    r"(?!\d{9})\d[\d,.]{0,24}\d(?!\w)"
    r"|(?<![\w.,-])(?!\d{9})\d[\d,.]{0,24}\s?"
    r"(?:[€£¥₹]|(?:usd|eur|gbp|dollars?|euros?|pounds?|bucks|cents?|yen|rupees)\b))"
    r"|(?<![\w.])\d{1,2}\.\d{1,2}\.\d{1,5}(?:-[a-z]{1,8}\.?\d{0,3})?(?!\w|\.\d)"
    r"|(?<![\w.])\d{1,9}(?:,\d{3}){0,4}\.\d{2}(?![\w.])"
)
_MAY_BE_PUBLIC = frozenset(
    ["PHONE", "ID", "ZIP", "IP", "CREDIT_CARD", "ORDER_ID", "SSN", "NATIONAL_ID"]
)


class PatternRecognizer:
    """Finds structured personal data, dates and amounts of one tier.

    Args:
        tier: entity tiers and contextual tiers differ only in the types they keep.
    """

    name = "patterns"

    def __init__(self, *, tier: Tier) -> None:
        kept = entity_types(tier)
        self._rules = tuple(rule for rule in _ALL_RULES if rule.entity_type in kept)
        described = (
            f"{rule.entity_type}|{rule.pattern.pattern}|{rule.cased}|{rule.confidence}"
            f"|{rule.refine.__name__ if rule.refine else ''}|{rule.needs}"
            for rule in self._rules
        )
        self.fingerprint = fingerprint_of(
            (self.name, _VERSION, _PUBLIC_NUMBER.pattern, *described)
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text; spans of different rules may overlap."""
        return [list(self._spans(text)) for text in texts]

    def _spans(self, text: str) -> Iterator[Span]:
        text, origin = canonical(text)
        lowered = lower_in_place(text)
        has_digit = _DIGIT.search(text) is not None
        public = _public_numbers(lowered) if has_digit else []
        for rule in self._rules:
            if rule.needs_digit and not has_digit:
                continue
            if rule.needs and not any(word in lowered for word in rule.needs):
                continue
            for start, end in _matches(rule, text if rule.cased else lowered):
                if public and _is_public(rule.entity_type, start, end, public):
                    continue
                yield Span(
                    start=start if origin is None else origin[start],
                    end=end if origin is None else origin[end - 1] + 1,
                    entity_type=rule.entity_type,
                    recognizer=self.name,
                    confidence=rule.confidence,
                )


def _public_numbers(lowered: str) -> list[tuple[int, int, bool]]:
    """Return ranges of public numbers, and whether a label says so."""
    return [
        (*match.span(), match["labelled"] is not None)
        for match in _PUBLIC_NUMBER.finditer(lowered)
    ]


def _is_public(
    entity_type: str, start: int, end: int, public: list[tuple[int, int, bool]]
) -> bool:
    """Tell whether a candidate lies inside a number that identifies nobody."""
    if entity_type not in _MAY_BE_PUBLIC and entity_type != "DATE":
        return False
    position = bisect_right(public, (start, _NO_END, True)) - 1
    if position < 0:
        return False
    _, high, is_labelled = public[position]
    return end <= high and (is_labelled or entity_type != "DATE")


def _matches(rule: Rule, text: str) -> Iterator[tuple[int, int]]:
    """Yield the trimmed and refined ranges of one rule."""
    has_value = "value" in rule.pattern.groupindex
    for match in rule.pattern.finditer(text):
        start, end = match.span()
        if has_value and match["value"] is not None:
            start, end = match.span("value")
        while end > start and text[end - 1] in _EDGE:
            end -= 1
        while start < end and text[start] in _EDGE:
            start += 1
        if start == end:
            continue
        refined = rule.refine(text, start, end) if rule.refine else (start, end)
        if refined is not None:
            yield refined


def lower_in_place(text: str) -> str:
    """Lower-case a text without moving any character.

    `str.lower` makes two code points of U+0130; such characters stay as they are.
    """
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
