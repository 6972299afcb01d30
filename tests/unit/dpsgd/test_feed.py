from dataclasses import replace

import numpy as np
import pytest
import torch

from dptune.dpsgd import feed as feeding
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from tests.support import models, oracles

DATA = oracles.random_data(rows_per_unit=(1, 1, 1), longest=9)


def feed(data, size=2, **changes):
    return Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=1.0),
        physical_batch_size=size,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
        **changes,
    )


def shapes(fed, units):
    return {tuple(b.input_ids.shape) for b in fed.batches(np.asarray(units))}


@pytest.mark.parametrize("units", [[0], [0, 1, 2]])
def test_fixed_shapes_are_of_a_public_length(units):
    assert shapes(feed(DATA, fixed_shapes=True, max_tokens=12), units) == {(2, 12)}


def test_fixed_shapes_without_a_public_length_show_the_longest_sequence():
    longest = max(map(len, DATA.sequences))
    assert shapes(feed(DATA, fixed_shapes=True), [0]) == {(2, longest)}


@pytest.mark.parametrize(
    ("asked", "is_large", "fixed"),
    [
        ({"max_tokens": 12}, True, True),
        ({"max_tokens": 12}, False, False),
        ({"max_tokens": 12, "fixed_shapes": False}, True, False),
        ({"max_tokens": 12, "fixed_shapes": True}, False, True),
        ({"max_tokens": 12, "size": 1}, True, False),  # one row has no company
        ({"max_tokens": 12, "size": 1, "in_step": True}, True, True),
        ({}, True, False),  # the longest sequence is private
    ],
)
def test_large_models_get_one_shape_where_it_is_public_and_helps(
    asked, is_large, fixed, monkeypatch
):
    model = models.tiny_gpt2()
    weights = sum(value.numel() for value in model.parameters())
    monkeypatch.setattr(feeding, "_LARGE", weights + (not is_large))
    plain = feed(DATA, **asked)
    assert plain.for_private_stage(model).fixed_shapes is fixed
    left = shapes(plain, [0]) != shapes(plain.for_private_stage(model), [0])
    assert left is (fixed and not asked.get("fixed_shapes"))


LONG_AND_SHORT = UnitDataset.from_columns(
    rows := [[1] * 300, [2] * 290, [3] * 9, [4] * 8],
    [[1.0] * len(row) for row in rows],
    list("abcd"),
    max_sequences_per_unit=1,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(2, 300), (2, 9)]),
        ({"fixed_shapes": True, "max_tokens": 320}, [(4, 320)]),
        ({"in_step": True}, [(4, 300)]),  # ranks wait for each other in every pass
        ({"device": torch.device("meta")}, [(4, 300)]),
    ],
)
def test_short_rows_pass_by_themselves_where_a_pass_is_cheap(changes, expected):
    fed = replace(feed(LONG_AND_SHORT, size=4), **changes)
    pieces = list(fed.batches(np.arange(4)))
    assert [tuple(piece.input_ids.shape) for piece in pieces] == expected
