"""Sensitivity of entity types: rarity, linkability and legal protection."""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Literal

from pydantic import Field

from dptune.errors import ConfigError
from dptune.results import Report

RARITY_WEIGHT = 0.4
LINKABILITY_WEIGHT = 0.3
PROTECTION_WEIGHT = 0.3
CountsOrigin = Literal["public", "released", "non_private"]
_UNLISTED = (True, True, "not in the table: treated as the most sensitive kind")


class SensitivityRow(Report):
    """Score of one entity type.

    Args:
        rarity: `1 - f / N`, f mentions of this type among N of all types.
        linkable: the type links records of one person.
        legally_protected: a privacy law names the type.
        score: `0.4 rarity + 0.3 linkable + 0.3 legally_protected`.
        tier_group: `high` above .50, `low` from .01 to .50, else `none`.
        citation: where linkability and protection come from.
    """

    entity_type: str
    rarity: float = Field(ge=0, le=1)
    linkable: bool
    legally_protected: bool
    score: float = Field(ge=0, le=1)
    tier_group: Literal["none", "low", "high"]
    citation: str


class SensitivityTable(Report):
    """Scores of all entity types of a corpus, most sensitive first.

    Args:
        counts: `public` if the counts behind the rarities were public, `released` if
            they were released under differential privacy and charged, `non_private`
            if they were counted in private data without noise. A table of the last
            kind is private: no mechanism that consumes it keeps its guarantee.
    """

    rows: tuple[SensitivityRow, ...]
    counts: CountsOrigin

    def score_of(self, entity_type: str) -> float:
        """Return the score of a type; 1.0, the largest, if it is not in the table."""
        scores = {row.entity_type: row.score for row in self.rows}
        return scores.get(entity_type, 1.0)


@lru_cache(maxsize=1)
def _table() -> dict[str, tuple[bool, bool, str]]:
    """Read linkability, protection and citation of the known types."""
    source = resources.files("dptune.detection").joinpath("entity_types.json")
    types = json.loads(source.read_text("utf8"))["types"]
    return {name: (bool(a), bool(b), cited) for name, (a, b, cited) in types.items()}


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

    Returns:
        One row per type in `counts`, most sensitive first.

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
        _row(name, count / total if total else 0.0) for name, count in counts.items()
    ]
    rows.sort(key=lambda row: (-row.score, row.entity_type))
    origin: CountsOrigin = "released" if counts_are_released else "non_private"
    return SensitivityTable(
        rows=tuple(rows), counts="public" if counts_are_public else origin
    )


def _row(entity_type: str, share: float) -> SensitivityRow:
    linkable, protected, citation = _table().get(entity_type, _UNLISTED)
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
    )


def _tier_group(score: float) -> Literal["none", "low", "high"]:
    """Return the noise tier of a score."""
    if score < 0.01:
        return "none"
    return "low" if score <= 0.5 else "high"
