"""Settings of known values, own rules and token classifiers.

Nothing here needs numerics, so that a configuration is read without them.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    Field,
    StrictBool,
    StringConstraints,
    field_validator,
    model_validator,
)

from dptune.conversation import Role
from dptune.detection.bounded_regex import compiled
from dptune.detection.recognizer import Tier
from dptune.settings import Settings

MAX_CHARACTERS: Final = 300
"""Longest phrase; a longer one is a text, not a name or a number."""
LEAST_WINDOW: Final = 16
"""Fewest tokens that a token classifier reads at once."""
_LEAST_DIGITS: Final = 4

TypeName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,40}$")]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS)]
Threshold = Annotated[float, Field(gt=0, le=1)]


class UnknownLanguage(StrEnum):
    """What happens to text in a language that no recognizer reads."""

    REFUSE = "refuse"
    MASK = "mask"
    KEEP = "keep"


LanguageCode = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]


class LanguageSettings(Settings):
    """Who reads other languages than English, and what nobody reads.

    Args:
        spacy_pipelines: pipelines by language (ISO 639-1), each of which reads text in
            that language alone.
        known_languages: that the recognizers read besides English, the twelve of
            `languages` and those of pipelines, on your word.
        unknown_language: what happens to records in a language that nobody reads:
            `refuse` the run, `mask` them whole, or `keep` them as they are, which makes
            claims about what is marked conditional on `unread_languages`. To drop them,
            name the languages to keep in `data.languages`.
    """

    spacy_pipelines: dict[LanguageCode, str] = Field(default_factory=dict)
    known_languages: tuple[LanguageCode, ...] = ()
    unknown_language: UnknownLanguage = UnknownLanguage.REFUSE


class PatternSettings(Settings):
    """A pattern of your own, as Presidio's.

    Args:
        entity_type: of what it finds.
        regex: in Python's syntax, with bounded repeats. If it has a group `value`, that
            alone is marked.
        score: confidence of a hit.
        context: words that raise it, as whole words in any case.
        context_score: of a hit with such a word beside it.
        context_characters: how far before and behind a hit they may stand.
        needs_context: whether a hit without such a word counts at all.
        ignore_case: match letters in any case.
    """

    entity_type: TypeName
    regex: str = Field(min_length=1)
    score: float = Field(default=0.6, gt=0, le=1)
    context: tuple[Phrase, ...] = ()
    context_score: float = Field(default=0.9, gt=0, le=1)
    context_characters: int = Field(default=60, ge=1, le=1000)
    needs_context: bool = False
    ignore_case: bool = False

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        try:
            compiled(self.regex, ignore_case=self.ignore_case)
        except ValueError as error:
            raise ValueError(f"regex {error}") from None
        if self.needs_context and not self.context:
            raise ValueError("context must list words where needs_context is true")
        if self.context and self.context_score < self.score:
            raise ValueError(
                f"context_score must be at least score ({self.score}), got "
                f"{self.context_score}: words beside a hit raise it"
            )
        return self


class OwnRules(Settings):
    """Patterns, lists and types of a configuration; part of `detection`.

    Args:
        own_patterns: see `PatternSettings`.
        deny_lists: by type, phrases that are marked wherever they stand, in any case
            and with any separators. No allow list takes them back.
        allow_list: phrases that are no personal data. A mark that lies inside one is
            taken back, unless it has a checksum or exact form, or a list demands it.
        role_tiers: of conversations, by role, a tier that `detection.tier` contains:
            turns of the role have marks of its types alone, and of what lists demand.
        entity_types: by type, `false` to leave it unmarked, or the least confidence
            that a mark of it needs. What several recognizers find under several types
            stays marked while one of them is on.
    """

    own_patterns: tuple[PatternSettings, ...] = Field(default=(), max_length=200)
    deny_lists: Mapping[TypeName, tuple[Phrase, ...]] = Field(default_factory=dict)
    allow_list: tuple[Phrase, ...] = ()
    role_tiers: Mapping[Role, Tier] = Field(
        default_factory=dict, exclude_if=lambda tiers: not tiers
    )
    entity_types: Mapping[TypeName, StrictBool | Threshold] = Field(
        default_factory=dict
    )

    @field_validator("entity_types", mode="before")
    @classmethod
    def _keep_kinds(cls, value: object) -> object:
        """Tell `1` from `true`: a number is a threshold."""
        if isinstance(value, Mapping):
            wrong = [
                k for k, v in value.items() if not isinstance(v, bool | float | int)
            ]
            if wrong:
                raise ValueError(
                    "must say true, false or a number in (0, 1] of each type, got "
                    f"something else of {', '.join(map(str, wrong))}"
                )
            return {k: v if isinstance(v, bool) else float(v) for k, v in value.items()}
        return value

    @model_validator(mode="after")
    def _check_lists(self: Self) -> Self:
        denied = [p for phrases in self.deny_lists.values() for p in phrases]
        empty = sum(1 for p in (*denied, *self.allow_list) if not _says_something(p))
        if empty:
            raise ValueError(
                "deny_lists and allow_list must hold phrases of two letters or four "
                f"digits at least, got {empty} with less"
            )
        both = {p.casefold() for p in denied} & {p.casefold() for p in self.allow_list}
        if both:
            raise ValueError(
                f"allow_list must hold no phrase of deny_lists, got {len(both)}"
            )
        return self

    @property
    def own_types(self) -> frozenset[str]:
        """Types that patterns and lists bring."""
        return frozenset(p.entity_type for p in self.own_patterns) | {*self.deny_lists}


def _says_something(phrase: str) -> bool:
    """Whether a phrase has two letters, or four digits, at least."""
    said = [character for character in phrase if character.isalnum()]
    return len(said) >= (_LEAST_DIGITS if all(map(str.isdecimal, said)) else 2)


class KnownValuesSettings(Settings):
    """A file of values that are found in every record.

    Args:
        file: a value a line, in UTF-8; after a tab its type, else `entity_type`.
        entity_type: of lines that name none. Values of `PERSON` are found in other
            orders, with initials and in parts too.
        public: the list tells nobody who is in the data.
        digest: SHA-256 of the file that the run must find; commands fill it in.
    """

    file: Path
    entity_type: str = Field(default="PERSON", pattern=r"^[A-Z][A-Z0-9_]{0,40}$")
    public: bool = False
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")


class TokenClassifierSettings(Settings):
    """A token classification model, as it stands in a configuration.

    Args:
        model: local folder with `config.json`, safetensors and a fast tokenizer.
        labels: by label of the model, without `B-` and the like, the type that it is
            called here, or null for what is no personal data. Usual names are known.
        threshold: least probability that a token is personal data of any type.
        window: tokens read at once; the model's own limit if that is less.
        overlap: tokens that two windows share.
        batch_size: texts computed together. 1 keeps a text's marks from hanging on
            those beside it; more is faster, and claims are then conditional on
            `marks_follow_one_text`.
    """

    model: str = Field(min_length=1)
    labels: Mapping[str, TypeName | None] = Field(default_factory=dict)
    threshold: float = Field(default=0.5, gt=0, lt=1)
    window: int = Field(default=512, ge=LEAST_WINDOW, le=131_072)
    overlap: int = Field(default=64, ge=0, le=4096)
    batch_size: int = Field(default=1, ge=1, le=256)
