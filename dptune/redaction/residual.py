"""What redaction left behind: values that were found once and stand elsewhere still."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets

from dptune.errors import DetectionError
from dptune.text import Span

_LEAST_LETTERS = 4
_BATCH_SIZE = 1000


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
