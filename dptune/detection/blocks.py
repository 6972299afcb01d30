"""Labels of a corpus, block by block: streamed, in several processes, never twice.

A block is a run of records. Its file is named by the digest of its texts, and holds
one column per recognizer, named by the recognizer's fingerprint, beside the united
spans. So unchanged texts cost a look at the disk, records added at the end cost
themselves, and a changed recognizer costs only itself.

**Privacy.** The files hold offsets and types, no text, but the digests of blocks and
the spans are private: keep the folder where the corpus may be.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Features, Value

from dptune.conversation import contents_only
from dptune.detection.recognizer import (
    UNAVAILABLE,
    Recognizer,
    SpanFilter,
    fingerprint_of,
)
from dptune.detection.union import unite_turns
from dptune.text import Span

BLOCK_SIZE = 32_768
_BATCH_SIZE = 256
_DIGITS = 24


def span_feature(confidence: str) -> list[dict[str, Value]]:
    """Describe a list of spans; `confidence` is the type of that field."""
    return [
        {
            "start": Value("int32"),
            "end": Value("int32"),
            "entity_type": Value("string"),
            "recognizer": Value("string"),
            "confidence": Value(confidence),
        }
    ]


def as_row(span: Span) -> dict[str, Any]:
    """Write a span as one struct of a column."""
    return asdict(span)


def spans_of(row: Sequence[dict[str, Any]]) -> tuple[Span, ...]:
    """Read one value of the column `spans`."""
    return tuple(map(Span.from_row, row))


class Labeller:
    """Runs the recognizers over batches and unites what they and the cache found.

    Args:
        recognizers: all of them, with their columns.
        cached: columns that the batches hold already.
        span_filter: takes spans back before they are united.
        on_done: called with the number of records of each batch.
    """

    def __init__(
        self,
        recognizers: Sequence[tuple[str, Recognizer]],
        *,
        cached: frozenset[str] = frozenset(),
        span_filter: SpanFilter | None = None,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        self._span_filter = span_filter
        self._recognizers = tuple(recognizers)
        self._cached = cached
        self._on_done = on_done

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the columns of one batch."""
        texts = batch["text"]
        seen = list(map(contents_only, texts))
        found = {
            column: [spans_of(row) for row in batch[column]]
            if column in self._cached
            else recognizer.recognize(seen)
            for column, recognizer in self._recognizers
        }
        united = [
            unite_turns(per_text, text, self._span_filter)
            for text, *per_text in zip(texts, *found.values(), strict=True)
        ]
        if self._on_done is not None:
            self._on_done(len(texts))
        columns = {**found, "spans": united}
        return {
            name: [[as_row(span) for span in spans] for spans in rows]
            for name, rows in columns.items()
        }


def columns_of(recognizers: Sequence[Recognizer]) -> list[tuple[str, Recognizer]]:
    """Name the column of each recognizer; equal ones count once."""
    named = {
        f"{r.name}:{r.fingerprint[:_DIGITS]}": r
        for r in sorted(recognizers, key=lambda r: (r.name, r.fingerprint))
    }
    return list(named.items())


def label_blocks(
    texts: datasets.Dataset,
    recognizers: Sequence[Recognizer],
    *,
    engine_fingerprint: str,
    num_proc: int,
    folder: Path | None,
    span_filter: SpanFilter | None = None,
    on_done: Callable[[int], None] | None,
) -> datasets.Dataset:
    """Return the column `spans` of a corpus with the one column `text`.

    Args:
        texts: at least one record.
        recognizers: find the spans.
        engine_fingerprint: names the united column's version.
        num_proc: worker processes.
        folder: where blocks are kept; None keeps none.
        span_filter: takes spans back before they are united.
        on_done: called with the number of records newly done: after each batch with
            one process, after each block with several.
    """
    named = columns_of(recognizers)
    blocks = []
    for first in range(0, len(texts), BLOCK_SIZE):
        block = texts.select(range(first, min(first + BLOCK_SIZE, len(texts))))
        blocks.append(
            _label_block(
                block,
                named,
                engine_fingerprint=engine_fingerprint,
                num_proc=num_proc,
                folder=folder,
                span_filter=span_filter,
                on_done=on_done,
            )
        )
    return datasets.concatenate_datasets(blocks) if len(blocks) > 1 else blocks[0]


