"""Rows of unequal length as one column, in memory and on disk."""

from functools import partial
from mmap import mmap

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from dptune.dpsgd import ragged
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.ragged import Ragged, cuts_by_length, read_column
from dptune.parts import batches
from tests.full_disk import files_of_at_most

ROWS = [[5, 6, 7], [8], [9, 10], [], [11, 12]]


def lists(rows):
    return [row.tolist() for row in rows]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 0, 0, 3], [2], []])
def test_rows_selected_are_those_of_a_list(order):
    rows = Ragged.of(ROWS, np.int64).select(order)
    expected = [ROWS[row] for row in order]
    assert lists(rows) == expected
    assert rows.flat().tolist() == [x for row in expected for x in row]
    longest = max(map(len, expected), default=0)
    padded = [row + [-1] * (longest - len(row)) for row in expected]
    assert rows.padded(-1).tolist() == padded
    assert lists(rows[1:]) == expected[1:]


def test_rows_are_reduced_one_by_one():
    rows = Ragged.of([[3, 1], [4], [1, 5, 9]], np.int64).select([2, 0])
    assert rows.reduced(np.maximum).tolist() == [9, 3]
    assert rows.reduced(np.add).tolist() == [15, 4]
    assert rows.select([]).reduced(np.add).tolist() == []


def encoded(num_rows=500):
    draws = np.random.default_rng(0)
    ids = [draws.integers(0, 900, draws.integers(1, 30)) for _ in range(num_rows)]
    table = pa.table(
        {
            "unit_id": pa.array([f"u{row // 2}" for row in range(num_rows)]),
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "loss_weights": pa.array(
                [np.ones(len(row)) for row in ids], pa.list_(pa.float32())
            ),
        }
    )
    halves = [table.slice(0, 123), table.slice(123)]  # as of a file in several parts
    return Dataset(pa.concat_tables(halves))


def is_mapped(values):
    while isinstance(values, np.ndarray):
        values = values.base
    return isinstance(getattr(values, "obj", values), mmap)


@pytest.mark.parametrize("rows", [slice(None), range(499, 0, -1)])
def test_columns_on_disk_are_those_in_memory(monkeypatch, tmp_path, rows):
    data = encoded().select(range(500)[rows] if isinstance(rows, slice) else rows)
    inside = UnitDataset.from_encoded(data, max_sequences_per_unit=1, folder=tmp_path)
    assert not is_mapped(inside.sequences.values)
    monkeypatch.setattr(ragged, "_IN_MEMORY", 0)
    monkeypatch.setattr(ragged, "batches", partial(batches, rows=70))
    monkeypatch.setattr(ragged, "_PIECE", 50)
    outside = UnitDataset.from_encoded(data, max_sequences_per_unit=1, folder=tmp_path)
    assert is_mapped(outside.sequences.values)
    assert list(tmp_path.iterdir()) == []  # no name, nobody else opens it
    assert outside.digest() == inside.digest()
    assert outside.num_dropped_sequences == inside.num_dropped_sequences > 0
    taken = np.array([3, 0, 77])
    for one, other in zip(
        inside.physical_batches(taken, physical_batch_size=2, pad_token_id=0),
        outside.physical_batches(taken, physical_batch_size=2, pad_token_id=0),
        strict=True,
    ):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.loss_weights.tolist() == other.loss_weights.tolist()


def test_full_disk_is_an_error_and_no_crash(monkeypatch, tmp_path):
    monkeypatch.setattr(ragged, "_IN_MEMORY", 0)
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        read_column(encoded(), "input_ids", np.int32, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_column_of_rows_that_are_selected_twice_is_read_as_selected():
    data = encoded().select([7, 7, 400])
    expected = encoded().with_format(None)["input_ids"]
    found = read_column(data, "input_ids", np.int32, folder=None)
    assert lists(found) == [expected[7], expected[7], expected[400]]


@given(
    units=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 4)), max_size=30),
    pass_cost=st.integers(0, 500),
)
def test_cuts_never_make_a_batch_dearer_and_leave_no_piece_that_is(units, pass_cost):
    units = sorted(units, reverse=True)
    longest, num_rows = (np.array([u[i] for u in units], np.int64) for i in (0, 1))

    def cost(places):
        return int(longest[places[0]] * num_rows[places].sum()) + pass_cost

    cuts = cuts_by_length(longest, num_rows, pass_cost=pass_cost)
    pieces = [p for p in np.split(np.arange(len(units)), cuts) if len(p)]
    assert sum(map(len, pieces)) == len(units)
    if pieces:
        assert sum(map(cost, pieces)) <= cost(np.arange(len(units)))
    for piece in pieces:
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        assert all(cost(a) + cost(b) >= cost(piece) for a, b in halves)
