import numpy as np
import pytest
import torch

from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from tests.support import oracles

DATA = oracles.random_data(rows_per_unit=(1, 1, 1), longest=9)


def feed(data, **changes):
    return Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=1.0),
        physical_batch_size=2,
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
