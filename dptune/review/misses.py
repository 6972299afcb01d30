"""What a detector missed and what it marked wrongly, written out for people to read."""

from collections.abc import Iterator, Sequence

from dptune.detection.union import character_marks
from dptune.text import Span

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
