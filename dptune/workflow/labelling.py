"""Detection over a corpus with canaries in it, and how much of the gold it missed."""

from collections.abc import Callable

from datasets import Dataset

from dptune.attacks.canaries import CanarySet, apply_setting
from dptune.config import DetectionSettings
from dptune.data.corpus import Corpus
from dptune.detection.engine import (
    build_engine,
    detect_dataset,
    detection_report,
    refuse_if_nothing_found,
)
from dptune.detection.missing import MissCounts, count_misses, missing_rate
from dptune.results import DetectionReport, Interval
from dptune.workflow.auditing import count_detected
from dptune.workflow.ingestion import GOLD


def label_corpus(
    corpus: Corpus,
    canaries: CanarySet,
    settings: DetectionSettings,
    *,
    corpus_is_public: bool,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Corpus, DetectionReport]:
    """Mark personal data in every record.

    Where the corpus carries gold spans the missing rate is measured on its training
    split; else the settings' rate, from a review, is quoted.

    Returns:
        the corpus with a `spans` column, the canaries' setting applied, and the report.

    Raises:
        DetectionError: nothing was found although the corpus is not public.
    """
    engine = build_engine(
        tier=settings.tier,
        recognizers=settings.recognizers,
        spacy_pipeline=settings.spacy_pipeline,
    )
    labelled = detect_dataset(
        corpus.dataset,
        engine,
        num_proc=settings.num_processes,
        on_progress=on_progress,
    )
    report = detection_report(labelled, engine, corpus.fingerprint)
    refuse_if_nothing_found(report, corpus_is_public=corpus_is_public)
    rate, interval = _missing_rate(labelled, settings)
    marked = apply_setting(labelled, canaries)
    report = report.model_copy(
        update={
            "missing_rate": rate,
            "missing_rate_interval": interval,
            "num_canaries_detected": count_detected(marked, canaries),
        }
    )
    if GOLD in marked.column_names:
        marked = marked.remove_columns(GOLD)
    return corpus.with_dataset(marked), report


def _missing_rate(
    labelled: Dataset, settings: DetectionSettings
) -> tuple[float | None, Interval | None]:
    """Measure the missing rate on gold spans, or quote the reviewed one."""
    if GOLD in labelled.column_names:
        return missing_rate([_misses(row) for row in labelled if row[GOLD] is not None])
    if settings.missing_rate is None or settings.missing_rate_upper is None:
        return None, None
    upper = settings.missing_rate_upper
    return settings.missing_rate, Interval(low=0.0, high=upper, confidence=0.95)


def _misses(row: dict[str, list[dict[str, int]]]) -> MissCounts:
    """Count the misses of one record."""
    gold = [(span["start"], span["end"]) for span in row[GOLD]]
    found = [(span["start"], span["end"]) for span in row["spans"]]
    return count_misses(str(row["text"]), gold, found)
