"""Labels corpora, and counts labels: part by part, in processes and in pods.

Parts are runs of records, so that their spans in order are those of the whole: names
are followed through one text only. What pods found is known by its texts and by the
detector, and what does not fit together is refused, not merged.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Features
from numpy.typing import NDArray

from dptune.conversation import num_said
from dptune.detection.engine import DetectionEngine
from dptune.detection.known_values import COLUMN, NAME, UnitValues
from dptune.detection.languages.records import Languages
from dptune.detection.part_spans import SPANS, PartReader, spans_features
from dptune.detection.recognizer import fingerprint_of
from dptune.errors import ArtifactError, DetectionError
from dptune.parts import (
    Parts,
    batches,
    each_part,
    fresh_name,
    num_parts,
    rows_of,
    values_of,
)
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

    Rows, their order and all other columns stay. The corpus is read in parts, so that
    it may be larger than memory, and its spans are mapped from a file without a name. A
    part is cached by the digest of its texts and the fingerprint of each recognizer:
    unchanged text is never read by a recognizer again, a changed recognizer runs alone,
    and what a killed run had finished is not done again. Where the corpus names known
    values, those of a record's own unit are marked in it as well.

    Args:
        dataset: columns `id`, `text`, `unit_id`, `split` and any others.
        engine: finds the spans.
        num_proc: worker processes, at least 1, each of which takes whole parts.
        cache_dir: private folder for spans of parts; by default the folder of the
            corpus's own Arrow file, and no cache for a corpus in memory.
        on_progress: called with the number of records done so far.
        known: values of units of which the data set has but a part; by default those
            that it names itself.

    Returns:
        The corpus with `spans`: a list of structs `start`, `end`, `entity_type`,
        `recognizer`, `confidence`.
    """
    if len(dataset) == 0:
        features = Features({**dataset.features, **spans_features()})
        columns: dict[str, list[Any]] = {name: [] for name in features}
        return datasets.Dataset.from_dict(columns, features=features)
    known = known or UnitValues.of(dataset)
    home = _cache_folder(dataset) if cache_dir is None else cache_dir
    with TemporaryDirectory() as scratch:
        reader = PartReader(
            dataset=dataset,
            engine=engine,
            fingerprint=engine.fingerprint,
            folder=Path(scratch) if home is None else home,
            known=known,
        )
        spans = Parts(spans_features().arrow_schema, folder=Path(scratch), name=SPANS)
        for found in each_part(
            reader, len(dataset), num_processes=num_proc, on_progress=on_progress
        ):
            spans.append(pa.record_batch(found.spans().chunks, schema=spans.schema))
            found.drop_if_half()
        spans.close()
        column = datasets.Dataset(spans.table(), fingerprint=fresh_name())
    return with_spans(dataset, column, engine, known)


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
    """Return the folder of spans beside a corpus on disk."""
    files = dataset.cache_files
    return Path(files[0]["filename"]).parent / "spans" if files else None


@dataclass(frozen=True, kw_only=True)
class SpanShard:
    """The spans of a run of parts of a corpus. Private, although it holds no text.

    Args:
        spans: the one column `spans`; a row for each record of the shard, in order.
        index: of the shard, in [0, num_shards).
        num_shards: how many shards there are.
        texts: digest of the shard's texts.
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
    cache_dir: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SpanShard:
    """Find the spans of some parts of a corpus, which lie side by side.

    Args:
        dataset: the whole corpus, with a column `text`.
        engine: finds the spans.
        index: of the shard, in [0, num_shards).
        num_shards: how many shards there are; more than there are parts leave some
            empty.
        num_proc: see `detect_dataset`.
        cache_dir: likewise.
        on_progress: likewise.
    """
    rows = shard_rows(len(dataset), index=index, num_shards=num_shards)
    part, known = dataset.select(rows), UnitValues.of(dataset)
    labelled = detect_dataset(
        part,
        engine,
        num_proc=num_proc,
        cache_dir=cache_dir,
        on_progress=on_progress,
        known=known,
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
        shards: all of them, in any order.

    Raises:
        ArtifactError: a shard is missing or there twice, or has other texts than the
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
        rows = shard_rows(len(dataset), index=shard.index, num_shards=shard.num_shards)
        part = dataset.select(rows)
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


def shard_rows(num_rows: int, *, index: int, num_shards: int) -> range:
    """Return the rows of one shard: a run of whole parts.

    Args:
        num_rows: of the corpus.
        index: of the shard, in [0, num_shards).
        num_shards: which differ by one part at most.
    """
    total = num_parts(num_rows)
    parts = range(total * index // num_shards, total * (index + 1) // num_shards)
    return rows_of(parts, num_rows)


def _digest(part: datasets.Dataset, known: UnitValues | None) -> str:
    """Digest what the marks of a part follow from: texts, and values of their units."""
    owned = (known.fingerprint, *part["unit_id"]) if known else ()
    return fingerprint_of(chain(values_of(part, "text"), owned))


def detection_report(
    dataset: datasets.Dataset,
    engine: DetectionEngine,
    fingerprint: str,
    *,
    languages: Languages | None = None,
) -> DetectionReport:
    """Count what was found. Counts are private until released otherwise.

    Args:
        dataset: a corpus with `text` and `spans`.
        engine: the engine that labelled it.
        fingerprint: of the corpus that was labelled.
        languages: of its records, if they were read before.
    """
    counts: Counter[str] = Counter()
    with_spans, said, marked = 0, [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for batch in batches(dataset, ["text", "spans"]):
        spans = batch["spans"].combine_chunks()
        with_spans += pc.sum(pc.greater(pc.list_value_length(spans), 0)).as_py() or 0
        kinds = spans.flatten().field("entity_type").value_counts().to_pylist()
        counts.update({found["values"]: found["counts"] for found in kinds})
        said.append(np.array([num_said(t) for t in batch["text"].to_pylist()]))
        marked.append(marked_characters(spans))
    sizes = np.concatenate(said), np.concatenate(marked)
    found = (languages or Languages.of(dataset)).settled()
    finders = dict.fromkeys(engine.recognizers)
    if COLUMN in dataset.column_names:
        finders[NAME] = None
    characters, masked = (int(column.sum()) for column in sizes)
    by_language = zip(*map(found.sums, sizes), strict=True)
    shares = dict(zip(found.names, by_language, strict=True))
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
            LanguageShare(
                language=language,
                num_records=number,
                masked_character_share=own_masked / own if own else 0.0,
            )
            for language, number in found.counts()
            for own, own_masked in [shares[language]]
        ),
    )


def marked_characters(spans: pa.ListArray) -> NDArray[np.int64]:
    """Count the code points of each record that lie in its spans, which are disjoint.

    Args:
        spans: the column of that name.
    """
    flat, sizes = spans.flatten(), pc.list_value_length(spans)
    lengths = pc.subtract(flat.field("end"), flat.field("start")).to_numpy()
    ends = np.cumsum(pc.fill_null(sizes, 0).to_numpy())
    sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    found: NDArray[np.int64] = np.diff(sums[ends], prepend=0)
    return found


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
