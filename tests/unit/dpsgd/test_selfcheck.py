import copy
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Gemma3TextConfig, GemmaConfig, VaultGemmaConfig

from dptune.dpsgd import isolation, rules
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.rounding import norm_bound
from dptune.dpsgd.rules import as_sequence, register_gradient_rule
from dptune.dpsgd.selfcheck import check_model
from dptune.dpsgd.terms import Outer
from dptune.errors import ModelError
from dptune.models.build import add_lora
from tests.support import models, oracles

LOSS = CausalLoss(loss_normalizer=4.0)


def check(model, loss=LOSS, **changes):
    feed = {
        "data": oracles.random_data(),
        "record_loss": loss,
        "physical_batch_size": 8,
        "max_tokens": models.POSITIONS,
        "pad_token_id": 0,
        "device": torch.device("cpu"),
        "autocast": False,
    }
    check_model(model.train(), Feed(**feed | changes))


@pytest.mark.parametrize(
    "build", [models.tiny_gpt2, models.tiny_llama, models.tiny_mistral]
)
def test_sound_model_passes_and_is_unchanged(build):
    model = build().train()
    check(model)
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("config", [GemmaConfig, Gemma3TextConfig, VaultGemmaConfig])
def test_model_whose_embedding_scales_is_sound_in_full(config):
    check(models.tiny_gemma(config))


def test_dropout_passes():
    check(models.tiny_gpt2(dropout=0.2).train())


def test_loss_over_its_own_targets_passes_and_over_those_of_the_batch_does_not():
    class OfTheBatch(CausalLoss):
        def _normalizers(self, batch):
            return super()._normalizers(batch).mean()

    check(models.tiny_llama(), CausalLoss(loss_normalizer=None))
    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(models.tiny_llama(), OfTheBatch(loss_normalizer=None))


class OfItsClass(ClassificationLoss):
    """Weighs a row by how many rows of its batch share its class."""

    def __call__(self, model, batch):
        shared = (batch.labels[:, None] == batch.labels).sum(1)
        return super().__call__(model, batch) / shared


class OfItsFirstToken(CausalLoss):
    """Weighs a row by how many rows of its batch begin alike."""

    def __call__(self, model, batch):
        first = batch.input_ids[:, 0]
        return super().__call__(model, batch) / (first[:, None] == first).sum(1)


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("classes", [2, 3, 6, 20])
def test_loss_that_mixes_rows_of_one_class_is_refused(classes, size):
    model = models.tiny_bert_classifier(num_labels=classes)
    check(model, ClassificationLoss(), physical_batch_size=size)
    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(model, OfItsClass(), physical_batch_size=size)


def test_loss_that_mixes_rows_with_one_first_token_is_refused():
    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(models.tiny_gpt2(), OfItsFirstToken(loss_normalizer=4.0))


def test_twin_with_a_class_for_every_row_takes_mixed_rows(monkeypatch):
    monkeypatch.setattr(isolation, "_CLASS", tuple(range(6)))
    check(models.tiny_bert_classifier(num_labels=20), OfItsClass())


def test_batch_mean_loss_is_refused():
    class BatchMean(CausalLoss):
        def __call__(self, model, batch):
            return super().__call__(model, batch) / batch.loss_weights.sum()

    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(models.tiny_gpt2(), BatchMean(loss_normalizer=1.0))


def test_loss_without_rows_is_refused():
    class Total(CausalLoss):
        def __call__(self, model, batch):
            return super().__call__(model, batch).sum()

    with pytest.raises(ModelError, match="one value for each"):
        check(models.tiny_gpt2(), Total(loss_normalizer=1.0))


def test_missing_cross_term_is_refused(monkeypatch):
    monkeypatch.setattr(
        "dptune.dpsgd.tape.norm_of_sum",
        lambda terms: norm_bound([term.size() for term in terms]),
    )
    with pytest.raises(ModelError, match="norms differ"):
        check(models.tiny_gpt2(tied=True))


def test_wrong_rule_is_refused_by_parameter(monkeypatch):
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    @register_gradient_rule(nn.LayerNorm)
    def forgets_to_normalise(module, inputs, grad):
        return {
            "weight": rules.sum_over_time(inputs * grad),
            "bias": rules.sum_over_time(grad),
        }

    with pytest.raises(ModelError, match=r"ln_1\.weight differs"):
        check(models.tiny_gpt2())


