import math

import numpy as np
import pytest

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.ragged import Ragged
from dptune.errors import DataError

IDS = [[5, 6, 7], [8], [9, 10], [11, 12], [13]]
WEIGHTS = [[1.0] * len(row) for row in IDS]
UNITS = ["b", "a", "b", "b", "a"]


def build(**overrides):
    columns = {"input_ids": IDS, "loss_weights": WEIGHTS, "unit_ids": UNITS} | overrides
    return UnitDataset.from_columns(
        columns["input_ids"],
        columns["loss_weights"],
        columns["unit_ids"],
        max_sequences_per_unit=2,
    )


def test_from_columns_groups_by_unit_and_drops_the_surplus():
    data = build()
    assert data.num_units == 2
    assert data.num_dropped_sequences == 1
    assert data.largest_unit == 2
    assert [row.tolist() for row in data.sequences] == [[5, 6, 7], [9, 10], [8], [13]]
    assert [unit.tolist() for unit in data.units] == [[0, 1], [2, 3]]


def test_collate_pads_on_the_right_and_maps_rows():
    data = UnitDataset.from_columns(
        IDS, WEIGHTS, ["b", "a", "b", "c", "c"], max_sequences_per_unit=2
    )
    batch = data.collate([1, 0], pad_token_id=99)
    assert batch.input_ids.tolist() == [[8, 99, 99], [5, 6, 7], [9, 10, 99]]
    assert batch.attention_mask.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert batch.loss_weights.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert batch.rows_of_unit.tolist() == [[0, -1], [1, 2]]
    assert batch.num_rows == 3


def test_collate_of_nobody_is_refused():
    with pytest.raises(DataError, match="must not be empty"):
        build().collate([], 0)


@pytest.mark.parametrize("pass_cost", [0, 3, math.inf])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_physical_batches_hold_every_unit_once_and_whole_where_it_fits(size, pass_cost):
    rows = [[1] * n for n in (3, 1, 2, 5, 4, 1)]
    data = UnitDataset.from_columns(
        rows, rows, [0, 1, 1, 2, 3, 3], max_sequences_per_unit=2
    )
    pieces = list(
        data.physical_batches(
            np.array([0, 1, 2, 3]),
            physical_batch_size=size,
            pad_token_id=0,
            pass_cost=pass_cost,
        )
    )
    ends = [piece for piece in pieces if not piece.continues]
    assert sum(len(piece.rows_of_unit) for piece in ends) == 4
    assert all(p.num_rows <= size for p in pieces)
    assert any(p.is_part for p in pieces) is (size == 1)
    lengths = sorted(int(n) for p in pieces for n in p.attention_mask.sum(1))
    assert lengths == sorted(len(row) for row in rows)


def test_physical_batches_of_nobody_are_none():
    nobody = np.empty(0, np.int64)
    pieces = build().physical_batches(nobody, physical_batch_size=2, pad_token_id=0)
    assert list(pieces) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"unit_ids": UNITS[:-1]}, "one length"),
        ({"input_ids": [[], *IDS[1:]]}, "at least one token"),
        ({"loss_weights": [[1.0], *WEIGHTS[1:]]}, "3 loss weights, got 1"),
        ({"loss_weights": [[1, -1, 1], *WEIGHTS[1:]]}, "finite loss weights"),
        ({"loss_weights": [[1, np.nan, 1], *WEIGHTS[1:]]}, "finite loss weights"),
    ],
)
def test_invalid_columns_are_refused(overrides, message):
    with pytest.raises(DataError, match=message):
        build(**overrides)


@pytest.mark.parametrize(
    ("units", "bound", "message"),
    [
        ([[0], [0]], 1, "exactly once"),
        ([[0]], 1, "exactly once"),
        ([[0, 1]], 1, "1 to 1 sequences"),
        ([[0, 1], []], 2, "1 to 2 sequences"),
    ],
)
def test_units_must_own_every_sequence_once(units, bound, message):
    row = np.array([1, 2])
    with pytest.raises(DataError, match=message):
        UnitDataset(
            sequences=Ragged.of((row, row), np.int64),
            loss_weights=Ragged.of((np.ones(2, np.float32),) * 2, np.float32),
            units=Ragged.of([np.array(unit, np.int64) for unit in units], np.int64),
            max_sequences_per_unit=bound,
        )


def test_rows_of_weights_must_match_sequences():
    with pytest.raises(DataError, match="one row per sequence"):
        UnitDataset(
            sequences=Ragged.of((np.array([1]),), np.int64),
            loss_weights=Ragged.of((), np.float32),
            units=Ragged.of((np.array([0]),), np.int64),
        )


def test_digest_tells_tokens_weights_and_units_apart():
    digests = {
        build().digest(),
        build(input_ids=[[5, 6, 8], *IDS[1:]]).digest(),
        build(loss_weights=[[1, 1, 0.5], *WEIGHTS[1:]]).digest(),
        build(unit_ids=["b", "a", "b", "b", "c"]).digest(),
    }
    assert len(digests) == 4
    assert build().digest() in digests


def test_repr_holds_no_tokens():
    assert "13" not in repr(build())
    assert "13" not in repr(build().collate([1], 0))
