"""Detection of a corpus in parts, each of them by another process or pod.

The parts are runs of records, so that their spans in order are those of the whole:
names are followed through one text only. A part is known by its texts and by the
detector, and what does not fit together is refused, not merged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import datasets

from dptune.detection.engine import DetectionEngine, detect_dataset, with_spans
from dptune.detection.recognizer import fingerprint_of
from dptune.errors import ArtifactError


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
    part = _part(dataset, index, num_shards)
    labelled = detect_dataset(part, engine, num_proc=num_proc, on_progress=on_progress)
    return SpanShard(
        spans=labelled.select_columns(["spans"]),
        index=index,
        num_shards=num_shards,
        texts=_digest(part),
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
    for shard in ordered:
        part = _part(dataset, shard.index, shard.num_shards)
        if (shard.texts, len(shard.spans)) != (_digest(part), len(part)):
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
    return with_spans(dataset, spans, engine)


def _part(dataset: datasets.Dataset, index: int, num_shards: int) -> datasets.Dataset:
    """Select one run of records; runs differ by one record at most."""
    first, last = (len(dataset) * i // num_shards for i in (index, index + 1))
    return dataset.select(range(first, last))


def _digest(part: datasets.Dataset) -> str:
    """Digest the texts of a part, in order."""
    return fingerprint_of(part["text"])
