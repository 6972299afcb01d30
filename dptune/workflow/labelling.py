"""Detection over a corpus with canaries in it, and how much of the gold it missed."""

from collections.abc import Callable, Sequence

from datasets import Dataset

from dptune.accounting.assumptions import Assumption
from dptune.attacks.canaries import CanarySet
from dptune.attacks.planting import apply_setting
from dptune.config import DetectionSettings
from dptune.data.corpus import Corpus
from dptune.detection.endpoint import NO_ACCESS, LlmAccess
from dptune.detection.engine import (
    READ_ONE_TEXT,
    DetectionEngine,
    detect_dataset,
    detection_report,
    refuse_if_nothing_found,
)
from dptune.detection.missing import MissCounts, count_misses, missing_rate
from dptune.detection.shards import SpanShard, detect_shard, merge_shards
from dptune.errors import ConfigError
from dptune.results import DetectionReport, Interval
from dptune.review.lists import ReviewLists, with_lists
from dptune.review.store import (
    ListsOfProject,
    MeasuredRate,
    ReviewState,
    measured_rate,
)
from dptune.workflow.auditing import count_detected
from dptune.workflow.detectors import engine_of
from dptune.workflow.ingestion import GOLD


def label_corpus(
    corpus: Corpus,
    canaries: CanarySet,
    settings: DetectionSettings,
    *,
    corpus_is_public: bool,
    data_set: str,
    review: ReviewState | None = None,
    access: LlmAccess = NO_ACCESS,
    shards: Sequence[SpanShard] = (),
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Corpus, DetectionReport]:
    """Mark personal data in every record.

    Where the corpus carries gold spans the missing rate is measured on them; else an
    imported review of this corpus and this detector is quoted; else what the settings
    declare.

    Args:
        corpus: with canaries in it.
        canaries: whose setting is applied to the labels.
        settings: which recognizers.
        corpus_is_public: nothing needs to be found.
        data_set: whose lists act, beside public ones.
        review: lists and reviews of the project, if there are any.
        access: of the recognizer `llm`.
        shards: of every part of the corpus, from `label_shard`; without any, all of it
            is read here.
        on_progress: called with the number of records done.

    Returns:
        the corpus with a `spans` column, the canaries' setting applied, which says what
        its marks rest on; and the report.

    Raises:
        DetectionError: nothing was found although the corpus is not public.
        ArtifactError: the shards do not fit together, or are of something else.
    """
    base = engine_of(settings, access)
    state = review if settings.use_review else None
    engine = _with_lists(base, state, settings, data_set)
    if shards:
        labelled = merge_shards(corpus.dataset, engine, shards)
    else:
        labelled = detect_dataset(
            corpus.dataset,
            engine,
            num_proc=settings.num_processes,
            on_progress=on_progress,
        )
    report = detection_report(labelled, engine, corpus.fingerprint)
    refuse_if_nothing_found(report, corpus_is_public=corpus_is_public)
    measured = _missing_rate(labelled, corpus, base, settings, state, data_set=data_set)
    marked = apply_setting(labelled, canaries)
    report = report.model_copy(
        update={
            "missing_rate": measured.rate,
            "missing_rate_interval": measured.interval,
            "missing_rate_source": measured.source,
            "missing_rate_origin": measured.origin,
            "missing_rate_texts": measured.num_texts,
            "missing_rate_refusal": measured.refusal,
            "review": measured.review,
            "num_canaries_detected": count_detected(marked, canaries),
        }
    )
    if GOLD in marked.column_names:
        marked = marked.remove_columns(GOLD)
    return corpus.marked(
        marked,
        assumes=marks_assume(settings, state.lists if state else None, data_set),
    ), report


def marks_assume(
    settings: DetectionSettings, lists: ListsOfProject | None, data_set: str
) -> list[str]:
    """Name what makes the marks of one record depend on others."""
    found = list(lists.assumptions(data_set)) if lists else []
    if not READ_ONE_TEXT.issuperset(settings.recognizers):
        found.append(Assumption.MARKS_FOLLOW_ONE_TEXT)
    return [assumption.value for assumption in found]


def label_shard(
    corpus: Corpus,
    settings: DetectionSettings,
    *,
    index: int,
    num_shards: int,
    data_set: str,
    review: ReviewState | None = None,
    access: LlmAccess = NO_ACCESS,
    on_progress: Callable[[int], None] | None = None,
) -> SpanShard:
    """Mark personal data in one part of the records; see `label_corpus`.

    Args:
        corpus: with canaries in it; all of it.
        settings: which recognizers.
        index: of the part, in [0, num_shards).
        num_shards: how many parts there are.
        data_set: whose lists act, beside public ones.
        review: lists and reviews of the project, if there are any.
        access: of the recognizer `llm`.
        on_progress: called with the number of records done.
    """
    state = review if settings.use_review else None
    return detect_shard(
        corpus.dataset,
        _with_lists(engine_of(settings, access), state, settings, data_set),
        index=index,
        num_shards=num_shards,
        num_proc=settings.num_processes,
        on_progress=on_progress,
    )


def _with_lists(
    base: DetectionEngine,
    state: ReviewState | None,
    settings: DetectionSettings,
    data_set: str,
) -> DetectionEngine:
    """Let the engine keep to the lists; refuse others than the run was planned with."""
    lists = state.lists.acting_on(data_set) if state else ReviewLists()
    if settings.review_lists not in ("", lists.fingerprint):
        raise ConfigError(
            f"detection.review_lists must be the digest of the data set's lists, got "
            f"{settings.review_lists[:12]} where they are "
            f"{lists.fingerprint[:12] or 'empty'}. Leave it out to use them as they "
            "are."
        )
    return with_lists(base, lists, state.key) if state else base


def _missing_rate(
    labelled: Dataset,
    corpus: Corpus,
    base: DetectionEngine,
    settings: DetectionSettings,
    state: ReviewState | None,
    *,
    data_set: str,
) -> MeasuredRate:
    """Measure the missing rate on gold spans, or quote a review, or a declaration."""
    if GOLD in labelled.column_names:
        known = [_misses(row) for row in labelled if row[GOLD] is not None]
        rate, interval = missing_rate(known)
        return MeasuredRate(
            rate=rate,
            interval=interval,
            source="gold spans of the generator, every record",
            origin="gold",
            num_texts=len(known),
        )
    found = MeasuredRate()
    if state is not None:
        found = measured_rate(
            state,
            corpus=corpus.fingerprint,
            detector=base.fingerprint,
            lists=state.lists.acting_on(data_set),
        )
    declared, upper = settings.missing_rate, settings.missing_rate_upper
    if found.rate is not None or declared is None or upper is None:
        return found
    source = settings.missing_rate_source or "no source given"
    return MeasuredRate(
        rate=declared,
        interval=Interval(low=0.0, high=upper, confidence=0.95),
        source=f"a declaration in the configuration ({source}), not measured here",
        origin="declared",
        refusal=found.refusal,
    )


def _misses(row: dict[str, list[dict[str, int]]]) -> MissCounts:
    """Count the misses of one record."""
    gold = [(span["start"], span["end"]) for span in row[GOLD]]
    found = [(span["start"], span["end"]) for span in row["spans"]]
    return count_misses(str(row["text"]), gold, found)
