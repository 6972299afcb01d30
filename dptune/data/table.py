"""Checked records as a table on disk, and what is asked of its whole columns."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dptune.conversation import without_training
from dptune.data.engine import Engine, append, count, fetch, given, load
from dptune.data.records import MISSING, RawRecord
from dptune.data.source import SPLITS
from dptune.parts import Parts

Splits = npt.NDArray[np.int8]
UNDECIDED: Final = -1
"""A record that its source puts into no split."""
LEFT_OUT: Final = -2
"""A record that was not taken."""

NO_LABEL, NUMBER, WORD = 0, 1, 2
_WHOLE, _KNOWN = 1, 2
_ROWS_AT_ONCE: Final = 4096
_CHARACTERS_AT_ONCE: Final = 1 << 23

KNOWN_TYPE: Final = pa.list_(
    pa.struct([("value", pa.string()), ("entity_type", pa.string())])
)
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "unit", "text", "label")),
        ("known_values", KNOWN_TYPE),
    ]
)
TEXT_DIGEST: Final = ("t0", "t1", "t2", "t3")
"""SHA-256 of a text."""
KNOWN_AS: Final = ("k0", "k1", "k2", "k3")
"""SHA-256 of a conversation, whichever turns of it are learnt."""


def split_code(name: str | None) -> int:
    """Number a split by its place in `SPLITS`.

    >>> split_code("test"), split_code(None)
    (2, -1)
    """
    return UNDECIDED if name is None else SPLITS.index(name)


@dataclass(kw_only=True, eq=False)
class RecordTable:
    """Checked records in the order of their source.

    Their position is a record's number from 0. Texts lie in `parts`; the engine's table
    `records` has a row for each record, and for each faulty one that has an id.

    Args:
        engine: holds the table `records`.
        parts: `id, unit, text, label, known_values`; copies without ids of their own
            share an id, and a unit that is null is the record.
        is_chat: whether records are conversations.
        num_read: records of the source, faulty ones as well.
        files: that they were read from.
        named: splits that the source names, by any name.
        has_missing_ids: whether a record has no id of its own.
        has_missing_units: whether the source names no unit of a record.
        has_units: whether anything but the record itself owns one.
        has_content_units: whether a unit is known by its text alone.
        unread: keys of messages that nobody reads.
    """

    engine: Engine = field(repr=False)
    parts: Parts = field(repr=False)
    is_chat: bool = False
    num_read: int = 0
    files: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    has_missing_ids: bool = False
    has_missing_units: bool = False
    has_units: bool = False
    has_content_units: bool = False
    unread: Counter[str] = field(default_factory=Counter)
    splits: Splits = field(default_factory=lambda: np.empty(0, np.int8), repr=False)
    marks: npt.NDArray[np.uint8] = field(
        default_factory=lambda: np.empty(0, np.uint8), repr=False
    )
    label_kind: int = NO_LABEL
    numbered: dict[int, int] = field(default_factory=dict, repr=False)

    def number_copies(self) -> None:
        """Tell records of equal texts apart that have no id but their text's hash."""
        if not self.has_missing_ids:
            return
        positions, numbers = fetch(
            self.engine,
            """
            SELECT pos, number FROM (
                SELECT pos, row_number() OVER (PARTITION BY id ORDER BY pos) AS number
                FROM records
                SEMI JOIN (SELECT id FROM records GROUP BY id HAVING count(*) > 1)
                    USING (id)
            ) WHERE number > 1
            """,
        )
        with given(self.engine, {"pos": positions, "number": numbers}):
            self.engine.execute(
                "UPDATE records SET id = id || '-' || number FROM given "
                "WHERE records.pos = given.pos"
            )
        self.numbered = dict(zip(positions.tolist(), numbers.tolist(), strict=True))

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the position of the first record of a batch, and the batch."""
        first = 0
        for batch in self.parts.batches():
            yield first, batch
            first += batch.num_rows

    def ids(self) -> Iterator[pa.StringArray]:
        """Yield ids, of which no two are equal."""
        for first, batch in self.batches():
            yield self._named(first, batch["id"])

    def unit_ids(self) -> Iterator[pa.StringArray]:
        """Yield the privacy units of records."""
        for first, batch in self.batches():
            yield pc.coalesce(batch["unit"], self._named(first, batch["id"]))

    def draw_keys(self) -> Iterator[pa.StringArray]:
        """Yield what draws of splits and samples go by: the unit.

        Where that is known by a hash of its content it is the hash without the number
        that tells copies apart, which follows from how many others there are.
        """
        for batch in self.parts.batches():
            yield pc.coalesce(batch["unit"], batch["id"])

    def texts(
        self, taken: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.StringArray]]:
        """Yield positions and texts of some records."""
        for first, batch in self.batches():
            mask = taken[first : first + batch.num_rows]
            if mask.all():
                yield np.arange(first, first + len(mask)), batch["text"]
            elif mask.any():
                found = batch["text"].filter(pa.array(mask))
                yield first + np.flatnonzero(mask), found

    def location(self, file: int, row: int, identifier: str | None) -> str:
        """Name a row in messages."""
        shown = MISSING if self.has_missing_ids else identifier
        name = self.files[file]
        return RawRecord(file=name, row=row, text=None, id=shown).location()

    def locations(self, condition: str, *, limit: int) -> tuple[list[str], int]:
        """Name the first rows of `records` that meet a condition, and count all."""
        found = f"FROM records WHERE {condition}"
        rows = self.engine.execute(
            f"SELECT file, row, id {found} ORDER BY pos LIMIT {limit}"
        ).fetchall()
        total = count(self.engine, f"SELECT count(*) {found}")
        return [self.location(*row) for row in rows], total

    def place(self, splits: Splits, *, late: Sequence[int]) -> None:
        """Make the engine's table `placed` of the records that are taken.

        Its column `rank` orders records by split, then by position.

        Args:
            splits: code of every record's split, `LEFT_OUT` for one not taken.
            late: for each of `SPLITS` how late its records come.
        """
        codes = np.arange(len(splits), dtype=np.int64)
        delays = np.asarray(late, dtype=np.int64)[np.maximum(splits, 0)]
        marks = {"pos": codes, "rank": (delays << RANK_BITS) | codes}
        taken = splits != LEFT_OUT
        digests = (*TEXT_DIGEST, *(KNOWN_AS if self.is_chat else ()))
        with given(self.engine, {name: marks[name][taken] for name in marks}):
            self.engine.execute(
                "CREATE TEMP TABLE placed AS SELECT pos, rank, coalesce(unit, id) AS "  # noqa: S608 - ours
                f"unit, {', '.join(digests)} FROM records JOIN given USING (pos)"
            )

    def has_mark(self, kept: npt.NDArray[np.bool_]) -> tuple[bool, bool]:
        """Whether all labels of records are whole numbers, and any has known values."""
        marks = self.marks[kept]
        is_whole = bool(((marks & _WHOLE) > 0).all()) and len(marks) > 0
        return is_whole, bool((marks & _KNOWN).any())

    def _named(self, first: int, ids: pa.StringArray) -> pa.StringArray:
        """Number the copies in a batch."""
        if not self.numbered:
            return ids
        names = ids.to_pylist()
        for place in range(len(names)):
            if (number := self.numbered.get(first + place)) is not None:
                names[place] = f"{names[place]}-{number}"
        return pa.array(names, pa.string())


RANK_BITS: Final = 40


class TableWriter:
    """Writes the records of a table as they are checked.

    Args:
        engine: without a table `records`.
        folder: private folder for the texts; None keeps them in memory.
        is_chat: whether records are conversations.
    """

    def __init__(self, engine: Engine, folder: Path | None, *, is_chat: bool) -> None:
        self.table = RecordTable(
            engine=engine,
            parts=Parts(_SCHEMA, folder=folder, name="records"),
            is_chat=is_chat,
        )
        self._numbers: dict[str, int] = {}
        self._rows: list[tuple[object, ...]] = []
        self._names: list[tuple[object, ...]] = []
        self._digests: list[bytes] = []
        self._known_as: list[bytes] = []
        self._characters = 0
        self._splits: list[Splits] = []
        self._marks: list[npt.NDArray[np.uint8]] = []

    def add(
        self,
        row: RawRecord,
        *,
        text: str,
        identifier: str | None,
        unit: str | None,
        split: int,
        label: str | None,
        label_kind: int,
        is_whole: bool,
        is_broken: bool,
        known: list[dict[str, str]] | None,
    ) -> None:
        """Write a sound record; without an id it is known by a hash of its text."""
        digest = known_as = text_digest(text)
        if self.table.is_chat:
            known_as = text_digest(without_training(text))
            self._known_as.append(known_as)
        self._digests.append(digest)
        name = f"text-{known_as.hex()[:32]}" if identifier is None else identifier
        mark = _WHOLE * is_whole | (_KNOWN if known else 0)
        self._rows.append((name, unit, text, label, known, split, mark))
        self._name(row, name, unit, split, label_kind, is_sound=True, broken=is_broken)
        self._characters += len(text)
        if len(self._names) >= _ROWS_AT_ONCE or self._characters >= _CHARACTERS_AT_ONCE:
            self._flush()

    def add_id(self, row: RawRecord, identifier: str) -> None:
        """Note the id of a record with other faults: no later one may have it."""
        self._digests.append(bytes(32))
        if self.table.is_chat:
            self._known_as.append(bytes(32))
        self._name(row, identifier, None, UNDECIDED, NO_LABEL, is_sound=False)
        if len(self._names) >= _ROWS_AT_ONCE:
            self._flush()

    def close(self) -> RecordTable:
        """Write the rest and return the table."""
        if self._names or not self._splits:
            self._flush()
        self.table.parts.close()
        self.table.splits = np.concatenate(self._splits)
        self.table.marks = np.concatenate(self._marks)
        return self.table

    def _name(
        self,
        row: RawRecord,
        name: str,
        unit: str | None,
        split: int,
        label_kind: int,
        *,
        is_sound: bool,
        broken: bool = False,
    ) -> None:
        """Note what is asked of whole columns."""
        files = self._numbers
        number = files.setdefault(row.file, len(files))
        position = self.table.num_read - 1
        self._names.append(
            (position, number, row.row, name, unit, split, label_kind, is_sound, broken)
        )

    def _flush(self) -> None:
        """Write what was gathered."""
        self.table.files = list(self._numbers)
        rows = list(zip(*self._rows, strict=True)) or [()] * (len(_SCHEMA) + 2)
        *columns, splits, marks = rows
        arrays = [
            pa.array(values, kind.type)
            for values, kind in zip(columns, _SCHEMA, strict=True)
        ]
        if self._rows:
            self.table.parts.append(pa.record_batch(arrays, schema=_SCHEMA))
        write = append if self._splits else load
        self._splits.append(np.array(splits, np.int8))
        self._marks.append(np.array(marks, np.uint8))
        names = list(zip(*self._names, strict=True)) or [()] * len(_NAMES)
        found = {
            name: pa.array(values, kind)
            for (name, kind), values in zip(_NAMES.items(), names, strict=True)
        }
        found |= _words(self._digests, TEXT_DIGEST)
        if self.table.is_chat:
            found |= _words(self._known_as, KNOWN_AS)
        write(self.table.engine, "records", found)
        for gathered in (self._rows, self._names, self._digests, self._known_as):
            gathered.clear()
        self._characters = 0


_NAMES: Final = {
    "pos": pa.int64(),
    "file": pa.int32(),
    "row": pa.int64(),
    "id": pa.string(),
    "unit": pa.string(),
    "split": pa.int8(),
    "label": pa.int8(),
    "is_sound": pa.bool_(),
    "is_broken": pa.bool_(),
}


def text_digest(text: str) -> bytes:
    """Hash a text; equal texts, and they alone, share it."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _words(digests: list[bytes], names: Sequence[str]) -> dict[str, pa.Array]:
    """Cut digests into columns of numbers, which group faster than bytes."""
    words = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, len(names))
    return {name: pa.array(words[:, i].astype("u8")) for i, name in enumerate(names)}
