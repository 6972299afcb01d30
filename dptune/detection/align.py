"""Exact map from character spans to token labels."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dptune.errors import DetectionError
from dptune.text import Span

BoolArray = npt.NDArray[np.bool_]


def character_marks(num_characters: int, spans: Iterable[Span]) -> BoolArray:
    """Mark every code point that at least one span covers.

    Args:
        num_characters: length of the text, in code points.
        spans: spans of that text, in any order; they may overlap.

    Returns:
        Booleans of shape (num_characters,).

    Raises:
        DetectionError: a span ends after the text.
    """
    changes = np.zeros(num_characters + 1, dtype=np.int64)
    for span in spans:
        if span.end > num_characters:
            raise DetectionError(
                f"span must end inside the text, got end={span.end}, "
                f"num_characters={num_characters}. Detect on the tokenized text."
            )
        changes[span.start] += 1
        changes[span.end] -= 1
    return np.cumsum(changes[:num_characters]) > 0


def token_labels(
    offsets: npt.ArrayLike, num_characters: int, spans: Iterable[Span]
) -> BoolArray:
    """Label the tokens that hold at least one sensitive code point.

    Token `[a, b)` is sensitive if and only if `b > a` and `[a, b)` meets a span.

    **Formal guarantee.** Every sensitive code point that a token covers lies in a
    labelled token, and every labelled token covers a sensitive code point. Special and
    padding tokens have `a == b` and are never labelled.

    Args:
        offsets: pairs `[a, b)` from a fast tokenizer, shape (tokens, 2), in code points
            of the original text.
        num_characters: length of the text.
        spans: spans of that text.

    Returns:
        Booleans of shape (tokens,).

    Raises:
        DetectionError: an offset or a span lies outside the text.
    """
    pairs = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    if pairs.size and (pairs.min() < 0 or pairs.max() > num_characters):
        raise DetectionError(
            f"offsets must lie in [0, {num_characters}], got [{pairs.min()}, "
            f"{pairs.max()}]. Pass offsets of the text that was detected."
        )
    marks = character_marks(num_characters, spans)
    before = np.concatenate(([0], np.cumsum(marks)))
    labels: BoolArray = before[pairs[:, 1]] > before[pairs[:, 0]]
    return labels
