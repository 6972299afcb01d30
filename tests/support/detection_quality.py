"""Quality of a detector against gold spans."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from dptune.detection.union import BoolArray, character_marks
from dptune.errors import DetectionError
from dptune.results import Report
from dptune.text import Span


class TypeQuality(Report):
    """Quality of one gold entity type.

    Args:
        num_spans: gold spans of the type.
        span_recall: share of gold spans whose letters and digits are all covered.
        character_recall: share of gold letters and digits covered.
    """

    entity_type: str
    num_spans: int
    span_recall: float = Field(ge=0, le=1)
    character_recall: float = Field(ge=0, le=1)


class DetectionQuality(Report):
    """Coverage of gold spans, whatever type the detector gave them.

    A share of nothing is 1 for recall and precision, 0 for the masked share.

    Args:
        span_precision: share of predicted spans that touch a gold span.
        character_precision: share of covered letters and digits that are gold.
        masked_share: share of all code points that predicted spans cover.
        types: one row per gold type, sorted by name.
    """

    num_texts: int
    num_gold_spans: int
    num_predicted_spans: int
    span_recall: float = Field(ge=0, le=1)
    span_precision: float = Field(ge=0, le=1)
    character_recall: float = Field(ge=0, le=1)
    character_precision: float = Field(ge=0, le=1)
    masked_share: float = Field(ge=0, le=1)
    types: tuple[TypeQuality, ...]


def evaluate(
    gold: Sequence[Sequence[Span]],
    predicted: Sequence[Sequence[Span]],
    texts: Sequence[str],
) -> DetectionQuality:
    """Compare predicted spans with gold spans.

    What counts is coverage: a phone number found as an account number is found. Blanks
    and punctuation inside a gold span need not be covered.

    Args:
        gold: gold spans of each text.
        predicted: predicted spans of each text.
        texts: the texts.

    Raises:
        DetectionError: the three differ in length, or a span lies outside its text.
    """
    if not len(gold) == len(predicted) == len(texts):
        raise DetectionError(
            "gold, predicted and texts must have one length, got "
            f"{len(gold)}, {len(predicted)}, {len(texts)}. Pass one entry per text."
        )
    counts: Counter[tuple[str, str]] = Counter()
    for gold_spans, predicted_spans, text in zip(gold, predicted, texts, strict=True):
        _count(counts, gold_spans, predicted_spans, text)
    names = sorted({name for kind, name in counts if kind == "spans"})
    sums = {
        kind: sum(counts[kind, name] for name in names)
        for kind in ("spans", "covered_spans")
    }
    return DetectionQuality(
        num_texts=len(texts),
        num_gold_spans=sums["spans"],
        num_predicted_spans=counts["predicted_spans", ""],
        span_recall=_share(sums["covered_spans"], sums["spans"]),
        span_precision=_share(counts["true_spans", ""], counts["predicted_spans", ""]),
        character_recall=_share(counts["true", ""], counts["gold", ""]),
        character_precision=_share(counts["true", ""], counts["predicted", ""]),
        masked_share=counts["masked", ""] / max(counts["all", ""], 1),
        types=tuple(_type_quality(counts, name) for name in names),
    )


def _count(
    counts: Counter[tuple[str, str]],
    gold: Sequence[Span],
    predicted: Sequence[Span],
    text: str,
) -> None:
    """Add the counts of one text."""
    matters = np.fromiter((c.isalnum() for c in text), dtype=np.bool_, count=len(text))
    gold_marks = character_marks(len(text), gold)
    marks = character_marks(len(text), predicted)
    counts["all", ""] += len(text)
    counts["masked", ""] += int(marks.sum())
    counts["gold", ""] += int((gold_marks & matters).sum())
    counts["predicted", ""] += int((marks & matters).sum())
    counts["true", ""] += int((gold_marks & marks & matters).sum())
    counts["predicted_spans", ""] += len(predicted)
    counts["true_spans", ""] += sum(
        bool(gold_marks[s.start : s.end].any()) for s in predicted
    )
    for span in gold:
        _count_gold(counts, span, marks, matters)


def _count_gold(
    counts: Counter[tuple[str, str]], span: Span, marks: BoolArray, matters: BoolArray
) -> None:
    """Add the counts of one gold span."""
    name = span.entity_type
    inside = matters[span.start : span.end]
    covered = inside & marks[span.start : span.end]
    counts["spans", name] += 1
    counts["characters", name] += int(inside.sum())
    counts["covered_characters", name] += int(covered.sum())
    counts["covered_spans", name] += int(covered.sum() == inside.sum())


def _type_quality(counts: Counter[tuple[str, str]], name: str) -> TypeQuality:
    return TypeQuality(
        entity_type=name,
        num_spans=counts["spans", name],
        span_recall=_share(counts["covered_spans", name], counts["spans", name]),
        character_recall=_share(
            counts["covered_characters", name], counts["characters", name]
        ),
    )


def _share(part: int, whole: int) -> float:
    """Return a share; a share of nothing is 1."""
    return part / whole if whole else 1.0
