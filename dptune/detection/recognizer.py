"""What a recognizer is, the four tiers of Shi et al. (2022), their types, and filters.

Filters take marks back before they are united; no list may take a firm one back.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final, Protocol

from dptune.errors import DependencyError
from dptune.text import MASK, Span


class Tier(StrEnum):
    """How much of a text counts as sensitive. Each tier contains the one before it.

    * `LOW_ENTITY`: persons, organizations, dates, locations.
    * `HIGH_ENTITY`: all 18 OntoNotes entity types.
    * `LOW_CONTEXTUAL`: also proper nouns, pronouns, subjects and objects.
    * `HIGH_CONTEXTUAL`: also verbs and roots.

    Structured personal data (e-mail, phone, ids and so on) counts in every tier.

    References:
        Shi, Shea, Chen, Zhang, Jia, Yu (2022), "Just Fine-tune Twice", section 4.
    """

    LOW_ENTITY = "low_entity"
    HIGH_ENTITY = "high_entity"
    LOW_CONTEXTUAL = "low_contextual"
    HIGH_CONTEXTUAL = "high_contextual"

    @property
    def is_contextual(self) -> bool:
        """True where the words around entities count as well."""
        return self in (Tier.LOW_CONTEXTUAL, Tier.HIGH_CONTEXTUAL)


STRUCTURED_TYPES = frozenset(
    [
        "EMAIL",
        "PHONE",
        "SSN",
        "NATIONAL_ID",
        "CRYPTO",
        "CREDIT_CARD",
        "IBAN",
        "IP",
        "MAC",
        "UUID",
        "URL",
        "SECRET",
        "USERNAME",
        "ID",
        "ORDER_ID",
        "ACCOUNT_ID",
        "MRN",
        "LICENSE",
        "PASSPORT",
        "ADDRESS",
        "ZIP",
        "AGE",
        "DEVICE_ID",
        "VEHICLE_ID",
        "OCCUPATION",
        "MARITAL_STATUS",
        "AMOUNT",
    ]
)
"""Personal data with a form of its own. It counts in every tier."""

OWN_RECOGNIZERS = frozenset({"patterns", "lexicon", "tagger", "languages"})
"""Those that change with this library alone, and with no other package or model."""
DEFAULT_RECOGNIZERS = ("patterns", "tagger", "languages")
"""What reads a text where a configuration does not say. This is the only such list."""

UNAVAILABLE = "UNAVAILABLE"
"""Text that a recognizer could not judge: sensitive, and never kept in a cache."""

LOW_ENTITY_TYPES = (
    STRUCTURED_TYPES
    | frozenset(
        ["PERSON", "ORG", "DATE", "GPE", "LOC", "FAC", "NORP", "ENTITY", "UNKNOWN"]
    )
    | {UNAVAILABLE}
)
"""`ENTITY` and `UNKNOWN` are names that no rule could type: they may be persons."""

HIGH_ENTITY_TYPES = LOW_ENTITY_TYPES | frozenset(
    [
        "PRODUCT",
        "EVENT",
        "WORK_OF_ART",
        "LAW",
        "LANGUAGE",
        "TIME",
        "PERCENT",
        "MONEY",
        "QUANTITY",
        "ORDINAL",
        "CARDINAL",
    ]
)

PLACEHOLDER = re.compile(
    rf"{MASK}|<(?:{'|'.join(sorted(HIGH_ENTITY_TYPES))})(?:_\d{{1,4}})?>"
)
"""What redaction wrote: nobody's data, and a word of no language."""


class Recognizer(Protocol):
    """Finds character spans of sensitive text.

    `name` is written into every span.
    """

    @property
    def name(self) -> str:
        """Short lower-case name."""
        ...  # pragma: no cover

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the behavior does: the key of caches."""
        ...  # pragma: no cover

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text, in any order; they may overlap."""
        ...  # pragma: no cover


class SpanFilter(Protocol):
    """Takes spans back before they are united, such as reviewed false alarms."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the behavior does: the key of caches."""
        ...  # pragma: no cover

    def keep(self, spans: Sequence[Span], text: str) -> Sequence[Span]:
        """Return the spans that stay, of all that the recognizers found in a text."""
        ...  # pragma: no cover


def entity_types(tier: Tier) -> frozenset[str]:
    """Return the entity types that count in the entity part of a tier."""
    return LOW_ENTITY_TYPES if tier is Tier.LOW_ENTITY else HIGH_ENTITY_TYPES


@lru_cache
def code_digest(*modules: str) -> str:
    """Digest the source of modules of this package, so that a changed rule shows."""
    room = resources.files("dptune.detection")
    return fingerprint_of(
        (
            unicodedata.unidata_version,
            *(room.joinpath(f"{name}.py").read_text("utf8") for name in modules),
        )
    )


def digest_of_files(folder: Path) -> str:
    """Digest names and contents of all files below a folder, or of one file.

    Raises:
        DependencyError: nothing is there.
    """
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    if not paths:
        raise DependencyError(
            f"the model folder {folder.name} must hold files, but none is there. "
            "Unpack the model there."
        )
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def fingerprint_of(parts: Iterable[str]) -> str:
    """Digest strings so that no two different lists share a digest by concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


CHECKSUM_CONFIDENCE: Final = 0.95
"""Spans from here on have a valid checksum or an exact form: nobody takes them back."""

_DEMANDING: Final = frozenset(["deny_list", "deny_lists", "known_values"])
"""Recognizers that mark what somebody said must be marked."""


def is_demanded(span: Span) -> bool:
    """Whether somebody said that it must be marked, or nobody could judge it."""
    return span.entity_type == UNAVAILABLE or span.recognizer in _DEMANDING


def is_firm(span: Span) -> bool:
    """Whether no list may take a span back."""
    return is_demanded(span) or span.confidence >= CHECKSUM_CONFIDENCE


def without_allowed(
    spans: Sequence[Span], allowed: Iterable[tuple[int, int]]
) -> list[Span]:
    """Take back the spans that lie inside an allowed range, unless they are firm."""
    ranges = tuple(allowed)
    return [
        span
        for span in spans
        if is_firm(span)
        or not any(start <= span.start and span.end <= end for start, end in ranges)
    ]


class Filters:
    """Several filters, one after another."""

    def __init__(self, filters: Sequence[SpanFilter]) -> None:
        self._filters = tuple(filters)
        self.fingerprint = fingerprint_of(f.fingerprint for f in self._filters)

    def keep(self, spans: Sequence[Span], text: str) -> Sequence[Span]:
        """Return the spans that every filter keeps."""
        for one in self._filters:
            spans = one.keep(spans, text)
        return spans


def chained(*filters: SpanFilter | None) -> SpanFilter | None:
    """Return one filter for all that are given; None for none."""
    given = [one for one in filters if one is not None]
    if len(given) < 2:
        return given[0] if given else None
    return Filters(given)
