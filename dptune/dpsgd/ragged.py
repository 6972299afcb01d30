"""Rows of unequal length as one flat column, in memory or on disk."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import NDArray

from dptune.parts import batches, let_go, map_values

Scalar = TypeVar("Scalar", bound=np.generic)
_PIECE = 1 << 20
"""Values that are read from disk at once."""
_IN_MEMORY = 1 << 24
"""Bytes of a column that stays in memory."""


@dataclass(frozen=True, eq=False)
class Ragged(Sequence[NDArray[Scalar]], Generic[Scalar]):
    """Rows of unequal length. A row is a view of the flat column; nothing is copied.

    Args:
        values: what all rows hold; a memory-mapped file serves as well.
        starts: where each row begins in `values`.
        lengths: of each row.

    >>> rows = Ragged.of([[5, 6, 7], [8]], np.int64)
    >>> rows[1].tolist(), rows.select([1, 0]).padded(0).tolist()
    ([8], [[8, 0, 0], [5, 6, 7]])
    """

    values: NDArray[Scalar] = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    lengths: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(
        cls, rows: "Sequence[Any] | Ragged[Any]", dtype: type[Scalar]
    ) -> "Ragged[Scalar]":
        """Copy rows, each a list or array of numbers; what is ragged stays as it is."""
        if isinstance(rows, Ragged):
            return rows
        arrays = [np.asarray(row, dtype) for row in rows]
        empty = np.empty(0, dtype)
        return cls.cut(np.concatenate([empty, *arrays]), [len(row) for row in arrays])

    @classmethod
    def cut(
        cls, values: NDArray[Scalar], lengths: Sequence[int] | NDArray[np.int64]
    ) -> "Ragged[Scalar]":
        """Cut a column into rows that lie one behind the other."""
        sizes = np.asarray(lengths, np.int64)
        return cls(values, np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.lengths)

    @overload
    def __getitem__(self, row: int) -> NDArray[Scalar]: ...
    @overload
    def __getitem__(self, row: slice) -> "Ragged[Scalar]": ...
    def __getitem__(self, row: int | slice) -> "NDArray[Scalar] | Ragged[Scalar]":
        """Return a row, or several."""
        if isinstance(row, slice):
            return type(self)(self.values, self.starts[row], self.lengths[row])
        start = self.starts[row]
        return self.values[start : start + self.lengths[row]]

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> "Ragged[Scalar]":
        """Return some rows, in this order; they share the column."""
        chosen = np.asarray(rows, np.int64)
        if len(chosen) == len(self) and (chosen == np.arange(len(self))).all():
            return self
        return type(self)(self.values, self.starts[chosen], self.lengths[chosen])

    def flat(self) -> NDArray[Scalar]:
        """Return what the rows hold, one behind the other."""
        before = np.cumsum(self.lengths) - self.lengths
        shifts = self.starts - before
        first = int(shifts[0]) if len(shifts) else 0
        if (shifts == first).all():  # they lie so already
            return self.values[first : first + int(self.lengths.sum())]
        places = np.repeat(shifts, self.lengths)
        places += np.arange(len(places))
        found: NDArray[Scalar] = self.values[places]
        return found

    def reduced(self, function: np.ufunc) -> NDArray[Any]:
        """Reduce every row to one number, as its maximum; none may be empty."""
        before = np.cumsum(self.lengths) - self.lengths
        if not len(self):
            return before
        found: NDArray[Any] = function.reduceat(self.flat(), before)
        return found

    def padded(self, fill: float) -> NDArray[Scalar]:
        """Copy the rows, `(rows, longest)`, filled up on the right."""
        steps = np.arange(self.lengths.max(initial=0))
        is_filler = steps >= self.lengths[:, None]
        places = self.starts[:, None] + steps
        places[is_filler] = 0
        result = np.asarray(self.values[places])
        result[is_filler] = fill
        return result

    def pieces(self) -> Iterator[NDArray[Scalar]]:
        """Yield what the rows hold, in order, so much at once as memory bears."""
        ends = np.cumsum(self.lengths)
        first = 0
        while first < len(self):
            read = int(ends[first] - self.lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, read + _PIECE, "right")))
            yield self[first:last].flat()
            let_go()
            first = last


def read_column(
    table: Dataset, name: str, dtype: type[Scalar], *, folder: Path | None
) -> Ragged[Scalar]:
    """Read a column of lists; a large one goes to a file without a name.

    Args:
        table: with the column; may be memory-mapped itself.
        name: of the column.
        dtype: of its numbers.
        folder: private folder of the file, which goes with the last who reads it. None
            keeps to memory.

    Raises:
        OSError: the disk is full.
    """
    lengths = [pc.list_value_length(part[name]) for part in batches(table, [name])]
    sizes = np.concatenate([np.empty(0, np.int64), *lengths])
    pieces = (
        chunk.flatten().to_numpy().astype(dtype, copy=False)
        for part in batches(table, [name])
        for chunk in part[name].chunks
    )
    size = int(sizes.sum())
    if folder is None or size * np.dtype(dtype).itemsize <= _IN_MEMORY:
        return Ragged.cut(np.concatenate([np.empty(0, dtype), *pieces]), sizes)
    with tempfile.TemporaryFile(dir=folder) as file:
        for piece in pieces:  # a full disk is an error here, and a crash in a map
            file.write(piece.tobytes())
        file.flush()
        return Ragged.cut(map_values(file, dtype), sizes)


def cuts_by_length(
    longest: NDArray[np.int64], num_rows: NDArray[np.int64], *, pass_cost: float
) -> list[int]:
    """Return where to cut a batch of units whose padding costs more than a pass.

    Each cut is the one that saves most padding, as long as it saves more than
    `pass_cost`; then both sides are looked at by themselves.

    >>> cuts_by_length(np.array([90, 80, 9, 8]), np.array([1, 1, 2, 1]), pass_cost=20)
    [2]

    Args:
        longest: tokens of each unit's longest row, the longest unit first.
        num_rows: of each unit.
        pass_cost: tokens of padding that cost as much as one more pass.
    """
    rows_from_here = num_rows[::-1].cumsum()[::-1]
    saved = rows_from_here * (longest[:1] - longest)
    if not len(saved) or saved.max() <= pass_cost:
        return []
    at = int(saved.argmax())
    before = cuts_by_length(longest[:at], num_rows[:at], pass_cost=pass_cost)
    after = cuts_by_length(longest[at:], num_rows[at:], pass_cost=pass_cost)
    return [*before, at, *(at + cut for cut in after)]


def kept_rows(
    unit_ids: Sequence[str | int] | pa.ChunkedArray, max_sequences_per_unit: int
) -> Ragged[np.int64]:
    """Return the rows of each unit that its bound keeps: the first ones.

    Args:
        unit_ids: owner of each row.
        max_sequences_per_unit: at least 1.

    >>> [rows.tolist() for rows in kept_rows(["grace", "alan", "grace"], 1)]
    [[0], [1]]
    """
    rows = _rows_of_units(unit_ids)
    sizes = np.minimum(rows.lengths, max_sequences_per_unit)
    return Ragged(rows.values, rows.starts, sizes)


def _rows_of_units(unit_ids: Sequence[str | int] | pa.ChunkedArray) -> Ragged[np.int64]:
    """Return the rows of each unit, in the order in which units appear first."""
    if isinstance(unit_ids, pa.ChunkedArray):
        encoded = unit_ids.combine_chunks().dictionary_encode()
        numbers = encoded.indices.to_numpy()
        del encoded
        pa.default_memory_pool().release_unused()  # of many names, hundreds of MiB
    else:
        known: dict[str | int, int] = {}
        numbers = np.asarray([known.setdefault(u, len(known)) for u in unit_ids], int)
    sizes = np.bincount(numbers)
    is_sorted = (np.diff(numbers) >= 0).all()
    order = np.arange(len(numbers)) if is_sorted else np.argsort(numbers, kind="stable")
    return Ragged.cut(order, sizes)
