"""The records of a corpus as they are written, counted and fingerprinted."""

import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, Final

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dptune.data.engine import Engine, fetch, given, load, own_tables
from dptune.data.source import SPLITS
from dptune.data.table import LEFT_OUT, NO_LABEL, NUMBER, RecordTable, Splits
from dptune.parts import Parts

KNOWN_FEATURE: Final = datasets.List(
    {"value": datasets.Value("string"), "entity_type": datasets.Value("string")}
)
_ROWS_AT_ONCE: Final = 10_000


@dataclass(kw_only=True)
class WrittenRecords:
    """Records as their corpus has them, on disk or in memory."""

    parts: Parts = field(repr=False)
    num_characters: int

    def reader(self) -> pa.RecordBatchReader:
        """Read them as one stream, from which no two batches are held at once."""
        return self.parts.reader()

    def dataset(self) -> datasets.Dataset:
        """Map them; they may be used on after their file is gone.

        The data set has a name that is drawn: `datasets` would pickle all rows to make
        one of them.
        """
        return datasets.Dataset(self.parts.table(), fingerprint=secrets.token_hex(8))


def write_records(
    table: RecordTable, kept: Splits, *, folder: Path | None, with_split: bool = True
) -> WrittenRecords:
    """Write the records of a corpus in the order of their source.

    Args:
        table: checked records.
        kept: code of the split of each record, `LEFT_OUT` for one that goes.
        folder: private folder for the file; None keeps it in memory.
        with_split: write the column `split`.
    """
    is_whole, has_known = table.has_mark(kept != LEFT_OUT)
    has_label = table.label_kind != NO_LABEL
    is_number = has_label and (is_whole or table.label_kind == NUMBER)
    features = dict.fromkeys(("id", "text", "unit_id"), datasets.Value("string"))
    if with_split:
        features["split"] = datasets.Value("string")
    if has_label:
        features["label"] = datasets.Value("int64" if is_number else "string")
    if has_known:
        features["known_values"] = KNOWN_FEATURE
    schema = datasets.Features(features).arrow_schema
    parts, num_characters = Parts(schema, folder=folder, name="corpus"), 0
    ids, units = table.ids(), table.unit_ids()
    for (first, batch), names, owners in zip(table.batches(), ids, units, strict=True):
        codes = kept[first : first + batch.num_rows]
        columns = {"id": names, "text": batch["text"], "unit_id": owners}
        columns["split"] = _SPLIT_NAMES.take(pa.array(np.maximum(codes, 0)))
        columns |= {n: batch[n] for n in ("label", "known_values")}
        mask = pa.array(codes != LEFT_OUT)
        arrays = [columns[name].filter(mask) for name in schema.names]
        arrays = [
            array.cast(kind.type) for array, kind in zip(arrays, schema, strict=True)
        ]
        parts.append(pa.record_batch(arrays, schema=schema))
        num_characters += pc.sum(pc.utf8_length(arrays[1])).as_py() or 0
    parts.close()
    return WrittenRecords(parts=parts, num_characters=num_characters)


def count_units(table: RecordTable, kept: Splits) -> dict[str, int]:
    """Count the privacy units of each split; where none is named, a record is one.

    Args:
        table: whose records were placed.
        kept: code of the split of each record, `LEFT_OUT` for one that goes.
    """
    places = np.flatnonzero(kept != LEFT_OUT)
    if not table.has_units:
        numbers = np.bincount(kept[places], minlength=len(SPLITS))
        return dict(zip(SPLITS, numbers.tolist(), strict=True))
    with given(table.engine, {"pos": places, "split": kept[places]}):
        splits, numbers = fetch(
            table.engine,
            "SELECT split, count(*) FROM (SELECT split, unit FROM placed JOIN given "
            "USING (pos) GROUP BY split, unit) GROUP BY split",
        )
    found = dict(zip(splits.tolist(), numbers.tolist(), strict=True))
    return {name: found.get(code, 0) for code, name in enumerate(SPLITS)}


def dropped_units(table: RecordTable, placed: Splits, kept: Splits) -> tuple[str, ...]:
    """Name the privacy units of which deduplication left no record, sorted.

    Args:
        table: whose records were placed.
        placed: code of the split of each record, `LEFT_OUT` for one not taken.
        kept: the same, `LEFT_OUT` also for one that was dropped.
    """
    if np.array_equal(placed, kept):
        return ()
    engine = table.engine
    load(engine, "staying", {"pos": np.flatnonzero(kept != LEFT_OUT)})
    rows = engine.execute(
        "SELECT DISTINCT unit FROM (SELECT unit FROM placed ANTI JOIN staying USING "
        "(pos)) ANTI JOIN (SELECT unit FROM placed SEMI JOIN staying USING (pos)) "
        "USING (unit)"
    ).fetchall()
    return tuple(sorted(name for (name,) in rows))


def corpus_fingerprint(
    records: datasets.Dataset | pa.RecordBatchReader, *, engine: Engine | None = None
) -> str:
    """Return the SHA-256 over the sorted `(id, unit_id, split, text hash)` of a corpus.

    The order of records does not matter; an edit of a text, owner, split or label does.

    Args:
        records: with the columns of a corpus; `label` and `known_values`, if there are
            any, count too.
        engine: sorts; None lets one in memory do it.
    """
    schema = pa.schema({"line": pa.string()})
    lines = pa.RecordBatchReader.from_batches(
        schema,
        (
            pa.record_batch([pa.array(_lines(batch), pa.string())], schema=schema)
            for batch in _batches(records)
        ),
    )
    digest, is_first = hashlib.sha256(), True
    with own_tables(engine) as tables, given(tables, lines):
        found = tables.sql("FROM given ORDER BY line")
        for batch in found.to_arrow_reader(_ROWS_AT_ONCE):
            text = "\n".join(batch.column(0).to_pylist())
            digest.update(text.encode() if is_first else f"\n{text}".encode())
            is_first = False
    return digest.hexdigest()


def _batches(
    records: datasets.Dataset | pa.RecordBatchReader,
) -> Iterator[pa.RecordBatch | pa.Table]:
    if isinstance(records, pa.RecordBatchReader):
        yield from records
    else:
        yield from records.with_format("arrow").iter(_ROWS_AT_ONCE)


def _lines(batch: pa.RecordBatch | pa.Table) -> list[str]:
    """Write rows as `json.dumps` writes lists."""
    columns = [
        _written(batch.column(name).to_pylist())
        for name in ("id", "unit_id", "split", "label", "known_values")
        if name in batch.schema.names
    ]
    hashes = [
        f'"{hashlib.sha256(text.encode()).hexdigest()}"'
        for text in batch.column("text").to_pylist()
    ]
    return [f"[{', '.join(row)}]" for row in zip(*columns, hashes, strict=True)]


def _written(values: list[Any]) -> list[str]:
    """Write values as JSON."""
    return [
        encode_basestring_ascii(value) if isinstance(value, str) else json.dumps(value)
        for value in values
    ]


_SPLIT_NAMES: Final = pa.array(SPLITS, pa.string())
