"""Replaces sensitive spans in texts and corpora, and counts what was left behind."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets

from dptune.errors import DetectionError
from dptune.redaction.operators import MASK, Operator, Pseudonyms, replacement
from dptune.text import Span

_BATCH_SIZE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One replacement: `[start, end)` became `[new_start, new_end)`.

    Args:
        entity_type: type of the first span that the edit replaced.
    """

    start: int
    end: int
    new_start: int
    new_end: int
    entity_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Redaction:
    """A redacted text and how it came about, hidden from `repr`.

    Args:
        text: the text after replacement.
        edits: what was replaced, in order; between edits nothing changed.
    """

    text: str = field(repr=False)
    edits: tuple[Edit, ...]


def redact_text(
    text: str,
    spans: Sequence[Span],
    operator: Operator,
    *,
    merge_adjacent: bool = True,
    pseudonyms: Pseudonyms | None = None,
    unit_id: str | None = None,
) -> Redaction:
    """Replace the spans of one text.

    **Formal guarantee.** No code point of a span is copied to the result; pseudonyms
    keep the shape of what they replace: signs, blanks and case. A text that is left
    empty or blank becomes one mask, so that no record vanishes.

    | case | result |
    |---|---|
    | no spans | the text itself, no edits |
    | `MASK`, only blanks between | one mask, unless `merge_adjacent` is off |
    | everything deleted | `<mask>`, one edit over the whole text |

    Args:
        text: the text.
        spans: disjoint spans of the text, in any order.
        operator: what to put in their place.
        merge_adjacent: join masks that only blanks part, not line ends. Off keeps
            one mask per span, so that texts of equal shape keep equal numbers of masks.
        pseudonyms: how to invent values; for `PSEUDONYM`, which cannot do without.
        unit_id: whose text it is, for pseudonyms that hold within a unit.

    Returns:
        The redacted text with its edits.

    Raises:
        ConfigError: `PSEUDONYM` without `pseudonyms` or the unit that they need.
        DetectionError: spans overlap or end after the text.
    """
    if operator is Operator.PSEUDONYM and pseudonyms is not None:
        replace = pseudonyms.replacement(unit_id)
    else:
        replace = replacement(operator)
    joins = operator is Operator.MASK and merge_adjacent
    pieces: list[str] = []
    edits: list[Edit] = []
    position = length = 0
    for span in sorted(spans):
        _check(span, position, len(text))
        gap = text[position : span.start]
        position = span.end
        if joins and edits and not gap.strip(" \t"):
            edits[-1] = _extended(edits[-1], span.end)
            continue
        new = replace(span, text[span.start : span.end])
        pieces += (gap, new)
        edits.append(_edit(span, length + len(gap), len(new)))
        length += len(gap) + len(new)
    pieces.append(text[position:])
    redacted = "".join(pieces)
    if edits and (not redacted or redacted.isspace()):
        return _all_masked(text, edits[0].entity_type)
    return Redaction(text=redacted, edits=tuple(edits))


def redact_dataset(
    dataset: datasets.Dataset,
    *,
    operator: Operator,
    merge_adjacent: bool = True,
    pseudonyms: Pseudonyms | None = None,
) -> datasets.Dataset:
    """Replace the spans of every record of a corpus.

    Rows stay in number and order, so that the redacted corpus is aligned with the
    original; every column stays except `spans`, which no longer fits.

    Args:
        dataset: columns `text` and `spans`, and any others; `unit_id` for pseudonyms
            that hold within a unit.
        operator: what to put in the place of spans.
        merge_adjacent: as in `redact_text`.
        pseudonyms: as in `redact_text`.

    Returns:
        The redacted corpus.

    Raises:
        ConfigError: as `redact_text`.
        DetectionError: the corpus has no `spans`, or spans do not fit their text.
    """
    if "spans" not in dataset.column_names:
        raise DetectionError(
            "dataset must have the column spans, got columns "
            f"{', '.join(dataset.column_names)}. Run detection first."
        )
    features = datasets.Features(
        {name: kind for name, kind in dataset.features.items() if name != "spans"}
    )

    if len(dataset) == 0:
        return dataset.remove_columns("spans")

    def redact(batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        units = batch.get("unit_id") or [None] * len(batch["text"])
        rows = zip(batch["text"], batch["spans"], units, strict=True)
        return {
            "text": [
                redact_text(
                    text,
                    _spans(row),
                    operator,
                    merge_adjacent=merge_adjacent,
                    pseudonyms=pseudonyms,
                    unit_id=unit,
                ).text
                for text, row, unit in rows
            ]
        }

    return dataset.map(
        redact,
        batched=True,
        batch_size=_BATCH_SIZE,
        remove_columns=["spans"],
        features=features,
        desc="redact",
    )


def _spans(row: Sequence[dict[str, Any]]) -> list[Span]:
    """Read one value of the column `spans`."""
    return [
        Span(start=span["start"], end=span["end"], entity_type=span["entity_type"])
        for span in row
    ]


def _check(span: Span, position: int, length: int) -> None:
    if span.start < position or span.end > length:
        raise DetectionError(
            f"spans must be disjoint and inside the text, got start={span.start}, "
            f"end={span.end} after end={position}, num_characters={length}. "
            "Redact what DetectionEngine.detect returned for the same text."
        )


def _edit(span: Span, new_start: int, new_length: int) -> Edit:
    return Edit(
        start=span.start,
        end=span.end,
        new_start=new_start,
        new_end=new_start + new_length,
        entity_type=span.entity_type,
    )


def _extended(edit: Edit, end: int) -> Edit:
    """Let a mask take in the next span."""
    return Edit(
        start=edit.start,
        end=end,
        new_start=edit.new_start,
        new_end=edit.new_end,
        entity_type=edit.entity_type,
    )


def _all_masked(text: str, entity_type: str) -> Redaction:
    edit = Edit(
        start=0, end=len(text), new_start=0, new_end=len(MASK), entity_type=entity_type
    )
    return Redaction(text=MASK, edits=(edit,))


_LEAST_LETTERS = 4


def residual_values(text: str, spans: Sequence[Span], redacted: str) -> dict[str, int]:
    """Count the values of spans that occur in the redacted text as whole words.

    A name found in one place and missed in another shows here. Values of fewer than
    four letters and digits are left out: they stand in ordinary text by chance.

    **Privacy.** The counts are private; the values themselves are not returned.

    Args:
        text: the original text.
        spans: what was replaced in it.
        redacted: the text after replacement.

    Returns:
        Numbers of different values by entity type; empty if none is left.
    """
    left: Counter[str] = Counter()
    folded = redacted.casefold()
    values = {(s.entity_type, text[s.start : s.end].casefold()) for s in spans}
    for kind, value in sorted(values):
        known = sum(map(str.isalnum, value)) >= _LEAST_LETTERS
        if known and value in folded:
            left[kind] += bool(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", folded))
    return {kind: count for kind, count in left.items() if count}


def residual_counts(
    original: datasets.Dataset, redacted: datasets.Dataset
) -> dict[str, int]:
    """Sum the residual values of a corpus by entity type.

    Args:
        original: columns `text` and `spans`.
        redacted: what `redact_dataset` made of it, row by row.

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
            left.update(residual_values(text, list(map(_span, row)), made))
    return dict(sorted(left.items()))


def _span(row: dict[str, Any]) -> Span:
    return Span(start=row["start"], end=row["end"], entity_type=row["entity_type"])
