"""A stratified sample of sentences for people to read.

Half of the sample are sentences in which the detector marked something, half are
sentences in which it marked nothing. What is measured is a share of words, so that each
is drawn with a chance that grows with its words: few long ones may hold most of what is
missed, and a sample of sentences would hardly see them. Weights carry all of it back to
the corpus. Masked sentences have a placeholder for each mark, and places in them are
carried back.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import datasets
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dptune.conversation import contents_only
from dptune.detection.languages.identify import languages_of
from dptune.detection.llm import requests_of
from dptune.detection.part_spans import spans_of
from dptune.detection.recognizer import CHECKSUM_CONFIDENCE
from dptune.detection.union import only_contents
from dptune.errors import ConfigError
from dptune.results import Report
from dptune.review.lists import ListKey
from dptune.review.quality import MissCounts, count_misses
from dptune.text import Span

STRATA: Final = ("flagged", "unflagged")
FEWEST_SENTENCES: Final = 20
_PLACE: Final = 3
LEAST_LANGUAGE_SHARE: Final = 0.01


class Mark(Report):
    """A span of a sentence, in code points of the sentence."""

    start: int = Field(ge=0)
    end: int = Field(ge=1)
    entity_type: str
    firm: bool = False


class SampledSentence(Report):
    """What is kept of a sampled sentence: where it stands, no text.

    Args:
        id: keyed hash of the record's id, the place, the text and the marks, so that a
            decision fits exactly what its reviewer saw.
        row: of the record in the corpus.
        start, end: code points of the sentence in its record.
        num_words: of the sentence.
        marks: what the detector marked; `firm` ones have a checksum.
        language: of its record, where the corpus has several.
        stands_for: sentences of its stratum, by the chance that it was drawn with;
            empty in samples of before, in which all had the same.
    """

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    row: int = Field(ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=1)
    num_words: int = Field(ge=0)
    marks: tuple[Mark, ...] = ()
    language: str = ""
    stands_for: float | None = Field(default=None, ge=1)

    @property
    def stratum(self) -> str:
        """Which part of the sample it belongs to."""
        return stratum_of(self.language, is_flagged=bool(self.marks))


def stratum_of(language: str, *, is_flagged: bool) -> str:
    """Name the part of a sample that a sentence belongs to, `flagged` or `flagged:de`.

    Args:
        language: of its record; empty where the corpus has one.
        is_flagged: something is marked in it.
    """
    name = STRATA[0] if is_flagged else STRATA[1]
    return f"{name}:{language}" if language else name


def strata_languages(texts: Sequence[str]) -> list[str]:
    """Return the language of each record whose sentences are drawn for themselves.

    All are empty where there is one language. One of few records has no part of its
    own, and counts with the language of most.
    """
    found = languages_of(texts)
    sizes = Counter(found)
    most = max(sizes, key=lambda code: (sizes[code], code), default="")
    large = {c for c, n in sizes.items() if n >= LEAST_LANGUAGE_SHARE * len(found)}
    if len(large | {most}) < 2:
        return [""] * len(found)
    return [code if code in large else most for code in found]


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A sampled sentence with its text, hidden from `repr`.

    Args:
        before, after: the neighboring sentences, for a reader who needs them.
    """

    sentence: SampledSentence
    text: str = field(repr=False)
    before: str = field(default="", repr=False)
    after: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A sample.

    Args:
        excerpts: in random order.
        sizes: sentences of each stratum in the corpus.
    """

    excerpts: tuple[Excerpt, ...] = field(repr=False)
    sizes: dict[str, int]


def sentences_of(text: str, spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of sentences that hold a letter or digit; none cuts a span."""
    for start, end in requests_of(text, spans, 1):
        if any(map(str.isalnum, text[start:end])):
            yield start, end


