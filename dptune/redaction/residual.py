"""What redaction left of found values: whole ones, parts, halves, other spellings."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import datasets

from dptune.conversation import contents_only
from dptune.errors import DetectionError
from dptune.spellings import MAX_CHARACTERS, KnownValue, Spellings, is_border
from dptune.text import Span

_BATCH_SIZE: Final = 1000
_LEAST_LETTERS: Final = 4
_LEAST_PART: Final = 3


def residual_values(text: str, spans: Sequence[Span], redacted: str) -> dict[str, int]:
    """Count the values of spans that occur in the redacted text as whole words.

    A name found in one place and missed in another shows here. Values of fewer than
    four letters and digits are left out: they stand in ordinary text by chance.

    **Privacy.** The counts are private; the values themselves are not returned.

    >>> name = Span(start=5, end=9, entity_type="PERSON")
    >>> residual_values("call Anna, ask Anna", [name], "call <mask>, ask Anna")
    {'PERSON': 1}

    Args:
        text: the original text.
        spans: what was replaced in it.
        redacted: the text after replacement.

    Returns:
        Numbers of different values by entity type; empty if none is left.
    """
    left: Counter[str] = Counter()
    folded = contents_only(redacted).casefold()
    values = {(s.entity_type, text[s.start : s.end].casefold()) for s in spans}
    for kind, value in sorted(values):
        known = sum(map(str.isalnum, value)) >= _LEAST_LETTERS
        if known and value in folded:
            left[kind] += bool(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", folded))
    return {kind: count for kind, count in left.items() if count}


@dataclass(frozen=True, kw_only=True)
class Residual:
    """What is left of found values elsewhere in their records: places by entity type.

    Args:
        parts: of names: `Lee` where `Ann Lee` was found.
        spellings: whole values, otherwise written: `LEE, ANN`, `ann_lee`.
        halves: values that a mark covers in part, or marks that end inside a word.
    """

    parts: Mapping[str, int] = field(default_factory=dict)
    spellings: Mapping[str, int] = field(default_factory=dict)
    halves: Mapping[str, int] = field(default_factory=dict)


def _never(_word: str) -> bool:
    return False


def residual_spellings(
    text: str, spans: Sequence[Span], *, is_ordinary: Callable[[str], bool] = _never
) -> Residual:
    """Look outside of spans for what they hold: in parts, halves, other spellings.

    >>> name = Span(start=0, end=7, entity_type="PERSON")
    >>> residual_spellings("Ann Lee came. LEE, ANN went; ask lee.", [name])
    Residual(parts={'PERSON': 1}, spellings={'PERSON': 1}, halves={})

    Args:
        text: the original text.
        spans: what was replaced in it.
        is_ordinary: tells whether a lower-case word is one of the language too; such
            parts of names count only with a capital.
    """
    covered = bytearray(len(text) + 1)
    for span in spans:
        covered[span.start : span.end] = b"\1" * (span.end - span.start)
    halves = Counter(s.entity_type for s in spans if _is_cut(text, s, covered))
    values = {(s.entity_type, text[s.start : s.end]) for s in spans}
    known = [
        KnownValue(value=value, entity_type=kind)
        for kind, value in values
        if sum(map(str.isalnum, value)) >= _LEAST_LETTERS
        and len(value) <= MAX_CHARACTERS
    ]
    seen: list[tuple[int, int]] = []
    parts: Counter[str] = Counter()
    spellings: Counter[str] = Counter()
    same = {(kind, value.casefold()) for kind, value in values}
    finder = Spellings(known, is_ordinary=is_ordinary)
    for found in finder.find(contents_only(text), covered=covered):
        start, end, kind = found.start, found.end, found.entity_type
        said = [i for i in range(start, end) if text[i].isalnum()]
        open_places = sum(not covered[i] for i in said)
        if not open_places or any(a <= start and end <= b for a, b in seen):
            continue
        if open_places < len(said):
            halves[kind] += 1
        elif not found.is_whole:
            if len(said) < _LEAST_PART:
                continue
            parts[kind] += 1
        elif (kind, text[start:end].casefold()) not in same:
            spellings[kind] += 1
        seen.append((start, end))
    return Residual(parts=dict(parts), spellings=dict(spellings), halves=dict(halves))


def _is_cut(text: str, span: Span, covered: bytearray) -> bool:
    """Whether a mark begins or ends inside a word of a script that has blanks."""
    return any(
        0 < at < len(text)
        and not (covered[at - 1] and covered[at])
        and not is_border(text[at - 1], text[at])
        for at in (span.start, span.end)
    )


def residual_counts(
    original: datasets.Dataset,
    redacted: datasets.Dataset,
    *,
    kept: Collection[str] = (),
) -> dict[str, int]:
    """Sum the residual values of a corpus by entity type.

    Args:
        original: columns `text` and `spans`.
        redacted: what `redact_dataset` made of it, row by row.
        kept: types that were to stay.

    Raises:
        DetectionError: the two differ in length.
    """
    if len(original) != len(redacted):
        raise DetectionError(
            "original and redacted must have one length, got "
            f"{len(original)}, {len(redacted)}. Pass the corpus that was redacted."
        )
    left: Counter[str] = Counter()
    before = original.select_columns(["text", "spans"]).iter(_BATCH_SIZE)
    after = redacted.select_columns(["text"]).iter(_BATCH_SIZE)
    for old, new in zip(before, after, strict=True):
        for text, row, made in zip(old["text"], old["spans"], new["text"], strict=True):
            left.update(residual_values(text, list(map(Span.from_row, row)), made))
    return {kind: left[kind] for kind in sorted(left) if kind not in kept}


def residual_spelling_counts(
    original: datasets.Dataset,
    *,
    is_ordinary: Callable[[str], bool] = _never,
    kept: Collection[str] = (),
) -> Residual:
    """Sum what `residual_spellings` finds in the records of a corpus.

    Args:
        original: columns `text` and `spans`.
        is_ordinary: see there.
        kept: types that were to stay.
    """
    sums: dict[str, Counter[str]] = {
        name: Counter() for name in ("parts", "spellings", "halves")
    }
    for batch in original.select_columns(["text", "spans"]).iter(_BATCH_SIZE):
        for text, row in zip(batch["text"], batch["spans"], strict=True):
            if row:
                spans = [Span.from_row(span) for span in row]
                left = residual_spellings(text, spans, is_ordinary=is_ordinary)
                for name, counts in sums.items():
                    counts.update(getattr(left, name))
    return Residual(
        **{
            name: {kind: counts[kind] for kind in sorted(counts) if kind not in kept}
            for name, counts in sums.items()
        }
    )
