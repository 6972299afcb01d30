"""Norms that are computed again give what they gave, and hold half."""

import pytest
import torch
from torch import nn
from transformers import Gemma2Config

from dptune.dpsgd import norms
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.norms import recomputed_norms
from dptune.dpsgd.prechecks import checkpointing
from dptune.models.build import add_lora
from dptune.models.frozen import freeze_base
from tests.support import models, oracles

MODELS = {
    "llama": models.tiny_llama,
    "gemma": lambda: models.tiny_gemma(Gemma2Config),
}
LOSS = CausalLoss(loss_normalizer=8.0)
ROUNDED = 2.0**-7  # two roundings to bfloat16, as autocast's own


def adapted(name):
    model = add_lora(MODELS[name]().to(torch.bfloat16), rank=2, alpha=4)
    freeze_base(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in trained(model).values():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.train()


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def losses_and_gradients(model):
    """Run a batch; count the bytes of float32 that autograd holds."""
    held = {}

    def pack(tensor):
        if tensor.dtype is torch.float32 and tensor.requires_grad:
            held[tensor] = tensor.untyped_storage().data_ptr()
        return tensor

    batch = oracles.random_data().collate(range(4), 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with autocast():
            losses = LOSS(model, batch)
        sizes = {place: tensor.nbytes for tensor, place in held.items()}
    weights = torch.tensor([0.5, 2.0, 1.0, -1.0])
    parameters = trained(model)
    found = torch.autograd.grad((losses * weights).sum(), list(parameters.values()))
    gradients = dict(zip(parameters, found, strict=True))
    return losses.detach(), gradients, sum(sizes.values())


def distance(found, expected):
    return oracles.distance(found, expected) / oracles.norm(expected)


@pytest.mark.parametrize("name", MODELS)
def test_recomputed_norms_leave_losses_alone_and_hold_less(name):
    model = adapted(name)
    losses, gradients, before = losses_and_gradients(model)
    with recomputed_norms(model):
        same, close, after = losses_and_gradients(model)
    assert torch.equal(losses, same)
    assert distance(close, gradients) < ROUNDED
    assert after < 0.6 * before
    assert all("forward" not in vars(module) for module in model.modules())


def test_recomputed_norms_under_gradient_checkpointing_change_no_bit():
    model = adapted("llama")
    with recomputed_norms(model):
        _, expected, _ = losses_and_gradients(model)
        with checkpointing(model):
            _, found, _ = losses_and_gradients(model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_recomputed_norms_twin_of_a_wrong_gradient_is_caught(monkeypatch):
    honest = norms._Recomputed.backward
    wrong = staticmethod(lambda ctx, grad: honest(ctx, 1.05 * grad))
    monkeypatch.setattr(norms._Recomputed, "backward", wrong)
    with pytest.raises(AssertionError):
        test_recomputed_norms_leave_losses_alone_and_hold_less("llama")


@pytest.mark.parametrize("name", MODELS)
def test_norms_of_units_bound_what_is_added_through_recomputed_norms(name):
    """Each unit alone, then all of them: the clip is of what the layers did."""
    model, data = adapted(name), oracles.random_data(rows_per_unit=(1, 3, 2))

    def added(units):
        batch = data.collate(units, 0)
        with PerUnitGradients(model) as engine:
            sums = engine.zeros()
            with engine.record(batch.rows_of_unit) as tape, autocast():
                total = LOSS(model, batch).sum()
                found = tape.backward(total, torch.ones_like, sums)
        return found[0], {key: value.clone() for key, value in sums.items()}

    with recomputed_norms(model):
        together, whole = added(range(3))
        alone = [added([unit]) for unit in range(3)]
    for unit, (one, sums) in enumerate(alone):
        assert oracles.norm(sums) <= float(one[0]) * (1 + 1e-6)
        assert float(together[unit]) == pytest.approx(float(one[0]), rel=ROUNDED)
    parts = {key: sum(sums[key] for _, sums in alone) for key in whole}
    assert distance(whole, parts) < ROUNDED


def test_norms_that_are_trained_hooked_or_fused_are_left_alone():
    model = adapted("llama")
    inner = [m for m in model.modules() if type(m).__name__ == "LlamaRMSNorm"]
    inner[0].weight.requires_grad_(True)
    inner[1].register_forward_hook(lambda *_: None)
    other = nn.RMSNorm(4).requires_grad_(False)
    with recomputed_norms(nn.ModuleList([model, other])):
        changed = [m for m in inner if "forward" in vars(m)]
        assert changed == inner[2:]
        assert "forward" not in vars(other)


def test_norms_are_as_they_were_without_autocast_and_gradients(monkeypatch):
    monkeypatch.setattr(norms._Recomputed, "apply", None)
    model, batch = adapted("llama"), oracles.random_data().collate(range(4), 0)
    with recomputed_norms(model):
        LOSS(model, batch)
        with torch.no_grad(), autocast():
            LOSS(model, batch)
