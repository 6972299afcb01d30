"""How good a detector is against gold spans, with intervals that hold for clusters."""

from collections.abc import Callable, Iterable, Sequence

from pydantic import Field

from dptune.detection.align import BoolArray, character_marks
from dptune.detection.missing import MissCounts, missing_rate
from dptune.errors import DetectionError
from dptune.results import Interval, Report
from dptune.text import Span


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
        missing=_share((_missed(*row) for row in rows), of_hits=True),
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


def _missed(text: str, gold: Sequence[Span], found: Sequence[Span]) -> MissCounts:
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
