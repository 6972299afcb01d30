"""Detection over a corpus with canaries in it, and how much of the gold it missed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from datasets import Dataset

from dptune.accounting.assumptions import Assumption
from dptune.attacks.canaries import CanarySet
from dptune.attacks.planting import apply_setting
from dptune.config import DetectionSettings
from dptune.data.records import Corpus
from dptune.detection.endpoint import NO_ACCESS, Endpoint, LlmAccess, endpoint_of
from dptune.detection.engine import READ_ONE_TEXT, DetectionEngine, build_engine
from dptune.detection.known_values import COLUMN
from dptune.detection.labelling import (
    SpanShard,
    detect_dataset,
    detect_shard,
    detection_report,
    merge_shards,
    refuse_if_nothing_found,
)
from dptune.detection.languages.identify import UNDETERMINED
from dptune.detection.languages.records import Languages
from dptune.detection.languages.routing import languages_read
from dptune.detection.llm import LlmRecognizer
from dptune.detection.settings import UnknownLanguage
from dptune.errors import ConfigError, DetectionError, Problem
from dptune.parts import forget
from dptune.results import DetectionReport, Interval, LanguageShare
from dptune.review.lists import ReviewLists, with_lists
from dptune.review.quality import MissCounts, count_misses, missing_rate
from dptune.review.rates import MeasuredRate, measured_rate
from dptune.review.store import (
    LanguageRate,
    ListsOfProject,
    ReviewState,
)
from dptune.workflow.auditing import count_detected
from dptune.workflow.ingest import GOLD


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
    folder: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
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
        shards: of all parts of the corpus, from `label_shard`; without any, they are
            read here.
        folder: private folder that keeps what was found in each part, so that a run
            that was killed goes on where it was; None keeps nothing.
        on_progress: called with what is being done, records done, and all records.

    Returns:
        the corpus with a `spans` column, the canaries' setting applied, which says what
        its marks rest on; and the report.

    Raises:
        DetectionError: nothing was found although the corpus is not public.
        ArtifactError: the shards do not fit together, or are of something else.
    """
    if folder is not None:
        forget(folder)
    total, processes = len(corpus.dataset), settings.num_processes
    languages = Languages.of(
        corpus.dataset,
        num_processes=processes,
        on_progress=lambda done: on_progress("tell languages", done, total),
    )
    if not corpus_is_public:
        check_languages(languages, settings)
    base = engine_of(settings, access)
    state = review if settings.use_review else None
    engine = _with_lists(base, state, settings, data_set)
    if shards:
        labelled = merge_shards(corpus.dataset, engine, shards)
    else:
        labelled = detect_dataset(
            corpus.dataset,
            engine,
            num_proc=processes,
            cache_dir=folder,
            on_progress=lambda done: on_progress("detect personal data", done, total),
        )
    report = detection_report(labelled, engine, corpus.fingerprint, languages=languages)
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
            "languages": _with_rates(report, labelled, measured, languages),
            "num_canaries_detected": count_detected(marked, canaries),
        }
    )
    used = [name for name in (GOLD, COLUMN) if name in marked.column_names]
    if used:
        marked = marked.remove_columns(used)
    return corpus.marked(
        marked,
        assumes=marks_assume(settings, state.lists if state else None, data_set),
    ), report


def marks_assume(
    settings: DetectionSettings, lists: ListsOfProject | None, data_set: str
) -> list[str]:
    """Name what makes the marks of one record depend on others."""
    found = list(lists.assumptions(data_set)) if lists else []
    together = settings.token_classifier and settings.token_classifier.batch_size > 1
    if settings.unknown_language is UnknownLanguage.KEEP:
        found.append(Assumption.UNREAD_LANGUAGES)
    if together or not READ_ONE_TEXT.issuperset(settings.recognizers):
        found.append(Assumption.MARKS_FOLLOW_ONE_TEXT)
    if settings.known_values is not None:
        public = settings.known_values.public
        found.append(
            Assumption.PUBLIC_KNOWN_VALUES
            if public
            else Assumption.PRIVATE_KNOWN_VALUES
        )
    return [assumption.value for assumption in found]


def check_languages(languages: Languages, settings: DetectionSettings) -> None:
    """Refuse records in languages that no recognizer of a configuration reads.

    Records that are too short to tell are masked like unknown words, and pass.

    Args:
        languages: of the records.
        settings: which recognizers.

    Raises:
        DetectionError: there is such a record, and the settings do not say what to do.
    """
    if settings.unknown_language is not UnknownLanguage.REFUSE:
        return
    known = languages_read(
        settings.recognizers,
        spacy_pipeline=settings.spacy_pipeline,
        spacy_pipelines=settings.spacy_pipelines,
        declared=settings.known_languages,
    ) | {UNDETERMINED}
    unread = [pair for pair in languages.counts() if pair[0] not in known]
    if unread:
        counts = ", ".join(f"{code}: {number:,}" for code, number in unread)
        raise DetectionError(
            "every record must be in a language that a recognizer reads, got some in "
            f"others ({counts}). Give detection.spacy_pipelines one for the language, "
            "name what your recognizers read in detection.known_languages, set "
            "detection.unknown_language to mask or keep, or list the languages to "
            "train on in data.languages, which drops the rest."
        )


