"""Unites recognizers, labels corpora, and reports what was found."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import datasets
from datasets import Features, Value

from dptune.detection.lexicon import LexiconRecognizer
from dptune.detection.patterns import PatternRecognizer
from dptune.detection.recognizer import Recognizer, Tier, fingerprint_of
from dptune.detection.union import unite
from dptune.errors import ConfigError, DetectionError
from dptune.results import DetectionReport
from dptune.text import Span

_VERSION = "1"
_BATCH_SIZE = 256
SPAN_FEATURE = [
    {
        "start": Value("int32"),
        "end": Value("int32"),
        "entity_type": Value("string"),
        "recognizer": Value("string"),
        "confidence": Value("float32"),
    }
]


class DetectionEngine:
    """Unites what several recognizers find.

    Args:
        tier: what counts as sensitive.
        recognizers: at least one; order decides nothing.
    """

    def __init__(self, *, tier: Tier, recognizers: Sequence[Recognizer]) -> None:
        if not recognizers:
            raise ConfigError(
                "recognizers must hold at least one name, got none. Use "
                'recognizers=("patterns", "lexicon").'
            )
        self.tier = tier
        self._recognizers = tuple(recognizers)

    @property
    def recognizers(self) -> tuple[str, ...]:
        """Names of the recognizers."""
        return tuple(recognizer.name for recognizer in self._recognizers)

    @property
    def fingerprint(self) -> str:
        """Digest that changes whenever the spans of some text may change."""
        parts = (f"{r.name}:{r.fingerprint}" for r in self._recognizers)
        return fingerprint_of((_VERSION, self.tier, *sorted(parts)))

    def detect(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        """Find the sensitive spans of each text.

        Args:
            texts: whole records; names are followed through one text only.

        Returns:
            For each text, spans that are disjoint, sorted, and cover exactly what the
            recognizers cover together.
        """
        found = [recognizer.recognize(texts) for recognizer in self._recognizers]
        return [
            unite((span for spans in per_text for span in spans), text)
            for text, *per_text in zip(texts, *found, strict=True)
        ]


def build_engine(
    *,
    tier: Tier,
    recognizers: Sequence[str] = ("patterns", "lexicon"),
    spacy_pipeline: str | None = None,
) -> DetectionEngine:
    """Build an engine from names.

    Args:
        tier: what counts as sensitive.
        recognizers: of `patterns`, `lexicon` and `spacy`.
        spacy_pipeline: name or local folder of a spaCy pipeline; if given, `spacy` is
            added to the recognizers.

    Raises:
        ConfigError: an unknown name, no name, or `spacy` without a pipeline.
        DependencyError: the English lexicon is not installed.
    """
    names = list(dict.fromkeys(recognizers))
    if spacy_pipeline is not None and "spacy" not in names:
        names.append("spacy")
    return DetectionEngine(
        tier=tier, recognizers=[_build(name, tier, spacy_pipeline) for name in names]
    )


def _build(name: str, tier: Tier, spacy_pipeline: str | None) -> Recognizer:
    if name == "patterns":
        return PatternRecognizer(tier=tier)
    if name == "lexicon":
        return LexiconRecognizer(tier=tier)
    if name == "spacy" and spacy_pipeline is not None:
        from dptune.detection.ner import SpacyRecognizer  # noqa: PLC0415  # heavy import

        return SpacyRecognizer(pipeline=spacy_pipeline, tier=tier)
    if name == "spacy":
        raise ConfigError(
            "spacy_pipeline must be given for recognizer=spacy, got None. Set it to a "
            "pipeline such as en_core_web_sm or to a local folder."
        )
    raise ConfigError(
        f"recognizers must be of patterns, lexicon, spacy, got {name!r}. "
        "Correct the name."
    )


def detect_dataset(
    dataset: datasets.Dataset,
    engine: DetectionEngine,
    *,
    num_proc: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> datasets.Dataset:
    """Add the column `spans` to a corpus.

    Rows, their order and all other columns stay. The result is cached by the data
    set's fingerprint and the engine's.

    Args:
        dataset: columns `id`, `text`, `unit_id`, `split` and any others.
        engine: finds the spans.
        num_proc: worker processes, at least 1.
        on_progress: called with the number of records done so far: after each batch
            with one process, once at the end with several.

    Returns:
        The corpus with `spans`: a list of structs `start`, `end`, `entity_type`,
        `recognizer`, `confidence`.
    """
    features = Features({**dataset.features, "spans": SPAN_FEATURE})
    if len(dataset) == 0:
        columns: dict[str, list[Any]] = {name: [] for name in features}
        return datasets.Dataset.from_dict(columns, features=features)
    done = 0

    def label(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        nonlocal done
        spans = [
            [_as_row(span) for span in found] for found in engine.detect(batch["text"])
        ]
        done += len(spans)
        if on_progress is not None and num_proc == 1:
            on_progress(done)
        return {"spans": spans}

    labelled = dataset.map(
        label if num_proc == 1 else _Labeller(engine),
        batched=True,
        batch_size=_BATCH_SIZE,
        num_proc=num_proc if num_proc > 1 else None,
        features=features,
        new_fingerprint=fingerprint_of((dataset._fingerprint, engine.fingerprint))[:32],
        desc="detect",
    )
    if on_progress is not None and (num_proc > 1 or done < len(labelled)):
        on_progress(len(labelled))
    return labelled


class _Labeller:
    """Labels batches in a worker process."""

    def __init__(self, engine: DetectionEngine) -> None:
        self._engine = engine

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found = self._engine.detect(batch["text"])
        return {"spans": [[_as_row(span) for span in spans] for spans in found]}


def _as_row(span: Span) -> dict[str, Any]:
    return {
        "start": span.start,
        "end": span.end,
        "entity_type": span.entity_type,
        "recognizer": span.recognizer,
        "confidence": span.confidence,
    }


def spans_of(row: Sequence[dict[str, Any]]) -> tuple[Span, ...]:
    """Read one value of the column `spans`."""
    return tuple(
        Span(**{**span, "confidence": float(span["confidence"])}) for span in row
    )


def detection_report(
    dataset: datasets.Dataset, engine: DetectionEngine, fingerprint: str
) -> DetectionReport:
    """Count what was found. Counts are private until released otherwise.

    Args:
        dataset: a corpus with `text` and `spans`.
        engine: the engine that labelled it.
        fingerprint: of the corpus that was labelled.
    """
    counts: Counter[str] = Counter()
    characters = masked = with_spans = 0
    for row in dataset.select_columns(["text", "spans"]):
        characters += len(row["text"])
        with_spans += bool(row["spans"])
        for span in row["spans"]:
            counts[span["entity_type"]] += 1
            masked += span["end"] - span["start"]
    return DetectionReport(
        fingerprint=fingerprint,
        tier=engine.tier,
        recognizers=engine.recognizers,
        num_records=len(dataset),
        num_records_with_spans=with_spans,
        num_spans=dict(sorted(counts.items())),
        masked_character_share=masked / characters if characters else 0.0,
    )


def refuse_if_nothing_found(report: DetectionReport, *, corpus_is_public: bool) -> None:
    """Refuse a private corpus in which the detector found nothing at all.

    Raises:
        DetectionError: no span in a corpus that is not declared public.
    """
    if report.num_records_with_spans == 0 and not corpus_is_public:
        raise DetectionError(
            "the detector must find at least one span in a private corpus, got "
            f"num_spans=0 in num_records={report.num_records}. Check language "
            "and tier, or declare the corpus public in its config."
        )
