"""What decisions come to: a missing rate, and entries for the lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dptune.detection.missing import MissCounts, Stratum, stratified_missing_rate
from dptune.errors import ConfigError
from dptune.results import Interval
from dptune.review.decisions import Verdict
from dptune.review.lists import DenyEntry, ListKey
from dptune.review.sample import STRATA, Excerpt, SampledSentence, misses_of


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a reviewed sample says.

    Args:
        rate: missed sensitive words / all words, in the whole corpus.
        num_missed: words that reviewers marked as missed, in the sample.
        num_false_alarms: marks that they took back.
        num_charged: words that stay marked in the sample although the allow list takes
            their phrase back elsewhere; each counts as a miss.
        deny, allow: entries for the lists.
        num_too_long: missed passages that are no name, and are on no list.
    """

    rate: float
    interval: Interval
    num_missed: int
    num_false_alarms: int
    num_charged: int
    deny: tuple[DenyEntry, ...] = field(repr=False)
    allow: tuple[str, ...] = field(repr=False)
    num_too_long: int = 0


def findings(
    excerpts: Sequence[Excerpt],
    verdicts: Mapping[str, Verdict],
    *,
    sizes: Mapping[str, int],
    key: ListKey,
    confidence: float = 0.95,
) -> Findings:
    """Turn a wholly reviewed sample into a rate and list entries.

    The rate is that of the detector *with* its new lists, and never flatters them. What
    the deny list adds is not credited, since it was read off this very sample. What the
    allow list takes back is charged where another sentence shows it to be right: a mark
    that a reviewer left, whose phrase a reviewer of *another* sentence took back,
    counts as missed (each sentence is judged by the list that the others make).

    Args:
        excerpts: every sentence of the sample.
        verdicts: for every one of them.
        sizes: sentences of each stratum in the corpus.
        key: of the lists.
        confidence: of the interval.

    Raises:
        ConfigError: a sentence has no verdict.
    """
    open_ones = sum(e.sentence.id not in verdicts for e in excerpts)
    if open_ones:
        raise ConfigError(
            f"every sentence must be decided, got {open_ones} open ones of "
            f"{len(excerpts)}. Leaving out the hard ones would flatter the detector."
        )
    takers = _takers(excerpts, verdicts, key)
    counts: dict[str, list[MissCounts]] = {name: [] for name in STRATA}
    missed = charged = 0
    for excerpt in excerpts:
        verdict = verdicts[excerpt.sentence.id]
        own = misses_of(excerpt, verdict.missed)
        lost = _lost_to_others(excerpt, verdict, takers, key)
        both = misses_of_open(excerpt, verdict, lost)
        missed += own.missed
        charged += both.missed - own.missed
        counts[excerpt.sentence.stratum].append(both)
    rate, interval = stratified_missing_rate(
        [Stratum(counts=tuple(counts[name]), size=sizes[name]) for name in STRATA],
        confidence=confidence,
    )
    deny, too_long = _denied(excerpts, verdicts, key)
    return Findings(
        rate=rate,
        interval=interval,
        num_missed=missed,
        num_false_alarms=sum(len(v.false_alarms) for v in verdicts.values()),
        num_charged=charged,
        deny=deny,
        allow=tuple(sorted(takers)),
        num_too_long=too_long,
    )


def best_upper_bound(
    sentences: Sequence[SampledSentence], sizes: Mapping[str, int]
) -> float:
    """Return the upper bound of the missing rate that a sample shows without a miss."""
    strata = [
        Stratum(
            counts=tuple(
                MissCounts(missed=0, words=s.num_words)
                for s in sentences
                if s.stratum == name
            ),
            size=sizes[name],
        )
        for name in STRATA
    ]
    return stratified_missing_rate(strata)[1].high


def misses_of_open(
    excerpt: Excerpt, verdict: Verdict, lost: Sequence[int]
) -> MissCounts:
    """Count missed words where some marks are lost as well."""
    marks = excerpt.sentence.marks
    gold = [*verdict.missed, *((marks[i].start, marks[i].end) for i in lost)]
    kept = tuple(mark for i, mark in enumerate(marks) if i not in lost)
    sentence = excerpt.sentence.model_copy(update={"marks": kept})
    return misses_of(Excerpt(sentence=sentence, text=excerpt.text), gold)


def _takers(
    excerpts: Sequence[Excerpt], verdicts: Mapping[str, Verdict], key: ListKey
) -> dict[str, set[str]]:
    """List the sentences that take each phrase back, by the phrase's keyed name."""
    takers: dict[str, set[str]] = {}
    for excerpt in excerpts:
        for number in verdicts[excerpt.sentence.id].false_alarms:
            name = _allow_name(excerpt, number, key)
            takers.setdefault(name, set()).add(excerpt.sentence.id)
    return takers


def _lost_to_others(
    excerpt: Excerpt, verdict: Verdict, takers: Mapping[str, set[str]], key: ListKey
) -> list[int]:
    """Find marks that were left and that others' false alarms would take back."""
    own = excerpt.sentence.id
    return [
        number
        for number, mark in enumerate(excerpt.sentence.marks)
        if number not in verdict.false_alarms
        and not mark.firm
        and takers.get(_allow_name(excerpt, number, key), set()) - {own}
    ]


def _allow_name(excerpt: Excerpt, number: int, key: ListKey) -> str:
    mark = excerpt.sentence.marks[number]
    return key.allow_name(excerpt.text[mark.start : mark.end])


def _denied(
    excerpts: Sequence[Excerpt], verdicts: Mapping[str, Verdict], key: ListKey
) -> tuple[tuple[DenyEntry, ...], int]:
    """Name every missed phrase; passages that are no name are only counted."""
    entries: dict[str, DenyEntry] = {}
    too_long = 0
    for excerpt in excerpts:
        for start, end in verdicts[excerpt.sentence.id].missed:
            try:
                entry = key.deny_entry(_whole_words(excerpt.text, start, end))
            except ConfigError:
                too_long += 1
                continue
            entries[entry.name] = entry
    return tuple(entries[name] for name in sorted(entries)), too_long


def _whole_words(text: str, start: int, end: int) -> str:
    """Widen a range to whole words, which is what a deny list matches."""
    while start > 0 and text[start - 1].isalnum() and text[start].isalnum():
        start -= 1
    while end < len(text) and text[end].isalnum() and text[end - 1].isalnum():
        end += 1
    return text[start:end]
