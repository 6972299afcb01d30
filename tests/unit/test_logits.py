"""Losses from a frozen head equal those from its logits."""

import pytest
import torch
from torch.nn import functional
from transformers import Gemma2Config

from dptune import logits
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss
from dptune.logits import UnwrittenLogits, unwritten_logits
from dptune.models.build import add_lora
from dptune.models.frozen import freeze_base
from tests.support import models, oracles

MODELS = {
    "tied gpt2": models.tiny_gpt2,
    "llama": models.tiny_llama,
    "tied llama": lambda: models.tiny_llama(tied=True),
    "capped gemma": lambda: models.tiny_gemma(Gemma2Config),
}


def adapted(name, *, held=None, bits=None, **options):
    model = MODELS[name]()
    if held is not None:
        model.to(held)
    model = add_lora(model, rank=2, alpha=4, **options)
    freeze_base(model, bits=bits)
    generator = torch.Generator().manual_seed(1)
    for parameter in trained(model):
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def batch_with_padding():
    batch = oracles.random_data().collate(range(4), 0)
    batch.loss_weights[1] = 0
    batch.loss_weights[2, 1:] *= 0.25
    return batch


def losses_and_gradients(losses, model):
    weights = torch.tensor([0.5, 2.0, 1.0, -1.0])
    gradients = torch.autograd.grad((losses * weights).sum(), trained(model))
    return losses.detach(), gradients


def from_all_logits(model, batch, normalizer):
    written = model(batch.input_ids, attention_mask=batch.attention_mask).logits
    each = functional.cross_entropy(
        written[:, :-1].float().transpose(1, 2),
        batch.input_ids[:, 1:],
        reduction="none",
    )
    weights = batch.loss_weights[:, 1:]
    return (each * weights).sum(1) / (normalizer or (weights > 0).sum(1).clamp(min=1))


@pytest.fixture
def written(monkeypatch):
    """Note every time that all logits are written out."""
    calls, write = [], UnwrittenLogits.written
    monkeypatch.setattr(
        UnwrittenLogits, "written", lambda self: calls.append(1) or write(self)
    )
    return calls


@pytest.mark.parametrize("held", [None, torch.bfloat16])
@pytest.mark.parametrize("normalizer", [8.0, None])
@pytest.mark.parametrize("name", MODELS)
def test_losses_of_a_frozen_head_are_those_of_its_logits(
    name, normalizer, held, written, monkeypatch
):
    monkeypatch.setattr("dptune.logits._HELD_ENTRIES", (100, 100))
    monkeypatch.setattr("dptune.logits._PART_ENTRIES", 80)  # 5 classes
    monkeypatch.setattr("dptune.logits._PIECE_ENTRIES", (60, 60))
    model, batch = adapted(name, held=held), batch_with_padding()
    expected = losses_and_gradients(from_all_logits(model, batch, normalizer), model)
    loss = CausalLoss(loss_normalizer=normalizer)
    found = losses_and_gradients(loss(model, batch), model)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert bool(written) == name.startswith("capped")


def test_twin_that_forgets_a_run_of_classes_is_caught(written, monkeypatch):
    honest = logits._in_parts

    def forgetful(*args):
        first, *others, last = honest(*args)
        return [first, *others, torch.zeros_like(last)]

    monkeypatch.setattr(logits, "_in_parts", forgetful)
    with pytest.raises(AssertionError):
        test_losses_of_a_frozen_head_are_those_of_its_logits(
            "llama", 8.0, None, written, monkeypatch
        )


