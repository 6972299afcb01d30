"""Recognizer of personal data that has a form: regular expressions and checksums.

Rules see one spelling of a text (`plain`), where signs touch a value that may be no
part of it, a second one without them, and where a number has letters that scanners read
for digits, or signs of its own, one as usual, and where lines are justified one with
single blanks. Spans are those of the text as it is.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from importlib import resources

from dptune.detection.patterns.fields import field_values
from dptune.detection.patterns.plain import (
    apart,
    canonical,
    narrowed,
    odd_numbers,
    usual,
    without_glue,
)
from dptune.detection.patterns.prefilter import Prefilter
from dptune.detection.patterns.rules import Rule, read_families, rule_texts
from dptune.detection.patterns.validators import is_isbn
from dptune.detection.recognizer import (
    Tier,
    code_digest,
    entity_types,
    fingerprint_of,
)
from dptune.text import Span

_MODULES = (
    *("patterns/__init__", "patterns/plain", "patterns/rules", "patterns/validators"),
    *("patterns/national_ids", "patterns/contexts", "patterns/fields"),
    *("patterns/field_kinds", "patterns/chats", "patterns/prefilter", "../identifiers"),
)
_FAMILIES = tuple(read_families())
_ALL_RULES = tuple(rule for family in _FAMILIES for rule in family)
_ALL_ANCHORS = frozenset[str]().union(*(rule.anchors for rule in _ALL_RULES))
_WORDS = re.compile(r"[^\W\d_]+")
_TABLES = ("national_numbers", "vocabulary", "field_names")
_DIGITS = re.compile(r"\d+")
_NO_END = 1 << 62
_OF_FIELD = 0.9
_EDGE = " \t\r\n,;:.!?"

# Numbers that look like identifiers and are none: ISO 2108 book numbers, software
# versions, prices. No structured span may lie wholly inside one that is labelled; one
# that only has the shape gives way to a date.
_CURRENCY = (
    "usd|eur|gbp|cad|aud|chf|inr|jpy|cny|sek|nok|dkk|pln|czk|huf|zar|sgd|hkd|nzd|mxn"
    "|brl|krw|rub"
)
_PRODUCT = (
    "upgraded? to|kernel|driver|python|java|node|chrome|firefox|safari|ios|android"
    "|macos|windows|ubuntu|debian|linux"
)
_UNIT = (
    "ms|bytes|[kmg]i?b|rpm|px|dpi|[km]?hz|epochs|iterations|tokens|k?m|kg|lbs?|feet|ft"
    "|miles|met(?:re|er)s|mah|kwh|psi|lux|volts?|watts?|ohms?"
)
_THING = (
    "parts?|model|modell|modelo|modèle|modello|sku|gasket|teilenummer|artikelnummer"
)
_CODE_OF_THING = (
    r"(?<![\w@.-])(?=[\d-]{0,8}[a-z]|\d{4}-\d\d\b)[a-z]{0,3}-?\d{1,6}[a-z]{0,2}"
    r"(?:-\d{1,4}[a-z]?){0,2}(?![\w-])"
)
_AMOUNT = r"(?!\d{9})\d(?:[\d,.']| (?=\d{3}(?!\d))){0,24}"
_PUBLIC_NUMBER = re.compile(
    r"(?:(?=[\d$£€¥₹₩₽])|\b(?=[a-z]))"  # what each of the following begins with
    r"(?:(?P<labelled>\bisbn(?:-?1[03])?[:=]?\s{0,2}[\dx][\dx -]{8,20}"
    rf"|\b(?:v|ver|version|release|firmware|build|section|chapter|rfc|iso|{_PRODUCT})"
    r"\.?[:=]?\s{0,2}\d{1,6}(?:[.-]\d{1,6}){0,4}"
    r"(?:[.-]?(?:rc|alpha|beta|dev|post)\.?\d{0,4})?(?!\w)"
    rf"|\b(?:{_THING})(?: (?:no|number|nr|code)\b\.?)?[:#]?\s{{1,2}}"
    rf"(?:{_CODE_OF_THING})"
    rf"|(?:{_CODE_OF_THING})(?=\s(?:series|models?|cartridges?|bearings?)\b)"
    r"|(?<![\w.])\d{1,4}(?:\.\d{1,5}){2,4}(?=\s(?:(?:is|was|has been)\s)?"
    r"(?:released?|update|build|beta|final)\b)"
    rf"|(?:[$£€¥₹₩₽]|\b(?:{_CURRENCY}|rs|price|costs?)\b[:.]?)\s?{_AMOUNT}\d(?!\w)"
    rf"|(?<![\w.,-])\d{{1,6}}\s(?:{_UNIT})\b"
    r"|\b(?:colou?r|background|fill|stroke|border)[\w-]{0,16}\"?[:=]\s?\"?"
    r"#(?:[\da-f]{6}){1,2}\b"
    rf"|(?<![\w.,-]){_AMOUNT}\s?"
    rf"(?:[€£¥₹₩₽]|(?:{_CURRENCY}|dollars?|euros?|pounds?|bucks|cents?|yen|rupees"
    rf"|kr)\b))"
    r"|(?P<isbn>(?<![\w.-])97[89](?:[ -]?\d){10}(?![\w-])"
    r"|(?<![\w.-])\d(?:[ -]?\d){8}[ -]?x\b)"
    r"|(?<![\w.])\d{1,2}\.\d{1,2}\.\d{1,5}(?:-[a-z]{1,8}\.?\d{0,3})?(?!\w|\.\d)"
    r"|(?<![\w.])\d{1,9}(?:,\d{3}){0,4}\.\d{2}(?![\w.]))"
)
_MAY_BE_PUBLIC = frozenset(
    [
        *("PHONE", "ID", "ZIP", "IP", "CREDIT_CARD", "ORDER_ID", "SSN", "NATIONAL_ID"),
        "USERNAME",
    ]
)


@lru_cache(maxsize=1)
def _tables() -> str:
    """Digest the tables and files that rules are made of."""
    folder = resources.files("dptune.detection.patterns")
    tables = (folder.joinpath(f"{name}.json").read_text("utf8") for name in _TABLES)
    return fingerprint_of((*tables, *rule_texts()))


@lru_cache(maxsize=4)
def _prefilter(kept: frozenset[str]) -> Prefilter:
    """Return what tells which rules of some types may match in a text."""
    return Prefilter(
        [
            [_needed(rule) for rule in family if rule.entity_type in kept]
            for family in _FAMILIES
        ]
    )


def _needed(rule: Rule) -> list[re.Pattern[str]]:
    """Return the expressions that must match in a text in which a rule does.

    Anchors tell more than a pattern that asks for capitals, which `symbols` have not.
    """
    pattern = [] if rule.cased and rule.anchors else [rule.pattern]
    return [*pattern, *([rule.gate] if rule.gate else [])]


class PatternRecognizer:
    """Finds structured personal data, dates and amounts of one tier.

    Args:
        tier: entity tiers and contextual tiers differ only in the types they keep.
    """

    name = "patterns"

    def __init__(self, *, tier: Tier) -> None:
        kept = entity_types(tier)
        self._kept = kept
        self._rules = tuple(rule for rule in _ALL_RULES if rule.entity_type in kept)
        self.fingerprint = fingerprint_of(
            (self.name, tier, code_digest(*_MODULES), _tables())
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text; spans of different rules may overlap."""
        return [list(self._spans(text)) for text in texts]

    def _spans(self, written: str) -> Iterator[Span]:
        text, origin = canonical(written)
        text = apart(text)
        yield from self._of_fields(text, origin)
        yield from self._of_rules(text, origin)
        if runs := odd_numbers(text):
            yield from self._of_odd(text, origin, runs)
        if (view := narrowed(text, origin)) is not None:
            yield from self._of_rules(*view)
        if (parted := without_glue(written)) != written:
            text, origin = canonical(parted)
            yield from self._of_rules(apart(text), origin)

    def _of_fields(self, text: str, origin: list[int] | None) -> Iterator[Span]:
        """Yield the values that stand behind the names of fields."""
        for start, end, entity_type in field_values(text):
            if entity_type in self._kept and (
                trimmed := _without_edges(text, start, end)
            ):
                yield self._span(trimmed, origin, entity_type, _OF_FIELD)

    def _of_rules(self, text: str, origin: list[int] | None) -> Iterator[Span]:
        """Yield what the rules find in one reading of a text."""
        lowered = lower_in_place(text)
        places = _Places(text, lowered)
        public: list[tuple[int, int, bool]] | None = None
        for number in _prefilter(self._kept).candidates(lowered):
            rule = self._rules[number]
            if not places.may_hold(rule):
                continue
            if rule.needs and not any(word in lowered for word in rule.needs):
                continue
            for start, end in _matches(rule, text if rule.cased else lowered, places):
                if _may_be_public(rule.entity_type, lowered, start, end):
                    public = _public_numbers(lowered) if public is None else public
                    if _is_public(rule.entity_type, start, end, public):
                        continue
                yield self._span(
                    (start, end), origin, rule.entity_type, rule.confidence
                )

    def _of_odd(
        self, text: str, origin: list[int] | None, runs: list[tuple[int, int]]
    ) -> Iterator[Span]:
        """Yield what the rules find in numbers once they are written as usual."""
        found = [
            run if origin is None else (origin[run[0]], origin[run[1] - 1] + 1)
            for run in runs
        ]
        for span in self._of_rules(usual(text, runs), origin):
            if any(low < span.end and span.start < high for low, high in found):
                yield span

    def _span(
        self,
        place: tuple[int, int],
        origin: list[int] | None,
        entity_type: str,
        confidence: float,
    ) -> Span:
        """Make a span of the text as it is."""
        start, end = place
        return Span(
            start=start if origin is None else origin[start],
            end=end if origin is None else origin[end - 1] + 1,
            entity_type=entity_type,
            recognizer=self.name,
            confidence=confidence,
        )