def label_shard(
    corpus: Corpus,
    settings: DetectionSettings,
    *,
    index: int,
    num_shards: int,
    data_set: str,
    review: ReviewState | None = None,
    access: LlmAccess = NO_ACCESS,
    folder: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SpanShard:
    """Mark personal data in some parts of the corpus; see `label_corpus`.

    Args:
        corpus: with canaries in it; all of it.
        settings: which recognizers.
        index: of the shard, in [0, num_shards).
        num_shards: how many shards there are.
        data_set: whose lists act, beside public ones.
        review: lists and reviews of the project, if there are any.
        access: of the recognizer `llm`.
        folder: see `label_corpus`.
        on_progress: called with the number of records done.
    """
    state = review if settings.use_review else None
    return detect_shard(
        corpus.dataset,
        _with_lists(engine_of(settings, access), state, settings, data_set),
        index=index,
        num_shards=num_shards,
        num_proc=settings.num_processes,
        cache_dir=folder,
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


def _with_rates(
    report: DetectionReport,
    labelled: Dataset,
    measured: MeasuredRate,
    languages: Languages,
) -> tuple[LanguageShare, ...]:
    """Put the missing rate of each language beside what was masked in it."""
    rates = dict(measured.by_language)
    if GOLD in labelled.column_names:
        counts: dict[str, list[MissCounts]] = {}
        found = languages.settled()
        for row, number in zip(labelled, found.numbers, strict=True):
            if row[GOLD] is not None:
                counts.setdefault(found.names[number], []).append(_misses(row))
        for code, known in counts.items():
            rate, interval = missing_rate(known)
            rates[code] = LanguageRate(
                rate=rate, interval=interval, num_texts=len(known)
            )
    return tuple(
        share.model_copy(
            update={
                "missing_rate": rates[share.language].rate,
                "missing_rate_interval": rates[share.language].interval,
                "missing_rate_texts": rates[share.language].num_texts,
            }
        )
        if share.language in rates
        else share
        for share in report.languages
    )


def _misses(row: dict[str, list[dict[str, int]]]) -> MissCounts:
    """Count the misses of one record."""
    gold = [(span["start"], span["end"]) for span in row[GOLD]]
    found = [(span["start"], span["end"]) for span in row["spans"]]
    return count_misses(str(row["text"]), gold, found)


def engine_of(
    settings: DetectionSettings, access: LlmAccess = NO_ACCESS
) -> DetectionEngine:
    """Build the detector of a configuration, without lists.

    Args:
        settings: which recognizers.
        access: key and memory of the recognizer `llm`. Neither changes the fingerprint.
    """
    endpoint: Endpoint | None = None
    if settings.llm is not None:
        endpoint = endpoint_of(settings.llm, access, path="detection.llm")
    gliner = settings.gliner
    return build_engine(
        tier=settings.tier,
        recognizers=settings.recognizers,
        spacy_pipeline=settings.spacy_pipeline,
        spacy_pipelines=settings.spacy_pipelines,
        known_languages=settings.known_languages,
        unknown_language=settings.unknown_language,
        gliner_model=gliner.model if gliner else None,
        gliner_threshold=gliner.threshold if gliner else 0.3,
        llm_endpoint=endpoint,
        token_classifier=settings.token_classifier,
        known_values=settings.known_values,
        rules=settings,
    )


def check_detector(settings: DetectionSettings, access: LlmAccess) -> None:
    """Load what the recognizers need; ask a language model about a public sentence.

    A model that is away would make every sentence sensitive, so a run does not start.

    Raises:
        ConfigError: a name that nobody offers, or an endpoint that does not answer.
        DependencyError: a package, a pipeline or a model is not there.
    """
    engine = engine_of(settings, access)
    _ = engine.fingerprint  # reads pipelines and models
    for recognizer in engine.parts:
        if isinstance(recognizer, LlmRecognizer) and (why := recognizer.failure()):
            raise ConfigError(
                [
                    Problem(
                        path="detection.llm",
                        message="must be an endpoint that answers as asked, got "
                        f"{why} to a public sentence.",
                        next_step="Start the server, correct base_url, model or key, "
                        "or leave llm out of detection.recognizers.",
                    )
                ]
            )