@pytest.mark.parametrize("bits", [4, 8])
def test_a_head_in_few_bits_is_written_out_whole(bits, monkeypatch):
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr("dptune.logits._HELD_ENTRIES", (100, 100))
    model, batch = adapted("llama", bits=bits), batch_with_padding()
    assert model.get_output_embeddings().scale is not None
    found = losses_and_gradients(CausalLoss(loss_normalizer=8.0)(model, batch), model)
    expected = losses_and_gradients(from_all_logits(model, batch, 8.0), model)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_positions_without_a_target_add_nothing_whatever_they_hold(value):
    head = torch.nn.Linear(4, 7, bias=False).requires_grad_(False)
    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([2, logits.NO_TARGET, 5])
    expected = functional.cross_entropy(head(hidden), targets, reduction="none")
    hidden[1] = value
    hidden.requires_grad_()
    found = UnwrittenLogits(head, hidden).cross_entropy(targets)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert hidden.grad[1].tolist() == [0.0] * 4
    assert hidden.grad.isfinite().all()


@pytest.fixture
def pieces(monkeypatch):
    """Note how many positions are multiplied by the head at a time."""
    sizes, honest = [], logits._losses_to_gradient
    monkeypatch.setattr(logits, "_HELD_ENTRIES", (28, 28))  # 4 positions of 7 classes
    monkeypatch.setattr(
        logits,
        "_losses_to_gradient",
        lambda rows, targets: sizes.append(len(rows)) or honest(rows, targets),
    )
    return sizes


@pytest.mark.parametrize(("wanted", "expected"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_positions_without_a_target_cost_nothing(wanted, expected, pieces):
    """And no product has another shape than the others of its batch."""
    head = torch.nn.Linear(4, 7, bias=False).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(12, 4, generator=generator, requires_grad=True)
    targets = torch.full((12,), logits.NO_TARGET)
    targets[torch.randperm(12, generator=generator)[:wanted]] = 3
    found = UnwrittenLogits(head, hidden).cross_entropy(targets)
    plain = functional.cross_entropy(head(hidden), targets, reduction="none")
    torch.testing.assert_close(found, plain)
    both = [torch.autograd.grad(each.sum(), hidden)[0] for each in (found, plain)]
    torch.testing.assert_close(*both)
    assert pieces == [4] * expected


def test_twin_whose_shapes_follow_from_the_targets_is_caught(pieces, monkeypatch):
    monkeypatch.setattr(logits.functional, "pad", lambda rows, _: rows)
    with pytest.raises(AssertionError):
        test_positions_without_a_target_cost_nothing(5, 2, pieces)


def test_bfloat16_is_that_of_its_logits_up_to_rounding():
    model, batch = adapted("llama", held=torch.bfloat16), batch_with_padding()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = CausalLoss(loss_normalizer=8.0)(model, batch)
        expected = from_all_logits(model, batch, 8.0)
    found = losses_and_gradients(found, model)
    expected = losses_and_gradients(expected, model)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3)


def test_trained_or_hooked_head_writes_its_logits():
    model, batch = models.tiny_llama(), batch_with_padding()
    head = model.get_output_embeddings()
    with unwritten_logits(model):
        assert "forward" not in vars(head)
    with PerUnitGradients(model) as engine, engine.record(batch.rows_of_unit):
        assert not head.weight.requires_grad
        with unwritten_logits(model):
            assert "forward" not in vars(head)


def test_logits_that_are_changed_in_place_are_those_that_count():
    model, batch = adapted("llama"), batch_with_padding()
    ids, loss = batch.input_ids, CausalLoss(loss_normalizer=8.0)
    base = model.get_base_model()
    forward = base.forward

    def banning(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits[..., 3] -= 5.0
        return output

    before = loss(model, batch)
    base.forward = banning
    found = loss(model, batch)
    expected = from_all_logits(model, batch, 8.0)
    torch.testing.assert_close(found, expected)
    assert (ids == 3).any()
    assert not torch.allclose(found, before)


def test_head_is_as_before_whatever_is_raised():
    model = adapted("llama")
    head = model.get_output_embeddings()
    with pytest.raises(ZeroDivisionError), unwritten_logits(model):
        raise ZeroDivisionError
    assert "forward" not in vars(head)