class _Places:
    """Where digits and anchors of a text are, and the neighborhoods of each reach."""

    def __init__(self, text: str, lowered: str) -> None:
        self.length = len(text)
        self._windows: dict[object, list[tuple[int, int]]] = {}
        self._text, self._lowered = text, lowered

    @cached_property
    def digits(self) -> list[tuple[int, int]]:
        """Where the runs of digits are."""
        return [match.span() for match in _DIGITS.finditer(self._text)]

    @cached_property
    def most_digits(self) -> int:
        """How many digits the longest number holds."""
        return _most_digits(self._text, self.digits)

    @cached_property
    def _words(self) -> frozenset[str]:
        return _ALL_ANCHORS.intersection(_WORDS.findall(self._lowered))

    @cached_property
    def _anchors(self) -> list[tuple[str, tuple[int, int]]]:
        return [
            (match.group(), match.span())
            for match in _WORDS.finditer(self._lowered)
            if match.group() in self._words
        ]

    def may_hold(self, rule: Rule) -> bool:
        """Tell whether digits and anchors that a rule needs are there."""
        if rule.needs_digit and self.most_digits < rule.min_digits:
            return False
        return not rule.anchors or not self._words.isdisjoint(rule.anchors)

    def windows(self, rule: Rule) -> list[tuple[int, int]]:
        """Return the ranges that a rule must search."""
        if self.length < 2 * rule.reach or not (rule.needs_digit or rule.anchors):
            return [(0, self.length)]
        key = (rule.anchors, rule.reach)
        if key not in self._windows:
            spans = self.digits
            if rule.anchors:
                spans = [span for word, span in self._anchors if word in rule.anchors]
            self._windows[key] = list(self._around(spans, rule.reach))
        return self._windows[key]

    def _around(
        self, spans: Sequence[tuple[int, int]], reach: int
    ) -> Iterator[tuple[int, int]]:
        """Join neighborhoods that meet; cut at blanks, so that no word is halved."""
        first = last = -1
        for start, end in spans:
            if first >= 0 and start - last > 2 * reach:
                yield self._at_blanks(first - reach, last + reach)
                first = -1
            first = start if first < 0 else first
            last = end
        yield self._at_blanks(first - reach, last + reach)

    def _at_blanks(self, low: int, high: int) -> tuple[int, int]:
        if low > 0:
            blank = self._text.rfind(" ", 0, low)
            low = blank if low - blank < 100 else low
        if high < self.length:
            blank = self._text.find(" ", high)
            high = blank if 0 <= blank < high + 100 else min(high + 100, self.length)
        return max(0, low), min(high, self.length)


