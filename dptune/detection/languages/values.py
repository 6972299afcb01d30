"""Values with a form, in any of the languages: dates, ages, labels, numbers, addresses.

The forms are in `data/rules.toml`, one per kind, and what is read out is in
`data/spoken.toml`; the words in them come from the tables. Checksums of national
numbers are data too: weights, modulus, alphabet.

References:
    ISO/IEC 7064 (mod 11,10; mod 11-2), ISO/IEC 7812-1 annex B (Luhn), and the laws that
    `national_numbers.json` names beside each number.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from dptune.detection.languages.tables import (
    CASED,
    GROUPS,
    LANGUAGES,
    SPACED,
    UNSPACED,
    Language,
    load,
    read_bytes,
    read_data,
)
from dptune.detection.patterns.rules import expanded
from dptune.detection.words import word_set
from dptune.identifiers import is_luhn_valid


def _mod_11_10(digits: str) -> bool:
    """ISO/IEC 7064, hybrid system mod 11,10: the German tax number."""
    product = 10
    for digit in digits[:-1]:
        total = (int(digit) + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == int(digits[-1])


def _mod_11_2(code: str) -> bool:
    """ISO/IEC 7064, mod 11-2: the Chinese resident number, whose last may be X."""
    total = 0
    for character in code[:-1]:
        total = 2 * (total + int(character))
    return "10X98765432"[total % 11] == code[-1].upper()


def _tckn(digits: str) -> bool:
    """Both check digits of the Turkish identity number."""
    values = [int(digit) for digit in digits]
    tenth = (7 * sum(values[0:9:2]) - sum(values[1:8:2])) % 10
    return values[0] != 0 and values[9] == tenth and sum(values[:10]) % 10 == values[10]


def _my_number(digits: str) -> bool:
    """Check digit of the Japanese individual number."""
    total = sum(
        int(digit) * (place + 1 if place < 7 else place - 5)
        for place, digit in enumerate(reversed(digits[:11]), 1)
    )
    rest = total % 11
    return int(digits[11]) == (0 if rest <= 1 else 11 - rest)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "luhn": is_luhn_valid,
    "mod_11_10": _mod_11_10,
    "mod_11_2": _mod_11_2,
    "tckn": _tckn,
    "my_number": _my_number,
}


def _weighted(rule: Mapping[str, Any], digits: str) -> bool:
    """Compare the weighted sum with the last digit, or with zero."""
    weights = rule["weights"]
    total = sum(int(d) * weight for d, weight in zip(digits, weights, strict=False))
    if rule.get("sums_to_zero"):
        return bool(total % rule["modulus"] == 0)
    rest = total % rule["modulus"]
    if rule.get("complement"):
        rest = (rule["modulus"] - rest) % rule["modulus"]
    return int(digits[-1]) == (0 if rest >= 10 else rest)


def is_valid(rule: Mapping[str, Any], text: str) -> bool:
    """Check a candidate; a number without a checksum is what its form says.

    Args:
        rule: of `national_numbers.json`.
        text: the candidate, with its signs.
    """
    compact = "".join(c for c in text if c.isalnum())
    if not compact.isalpha() and "weights" in rule:
        return _weighted(rule, compact)
    name = rule.get("check", "")
    return _CHECKS[name](compact) if name else True


@lru_cache
def rules_of(code: str) -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    """Return the compiled rules of a language."""
    found = read_data("national_numbers")["rules"]
    return tuple(
        (re.compile(rule["pattern"], re.IGNORECASE), rule)
        for rule in found
        if code in rule["languages"].split()
    )


Found = tuple[int, int, str, float]
"""Start, end, entity type and confidence."""

_IS = word_set(
    "ist lautet war est es era è is é to jest jako mit der dem هو هي है के का की hat"
)


def any_of(words: frozenset[str] | list[str]) -> str:
    """Return an alternation, the longest first, which matches nothing if empty.

    Words are grouped by their first character, so that most of a text meets few.
    """
    ordered = sorted(words, key=lambda word: (word[:1], -len(word), word))
    by_first = groupby(ordered, key=lambda word: word[:1])
    grouped = (
        f"{re.escape(first)}(?:{'|'.join(re.escape(word[1:]) for word in group)})"
        for first, group in by_first
    )
    return "|".join(grouped) or r"(?!)"


class _Parts(dict[str, str]):
    """What the expressions of a language are made of, looked up when it is needed."""

    def __init__(self, language: Language, given: dict[str, Any]) -> None:
        super().__init__(FILL=any_of(language.words("label_words") | _IS))
        self._language = language
        for name, part in given.items():
            found = part.get(language.code) if isinstance(part, dict) else part
            if found is not None:
                self[name] = found

    def __missing__(self, name: str) -> str:
        """Return a text of the language, its phrases, or one of its words."""
        language = self._language
        if name.startswith("field_"):
            found = any_of(language.phrases(name))
        elif name in language.sets:
            found = any_of(language.words(name))
        else:
            found = _in_words(language.texts[name], language)
        self[name] = found
        return found


def _in_words(pattern: str, language: Language) -> str:
    """Put the number words of a language in the places of `{N}`, `{O}` and `{D}`."""
    numeral = language.texts.get("numeral", "")
    pattern = pattern.replace("{O}", language.texts.get("ordinal", ""))
    return pattern.replace("{D}", rf"\d{{1,3}}|{numeral}").replace("{N}", numeral)


_WORD = re.compile(r"[^\s,.-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """What is found by an expression in one language; see `rules.toml`."""

    kind: str
    pattern: re.Pattern[str]
    confidence: float
    on_case: bool
    needs: tuple[str, ...]
    counting: tuple[str, ...]

    def is_counting(self, value: str) -> bool:
        """Tell whether somebody counts, up or down, and says no number of anybody.

        Nor is one what has fewer than three digits, or no digit in words.
        """
        said = _WORD.findall(value)
        places = [self.counting.index(word) for word in said if word in self.counting]
        rising = sorted(places)
        is_in_order = len(places) == len(said) and places in (rising, rising[::-1])
        return not places or len({*said}) < 3 or is_in_order


@lru_cache
def _rules(code: str) -> tuple[_Rule, ...]:
    """Compile the rules of a language."""
    return (*_read_rules("rules", load(code)), *_read_out(code))


@lru_cache
def _read_out(code: str) -> tuple[_Rule, ...]:
    return tuple(_read_rules("spoken", load(code)))


def _read_rules(name: str, language: Language) -> Iterator[_Rule]:
    """Yield the rules of a file that are a language's own."""
    table = tomllib.loads(read_bytes(f"{name}.toml").decode())
    parts = _Parts(language, table["parts"])
    for row in table["rule"]:
        named = row["languages"].split()
        if language.code not in {c for n in named for c in GROUPS.get(n, (n,))}:
            continue
        needs, counting = (
            tuple(expanded(row[key], parts).split("|")) if key in row else ()
            for key in ("needs", "counting")
        )
        lines = language.texts[row["each"]].split("\n") if "each" in row else [""]
        for line in lines:
            parts["EACH"] = _in_words(line, language)
            yield _Rule(
                kind=row["entity_type"],
                pattern=re.compile(expanded(row["pattern"], parts)),
                confidence=row["confidence"],
                on_case=row.get("cased", False),
                needs=needs,
                counting=counting,
            )


