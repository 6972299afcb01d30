"""Bases in fewer bits under adapters, against a loop over what they write out."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from peft.helpers import disable_input_dtype_casting
from torch import nn

from dptune.attacks.inference import place
from dptune.dpsgd.checkpoint import run_fingerprint
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.prechecks import check_private, checkpointing
from dptune.dpsgd.step import gradient_source
from dptune.errors import DependencyError, ModelError
from dptune.models import frozen
from dptune.models.build import add_lora
from dptune.models.frozen import (
    FrozenEmbedding,
    FrozenLinear,
    freeze_base,
    read_only,
)
from dptune.precision import computing
from tests.support import models, oracles

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)
needs_library = pytest.mark.skipif(
    find_spec("bitsandbytes") is None,
    reason="bitsandbytes is not installed: pip install 'dptune[quantization]'",
)
BITS = [
    None,
    pytest.param(8, marks=needs_library),
    pytest.param(4, marks=needs_library),
]
CAUSAL, CLASSIFY = CausalLoss(loss_normalizer=8.0), ClassificationLoss()
DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
LABELLED = UnitDataset(
    sequences=DATA.sequences,
    loss_weights=DATA.loss_weights,
    units=DATA.units,
    labels=np.arange(len(DATA.sequences)) % 3,
    max_sequences_per_unit=3,
)
BUILDS = {
    "gpt2": (models.tiny_gpt2, CAUSAL, DATA),
    "llama": (models.tiny_llama, CAUSAL, DATA),
    "llama_tied": (partial(models.tiny_llama, tied=True), CAUSAL, DATA),
    "bert": (models.tiny_bert_classifier, CLASSIFY, LABELLED),
}
C = 0.3


def adapted(name, *, dtype=torch.bfloat16):
    """A model stored in a low type, with adapters that do something."""
    torch_model = BUILDS[name][0]().to(dtype)
    frozen.restore_rounded(torch_model)  # as files leave what is in none of them
    model = add_lora(torch_model, rank=3, alpha=8)
    generator = torch.Generator().manual_seed(3)
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            parameter.data.normal_(std=0.3, generator=generator)
    return model.train()


def written_out(model):
    """The same model in plain layers of float32, with the weights that it computes."""
    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if not isinstance(module, FrozenLinear | FrozenEmbedding):
            continue
        parent = plain.get_submodule(name.rpartition(".")[0])
        if isinstance(module, FrozenEmbedding):
            layer = nn.Embedding(*module.weight.shape)
            weight = module.weight.float()
        else:
            weight = module.dense(torch.float32)
            weight = weight.t() if module.is_transposed else weight
            layer = nn.Linear(*reversed(weight.shape), bias=module.bias is not None)
            if module.bias is not None:
                layer.bias = nn.Parameter(module.bias.detach(), requires_grad=False)
        layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        setattr(parent, name.rpartition(".")[2], layer)
    return plain


def feed_of(loss, data, **changes):
    fields = {
        "data": data,
        "record_loss": loss,
        "physical_batch_size": 4,
        "pad_token_id": 0,
        "device": torch.device("cpu"),
        "autocast": False,
        "max_tokens": 12,
    }
    return Feed(**fields | changes)


def stepped(model, feed, *, units=range(6), recomputes=False):
    """The clipped sum of one step."""
    plan = GradientPlan(
        noise_multiplier=0.0,
        sample_rate=0.5,
        max_grad_norm=C,
        expected_batch_size=1.0,
    )
    opened = gradient_source(model, plan=plan, feed=feed, seed=0, attempt=0)
    with checkpointing(model) if recomputes else nullcontext(), opened as source:
        source.compute(np.array(list(units), np.int64), step=0)
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def by_loop(model, name):
    """The clipped sum of a loop over single rows, over plain layers."""
    _, loss, data = BUILDS[name]
    naive = oracles.naive_unit_gradients(written_out(model), loss, data, pad_token_id=0)
    return oracles.naive_clipped_sum(naive, max_grad_norm=C)


def error_of(model, name, **modes):
    _, loss, data = BUILDS[name]
    expected = by_loop(model, name)
    found = stepped(model, feed_of(loss, data), **modes)
    return oracles.distance(found, expected) / oracles.norm(expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", BUILDS)
def test_step_over_a_frozen_base_equals_a_loop_over_plain_layers(name, bits):
    model = adapted(name)
    freeze_base(model, bits=bits)
    for recomputes in (False, True):
        assert error_of(model, name, recomputes=recomputes) < 1e-5


@pytest.mark.parametrize("bits", BITS)
def test_loop_is_left_by_a_backward_pass_over_another_weight(monkeypatch, bits):
    model = adapted("llama")
    freeze_base(model, bits=bits)
    forward = frozen._Product.forward

    def twin(ctx, inputs, layer):
        product = forward(ctx, inputs, layer)
        ctx.layer = copy.deepcopy(layer)
        (ctx.layer.weight if layer.bits is None else ctx.layer.scale).data.mul_(1.01)
        return product

    monkeypatch.setattr(frozen._Product, "forward", staticmethod(twin))
    assert error_of(model, "llama") > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama_tied"])
def test_base_in_its_stored_type_changes_no_number(name):
    _, loss, data = BUILDS[name]
    model = adapted(name)
    wide = copy.deepcopy(model).float()
    freeze_base(model)
    feed = feed_of(loss, data)
    found, expected = stepped(model, feed), stepped(wide, feed)
    assert oracles.distance(found, expected) <= 1e-6 * oracles.norm(expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "checkpointed"])
def test_unit_in_bfloat16_over_a_frozen_base_never_adds_more_than_the_bound(
    bits, recomputes
):
    _, loss, data = BUILDS["llama_tied"]
    model = adapted("llama_tied")
    freeze_base(model, bits=bits)
    feed = feed_of(loss, data, autocast=True)
    for unit in (0, 3):
        alone = stepped(model, feed, units=[unit], recomputes=recomputes)
        assert 0.5 * C < oracles.norm(alone) <= C * (1 + 1e-6)


def test_everything_but_frozen_layers_is_float32():
    model = adapted("bert")
    freeze_base(model)
    low = {n for n, p in model.named_parameters() if p.dtype == torch.bfloat16}
    assert {n.rpartition(".")[2] for n in low} == {"weight"}
    assert all(v.dtype != torch.bfloat16 for v in computing(model))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    assert not any(n for n in low if "classifier.modules_to_save" in n)


def test_tied_head_and_embedding_share_what_is_held():
    model = adapted("llama_tied")
    freeze_base(model)
    inner = model.get_base_model()
    assert isinstance(inner.lm_head, FrozenLinear)
    assert inner.lm_head.weight is inner.model.embed_tokens.weight


@needs_library
@pytest.mark.parametrize(("bits", "most"), [(8, 0.36), (4, 0.24)])
def test_bits_take_less_memory(bits, most):
    model = adapted("llama", dtype=torch.float32)
    before = sum(p.numel() * p.element_size() for p in model.parameters())
    freeze_base(model, bits=bits)
    layers = [m for m in model.modules() if isinstance(m, FrozenLinear)]
    held = sum(p.numel() * p.element_size() for m in layers for p in m.parameters())
    whole = sum(4 * m.shape.numel() for m in layers)
    assert held < most * whole
    after = sum(p.numel() * p.element_size() for p in model.parameters())
    assert after < before


def test_trained_layers_stay_as_they_are():
    model = models.tiny_llama()
    freeze_base(model)
    assert not any(isinstance(m, FrozenLinear) for m in model.modules())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_frozen_base_passes_the_check_and_is_unchanged(autocast, bits):
    _, loss, data = BUILDS["llama_tied"]
    model = adapted("llama_tied")
    freeze_base(model, bits=bits)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    feed = feed_of(loss, data, autocast=autocast, physical_batch_size=8)
    check_private(model, feed, seed=0)
    after = model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_check_refuses_a_frozen_layer_that_mixes_rows(monkeypatch):
    model = adapted("llama")
    freeze_base(model)
    forward = frozen.FrozenLinear.forward

    def twin(self, inputs):
        """As LLM.int8() does: what is large in one row rules columns of all."""
        largest = inputs.detach().abs().amax(tuple(range(inputs.dim() - 1)))
        return forward(self, inputs) + 0.01 * largest.mean()

    monkeypatch.setattr(frozen.FrozenLinear, "forward", twin)
    with pytest.raises(ModelError, match="made-up record"):
        check_private(model, feed_of(CAUSAL, DATA, physical_batch_size=8), seed=0)


@pytest.mark.parametrize("bits", BITS)
def test_fingerprint_of_a_run_knows_the_frozen_base(bits):
    plan, optimizer = PlainPlan(batch_size=2), OptimizerSettings()

    def fingerprint(changed):
        model = adapted("llama")
        if changed:
            weight = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
            weight.weight.data[0, 0] += 1
        freeze_base(model, bits=bits)
        return run_fingerprint(model, DATA, plan=plan, optimizer=optimizer, settings=())

    assert fingerprint(changed=False) == fingerprint(changed=False)
    assert fingerprint(changed=False) != fingerprint(changed=True)


def test_bits_without_the_library_are_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    frozen._library.cache_clear()
    with pytest.raises(DependencyError, match="dptune\\[quantization\\]"):
        freeze_base(adapted("llama"), bits=4)
    frozen._library.cache_clear()


def test_bits_beside_code_of_a_hub_are_refused(monkeypatch):
    monkeypatch.setattr(frozen, "find_spec", lambda name: name)
    frozen._library.cache_clear()
    with pytest.raises(DependencyError, match="kernels"):
        freeze_base(adapted("llama"), bits=8)
    frozen._library.cache_clear()


def test_engine_holds_low_inputs_of_adapters_where_autocast_computes():
    """Without float32 copies of peft's; the trainer switches them off."""
    model = adapted("llama")
    freeze_base(model)
    engine = PerUnitGradients(model)
    seen = []
    name = "down_proj.lora_A.default"
    layer = next(m for n, m in model.named_modules() if n.endswith(name))
    layer.register_forward_hook(lambda _, args, __: seen.append(args[0].dtype))
    feed = feed_of(CAUSAL, DATA, autocast=True)
    batch = replace(feed, fixed_shapes=True)
    piece = next(iter(batch.batches(np.arange(2))))
    with engine, disable_input_dtype_casting(model), engine.record(piece.rows_of_unit):
        feed.losses(model, piece)
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied"])
def test_model_to_measure_is_the_float32_one_in_half_the_memory(name):
    build, _, _ = BUILDS[name]
    model = build().to(torch.bfloat16).eval()
    before = {n: p.clone() for n, p in model.named_parameters()}
    with pytest.raises(ModelError, match="must be float32 to rank"):
        place(model, None)
    found, wide = read_only(model), build().eval()
    wide.load_state_dict(model.state_dict())
    place(found, None)
    tokens = torch.arange(3, 12)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            found(tokens).logits, wide(tokens).logits, rtol=1e-6, atol=1e-6
        )
    large = {p.data_ptr() for p in model.parameters() if p.dim() == 2}
    assert large == {p.data_ptr() for p in found.parameters() if p.dim() == 2}
    assert not any(p.requires_grad for p in found.parameters())
    for n, weight in model.named_parameters():
        assert torch.equal(weight, before[n])
        assert weight.requires_grad
