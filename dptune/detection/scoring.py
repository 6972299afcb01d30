"""Sensitivity of entity types (rarity, linkability, protection), and private counts."""

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import dp_accounting
from pydantic import Field

from dptune.detection.recognizer import HIGH_ENTITY_TYPES
from dptune.errors import ConfigError
from dptune.results import Report

RARITY_WEIGHT = 0.4
LINKABILITY_WEIGHT = 0.3
PROTECTION_WEIGHT = 0.3
CountsOrigin = Literal["public", "released", "non_private"]
_UNLISTED = (True, True, "not in the table: treated as the most sensitive kind")


Judged = Literal["no", "same", "raised", "lowered", "changed", "held"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a language model says of a type."""

    linkable: bool
    legally_protected: bool


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a language model says of types; it had no look at any corpus.

    Args:
        model: its name.
        may_lower: whether it may make a type less sensitive than the table.
        num_asked: types that were to be asked about.
        verdicts: by type, only valid ones.
        failures: how often which kind of failure kept a type at the table's values.
    """

    model: str
    may_lower: bool
    num_asked: int
    verdicts: Mapping[str, Verdict]
    failures: Mapping[str, int]


class JudgeReport(Report):
    """Whom a table asked, and what came of it; see `Judgement`."""

    model: str
    may_lower: bool
    num_asked: int
    num_answered: int
    failures: dict[str, int]


class SensitivityRow(Report):
    """Score of one entity type.

    Args:
        rarity: `1 - f / N`, f mentions of this type among N of all types.
        linkable: the type links records of one person.
        legally_protected: a privacy law names the type.
        score: `0.4 rarity + 0.3 linkable + 0.3 legally_protected`.
        tier_group: `high` above .50, `low` from .01 to .50, else `none`.
        citation: where the built-in values of linkability and protection come from.
        judged: what a language model changed: `no` if there is no valid answer, `held`
            if it called the type less sensitive and may not lower it.
    """

    entity_type: str
    rarity: float = Field(ge=0, le=1)
    linkable: bool
    legally_protected: bool
    score: float = Field(ge=0, le=1)
    tier_group: Literal["none", "low", "high"]
    citation: str
    judged: Judged = "no"


class SensitivityTable(Report):
    """Scores of all entity types of a corpus, most sensitive first.

    Args:
        counts: `public` if the counts behind the rarities were public, `released` if
            they were released under differential privacy and charged, `non_private`
            if they were counted in private data without noise. A table of the last
            kind is private: no mechanism that consumes it keeps its guarantee.
        judge: the language model that was asked; None if none was.
    """

    rows: tuple[SensitivityRow, ...]
    counts: CountsOrigin
    judge: JudgeReport | None = None


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    """Read the file of known types."""
    source = resources.files("dptune.detection").joinpath("entity_types.json")
    return dict(json.loads(source.read_text("utf8")))


@lru_cache(maxsize=1)
def _table() -> dict[str, tuple[bool, bool, str]]:
    """Return linkability, protection and citation of the known types."""
    types = _file()["types"]
    return {name: (bool(a), bool(b), cited) for name, (a, b, cited) in types.items()}


def known_types() -> dict[str, str]:
    """Return the types of the table, with a few public words on each."""
    return dict(_file()["descriptions"])


def public_counts() -> dict[str, int]:
    """Return mentions by type in public texts, counted by the rules of this room.

    The file names the texts. It is public: no private text had a part in it.
    """
    source = resources.files("dptune.detection").joinpath("public_counts.json")
    return dict(json.loads(source.read_text("utf8"))["counts"])


def score_entity_types(
    counts: Mapping[str, int],
    *,
    counts_are_public: bool,
    counts_are_released: bool = False,
    judgement: Judgement | None = None,
) -> SensitivityTable:
    """Score entity types as SA-ADP does.

    N is the number of all mentions. (Algorithm 1 of the paper takes the number of words
    instead, under which every rarity is nearly 1.) The gap that the paper leaves
    between .50 and .51 is closed upwards.

    **Privacy.** Counts of a private corpus are private, and so are rarity and score.
    Pass public counts, or counts released under differential privacy.

    Args:
        counts: mentions by entity type; none may be negative.
        counts_are_public: they come from no private text.
        counts_are_released: they come from private text with noise that was charged.
        judgement: of a language model. A type without a valid verdict keeps the values
            of the table, and so does one that it may not lower.

    Returns:
        One row per type in `counts`, most sensitive first.

    >>> table = score_entity_types({"SSN": 1, "TIME": 9}, counts_are_public=True)
    >>> [(row.entity_type, round(row.score, 2)) for row in table.rows]
    [('SSN', 0.96), ('TIME', 0.04)]

    Raises:
        ConfigError: a count is negative.

    References:
        Etuk, Matrawy (2025), "SA-ADP", equations 1 to 4 and section III-C.
    """
    negative = [name for name, count in counts.items() if count < 0]
    if negative:
        raise ConfigError(
            f"counts must be >= 0, got a negative count for {', '.join(negative)}. "
            "Count spans, or clip released counts at 0."
        )
    total = sum(counts.values())
    rows = [
        _row(name, count / total if total else 0.0, judgement)
        for name, count in counts.items()
    ]
    rows.sort(key=lambda row: (-row.score, row.entity_type))
    origin: CountsOrigin = "released" if counts_are_released else "non_private"
    return SensitivityTable(
        rows=tuple(rows),
        counts="public" if counts_are_public else origin,
        judge=_report(judgement) if judgement else None,
    )


def _report(judgement: Judgement) -> JudgeReport:
    return JudgeReport(
        model=judgement.model,
        may_lower=judgement.may_lower,
        num_asked=judgement.num_asked,
        num_answered=len(judgement.verdicts),
        failures=dict(judgement.failures),
    )


def _values(
    entity_type: str, judgement: Judgement | None
) -> tuple[tuple[bool, bool], str, Judged]:
    """Return linkability and protection of a type, citation, and what a judge did."""
    *built_in, citation = _table().get(entity_type, _UNLISTED)
    table = (built_in[0], built_in[1])
    verdict = judgement.verdicts.get(entity_type) if judgement else None
    if judgement is None or verdict is None:
        return table, citation, "no"
    said = (verdict.linkable, verdict.legally_protected)
    raised = (table[0] or said[0], table[1] or said[1])
    taken = said if judgement.may_lower else raised
    return taken, citation, _judged(table, said, taken)


def _judged(
    table: tuple[bool, bool], said: tuple[bool, bool], taken: tuple[bool, bool]
) -> Judged:
    """Say what a verdict did to a type."""
    if said == table:
        return "same"
    if taken == table:
        return "held"
    up = any(new and not old for new, old in zip(taken, table, strict=True))
    down = any(old and not new for new, old in zip(taken, table, strict=True))
    return "changed" if up and down else "raised" if up else "lowered"


def _row(entity_type: str, share: float, judgement: Judgement | None) -> SensitivityRow:
    (linkable, protected), citation, judged = _values(entity_type, judgement)
    rarity = 1.0 - share
    score = (
        RARITY_WEIGHT * rarity
        + LINKABILITY_WEIGHT * linkable
        + PROTECTION_WEIGHT * protected
    )
    return SensitivityRow(
        entity_type=entity_type,
        rarity=rarity,
        linkable=linkable,
        legally_protected=protected,
        score=min(score, 1.0),
        tier_group=_tier_group(score),
        citation=citation,
        judged=judged,
    )


def _tier_group(score: float) -> Literal["none", "low", "high"]:
    """Return the noise tier of a score."""
    if score < 0.01:
        return "none"
    return "low" if score <= 0.5 else "high"


PUBLIC_TYPES = tuple(sorted(HIGH_ENTITY_TYPES | {"PRON", "PROPN", "NOUN", "VERB"}))
"""The types that are always counted: a list from the corpus would leak its types."""


@dataclass(frozen=True, kw_only=True)
class ReleasedCounts:
    """Noisy counts and what they cost.

    Args:
        counts: at least 0, for every public type.
        event: must be charged to the ledger before the counts are used.
    """

    counts: Mapping[str, int]
    event: dp_accounting.DpEvent


def release_counts(
    units: Iterable[Mapping[str, int]],
    *,
    noise_multiplier: float,
    max_norm: float = 10.0,
    generator: random.Random | None = None,
) -> ReleasedCounts:
    """Sum the counts of all units with Gaussian noise.

    Each unit's vector of counts v is scaled by min(1, C / ||v||), the vectors are
    added, and noise of standard deviation sigma C is added to each of the public types.
    Types that are not public are left out.

    **Formal guarantee.** The sum of vectors of L2 norm at most C with noise sigma C is
    the Gaussian mechanism with noise multiplier sigma: the event says so, and an
    accountant turns it into epsilon under either relation. Rounding and clipping at 0
    come after. The noise is drawn in floating point, as everywhere here.

    | case | result |
    |---|---|
    | no units | noise alone |
    | `noise_multiplier` 0, infinite, NaN | refused |

    **Privacy.** `units` is private; the result may be released once its event is
    charged.

    Args:
        units: mentions by type, one mapping per privacy unit.
        noise_multiplier: sigma, in (0, inf).
        max_norm: C, in (0, inf), chosen without looking at the corpus.
        generator: for tests; a missing one means entropy of the operating system.

    Raises:
        ConfigError: a number is out of range.
    """
    for name, value in (("noise_multiplier", noise_multiplier), ("max_norm", max_norm)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name} must be in (0, inf), got {name}={value}.")
    draw = random.SystemRandom() if generator is None else generator
    totals = dict.fromkeys(PUBLIC_TYPES, 0.0)
    for unit in units:
        known = {kind: count for kind, count in unit.items() if kind in totals}
        norm = math.sqrt(sum(count * count for count in known.values()))
        scale = min(1.0, max_norm / norm) if norm else 0.0
        for kind, count in known.items():
            totals[kind] += scale * count
    stddev = noise_multiplier * max_norm
    noisy = {kind: total + draw.gauss(0.0, stddev) for kind, total in totals.items()}
    return ReleasedCounts(
        counts={kind: max(0, round(value)) for kind, value in noisy.items()},
        event=dp_accounting.GaussianDpEvent(noise_multiplier=noise_multiplier),
    )
