"""Spans of a corpus, part by part: streamed, in several processes, never found twice.

The file of a part is named by the digest of its texts, and holds one column per
recognizer, named by the recognizer's fingerprint, beside the united spans. So unchanged
texts cost a look at the disk, records added at the end cost themselves, a changed
recognizer costs only itself, and a run that was killed goes on behind its last part.

**Privacy.** The files hold offsets and types, no text, but the digests of parts and
the spans are private: keep the folder where the corpus may be.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import datasets
import numpy as np
import pyarrow as pa
from datasets import Features, Value

from dptune.conversation import contents_only, within_contents
from dptune.detection.engine import DetectionEngine
from dptune.detection.known_values import UnitValues
from dptune.detection.recognizer import UNAVAILABLE, Recognizer, fingerprint_of
from dptune.detection.union import unite, unite_turns
from dptune.parts import batches, finished_part, read_part, values_of, write_part
from dptune.text import Span

_BATCH_SIZE: Final = 256
_DIGITS: Final = 24
SPANS: Final = "spans"


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


def spans_features() -> Features:
    """Describe the column that all recognizers make together."""
    return Features({SPANS: span_feature("float32")})


def spans_of(row: Sequence[dict[str, Any]]) -> tuple[Span, ...]:
    """Read one value of the column `spans`."""
    return tuple(map(Span.from_row, row))


def as_column(rows: Iterable[Sequence[Span]], confidence: str) -> pa.ListArray:
    """Write spans as a column; `confidence` is the type of that field."""
    listed = list(rows)
    flat = [span for spans in listed for span in spans]
    kind = Features({SPANS: span_feature(confidence)}).arrow_schema.field(SPANS).type
    fields = list(kind.value_type)
    values = [
        pa.array([getattr(span, f.name) for span in flat], f.type) for f in fields
    ]
    ends = np.cumsum([0, *map(len, listed)], dtype=np.int32)
    structs = pa.StructArray.from_arrays(values, fields=fields)
    return pa.ListArray.from_arrays(pa.array(ends), structs, type=kind)


@dataclass(frozen=True, kw_only=True)
class SpanFile:
    """Where the spans of a part lie: the column `spans`, a row for each record.

    Args:
        file: of the part.
        is_whole: whether every text could be judged; else nobody may use it again.
    """

    file: Path
    is_whole: bool = True

    def spans(self) -> pa.ChunkedArray:
        """Read the column."""
        return finished_part(self.file, [SPANS])[SPANS]

    def drop_if_half(self) -> None:
        """Remove the file if nobody may use it again."""
        if not self.is_whole:
            self.file.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class PartReader:
    """Finds the spans of one part after another, or their file.

    Args:
        dataset: columns `text`, and `unit_id` where values of units are known.
        engine: finds the spans.
        fingerprint: of the engine.
        folder: of the files.
        known: values of units that are marked too.
    """

    dataset: datasets.Dataset = field(repr=False)
    engine: DetectionEngine = field(repr=False)
    fingerprint: str
    folder: Path
    known: UnitValues | None = field(default=None, repr=False)

    def __call__(self, rows: range, tell: Callable[[int], None]) -> SpanFile:
        """Find the spans of a part, unless they lie there; tell how far it is."""
        part = self.dataset.select(rows)
        digest = fingerprint_of(values_of(part, "text"))
        home = self.folder / digest[:_DIGITS]
        found = SpanFile(file=home / f"{self.fingerprint[:_DIGITS]}.arrow")
        done = read_part(found.file, [SPANS])
        if done is None or done.num_rows != len(part):
            found = self._find(part, found.file, tell)
        else:
            tell(len(part))
        return found if self.known is None else _with_known(part, found, self.known)

    def _find(
        self, part: datasets.Dataset, file: Path, tell: Callable[[int], None]
    ) -> SpanFile:
        """Run the recognizers that did not see a part, and unite all."""
        named = columns_of(self.engine.parts)
        cached = _reusable(file.parent, [name for name, _ in named], len(part))
        made: dict[str, list[pa.Array]] = {name: [] for name, _ in named}
        made[SPANS] = []
        first = 0
        for batch in batches(part, ["text"], rows=_BATCH_SIZE):
            texts = batch["text"].to_pylist()
            seen = list(map(contents_only, texts))
            found: dict[str, Sequence[Sequence[Span]]] = {
                name: list(map(spans_of, cached[name][first : first + len(texts)]))
                if name in cached
                else recognizer.recognize(seen)
                for name, recognizer in named
            }
            for name, spans in found.items():
                made[name].append(as_column(spans, "float64"))
            united = (
                unite_turns(per_text, text, self.engine.span_filter)
                for text, *per_text in zip(texts, *found.values(), strict=True)
            )
            made[SPANS].append(as_column(united, "float32"))
            first += len(texts)
            tell(len(texts))
        columns = {n: pa.chunked_array(column) for n, column in made.items()}
        whole = pa.table(columns).combine_chunks()
        return _written(file, whole, is_whole=self._judged(whole[SPANS].chunk(0)))

    def _judged(self, spans: pa.ListArray) -> bool:
        """Tell whether every recognizer could judge every text."""
        if not any(getattr(r, "may_be_unavailable", False) for r in self.engine.parts):
            return True
        kinds = spans.flatten().field("entity_type").unique()
        return UNAVAILABLE not in kinds.to_pylist()


def _with_known(part: datasets.Dataset, found: SpanFile, known: UnitValues) -> SpanFile:
    """Unite spans with where the known values of their units stand."""
    columns = (part["text"], part["unit_id"], found.spans().to_pylist())
    find = known.finder()
    united = [
        within_contents(unite([*spans_of(row), *find(seen, unit)], seen), text)
        for text, unit, row in zip(*columns, strict=True)
        for seen in [contents_only(text)]
    ]
    found.drop_if_half()
    table = pa.table({SPANS: as_column(united, "float32")})
    return _written(found.file, table, is_whole=False)


def _written(file: Path, table: pa.Table, *, is_whole: bool) -> SpanFile:
    """Write the file of a part; under a name of its own if nobody may use it again."""
    if not is_whole:
        file = file.with_name(f"{secrets.token_hex(12)}.once")
    write_part(file, table)
    return SpanFile(file=file, is_whole=is_whole)


def columns_of(recognizers: Sequence[Recognizer]) -> list[tuple[str, Recognizer]]:
    """Name the column of each recognizer; equal ones count once."""
    named = {
        f"{r.name}:{r.fingerprint[:_DIGITS]}": r
        for r in sorted(recognizers, key=lambda r: (r.name, r.fingerprint))
    }
    return list(named.items())


def _reusable(home: Path, names: Sequence[str], num_rows: int) -> dict[str, list[Any]]:
    """Find columns of unchanged recognizers in what other engines left."""
    found: dict[str, list[Any]] = {}
    for file in sorted(home.glob("*.arrow")):
        table = read_part(file)
        if table is not None and table.num_rows == num_rows:
            for name in {*names} & {*table.column_names} - {*found}:
                found[name] = table[name].to_pylist()
    return found