def draw_sample(
    labelled: datasets.Dataset,
    *,
    key: ListKey,
    generator: np.random.Generator,
    share: float = 0.01,
    size: int | None = None,
    rows: Collection[int] | None = None,
) -> Drawn:
    """Draw sentences, half of them flagged where there are enough.

    Args:
        labelled: columns `id`, `text` and `spans`; every row counts.
        key: under which sentences are named.
        generator: draws the sample; take secret entropy, so that nobody can tell
            beforehand which sentences will be read.
        share: of all sentences, in (0, 1].
        size: number of sentences instead, at least 4.
        rows: the only ones to draw from; None for every row.

    Raises:
        ConfigError: share or size is out of range, or there is no sentence.
    """
    if not 0 < share <= 1 or (size is not None and size < 4):
        raise ConfigError(
            f"share must be in (0, 1] and size at least 4, got share={share}, "
            f"size={size}. Take 0.01 and None."
        )
    labelled = only_contents(labelled)
    languages = strata_languages(labelled["text"])
    places = _places(labelled, rows, languages)
    sizes = {name: len(found) // _PLACE for name, found in places.items()}
    total = sum(sizes.values())
    if total == 0:
        raise ConfigError(
            "the corpus must have a sentence with letters, got none. Check its text."
        )
    wanted = size or max(FEWEST_SENTENCES, round(share * total))
    counts = _counts(sizes, min(wanted, total))
    drawn: dict[int, dict[int, float]] = {}
    for name, found in places.items():
        table = np.asarray(found, dtype=np.int64).reshape(-1, _PLACE)
        chosen, weights = by_words(table[:, 2], counts[name], generator)
        for (row, number, _), weight in zip(table[chosen], weights, strict=True):
            drawn.setdefault(int(row), {})[int(number)] = float(weight)
    excerpts = [
        e
        for row in sorted(drawn)
        for e in _read(labelled, row, drawn[row], key, languages[row])
    ]
    order = generator.permutation(len(excerpts))
    return Drawn(excerpts=tuple(excerpts[i] for i in order), sizes=sizes)


def misses_of(excerpt: Excerpt, missed: Sequence[tuple[int, int]]) -> MissCounts:
    """Count the words that a reviewer says were missed and nothing covers."""
    found = [(mark.start, mark.end) for mark in excerpt.sentence.marks]
    return count_misses(excerpt.text, missed, found)


def _places(
    labelled: datasets.Dataset, rows: Collection[int] | None, languages: Sequence[str]
) -> dict[str, "array[int]"]:
    """Find the sentences: row, number in the row and words, one behind the other."""
    places = {
        stratum_of(language, is_flagged=flagged): array("q")
        for language in sorted(set(languages))
        for flagged in (True, False)
    }
    row = 0
    for batch in labelled.select_columns(["text", "spans"]).iter(batch_size=256):
        for text, raw in zip(batch["text"], batch["spans"], strict=True):
            spans = spans_of(raw)
            found = sentences_of(text, spans) if rows is None or row in rows else ()
            for number, (start, end) in enumerate(found):
                flagged = any(s.start < end and s.end > start for s in spans)
                name = stratum_of(languages[row], is_flagged=flagged)
                places[name].extend((row, number, len(text[start:end].split())))
            row += 1
    return places


def _counts(sizes: dict[str, int], wanted: int) -> dict[str, int]:
    """Part the sample: each language by its size, at least some, and half flagged."""
    counts: dict[str, int] = {}
    languages = sorted({name.partition(":")[2] for name in sizes})
    total = sum(sizes.values())
    for language in languages:
        names = [stratum_of(language, is_flagged=flagged) for flagged in (True, False)]
        own = sum(sizes[name] for name in names)
        share = wanted if len(languages) < 2 else round(wanted * own / total)
        least = FEWEST_SENTENCES if len(languages) > 1 else 0
        share = min(max(share, least), own)
        half = min(share // 2, sizes[names[1]])
        counts[names[0]] = min(share - half, sizes[names[0]])
        counts[names[1]] = min(share - counts[names[0]], sizes[names[1]])
    return counts


def by_words(
    words: NDArray[np.int64], count: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw different sentences, each with a chance that is proportional to its words.

    Those so long that they would be drawn more than once are taken for certain. The
    rest are put in random order, and one is taken every so many words.

    Args:
        words: of each sentence, at least 1, `(sentences,)`.
        count: how many to draw, at most all.
        generator: draws.

    Returns:
        numbers of the sentences, and how many each stands for: 1 / its chance.

    References:
        Hartley and Rao (1962), Annals of Mathematical Statistics 33 (2), 350-374.
    """
    lengths = np.asarray(words, dtype=np.float64)
    left = np.arange(len(lengths))
    certain = np.zeros(0, dtype=np.int64)
    while (open_ones := count - len(certain)) > 0:
        step = lengths[left].sum() / open_ones
        is_long = lengths[left] >= step
        if not is_long.any():
            break
        certain = np.concatenate([certain, left[is_long]])
        left = left[~is_long]
    if open_ones <= 0:
        return certain, np.ones(len(certain))
    order = generator.permutation(left)
    ends = np.cumsum(lengths[order])
    step = ends[-1] / open_ones
    at = step * (generator.random() + np.arange(open_ones))
    places = np.searchsorted(ends, at, side="right")
    drawn = order[np.minimum(places, len(order) - 1)]  # where a sum was rounded
    weights = np.concatenate([np.ones(len(certain)), step / lengths[drawn]])
    return np.concatenate([certain, drawn]), weights


def _read(
    labelled: datasets.Dataset,
    row: int,
    numbers: Mapping[int, float],
    key: ListKey,
    language: str,
) -> Iterator[Excerpt]:
    """Read the sampled sentences of one record, by what each stands for."""
    record: dict[str, Any] = labelled[row]
    text, spans = record["text"], spans_of(record["spans"])
    ranges = list(sentences_of(text, spans))
    for number in sorted(numbers):
        start, end = ranges[number]
        start, end = _trimmed(text, start, end)
        marks = tuple(
            Mark(
                start=max(s.start, start) - start,
                end=min(s.end, end) - start,
                entity_type=s.entity_type,
                firm=s.confidence >= CHECKSUM_CONFIDENCE,
            )
            for s in spans
            if s.start < end and s.end > start
        )
        own = text[start:end]
        before = ranges[number - 1] if number else (start, start)
        after = ranges[number + 1] if number + 1 < len(ranges) else (end, end)
        yield Excerpt(
            sentence=SampledSentence(
                id=_name(key, str(record["id"]), start, own, marks),
                row=row,
                start=start,
                end=end,
                num_words=len(own.split()),
                marks=marks,
                language=language,
                stands_for=numbers[number],
            ),
            text=own,
            before=text[slice(*before)].strip(),
            after=text[slice(*after)].strip(),
        )


def reread(
    corpus: datasets.Dataset, sentences: Sequence[SampledSentence], key: ListKey
) -> list[Excerpt]:
    """Find sampled sentences again in the corpus that they were drawn from.

    Raises:
        ConfigError: the corpus or the key is another one.
    """
    found = []
    for sentence in sentences:
        inside = sentence.row < len(corpus)
        record = corpus[sentence.row] if inside else {"id": "", "text": ""}
        text = contents_only(record["text"])[sentence.start : sentence.end]
        source = str(record["id"])
        if _name(key, source, sentence.start, text, sentence.marks) != sentence.id:
            raise ConfigError(
                "the corpus and the review key must be the ones that the sample was "
                "drawn with, but a sentence is not where it was. Restore them, or "
                "export a new sample."
            )
        found.append(Excerpt(sentence=sentence, text=text))
    return found


def _name(
    key: ListKey, record: str, start: int, text: str, marks: Sequence[Mark]
) -> str:
    """Hash what a reviewer sees."""
    shown = "\x1f".join(f"{m.start},{m.end},{m.entity_type}" for m in marks)
    return key.name("sentence", "\x1e".join((record, str(start), text, shown)))


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Leave out blanks around a sentence."""
    own = text[start:end]
    return start + len(own) - len(own.lstrip()), end - (len(own) - len(own.rstrip()))


Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A sentence in which every mark is a placeholder such as `[PERSON_1]`.

    Args:
        text: hidden from `repr`; no code point of a mark is in it.
        placeholders: range in `text` and the range that it stands for.
    """

    text: str = field(repr=False)
    placeholders: tuple[tuple[Range, Range], ...]


def masked(excerpt: Excerpt) -> Masked:
    """Replace the marks of a sentence."""
    text = excerpt.text
    pieces: list[str] = []
    places: list[tuple[Range, Range]] = []
    position = length = 0
    for number, mark in enumerate(excerpt.sentence.marks, 1):
        pieces.append(text[position : mark.start])
        length += mark.start - position
        placeholder = _placeholder(mark, number)
        pieces.append(placeholder)
        new = (length, length + len(placeholder))
        places.append((new, (mark.start, mark.end)))
        length += len(placeholder)
        position = mark.end
    pieces.append(text[position:])
    return Masked(text="".join(pieces), placeholders=tuple(places))


def placeholders_of(marks: Sequence[Mark]) -> tuple[tuple[Range, Range], ...]:
    """Say where placeholders stand, from the marks alone."""
    places = []
    shift = 0
    for number, mark in enumerate(marks, 1):
        size = len(_placeholder(mark, number))
        start = mark.start + shift
        places.append(((start, start + size), (mark.start, mark.end)))
        shift += size - (mark.end - mark.start)
    return tuple(places)


def to_original(place: Range, marks: Sequence[Mark]) -> Range:
    """Carry a range of the masked sentence back to the original one.

    An end inside a placeholder moves to that end of the mark.
    """
    start, end = place
    shift_start = shift_end = 0
    for (low, high), (old_low, old_high) in placeholders_of(marks):
        if low < start < high:
            return to_original((low, max(end, high)), marks)
        if low < end < high:
            return to_original((start, high), marks)
        growth = (high - low) - (old_high - old_low)
        shift_start += growth if high <= start else 0
        shift_end += growth if high <= end else 0
    return start - shift_start, end - shift_end


def _placeholder(mark: Mark, number: int) -> str:
    return f"[{mark.entity_type}_{number}]"