def _label_block(
    block: datasets.Dataset,
    named: list[tuple[str, Recognizer]],
    *,
    engine_fingerprint: str,
    num_proc: int,
    folder: Path | None,
    span_filter: SpanFilter | None = None,
    on_done: Callable[[int], None] | None,
) -> datasets.Dataset:
    digest = _digest(block)
    home = None if folder is None else folder / digest
    if home is not None:
        known = _read(home, engine_fingerprint[:_DIGITS], len(block))
        if known is not None:
            _report(on_done, len(block))
            return known.select_columns(["spans"])
    reused = {} if home is None else _reusable(home, named, len(block))
    several = num_proc > 1 and len(block) >= 2 * num_proc
    source = datasets.concatenate_datasets([block, *reused.values()], axis=1)
    features = Features(
        {name: span_feature("float64") for name, _ in named}
        | {"spans": span_feature("float32")}
    )
    labelled = source.map(
        Labeller(
            named,
            cached=frozenset(reused),
            span_filter=span_filter,
            on_done=None if several else on_done,
        ),
        batched=True,
        batch_size=_BATCH_SIZE,
        num_proc=num_proc if several else None,
        remove_columns=["text"],
        features=features,
        new_fingerprint=fingerprint_of((digest, engine_fingerprint))[:32],
        cache_file_name=_file(home, engine_fingerprint),
        load_from_cache_file=False,
        desc="detect",
    )
    if several:
        _report(on_done, len(block))
    is_remote = any(getattr(r, "may_be_unavailable", False) for _, r in named)
    if home is not None and is_remote:
        _drop_if_unavailable(labelled, home, engine_fingerprint)
    return labelled.select_columns(["spans"])


def _drop_if_unavailable(
    labelled: datasets.Dataset, home: Path, engine_fingerprint: str
) -> None:
    """Delete the file of a block in which a recognizer could not judge some text."""
    for batch in labelled.select_columns(["spans"]).iter(batch_size=4096):
        kinds = (span["entity_type"] for spans in batch["spans"] for span in spans)
        if UNAVAILABLE in kinds:
            for path in home.glob(f"{engine_fingerprint[:_DIGITS]}*.arrow"):
                path.unlink()
            return


def _report(on_done: Callable[[int], None] | None, count: int) -> None:
    if on_done is not None:
        on_done(count)


def _digest(block: datasets.Dataset) -> str:
    """Digest the texts of a block, and nothing else of it."""
    return fingerprint_of(_texts(block))[:_DIGITS]


def _texts(block: datasets.Dataset) -> Iterator[str]:
    for batch in block.select_columns(["text"]).iter(batch_size=4096):
        yield from batch["text"]


def _file(home: Path | None, engine_fingerprint: str) -> str | None:
    """Return where the labels of a block go; the folder is for its owner alone."""
    if home is None:
        return None
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return str(home / f"{engine_fingerprint[:_DIGITS]}.arrow")


def _read(home: Path, stem: str, num_rows: int) -> datasets.Dataset | None:
    """Read a labelled block: one file, or one per process; None if not complete."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(home.glob(f"{stem}*.arrow")):
        groups.setdefault(path.stem.rpartition("_of_")[2], []).append(path)
    for paths in groups.values():
        with suppress(pa.ArrowInvalid, OSError):
            parts = [datasets.Dataset.from_file(str(path)) for path in paths]
            whole = datasets.concatenate_datasets(parts)
            if len(whole) == num_rows:
                return whole
    return None


def _reusable(
    home: Path, named: list[tuple[str, Recognizer]], num_rows: int
) -> dict[str, datasets.Dataset]:
    """Find columns of unchanged recognizers in what other engines left."""
    found: dict[str, datasets.Dataset] = {}
    stems = {path.stem.partition("_")[0] for path in home.glob("*.arrow")}
    for stem in sorted(stems):
        whole = _read(home, stem, num_rows)
        for column, _ in named:
            if whole is not None and column not in found and column in whole.features:
                found[column] = whole.select_columns([column])
    return found
