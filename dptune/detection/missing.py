"""How many sensitive words a detector missed, with an interval that holds for clusters.

Misses come in clusters: a template or a writer that fools the detector once fools it
again. An interval that takes words for independent is too short (it covered .66 to .91
at nominal .95), so the effective sample size is cut by the design effect of records.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dptune.results import Interval

_WORD = re.compile(r"\S+")
Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class MissCounts:
    """Missed sensitive words and all words of one record."""

    missed: int
    words: int


def count_misses(
    text: str, gold: Sequence[Range], found: Sequence[Range]
) -> MissCounts:
    """Count words with a letter or digit that is gold but not found.

    Args:
        text: of the record.
        gold: half-open ranges that are sensitive.
        found: half-open ranges that the detector marked.
    """
    open_marks = _marks(len(text), gold) & ~_marks(len(text), found)
    words = [m.span() for m in _WORD.finditer(text)]
    missed = sum(
        any(open_marks[i] and text[i].isalnum() for i in range(start, end))
        for start, end in words
    )
    return MissCounts(missed=missed, words=len(words))


def missing_rate(
    counts: Sequence[MissCounts], *, confidence: float = 0.95
) -> tuple[float, Interval]:
    """Estimate m = missed sensitive words / all words (JFT section 3.1).

    Clopper-Pearson on the effective sample size n / deff, where deff is the variance of
    the ratio over records (clusters) divided by that of independent words. Without a
    single miss the effective size is the number of records.

    Returns:
        the estimate and a two-sided interval.

    References:
        Korn and Graubard (1998), Survey Methodology 24 (2), 193-201.
    """
    missed = np.array([c.missed for c in counts], dtype=float)
    words = np.array([c.words for c in counts], dtype=float)
    total, rate = float(words.sum()), float(missed.sum() / max(words.sum(), 1.0))
    size = _effective_size(missed, words, rate, confidence)
    hits = rate * size
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, size - hits + 1))
    high = float(stats.beta.ppf(1 - tail, hits + 1, max(size - hits, 1e-9)))
    if total == 0:
        low, high = 0.0, 1.0
    return rate, Interval(low=low, high=high, confidence=confidence)


def _effective_size(
    missed: NDArray[np.float64],
    words: NDArray[np.float64],
    rate: float,
    confidence: float,
) -> float:
    """Words that would carry as much information if they were independent."""
    clusters = len(words)
    if clusters < 2 or rate in (0.0, 1.0):
        return float(clusters)
    residuals = missed - rate * words
    variance = residuals.var(ddof=1) / (clusters * words.mean() ** 2)
    design_effect = max(1.0, variance / (rate * (1 - rate) / words.sum()))
    tail = (1 + confidence) / 2
    shrink = stats.norm.ppf(tail) / stats.t.ppf(tail, clusters - 1)
    return float(words.sum() / design_effect * shrink**2)


def _marks(length: int, ranges: ArrayLike | Sequence[Range]) -> NDArray[np.bool_]:
    """Mark the code points of some ranges."""
    steps = np.zeros(length + 1, dtype=np.int64)
    for start, end in np.asarray(ranges, dtype=np.int64).reshape(-1, 2):
        steps[min(start, length)] += 1
        steps[min(end, length)] -= 1
    marked: NDArray[np.bool_] = np.cumsum(steps)[:length] > 0
    return marked


__all__ = ["MissCounts", "count_misses", "missing_rate"]