def _most_digits(text: str, runs: list[tuple[int, int]]) -> int:
    """Return how many digits the longest number holds, its signs left out."""
    most = count = last = 0
    for start, end in runs:
        gap = text[last:start]
        if len(gap) > 5 or any(map(str.isalnum, gap)):
            count = 0
        count += end - start
        most = max(most, count)
        last = end
    return most


def _may_be_public(entity_type: str, lowered: str, start: int, end: int) -> bool:
    """Tell whether it is worth looking for the numbers that identify nobody."""
    if entity_type == "DATE":
        return any(sign in lowered[start:end] for sign in ".-/")
    return entity_type in _MAY_BE_PUBLIC


def _public_numbers(lowered: str) -> list[tuple[int, int, bool]]:
    """Return ranges of public numbers, and whether a label says so."""
    return [
        (*match.span(), match["labelled"] is not None or match["isbn"] is not None)
        for match in _PUBLIC_NUMBER.finditer(lowered)
        if match["isbn"] is None or is_isbn(match["isbn"])
    ]


def _is_public(
    entity_type: str, start: int, end: int, public: list[tuple[int, int, bool]]
) -> bool:
    """Tell whether a candidate lies inside a number that identifies nobody."""
    position = bisect_right(public, (start, _NO_END, True)) - 1
    if position < 0:
        return False
    _, high, is_labelled = public[position]
    return end <= high and (is_labelled or entity_type != "DATE")


def _matches(rule: Rule, text: str, places: _Places) -> Iterator[tuple[int, int]]:
    """Yield the trimmed and refined ranges of one rule."""
    if rule.gate is not None and rule.gate.search(text) is None:
        return
    for low, high in places.windows(rule):
        for match in rule.pattern.finditer(text, low, high):
            found = _trimmed(match, text)
            if found is not None and rule.refine is not None:
                found = rule.refine(text, *found)
            if found is not None:
                yield found


def _trimmed(match: re.Match[str], text: str) -> tuple[int, int] | None:
    """Return the range of a match or of its value, without blanks and stops around."""
    start, end = match.span()
    for name in match.re.groupindex:
        if name.startswith("value") and match[name] is not None:
            start, end = match.span(name)
    return _without_edges(text, start, end)


def _without_edges(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return a range without blanks and stops around it."""
    while end > start and text[end - 1] in _EDGE:
        end -= 1
    while start < end and text[start] in _EDGE:
        start += 1
    return (start, end) if start < end else None


def lower_in_place(text: str) -> str:
    """Lower-case a text without moving any character.

    `str.lower` makes two code points of U+0130; such characters stay as they are.
    """
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