_AGE_BESIDE = re.compile(r"(?:[,،、]\s?|\s?[(（])(\d{1,2})(?=[,،、)）])")


def age_beside(text: str, end: int) -> Iterator[Found]:
    """Yield the number that stands behind a name as in `Anna, 43,` and `Anna (43)`."""
    if match := _AGE_BESIDE.match(text, end):
        yield *match.span(1), "AGE", 0.7


def _matches(
    rules: Iterable[_Rule], text: str, lowered: str, code: str
) -> Iterator[Found]:
    for rule in rules:
        source = text if rule.on_case or code in UNSPACED else lowered
        if rule.needs and not any(word in source for word in rule.needs):
            continue
        for match in rule.pattern.finditer(source):
            start, end = match.span(match.lastgroup or 0)
            if end > start and not (rule.counting and rule.is_counting(match.group())):
                yield start, end, rule.kind, rule.confidence


@lru_cache(maxsize=1)
def _said_anywhere() -> frozenset[str]:
    """Return the words of which one is in whatever is read out between blanks."""
    rules = (rule for code in (*CASED, *SPACED) for rule in _read_out(code))
    return frozenset(word for rule in rules for word in rule.needs)


def find_read_out(text: str, lowered: str) -> Iterator[Found]:
    """Yield the numbers and addresses of mail that are read out in any language."""
    if not _said_anywhere().isdisjoint(_WORD.findall(lowered)):
        for code in LANGUAGES:
            yield from _matches(_read_out(code), text, lowered, code)


def find_values(text: str, lowered: str, code: str) -> Iterator[Found]:
    """Yield the values of a text of one language.

    Args:
        text: in composed characters.
        lowered: the same in lower case, of equal length.
        code: the language.
    """
    yield from _matches(_rules(code), text, lowered, code)
    for pattern, number in rules_of(code):
        for match in pattern.finditer(text):
            if is_valid(number, match.group()):
                confidence = 0.95 if {"check", "weights"} & number.keys() else 0.9
                yield *match.span(), "NATIONAL_ID", confidence
