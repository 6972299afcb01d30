"""Replaces sensitive spans in texts and corpora, and counts what was left behind."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import datasets

from dptune.errors import DetectionError
from dptune.redaction.operators import Operator, Pseudonyms, replacement
from dptune.text import MASK, Span

_BATCH_SIZE = 1000
_LEAST_LETTERS = 4


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

    >>> name = Span(start=5, end=9, entity_type="PERSON")
    >>> redact_text("call Anna now", [name], Operator.TYPED).text
    'call <PERSON> now'

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
        invent = pseudonyms.replacement(unit_id)
    else:
        invent = replacement(operator)
    joins = operator is Operator.MASK and merge_adjacent
    pieces: list[str] = []
    edits: list[Edit] = []
    position = length = 0
    for span in sorted(spans):
        if span.start < position or span.end > len(text):
            raise DetectionError(
                "spans must be disjoint and inside the text, got "
                f"start={span.start}, end={span.end} after end={position}, "
                f"num_characters={len(text)}. Redact what DetectionEngine.detect "
                "returned for the same text."
            )
        gap = text[position : span.start]
        position = span.end
        if joins and edits and not gap.strip(" \t"):
            edits[-1] = replace(edits[-1], end=span.end)
            continue
        new = invent(span, text[span.start : span.end])
        pieces += (gap, new)
        first, length = length + len(gap), length + len(gap) + len(new)
        edits.append(
            Edit(
                start=span.start,
                end=span.end,
                new_start=first,
                new_end=length,
                entity_type=span.entity_type,
            )
        )
    pieces.append(text[position:])
    redacted = "".join(pieces)
    if edits and (not redacted or redacted.isspace()):
        whole = replace(
            edits[0], start=0, end=len(text), new_start=0, new_end=len(MASK)
        )
        return Redaction(text=MASK, edits=(whole,))
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
                    [Span.from_row(span) for span in row],
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
            left.update(residual_values(text, list(map(Span.from_row, row)), made))
    return dict(sorted(left.items()))
