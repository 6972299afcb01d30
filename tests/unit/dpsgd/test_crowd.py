"""What shows in a crowd, on rare words, by what came before, or after many passes."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.prechecks import check_private
from dptune.errors import ModelError
from tests.support import models, oracles


def check(model, **changes):
    feed = {
        "data": oracles.random_data(),
        "record_loss": CausalLoss(loss_normalizer=4.0),
        "physical_batch_size": 8,
        "max_tokens": models.POSITIONS,
        "pad_token_id": 0,
        "device": torch.device("cpu"),
        "autocast": False,
    }
    check_private(model, Feed(**feed | changes), seed=0)


class Longest(nn.Module):
    """Scales by the longest row so far, as frequencies that are cached do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.longest = 0

    def forward(self, x):
        self.longest = max(self.longest, x.shape[1])
        return self.inner(x) * (1 + 0.01 * self.longest)


@pytest.mark.parametrize("size", [1, 8])
def test_longest_row_that_a_model_remembers_is_refused(size):
    model = models.tiny_llama()
    model.model.layers[0].mlp = Longest(model.model.layers[0].mlp)
    with pytest.raises(ModelError, match=r"came before.*\.longest .* of 3 tokens"):
        check(model, physical_batch_size=size)


class Crowd(nn.Module):
    """Mixes rows as soon as there are many."""

    def __init__(self, inner, *, most):
        super().__init__()
        self.inner = inner
        self.most = most

    def forward(self, x):
        shared = x.mean(0, keepdim=True) if len(x) > self.most else 0.0
        return self.inner(x) + shared


@pytest.mark.parametrize("fixed_shapes", [False, True])
@pytest.mark.parametrize("most", [7, 40, 150, 600])
def test_many_rows_that_mix_are_refused_with_the_way_out(most, fixed_shapes):
    model = models.tiny_gpt2()
    model.transformer.ln_f = Crowd(model.transformer.ln_f, most=most)
    fields = {"fixed_shapes": fixed_shapes}
    with pytest.raises(
        ModelError, match=r"made-up record of.*physical_batch_size to 1"
    ):
        check(model, **fields, physical_batch_size=most + 1)
    check(model, **fields, physical_batch_size=1)
    check(model, **fields, physical_batch_size=5)


class AboveTheMedian(CausalLoss):
    """Keeps the larger half of a batch's losses: rows that only fill it are none."""

    def __call__(self, model, batch):
        losses = super().__call__(model, batch)
        return losses * (losses >= losses.detach().median())


def test_fixed_shapes_are_no_way_out_where_they_hide_it_from_few_rows():
    loss = AboveTheMedian(loss_normalizer=4.0)
    for fixed_shapes in (False, True):
        with pytest.raises(ModelError, match=r"of its batch.*physical_batch_size to 1"):
            check(models.tiny_gpt2(), record_loss=loss, fixed_shapes=fixed_shapes)
    check(models.tiny_gpt2(), record_loss=loss, physical_batch_size=1)


class OfRareWords(nn.Module):
    """Reads rare words by a layer of their own, flattened, as adaptive tables do."""

    def __init__(self, base, *, first):
        super().__init__()
        self.base = base
        self.first = first
        self.rare = nn.Linear(models.WIDTH, models.WIDTH)

    def forward(self, ids):
        found, is_rare = self.base(ids), ids >= self.first
        read = torch.zeros_like(found)
        if is_rare.any():
            read[is_rare] = self.rare(found[is_rare])
        return found + read


def rare_words():
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=models.WIDTH,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=models.POSITIONS,
    )
    model = LlamaForCausalLM(config)
    table = model.get_input_embeddings()
    model.set_input_embeddings(OfRareWords(table, first=100))
    return model


def test_layer_of_rare_words_is_refused_and_trains_row_by_row():
    """Where a batch has as many rare words as rows, each would pass for a row's."""
    with pytest.raises(ModelError, match=r"rare must map.*physical_batch_size to 1"):
        check(rare_words())
    check(rare_words(), physical_batch_size=1)


class Counts(nn.Module):
    """Does something else from some pass on."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.passes = 0
        self.width = None

    def forward(self, x):
        self.passes += 1
        shared = x.mean(0, keepdim=True) if self.passes > 500 else 0.0
        return self.inner(x) + shared


class Notes(Counts):
    """Notes what follows from the batch alone: no harm."""

    def forward(self, x):
        self.width, self.seen = x.shape[1], x.detach()
        self.some_hooks_installed = True  # as transformers notes of its own
        return self.inner(x)


class Tally(Counts):
    """Counts in a mapping."""

    def forward(self, x):
        self.of = getattr(self, "of", {"passes": 0})
        self.of["passes"] += 1
        return self.inner(x)


class Queue(Counts):
    """Shows rows those of earlier batches as soon as it has many."""

    def __init__(self, inner):
        super().__init__(inner)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().mean())
        shared = torch.stack(self.seen).mean() if len(self.seen) > 500 else 0.0
        return self.inner(x) + shared


@pytest.mark.parametrize("size", [1, 8])
def test_model_that_counts_its_passes_is_refused_and_put_back(size):
    model = models.tiny_llama()
    layer = model.model.layers[0]
    layer.mlp = Counts(layer.mlp)
    with pytest.raises(ModelError, match=r"mlp\.passes is another after each pass"):
        check(model, physical_batch_size=size)
    assert layer.mlp.passes == 0
    layer.mlp = Queue(layer.mlp.inner)
    with pytest.raises(ModelError, match=r"mlp\.seen is another after each pass"):
        check(model, physical_batch_size=size)
    assert layer.mlp.seen == []
    layer.mlp = Tally(layer.mlp.inner)
    with pytest.raises(ModelError, match=r"mlp\.of is another after each pass"):
        check(model, physical_batch_size=size)
    layer.mlp = Notes(layer.mlp.inner)
    check(model, physical_batch_size=size)


class Overwrites(nn.Module):
    """Writes over what a backward pass needs: nothing trains it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x = x.clone()
        result = self.inner(x)
        x.mul_(2)
        return result + x


class WritesFirst(nn.Module):
    """Writes into an embedding, which hooks make a leaf of."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        found = self.inner(ids)
        found += 1
        return found


def test_one_row_at_a_time_is_named_where_it_helps_and_nowhere_else():
    model = models.tiny_llama()
    model.model.layers[0].mlp = Overwrites(model.model.layers[0].mlp)
    with pytest.raises(ModelError, match=r"be differentiated.*Train adapters, or use"):
        check(model)
    model = models.tiny_llama()
    model.set_input_embeddings(WritesFirst(model.get_input_embeddings()))
    with pytest.raises(ModelError, match=r"be differentiated.*physical_batch_size to"):
        check(model)
    check(model, physical_batch_size=1)


class TwoAtLeast(nn.Module):
    """Compares neighbours: a row of one token has none."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 0 * x.diff(dim=1).amax(1, keepdim=True)


@pytest.mark.parametrize("size", [1, 8])
def test_row_of_one_token_that_stops_a_model_is_refused_with_the_way_out(size):
    model = models.tiny_gpt2()
    model.transformer.ln_f = TwoAtLeast(model.transformer.ln_f)
    with pytest.raises(
        ModelError, match=r"a row of 1 tokens.*Set fixed_shapes to true"
    ):
        check(model, physical_batch_size=size)
    check(model, physical_batch_size=1, fixed_shapes=True)
