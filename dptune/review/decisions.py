"""What a reviewer decided, read from a file that nobody vouches for, and figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dptune.errors import ConfigError, DataError, Problem
from dptune.jsons import RepeatedKeyError, parse_json
from dptune.results import Interval, Report
from dptune.review.lists import DenyEntry, ListKey, is_of_a_word
from dptune.review.quality import MissCounts, Stratum, stratified_missing_rate
from dptune.review.sample import (
    Excerpt,
    SampledSentence,
    misses_of,
    placeholders_of,
    to_original,
)

FORMAT: Final = "dptune-review-decisions"
MOST_CHARACTERS: Final = 50_000_000


class Place(BaseModel):
    """A range of code points of a sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    start: int = Field(ge=0, le=MOST_CHARACTERS, strict=True)
    end: int = Field(ge=1, le=MOST_CHARACTERS, strict=True)


class Decision(BaseModel):
    """What was decided on one sentence; nothing in it quotes the text.

    Args:
        id: of the sentence.
        missed: what should have been marked.
        false_alarms: marks that need not be, exactly as they were shown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    missed: tuple[Place, ...] = ()
    false_alarms: tuple[Place, ...] = ()


class DecisionFile(BaseModel):
    """The file that the review page saves.

    Args:
        sample: id of the exported sample.
        view: what the ranges speak of: the sentence, or the masked one of the JSON
            lines.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: Literal["dptune-review-decisions"]
    version: Literal[1]
    sample: str = Field(pattern=r"^[0-9a-f]{16}$")
    view: Literal["original", "masked"] = "original"
    decisions: tuple[Decision, ...]


class Verdict(Report):
    """A checked decision, in code points of the original sentence.

    Args:
        missed: half-open ranges.
        false_alarms: numbers of the sentence's marks.
    """

    missed: tuple[tuple[int, int], ...] = ()
    false_alarms: tuple[int, ...] = ()


def read_decisions(content: bytes) -> DecisionFile:
    """Parse a file of decisions.

    Raises:
        DataError: with everything that is wrong with its form, and none of its content.
    """
    if len(content) > MOST_CHARACTERS:
        raise _unusable(f"must be at most {MOST_CHARACTERS:,} bytes long.")
    try:
        values = parse_json(content.decode("utf-8-sig"))
    except RepeatedKeyError:
        raise _unusable("must name every key of an object once.") from None
    except ValueError:
        raise _unusable("must be JSON in UTF-8, but is not.") from None
    try:
        return DecisionFile.model_validate(values)
    except ValidationError as error:
        raise DataError(
            [
                Problem(
                    path=_path(detail["loc"]),
                    message=f"{detail['msg']}.",
                    next_step="Save the file from the review page again.",
                )
                for detail in error.errors(include_input=False, include_url=False)
            ]
        ) from None


def check_decisions(
    file: DecisionFile, sentences: Sequence[SampledSentence]
) -> dict[str, Verdict]:
    """Check decisions against the sample that they speak of.

    Returns:
        verdicts by the id of their sentence.

    Raises:
        DataError: with every decision that does not fit, by its number in the file.
    """
    known = {sentence.id: sentence for sentence in sentences}
    times = Counter(decision.id for decision in file.decisions)
    problems: list[Problem] = []
    verdicts: dict[str, Verdict] = {}
    for number, decision in enumerate(file.decisions):
        where = f"decisions[{number}]"
        sentence = known.get(decision.id)
        if sentence is None:
            problems.append(
                Problem(
                    path=f"{where}.id",
                    message="must be a sentence of the sample, but is not.",
                    next_step="Import the decisions of this sample's own page.",
                )
            )
            continue
        if times[decision.id] > 1:
            problems.append(
                Problem(path=f"{where}.id", message="must be there once, but is not.")
            )
        problems += _problems(where, decision, sentence, view=file.view)
        if not problems:
            verdicts[decision.id] = _verdict(decision, sentence, view=file.view)
    if not file.decisions:
        problems.append(
            Problem(
                path="decisions",
                message="must hold at least one decision, got none.",
                next_step="Approve or correct sentences on the page, then save.",
            )
        )
    if problems:
        raise DataError(problems)
    return verdicts


def _problems(
    where: str, decision: Decision, sentence: SampledSentence, *, view: str
) -> list[Problem]:
    """Report ranges that do not fit their sentence."""
    length = sentence.end - sentence.start
    shown = _shown_marks(sentence, view)
    if view == "masked":
        length += sum((high - low) for low, high in shown)
        length -= sum(mark.end - mark.start for mark in sentence.marks)
    problems = [
        Problem(
            path=f"{where}.missed[{i}]",
            message=f"must lie in [0, {length}) with start < end, got "
            f"[{place.start}, {place.end}).",
        )
        for i, place in enumerate(decision.missed)
        if not place.start < place.end <= length
    ]
    problems += [
        Problem(
            path=f"{where}.false_alarms[{i}]",
            message=f"must be one of the sentence's {len(shown)} marks, got "
            f"[{place.start}, {place.end}).",
        )
        for i, place in enumerate(decision.false_alarms)
        if (place.start, place.end) not in shown
    ]
    firm = [mark.firm for mark in sentence.marks]
    problems += [
        Problem(
            path=f"{where}.false_alarms[{i}]",
            message="must not be a mark with a valid checksum, but is.",
            next_step="Such marks stay; take it out of the file.",
        )
        for i, place in enumerate(decision.false_alarms)
        if (place.start, place.end) in shown
        and firm[shown.index((place.start, place.end))]
    ]
    return problems


