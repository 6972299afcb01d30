"""Reads the rules of the pattern recognizer from `rules/`, a file for each family.

A rule says what its matches are, by which expression, and whose standard or law defines
that form. In an expression, `(?&NAME)` stands for a part: of the file's `[parts]`, or
of `_PARTS`, which code needs too. Every expression is bounded: no quantifier is nested
in an unbounded one, and each attempt ends after a fixed number of characters, so that
no text makes it slow. Rules run on lower-cased text; `cased` ones on the text as it is.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from dptune.detection.patterns import contexts, national_ids, validators

FAMILIES: Final = (
    *("network", "numbers", "national", "files", "personal", "coordinates", "spoken"),
    *("hosts", "places", "dates", "amounts"),
)
_REFINERS: Final[Mapping[str, validators.Refiner]] = {
    **validators.REFINERS,
    **national_ids.REFINERS,
    **contexts.REFINERS,
}
_PARTS: Final[Mapping[str, str]] = {
    "IBAN_COUNTRIES": validators.IBAN_COUNTRIES,
    **national_ids.PARTS,
    **contexts.PARTS,
}
_PART: Final = re.compile(r"\(\?&(\w+)\)")
_FOLDER: Final = resources.files("dptune.detection.patterns").joinpath("rules")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One pattern.

    Args:
        entity_type: type of the spans it makes.
        pattern: regular expression; the group `value`, if any, is the span.
        citation: the standard or law that defines the form.
        confidence: 1.0 only with a checksum or an exact form.
        refine: narrows or refuses a candidate.
        cased: run on the original text, not on the lower-cased one.
        needs: one of these strings must occur in the lower-cased text.
        gate: must match somewhere in the text that the rule runs on; cheaper than
            `pattern`, which is not tried otherwise.
        needs_digit: every match holds a digit.
        min_digits: digits that one number must hold, with at most five signs between
            any two, for the rule to be tried.
        anchors: every match holds one of these words, which the rule is tried around.
        reach: characters that a match may have before its first and after its last
            digit or anchor; only such neighborhoods are searched where `needs_digit`
            is set or `anchors` are.
    """

    entity_type: str
    pattern: re.Pattern[str]
    citation: str
    confidence: float
    refine: validators.Refiner | None = None
    cased: bool = False
    needs: tuple[str, ...] = ()
    gate: re.Pattern[str] | None = None
    needs_digit: bool = False
    min_digits: int = 1
    anchors: frozenset[str] = frozenset()
    reach: int = 80


def rule_texts() -> list[str]:
    """Return the files of all families as they are, for digests."""
    return [_FOLDER.joinpath(f"{family}.toml").read_text("utf8") for family in FAMILIES]


def read_families() -> Iterator[list[Rule]]:
    """Yield the rules of one family after another, in their order."""
    for text in rule_texts():
        table = tomllib.loads(text)
        parts = {**_PARTS, **table.get("parts", {})}
        yield [_rule(row, parts) for row in table["rule"]]


def expanded(written: str | list[str], parts: Mapping[str, Any]) -> str:
    """Join the lines of an expression, and put its parts where it names them.

    >>> expanded(["a(?&B)", "c"], {"B": "b+"})
    'ab+c'
    """
    joined = written if isinstance(written, str) else "".join(written)
    return _PART.sub(lambda match: expanded(parts[match[1]], parts), joined)


def _rule(row: dict[str, Any], parts: Mapping[str, Any]) -> Rule:
    """Make a rule of a table.

    `needs` and `anchors` list alternatives, which bars part as in an expression. In
    place of a pattern, `labels` are words that say what the value behind them is.
    """
    texts = {
        key: expanded(row.pop(key), parts)
        for key in ("pattern", "labels", "gate", "needs", "anchors")
        if key in row
    }
    if "labels" in texts:
        labels = texts.pop("labels")
        texts["pattern"] = rf"\b(?:{labels})" + expanded(
            "(?&NUMBER_WORD)(?&VALUE)", parts
        )
        texts["needs"] = re.sub(r"[\[(][^|]*", "", labels)
    if "refine" in row:
        row["refine"] = _REFINERS[row["refine"]]
    return Rule(
        pattern=re.compile(texts["pattern"]),
        gate=re.compile(texts["gate"]) if "gate" in texts else None,
        needs=tuple(texts["needs"].split("|")) if "needs" in texts else (),
        anchors=frozenset(filter(None, texts.get("anchors", "").split("|"))),
        **row,
    )