def test_weight_used_behind_its_modules_back_is_refused():
    model = models.tiny_gpt2(tied=False)

    class Sneaky(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + nn.functional.linear(x, self.inner.weight)

    model.lm_head = Sneaky(model.lm_head)
    with pytest.raises(ModelError, match=r"lm_head\.inner\.weight differs"):
        check(model)


@pytest.mark.parametrize("trained", [False, True])
def test_loss_that_thaws_or_freezes_weights_is_refused(trained):
    """Of thawed weights the engine knew nothing: a KeyError, or no clip of theirs."""

    class Switching(CausalLoss):
        def __call__(self, model, batch):
            model.transformer.h[0].requires_grad_(not trained)
            return super().__call__(model, batch)

    model = models.tiny_gpt2()
    model.transformer.h[0].requires_grad_(trained)
    with pytest.raises(ModelError, match=r"h\.0\..* must stay trained, or frozen"):
        check(model, Switching(loss_normalizer=4.0))
    own = model.transformer.h[0].parameters()
    assert all(p.requires_grad is trained for p in own)


def test_rows_in_the_wrong_order_are_refused():
    class Reversed(nn.Module):
        """The sum over rows is right, each single row is not."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x.flip(0)).flip(0)

    model = models.tiny_gpt2(tied=False)
    model.lm_head = Reversed(model.lm_head)
    with pytest.raises(ModelError):
        check(model)


def test_wrong_rule_of_an_adapter_that_starts_at_zero_is_refused(monkeypatch):
    """B is zero at the start, so that A has no gradient until it is nudged."""
    model = add_lora(models.tiny_gpt2(), rank=4, alpha=8)
    downs = [m for name, m in model.named_modules() if name.endswith("lora_A.default")]
    for module in downs:
        module.__class__ = _Down
    monkeypatch.setitem(
        rules._RULES,
        _Down,
        lambda module, inputs, grad: {
            "weight": Outer(0.01 * as_sequence(grad), as_sequence(inputs))
        },
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError, match="lora_A"):
        check(model)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


class _Down(nn.Linear):
    """Half of an adapter."""


def test_buffer_that_keeps_what_it_saw_is_refused():
    class RunningMean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.mean.lerp_(x.detach().mean(), 0.1)
            return x

    model = models.tiny_gpt2()
    model.transformer.drop = RunningMean()
    with pytest.raises(ModelError, match=r"transformer\.drop\.mean"):
        check(model.train())


def copied_behind_another_forward():
    """What a copy of a model is whose forward pass a trainer has bound to it."""
    first = models.tiny_gpt2()
    plain = first.forward

    @functools.wraps(plain)
    def forward(*args, **kwargs):
        return plain(*args, **kwargs)

    first.forward = forward  # a function, which a copy shares
    return copy.deepcopy(first)


def loss_of_another_model(model, batch):
    return LOSS(OTHER, batch)


OTHER = models.tiny_gpt2()
NO_GRADIENT = "must have a gradient in what is trained, got none on made-up rows"


def test_model_that_its_loss_does_not_reach_is_refused():
    """Noise alone would be paid for, and records' gradients left on another model."""
    with pytest.raises(ModelError, match=NO_GRADIENT):
        check(copied_behind_another_forward())
    with pytest.raises(ModelError, match=NO_GRADIENT):
        check(models.tiny_gpt2(), loss_of_another_model)


def test_model_of_which_one_weight_alone_has_a_gradient_passes():
    model = models.tiny_gpt2()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("ln_f.bias" in name)
    check(model)


LEFT_OUT = {
    "random": lambda: random.random() < 1e-6,  # noqa: S311 - as models do
    "uniform": lambda: random.uniform(0, 1) < 1e-6,  # noqa: S311
    "rand": lambda: np.random.rand(1)[0] < 1e-6,  # noqa: NPY002 - as models do
    "random_sample": lambda: np.random.random_sample() < 1e-6,  # noqa: NPY002
}


class LeftOut(nn.Module):
    """Is left out for a whole batch, by a chance that torch knows nothing of."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance

    def forward(self, x):
        return x if self.chance() else x.tanh()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_rare_decision_by_python_or_numpy_is_taken_once_and_refused(name):
    model = models.tiny_gpt2()
    model.transformer.drop = LeftOut(LEFT_OUT[name])
    before = [random.random, random.uniform, np.random.rand, np.random.random_sample]
    with pytest.raises(
        ModelError, match=f"nothing but dropout.*but {name} in <lambda>"
    ):
        check(model.train())
    after = [random.random, random.uniform, np.random.rand, np.random.random_sample]
    assert after == before


@pytest.mark.parametrize("physical_batch_size", [1, 8])
def test_embeddings_of_sparse_gradients_are_compared_as_dense_ones(
    physical_batch_size,
):
    model = models.tiny_gpt2()
    model.transformer.wpe.sparse = True
    check(model, physical_batch_size=physical_batch_size)