def _verdict(decision: Decision, sentence: SampledSentence, *, view: str) -> Verdict:
    """Restate a decision in code points of the sentence."""
    shown = _shown_marks(sentence, view)
    missed = [(place.start, place.end) for place in decision.missed]
    if view == "masked":
        missed = [to_original(place, sentence.marks) for place in missed]
    alarms = {shown.index((p.start, p.end)) for p in decision.false_alarms}
    return Verdict(
        missed=tuple(sorted(set(missed))), false_alarms=tuple(sorted(alarms))
    )


def _shown_marks(sentence: SampledSentence, view: str) -> list[tuple[int, int]]:
    if view == "masked":
        return [shown for shown, _ in placeholders_of(sentence.marks)]
    return [(mark.start, mark.end) for mark in sentence.marks]


def _path(location: Sequence[int | str]) -> str:
    """Write a location as a path; keys that a file invents are not quoted."""
    names = {*DecisionFile.model_fields, *Decision.model_fields, *Place.model_fields}
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if part in names else ".(unknown key)"
    return path.removeprefix(".") or "file"


def _unusable(message: str) -> DataError:
    return DataError.at("file", message)


def merged(
    earlier: Mapping[str, Verdict], later: Mapping[str, Verdict]
) -> dict[str, Verdict]:
    """Put two imports together; the later one decides."""
    return {**earlier, **later}


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
        by_language: rate, interval and sentences of each, where there are several.
    """

    rate: float
    interval: Interval
    num_missed: int
    num_false_alarms: int
    num_charged: int
    deny: tuple[DenyEntry, ...] = field(repr=False)
    allow: tuple[str, ...] = field(repr=False)
    num_too_long: int = 0
    by_language: Mapping[str, tuple[float, Interval, int]] = field(default_factory=dict)


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
    counts: dict[str, list[MissCounts]] = {name: [] for name in sizes}
    missed = charged = 0
    for excerpt in excerpts:
        verdict = verdicts[excerpt.sentence.id]
        own = misses_of_open(excerpt, verdict, ())
        lost = _lost_to_others(excerpt, verdict, takers, key)
        both = misses_of_open(excerpt, verdict, lost)
        missed += own.missed
        charged += both.missed - own.missed
        counts[excerpt.sentence.stratum].append(both)
    strata = _strata([e.sentence for e in excerpts], counts, sizes)
    rate, interval = stratified_missing_rate(
        list(strata.values()), confidence=confidence
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
        by_language=_by_language(strata, confidence),
    )


def _strata(
    sentences: Sequence[SampledSentence],
    counts: Mapping[str, Sequence[MissCounts]],
    sizes: Mapping[str, int],
) -> dict[str, Stratum]:
    """Put counts together with what each sentence stands for, in the same order."""
    weights: dict[str, list[float]] = {name: [] for name in sizes}
    for sentence in sentences:
        if sentence.stands_for is not None:
            weights[sentence.stratum].append(sentence.stands_for)
    return {
        name: Stratum(
            counts=tuple(counts[name]), size=size, weights=tuple(weights[name])
        )
        for name, size in sizes.items()
    }


def _by_language(
    strata: Mapping[str, Stratum], confidence: float
) -> dict[str, tuple[float, Interval, int]]:
    """Estimate the rate in each language, where the sample has several."""
    languages = sorted({name.partition(":")[2] for name in strata} - {""})
    found = {}
    for language in languages:
        own = [s for name, s in strata.items() if name.partition(":")[2] == language]
        rate, interval = stratified_missing_rate(own, confidence=confidence)
        found[language] = rate, interval, sum(len(s.counts) for s in own)
    return found


def best_upper_bound(
    sentences: Sequence[SampledSentence], sizes: Mapping[str, int]
) -> float:
    """Return the upper bound of the missing rate that a sample shows without a miss."""
    counts: dict[str, list[MissCounts]] = {name: [] for name in sizes}
    for sentence in sentences:
        none = MissCounts(missed=0, words=sentence.num_words)
        counts[sentence.stratum].append(none)
    strata = _strata(sentences, counts, sizes)
    return stratified_missing_rate(list(strata.values()))[1].high


def misses_of_open(
    excerpt: Excerpt, verdict: Verdict, lost: Sequence[int]
) -> MissCounts:
    """Count missed words where some marks are lost, and false alarms taken back.

    What a reviewer calls missed, under a mark that the same reviewer takes back, is
    missed once the mark is gone.
    """
    marks = excerpt.sentence.marks
    gold = [*verdict.missed, *((marks[i].start, marks[i].end) for i in lost)]
    gone = {*lost, *verdict.false_alarms}
    kept = tuple(mark for i, mark in enumerate(marks) if i not in gone)
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
    while start > 0 and all(map(is_of_a_word, text[start - 1 : start + 1])):
        start -= 1
    while end < len(text) and all(map(is_of_a_word, text[end - 1 : end + 1])):
        end += 1
    return text[start:end]
