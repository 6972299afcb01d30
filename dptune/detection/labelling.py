"""Labels corpora, and counts labels: the whole, or parts, each by another process.

The parts are runs of records, so that their spans in order are those of the whole:
names are followed through one text only. A part is known by its texts and by the
detector, and what does not fit together is refused, not merged.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from datasets import Features

from dptune.conversation import contents_only, num_said
from dptune.detection.blocks import label_blocks, span_feature
from dptune.detection.engine import DetectionEngine
from dptune.detection.known_values import COLUMN, NAME, UnitValues
from dptune.detection.languages.identify import languages_of
from dptune.detection.recognizer import fingerprint_of
from dptune.detection.union import cut_at_turns, only_contents
from dptune.errors import ArtifactError, DetectionError
from dptune.results import DetectionReport, LanguageShare


def detect_dataset(
    dataset: datasets.Dataset,
    engine: DetectionEngine,
    *,
    num_proc: int = 1,
    cache_dir: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
    known: UnitValues | None = None,
) -> datasets.Dataset:
    """Add the column `spans` to a corpus.

    Rows, their order and all other columns stay. Records stream through in blocks, so
    the corpus may be larger than memory. A block is cached by the digest of its texts
    and the fingerprint of each recognizer: unchanged text is never read by a recognizer
    again, and a changed recognizer runs alone. Where the corpus names known values,
    those of a record's own unit are marked in it as well.

    Args:
        dataset: columns `id`, `text`, `unit_id`, `split` and any others.
        engine: finds the spans.
        num_proc: worker processes, at least 1.
        cache_dir: private folder for labelled blocks; by default the folder of the
            corpus's own Arrow file, and no cache for a corpus in memory.
        on_progress: called with the number of records done so far: after each batch
            with one process, after each block of 32,768 records with several.
        known: values of units of which the data set has but a part; by default those
            that it names itself.

    Returns:
        The corpus with `spans`: a list of structs `start`, `end`, `entity_type`,
        `recognizer`, `confidence`.
    """
    features = Features({**dataset.features, "spans": span_feature("float32")})
    if len(dataset) == 0:
        columns: dict[str, list[Any]] = {name: [] for name in features}
        return datasets.Dataset.from_dict(columns, features=features)
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done)

    spans = label_blocks(
        dataset.select_columns(["text"]),
        engine.parts,
        span_filter=engine.span_filter,
        engine_fingerprint=engine.fingerprint,
        num_proc=num_proc,
        folder=_cache_folder(dataset) if cache_dir is None else cache_dir,
        on_done=add,
    )
    known = known or UnitValues.of(dataset)
    if known is not None:
        seen = only_contents(dataset)
        spans = cut_at_turns(dataset, known.add_to(seen, spans, engine.fingerprint))
    return with_spans(dataset, spans, engine, known)


def with_spans(
    dataset: datasets.Dataset,
    spans: datasets.Dataset,
    engine: DetectionEngine,
    known: UnitValues | None = None,
) -> datasets.Dataset:
    """Put the column `spans` beside the others.

    Args:
        dataset: the corpus.
        spans: the one column, a row for each record.
        engine: that found them; decides the fingerprint with the corpus's own.
        known: values of units that are marked too.
    """
    labelled = datasets.concatenate_datasets([dataset, spans], axis=1)
    more = known.fingerprint if known else ""
    digest = fingerprint_of((dataset._fingerprint, engine.fingerprint, more))
    labelled._fingerprint = digest[:32]
    return labelled


def _cache_folder(dataset: datasets.Dataset) -> Path | None:
    """Return the folder of labelled blocks beside a corpus on disk."""
    files = dataset.cache_files
    return Path(files[0]["filename"]).parent / "spans" if files else None


@dataclass(frozen=True, kw_only=True)
class SpanShard:
    """The spans of one part of a corpus. Private, although it holds no text.

    Args:
        spans: the one column `spans`; a row for each record of the part, in order.
        index: of the part, in [0, num_shards).
        num_shards: how many parts there are.
        texts: digest of the part's texts.
        detector: fingerprint of the engine that found the spans.
    """

    spans: datasets.Dataset = field(repr=False, compare=False)
    index: int
    num_shards: int
    texts: str
    detector: str


def detect_shard(
    dataset: datasets.Dataset,
    engine: DetectionEngine,
    *,
    index: int,
    num_shards: int,
    num_proc: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> SpanShard:
    """Find the spans of one part of a corpus.

    Args:
        dataset: the whole corpus, with a column `text`.
        engine: finds the spans.
        index: of the part, in [0, num_shards).
        num_shards: how many parts there are; more than there are records leave some
            empty.
        num_proc: worker processes.
        on_progress: see `detect_dataset`.
    """
    part, known = _part(dataset, index, num_shards), UnitValues.of(dataset)
    labelled = detect_dataset(
        part, engine, num_proc=num_proc, on_progress=on_progress, known=known
    )
    return SpanShard(
        spans=labelled.select_columns(["spans"]),
        index=index,
        num_shards=num_shards,
        texts=_digest(part, known),
        detector=engine.fingerprint,
    )


def merge_shards(
    dataset: datasets.Dataset, engine: DetectionEngine, shards: Sequence[SpanShard]
) -> datasets.Dataset:
    """Return what `detect_dataset` returns, from the spans of all parts.

    Args:
        dataset: the whole corpus.
        engine: whose spans they must be.
        shards: every part, in any order.

    Raises:
        ArtifactError: a part is missing or there twice, or has other texts than the
            corpus, or spans of another detector.
    """
    ordered = sorted(shards, key=lambda shard: shard.index)
    indices = [(shard.index, shard.num_shards) for shard in ordered]
    if indices != [(index, len(ordered)) for index in range(len(ordered))]:
        raise ArtifactError(
            "shards must be every part of one corpus once, got parts "
            f"{', '.join(f'{i} of {n}' for i, n in indices)}. Run detection again."
        )
    known = UnitValues.of(dataset)
    for shard in ordered:
        part = _part(dataset, shard.index, shard.num_shards)
        if (shard.texts, len(shard.spans)) != (_digest(part, known), len(part)):
            raise ArtifactError(
                f"shard {shard.index} must be of this corpus, got spans of other "
                "texts. Run detection again."
            )
        if shard.detector != engine.fingerprint:
            raise ArtifactError(
                f"shard {shard.index} must be of the detector "
                f"{engine.fingerprint[:12]}, got {shard.detector[:12]}. Give all pods "
                "one image, and run detection again."
            )
    spans = datasets.concatenate_datasets([s.spans for s in ordered if len(s.spans)])
    return with_spans(dataset, spans, engine, known)


def _part(dataset: datasets.Dataset, index: int, num_shards: int) -> datasets.Dataset:
    """Select one run of records; runs differ by one record at most."""
    first, last = (len(dataset) * i // num_shards for i in (index, index + 1))
    return dataset.select(range(first, last))


def _digest(part: datasets.Dataset, known: UnitValues | None) -> str:
    """Digest what the marks of a part follow from: texts, and values of their units."""
    owned = (known.fingerprint, *part["unit_id"]) if known else ()
    return fingerprint_of((*part["text"], *owned))


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
    with_spans = 0
    sizes: list[tuple[int, int]] = []
    for row in dataset.select_columns(["text", "spans"]):
        with_spans += bool(row["spans"])
        counts.update(span["entity_type"] for span in row["spans"])
        marked = sum(span["end"] - span["start"] for span in row["spans"])
        sizes.append((num_said(row["text"]), marked))
    finders = dict.fromkeys(engine.recognizers)
    if COLUMN in dataset.column_names:
        finders[NAME] = None
    characters, masked = (sum(column) for column in zip((0, 0), *sizes, strict=True))
    languages = languages_of(map(contents_only, dataset["text"]))
    return DetectionReport(
        fingerprint=fingerprint,
        tier=engine.tier,
        role_tiers={r: str(tier) for r, tier in engine.rules.role_tiers.items()},
        taken_back=engine.taken_back,
        recognizers=tuple(finders),
        num_records=len(dataset),
        num_records_with_spans=with_spans,
        num_spans=dict(sorted(counts.items())),
        masked_character_share=masked / characters if characters else 0.0,
        languages=tuple(
            _language_share(language, sizes, languages)
            for language, _ in Counter(languages).most_common()
        ),
    )


def _language_share(
    language: str, sizes: Sequence[tuple[int, int]], languages: Sequence[str]
) -> LanguageShare:
    """Count what is masked in the records of one language."""
    own = [
        size for size, found in zip(sizes, languages, strict=True) if found == language
    ]
    characters, masked = (sum(column) for column in zip(*own, strict=True))
    return LanguageShare(
        language=language,
        num_records=len(own),
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
