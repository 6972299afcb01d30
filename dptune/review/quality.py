"""How much a detector missed, and how good it is against gold spans.

Misses come in clusters: a template or a writer that fools the detector once fools it
again. An interval that takes words for independent is too short (it covered .66 to .91
at nominal .95), so the effective sample size is cut by the design effect of records.

What was missed, and what was marked wrongly, can be written out for people to read.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy import stats

from dptune.detection.union import BoolArray, character_marks
from dptune.errors import DetectionError
from dptune.results import Interval, Report
from dptune.statistics import clopper_pearson
from dptune.text import Span

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

    >>> count_misses("ask Anna Lee", gold=[(4, 12)], found=[(4, 8)])
    MissCounts(missed=1, words=3)

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


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """Sampled clusters of one kind, such as sentences in which something was marked.

    Args:
        counts: of each sampled cluster.
        size: clusters of this kind that there are, sampled or not.
        weights: how many clusters each sampled one stands for; empty where all were as
            likely to be drawn.
    """

    counts: tuple[MissCounts, ...]
    size: int
    weights: tuple[float, ...] = ()


def missing_rate(
    counts: Sequence[MissCounts], *, confidence: float = 0.95
) -> tuple[float, Interval]:
    """Estimate the missing rate from a simple sample; see `stratified_missing_rate`."""
    whole = Stratum(counts=tuple(counts), size=len(counts))
    return stratified_missing_rate([whole], confidence=confidence)


def stratified_missing_rate(
    strata: Sequence[Stratum], *, confidence: float = 0.95
) -> tuple[float, Interval]:
    """Estimate m = missed sensitive words / all words (JFT section 3.1).

    Each stratum is weighted back to its size. The interval is Clopper-Pearson on the
    effective sample size n / deff, where deff is the variance of the weighted ratio
    over clusters divided by that of independent words. Two corrections keep it honest
    where few clusters miss anything, or few miss nothing: the degrees of freedom are
    those of the clusters that contribute, `(sum e^2)^2 / sum e^4`, and no bound is
    nearer to 0 or 1 than that of a sample without any miss, or with nothing else. That
    one counts clusters, not words, and of unequal ones fewer (Kish 1965):
    `(sum w)^2 / sum w^2` for the words w that each stands for. Where some strata miss
    something, the variance of those that do not is 0 all the same: the distances of
    their own upper bounds are added in squares to that of the whole (Zou, Donner 2008).

    | case | interval |
    |---|---|
    | no word at all, or a stratum of which nothing was sampled | [0, 1] |
    | no miss | upper bound 1 - tail^(1/n), n clusters of the thinnest stratum |
    | nothing but misses | lower bound tail^(1/n) |

    Args:
        strata: at least one; those of size 0 count for nothing.
        confidence: of the two-sided interval, in (0, 1).

    Returns:
        the estimate and the interval.

    >>> counts = (MissCounts(missed=0, words=20),) * 100
    >>> rate, interval = stratified_missing_rate([Stratum(counts=counts, size=1000)])
    >>> rate, round(interval.high, 3)
    (0.0, 0.036)

    References:
        Korn and Graubard (1998), Survey Methodology 24 (2), 193-201.
        Kish (1965), Survey Sampling, 11.7.
        Zou and Donner (2008), Statistics in Medicine 27 (10), 1693-1702.
    """
    held = [stratum for stratum in strata if stratum.size > 0]
    unknown = Interval(low=0.0, high=1.0, confidence=confidence)
    if not held or not all(stratum.counts for stratum in held):
        return 0.0, unknown
    sample = _weigh(held)
    total = float(sample.words.sum())
    if total == 0:
        return 0.0, unknown
    rate = float(sample.missed.sum()) / total
    tail = (1 - confidence) / 2
    least = tail ** (1.0 / sample.thinnest())
    size = _effective_size(sample, rate, confidence)
    hits = rate * size
    low, high = clopper_pearson(hits, size, confidence=confidence)
    high = max(high, 1.0 - least)
    if hits:
        high = min(1.0, rate + math.hypot(high - rate, *sample.unseen(tail)))
    return rate, Interval(low=min(low, least), high=high, confidence=confidence)


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Weighted counts of all sampled clusters, `(clusters,)`, stratum by stratum.

    Args:
        sizes: sampled clusters of each stratum.
        num_words: words that were read, without weights.
    """

    missed: NDArray[np.float64]
    words: NDArray[np.float64]
    sizes: tuple[int, ...]
    num_words: int

    def parts(self, values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Cut values by stratum."""
        return np.split(values, np.cumsum(self.sizes)[:-1])

    def unseen(self, tail: float) -> list[float]:
        """Share that each stratum without a miss may add, by its own upper bound."""
        pairs = zip(self.parts(self.missed), self.parts(self.words), strict=True)
        whole = float(self.words.sum())
        return [
            float(words.sum()) / whole * (1.0 - tail ** (1.0 / _equal(words)))
            for missed, words in pairs
            if words.any() and not missed.any()
        ]

    def thinnest(self) -> float:
        """Clusters that would carry as much if every stratum were as thin as one is."""
        parts = [part for part in self.parts(self.words) if part.any()]
        equal = [_equal(part) for part in parts]
        whole = float(self.words.sum())
        return 1.0 / max(
            float(part.sum()) / whole / size
            for part, size in zip(parts, equal, strict=True)
        )


def _equal(words: NDArray[np.float64]) -> float:
    """Clusters of one size that would say as much (Kish 1965)."""
    return float(words.sum()) ** 2 / float((words**2).sum())


def _weigh(strata: Sequence[Stratum]) -> _Sample:
    """Weigh every sampled cluster by how many it stands for."""
    weights = np.concatenate(
        [s.weights or np.full(len(s.counts), s.size / len(s.counts)) for s in strata]
    )
    counts = [count for stratum in strata for count in stratum.counts]
    return _Sample(
        missed=weights * np.array([c.missed for c in counts], dtype=float),
        words=weights * np.array([c.words for c in counts], dtype=float),
        sizes=tuple(len(stratum.counts) for stratum in strata),
        num_words=sum(c.words for c in counts),
    )


_FEWEST_DEGREES = 6.0


def _effective_size(sample: _Sample, rate: float, confidence: float) -> float:
    """Words that would carry as much information if they were independent."""
    clusters = len(sample.words)
    if clusters < 2 or rate in (0.0, 1.0):
        return sample.thinnest()
    residuals = sample.missed - rate * sample.words
    parts = sample.parts(residuals)
    spread = sum(
        len(p) * (p.var(ddof=1) if len(p) > 1 else float(p[0]) ** 2) for p in parts
    )
    variance = spread / sample.words.sum() ** 2
    size = min(rate * (1 - rate) / max(variance, 1e-300), float(sample.num_words))
    squares = residuals**2
    contributing = squares.sum() ** 2 / max((squares**2).sum(), 1e-300)
    degrees = min(clusters - 1.0, max(contributing, _FEWEST_DEGREES))
    tail = (1 + confidence) / 2
    shrink = stats.norm.ppf(tail) / stats.t.ppf(tail, degrees)
    return float(size * shrink**2)


def _marks(length: int, ranges: ArrayLike | Sequence[Range]) -> NDArray[np.bool_]:
    """Mark the code points of some ranges."""
    steps = np.zeros(length + 1, dtype=np.int64)
    for start, end in np.asarray(ranges, dtype=np.int64).reshape(-1, 2):
        steps[min(start, length)] += 1
        steps[min(end, length)] -= 1
    marked: NDArray[np.bool_] = np.cumsum(steps)[:length] > 0
    return marked


class Share(Report):
    """A share with its interval.

    Args:
        count: what it is a share of.
    """

    value: float = Field(ge=0, le=1)
    interval: Interval
    count: int


class TypeRecall(Report):
    """Recall of one gold type."""

    entity_type: str
    recall: Share


class Quality(Report):
    """What a detector covers of gold spans, whatever type it gave them.

    Args:
        recall: share of gold spans whose letters and digits are all covered.
        precision: share of marks that touch a gold span.
        masked: share of words of which a letter or digit is covered.
        missing: missed sensitive words / all words, as a card quotes it.
        types: by gold type, sorted by name.
    """

    num_texts: int
    tier: str
    recognizers: tuple[str, ...]
    recall: Share
    precision: Share
    masked: Share
    missing: Share
    types: tuple[TypeRecall, ...]


def measure_quality(
    texts: Sequence[str],
    gold: Sequence[Sequence[Span]],
    found: Sequence[Sequence[Span]],
    *,
    tier: str,
    recognizers: Sequence[str],
) -> Quality:
    """Compare what was found with gold spans; texts are the clusters.

    Misses cluster by text, so every interval is the one of the missing rate: by design
    effect, with texts as clusters (Korn and Graubard 1998).

    Raises:
        DetectionError: there is no text, or the three differ in length.
    """
    if not texts or not len(texts) == len(gold) == len(found):
        raise DetectionError(
            "texts, gold and found must have one length of at least 1, got "
            f"{len(texts)}, {len(gold)}, {len(found)}. Pass one entry per text."
        )
    rows = list(zip(texts, gold, found, strict=True))
    names = sorted({span.entity_type for spans in gold for span in spans})
    return Quality(
        num_texts=len(texts),
        tier=tier,
        recognizers=tuple(recognizers),
        recall=_recall(rows, lambda _: True),
        precision=_precision(rows),
        masked=_share((_masked(text, spans) for text, _, spans in rows), of_hits=True),
        missing=_share((_words_missed(*row) for row in rows), of_hits=True),
        types=tuple(
            TypeRecall(entity_type=n, recall=_recall(rows, _of_type(n))) for n in names
        ),
    )


_Row = tuple[str, Sequence[Span], Sequence[Span]]


def _of_type(name: str) -> Callable[[Span], bool]:
    return lambda span: span.entity_type == name


def _recall(rows: Sequence[_Row], wanted: Callable[[Span], bool]) -> Share:
    """Count gold spans of which a letter or digit is open."""
    counts = []
    for text, gold, found in rows:
        marks = character_marks(len(text), found)
        spans = [span for span in gold if wanted(span)]
        missed = sum(
            any(text[i].isalnum() and not marks[i] for i in range(s.start, s.end))
            for s in spans
        )
        counts.append(MissCounts(missed=missed, words=len(spans)))
    return _share(counts, of_hits=False)


def _precision(rows: Sequence[_Row]) -> Share:
    """Count marks that touch no gold span."""
    counts = []
    for text, gold, found in rows:
        marks = character_marks(len(text), gold)
        false = sum(not marks[s.start : s.end].any() for s in found)
        counts.append(MissCounts(missed=false, words=len(found)))
    return _share(counts, of_hits=False)


def _masked(text: str, found: Sequence[Span]) -> MissCounts:
    """Count words of which something is covered, as if each were a miss."""
    return _count(text, character_marks(len(text), found))


def _words_missed(text: str, gold: Sequence[Span], found: Sequence[Span]) -> MissCounts:
    """Count gold words of which something is open."""
    covered = character_marks(len(text), found)
    return _count(text, character_marks(len(text), gold) & ~covered)


def _count(text: str, marks: BoolArray) -> MissCounts:
    hit = words = position = 0
    for word in text.split():
        start = text.index(word, position)
        position = start + len(word)
        letters = [i for i in range(start, position) if text[i].isalnum()]
        words += bool(letters)
        hit += any(marks[i] for i in letters)
    return MissCounts(missed=hit, words=words)


def _share(counts: Iterable[MissCounts], *, of_hits: bool) -> Share:
    """Return the share of hits, or of the rest; clusters without any say nothing."""
    held = [count for count in counts if count.words]
    rate, found = missing_rate(held)
    low, high = (found.low, found.high) if of_hits else (1 - found.high, 1 - found.low)
    return Share(
        value=rate if of_hits else 1 - rate,
        interval=Interval(low=low, high=high, confidence=found.confidence),
        count=sum(count.words for count in held),
    )


_BESIDE = 60
_HEAD = (
    "Restricted: this file quotes personal text. What the gold marks, or the detector, "
    "stands in [[ ]].\n"
)


def misses_text(
    texts: Sequence[str],
    gold: Sequence[Sequence[Span]],
    found: Sequence[Sequence[Span]],
) -> str:
    """List gold spans with an unmarked letter or digit, and marks outside of gold.

    **Privacy.** The result quotes the texts: write it where the corpus may be, for its
    owner alone, and never into a log.

    >>> name = Span(start=3, end=6, entity_type="PERSON")
    >>> print(misses_text(["ask Ann"], [[name]], [[]]).splitlines()[3])
    MISSED PERSON (text 1, 3 to 6)

    Args:
        texts: what was read.
        gold: of each text, what is sensitive.
        found: of each text, what the detector marked.
    """
    missed: list[str] = []
    alarms: list[str] = []
    rows = zip(texts, gold, found, strict=True)
    for number, (text, wanted, marks) in enumerate(rows, 1):
        missed += _missed(number, text, wanted, marks)
        alarms += _alarms(number, text, wanted, marks)
    counts = f"{len(missed):,} missed, {len(alarms):,} false alarms\n"
    return "\n".join([_HEAD + counts, *sorted(missed), *sorted(alarms), ""])


def _missed(
    number: int, text: str, gold: Sequence[Span], found: Sequence[Span]
) -> Iterator[str]:
    """Yield an entry for each gold span that is not covered."""
    covered = character_marks(len(text), found)
    for span in gold:
        places = range(span.start, span.end)
        if any(text[i].isalnum() and not covered[i] for i in places):
            yield f"MISSED {span.entity_type} {_shown(number, text, span)}"


def _alarms(
    number: int, text: str, gold: Sequence[Span], found: Sequence[Span]
) -> Iterator[str]:
    """Yield an entry for each mark that meets no gold span."""
    for span in found:
        if not any(span.start < g.end and g.start < span.end for g in gold):
            kind = f"{span.entity_type} by {span.recognizer}, {span.confidence:.2f},"
            yield f"FALSE ALARM {kind} {_shown(number, text, span)}"


def _shown(number: int, text: str, span: Span) -> str:
    """Name a place, and quote it with what stands beside it."""
    before = text[max(0, span.start - _BESIDE) : span.start]
    after = text[span.end : span.end + _BESIDE]
    quoted = f"{before}[[{text[span.start : span.end]}]]{after}"
    place = f"(text {number}, {span.start} to {span.end})"
    return f"{place}\n    {' '.join(quoted.split())}\n"
