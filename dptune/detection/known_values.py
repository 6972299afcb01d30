"""Values that are known to be personal: of a unit's own columns, or of a file.

**Columns** (`data.source.known_columns`) hold the names, addresses and numbers of the
unit that a record belongs to. They are found in every record of that unit, and in no
other: what one unit's columns say never changes the marks of another.

**A file** (`detection.known_values`) is found in every record. If it was read off the
records themselves (a list of customers), whoever is on it changes the marks of others:
claims of stages that see marks are then conditional on `private_known_values`. A list
that tells nobody who is in the data is declared with `public: true`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import datasets

from dptune.detection.escapes import unescaped
from dptune.detection.recognizer import code_digest, fingerprint_of
from dptune.detection.settings import KnownValuesSettings
from dptune.detection.words import (
    ADJECTIVE,
    ADVERB,
    CLOSED,
    COMMON,
    GIVEN_NAME,
    KNOWN,
    PERSONAL,
    PROPER_ONLY,
    VERB,
    reading_of,
)
from dptune.errors import ConfigError, Problem
from dptune.spellings import MAX_CHARACTERS, KnownValue, Spellings, source_digest
from dptune.text import Span

NAME: Final = "known_values"
COLUMN: Final = "known_values"
"""Column of a corpus: for each record a list of structs `value`, `entity_type`."""

_MAX_BYTES: Final = 1 << 28
_MOST_PROBLEMS: Final = 20
_CONFIDENCE: Final = 0.96
"""A value is known: no allow list takes its mark back, and it keeps its type."""
_PART: Final = 0.75
_TYPE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def file_digest(file: Path) -> str:
    """Digest a file of values.

    Raises:
        ConfigError: it cannot be read.
    """
    return hashlib.sha256(_content(file)).hexdigest()


def read_values(settings: KnownValuesSettings) -> tuple[KnownValue, ...]:
    """Read a file of values.

    Raises:
        ConfigError: with every line that cannot be used, by its number and without its
            text; or the file is another than the run was planned with.
    """
    content = _content(settings.file)
    found = hashlib.sha256(content).hexdigest()
    if settings.digest not in ("", found):
        raise _unusable(
            settings,
            f"must be the file that the run was planned with, got {found[:12]} where "
            f"{settings.digest[:12]} was.",
        )
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise _unusable(settings, "must be UTF-8, but is not.") from None
    values: list[KnownValue] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        value, _, kind = line.strip().partition("\t")
        if not value:
            continue
        kind = kind.strip() or settings.entity_type
        if fault := _fault(value, kind):
            problems.append(
                Problem(path=f"{settings.file.name} line {number}", message=fault)
            )
        else:
            values.append(KnownValue(value=value, entity_type=kind))
    if not values and not problems:
        raise _unusable(settings, "must hold a value, but has none.")
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        shown = problems[:_MOST_PROBLEMS]
        if more > 0:
            message = f"has {more} problems more."
            shown.append(Problem(path=settings.file.name, message=message))
        raise ConfigError(shown)
    return tuple(dict.fromkeys(values))


def _content(file: Path) -> bytes:
    """Read a file of a size that may be read."""
    try:
        if file.is_file() and file.stat().st_size <= _MAX_BYTES:
            return file.read_bytes()
    except OSError:
        pass
    message = f"must be a readable file of at most {_MAX_BYTES:,} bytes, but is not."
    raise ConfigError.at("detection.known_values.file", message)


def _unusable(settings: KnownValuesSettings, message: str) -> ConfigError:
    path = f"detection.known_values.file ({settings.file.name})"
    return ConfigError.at(path, message)


def _fault(value: str, kind: str) -> str:
    """Say what is wrong with a line; empty if nothing is."""
    if len(value) > MAX_CHARACTERS:
        return f"must have at most {MAX_CHARACTERS} characters, got {len(value)}."
    if not any(map(str.isalnum, value)):
        return "must hold a letter or digit, got none."
    if not set(kind) <= _TYPE or not kind[0].isalpha() or len(kind) > 41:
        return "must name a type such as PERSON behind the tab, got something else."
    return ""


def is_ordinary(word: str) -> bool:
    """Tell whether a lower-case word is one of English too: `will`, `mark`, `young`."""
    reading = reading_of(word)
    if reading & (GIVEN_NAME | PERSONAL | PROPER_ONLY):
        return bool(reading & (CLOSED | COMMON | VERB | ADJECTIVE | ADVERB))
    return bool(reading & (CLOSED | KNOWN))


def _is_frequent(word: str) -> bool:
    """Tell whether a word may stand in any text, whoever it is about: `will`, `may`.

    A unit's own texts speak of its people, so that `mark` there is Mark.
    """
    return bool(reading_of(word) & (CLOSED | COMMON))


class KnownValuesRecognizer:
    """Marks the values of a file in every text.

    **Privacy.** The values are private unless the file is public; they are hidden from
    `repr`, and the fingerprint is a digest of them that must stay where they may be.

    Args:
        values: what to look for.
    """

    name = NAME

    def __init__(self, values: Sequence[KnownValue]) -> None:
        self._spellings = Spellings(values, is_ordinary=is_ordinary)
        parts = [text for v in sorted(set(values)) for text in (v.value, v.entity_type)]
        self.fingerprint = fingerprint_of((_code(), *parts))

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return where the values stand in each text; spans may overlap."""
        return [_spans(text, self._spellings) for text in texts]


