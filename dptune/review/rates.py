"""The missing rate that finished reviews say of a corpus and detector, or why none."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from dptune.results import Interval, MissingRateOrigin, Report
from dptune.review.lists import ReviewLists
from dptune.review.store import LanguageRate, ReviewRecord, ReviewState, SampleRecord


class MeasuredRate(Report):
    """A missing rate that holds for one corpus and one detector, or why none does.

    Args:
        review: id of the sample that it was measured on.
        source: what a card says of it.
        origin: what it was measured by.
        num_texts: records or sentences that it was measured on.
        refusal: why no imported rate holds; empty where none was imported.
    """

    rate: float | None = None
    interval: Interval | None = None
    review: str = ""
    source: str = ""
    origin: MissingRateOrigin = ""
    num_texts: int = 0
    by_language: Mapping[str, LanguageRate] = field(default_factory=dict)
    refusal: str = ""


def measured_rate(
    state: ReviewState, *, corpus: str, detector: str, lists: ReviewLists
) -> MeasuredRate:
    """Find the newest review that speaks of this corpus and this detector.

    A rate holds if the corpus and the detector are the sample's, if no phrase was
    allowed since, and if every phrase that was denied then still is: more marking can
    only lower it. None holds where a later one of the corpus was finished and is gone:
    a bad figure is not deleted for a better one of before. Its source says how many
    finished reviews there are to choose from: whoever draws samples until one looks
    good shows it.

    Args:
        state: all reviews.
        corpus: fingerprint of the corpus.
        detector: fingerprint of the detector without lists.
        lists: that the detector runs with.
    """
    refusals = []
    for review in reversed(state.reviews):
        sample = state.sample(review.sample)
        refusal = _refusal(sample, review, corpus, detector, lists)
        if sample.screened and not refusal:
            refusal = (
                f"review {sample.id} is of the part that was read by hand, not of the "
                "corpus"
            )
        finished = _finished(state, sample.corpus)
        if not refusal:
            refusal = _gone(state, finished[finished.index(sample.id) :])
        if not refusal:
            size, number = len(sample.sentences), len(finished)
            newest = f", the newest of {number} of this corpus" if number > 1 else ""
            return MeasuredRate(
                rate=review.rate,
                interval=review.interval,
                review=sample.id,
                source=f"a reviewed sample of {size:,} sentences (review {sample.id}"
                f"{newest})",
                origin="review",
                num_texts=size,
                by_language=review.by_language,
            )
        refusals.append((sample.corpus == corpus, refusal))
    own = [refusal for is_own, refusal in refusals if is_own]
    return MeasuredRate(refusal=(own or [r for _, r in refusals] or [""])[0])


def _refusal(
    sample: SampleRecord,
    review: ReviewRecord,
    corpus: str,
    detector: str,
    lists: ReviewLists,
) -> str:
    """Say why a review does not speak of a corpus and a detector; empty if it does."""
    name = f"review {sample.id}"
    if sample.corpus != corpus:
        return (
            f"{name} is of another corpus ({_short(sample.corpus)}, this one is "
            f"{_short(corpus)})"
        )
    if sample.detector != detector:
        return (
            f"{name} is of another detector ({_short(sample.detector)}, this one is "
            f"{_short(detector)})"
        )
    if review.rate is None:
        left = len(sample.sentences) - len(review.verdicts)
        return f"{name} is not finished: {left:,} of {len(sample.sentences):,} open"
    if not set(lists.allow) <= set(review.lists.allow):
        return f"phrases were put on the allow list since {name}"
    if not _names(review.lists) <= _names(lists):
        return f"phrases were taken off the deny list since {name}"
    return ""


def _finished(state: ReviewState, corpus: str) -> list[str]:
    """Name the finished reviews of a corpus, under any lists, oldest first."""
    there = [state.sample(r.sample) for r in state.reviews if r.rate is not None]
    own = [one.id for one in there if one.corpus == corpus and not one.screened]
    noted = [name for name, of in state.finished.items() if of == corpus]
    return [name for name in own if name not in noted] + noted


def _gone(state: ReviewState, finished: Sequence[str]) -> str:
    """Say which of some finished reviews is not there any more; empty if all are."""
    there = {review.sample for review in state.reviews if review.rate is not None}
    for name in finished:
        if name not in there:
            return (
                f"review {name} was finished later and is not there any more; restore "
                "it, import its decisions again, or review a new sample"
            )
    return ""


def _names(lists: ReviewLists) -> set[tuple[str, int]]:
    return {(entry.name, entry.num_words) for entry in lists.deny}


def _short(fingerprint: str) -> str:
    return fingerprint.rpartition(":")[2][:12]