def _code() -> str:
    """Digest the code that decides what is found."""
    return fingerprint_of(
        (code_digest("known_values", "words", "escapes"), source_digest())
    )


def _spans(text: str, spellings: Spellings) -> list[Span]:
    return [
        Span(
            start=found.start,
            end=found.end,
            entity_type=found.entity_type,
            recognizer=NAME,
            confidence=_CONFIDENCE if found.is_whole else _PART,
        )
        for found in spellings.find(text)
    ]


@dataclass(frozen=True, kw_only=True)
class UnitValues:
    """The known values of each unit, hidden from `repr`.

    **Formal guarantee.** The marks of a record depend on its own text and on the values
    of its own unit, on nothing of another unit.

    Args:
        by_unit: values by `unit_id`; units without any may be left out.
    """

    by_unit: Mapping[str, tuple[KnownValue, ...]] = field(repr=False)

    @classmethod
    def of(cls, dataset: datasets.Dataset) -> "UnitValues | None":
        """Collect the values of a whole corpus; None where it names none."""
        if COLUMN not in dataset.column_names:
            return None
        found: dict[str, dict[KnownValue, None]] = {}
        for batch in dataset.select_columns(["unit_id", COLUMN]).iter(4096):
            for unit, row in zip(batch["unit_id"], batch[COLUMN], strict=True):
                own = found.setdefault(unit, {})
                own.update(dict.fromkeys(KnownValue(**struct) for struct in row or ()))
        return cls(by_unit={unit: tuple(own) for unit, own in found.items() if own})

    @property
    def fingerprint(self) -> str:
        """Digest of all values, whose they are, and of the code that looks for them."""
        parts = [
            text
            for unit, values in sorted(self.by_unit.items())
            for value in values
            for text in (unit, value.value, value.entity_type)
        ]
        return fingerprint_of((_code(), *parts))

    def spans(self, text: str, unit_id: str) -> list[Span]:
        """Return where the values of a unit stand in a text of its own."""
        return self.finder()(text, unit_id)

    def finder(self) -> Callable[[str, str], list[Span]]:
        """Return what finds them in many texts, and remembers the last unit."""
        last: list[tuple[str, Spellings]] = []

        def find(text: str, unit_id: str) -> list[Span]:
            if not last or last[0][0] != unit_id:
                values = self.by_unit.get(unit_id, ())
                last[:] = [(unit_id, Spellings(values, is_ordinary=_is_frequent))]
            known, view = last[0][1], unescaped(text)
            found = _spans(text, known)
            if view is not None:
                found += map(view.original, _spans(view.text, known))
            return found

        return find
