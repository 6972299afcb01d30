"""What is held in 16 bits is measured as the float32 model of the same weights."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    RwkvConfig,
    XGLMConfig,
)

from dptune.models import frozen
from dptune.models.build import add_lora
from dptune.models.frozen import freeze_base, hold_exactly, read_only, shared_copy
from dptune.precision import only_reads_exactly

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, **HEADS, intermediate_size=32),
    "gemma": Gemma3TextConfig(**SIZES, **HEADS, intermediate_size=32),
    "xglm": XGLMConfig(
        vocab_size=40, d_model=24, num_layers=2, attention_heads=4, ffn_dim=32
    ),
    "rwkv": RwkvConfig(**SIZES, rescale_every=1, context_length=32),
    "mamba": MambaConfig(**SIZES, state_size=4),
    "mamba2": Mamba2Config(**SIZES, state_size=8, num_heads=6, head_dim=8, n_groups=1),
}
TOKENS = torch.arange(3, 21)[None]


def stored(kind, folder, dtype=torch.bfloat16):
    """A model that was stored in 16 bits, as it is held and as it is in float32."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind])
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.to(dtype).save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained
    return read(folder, dtype="auto").eval(), read(folder, dtype=torch.float32).eval()


@torch.no_grad()
def distance(model, other):
    """Largest difference of logits, beside the largest logit."""
    found, expected = (one(TOKENS).logits.float() for one in (model, other))
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", CONFIGS)
def test_measured_models_are_those_of_float32(kind, dtype, tmp_path):
    """Mamba takes weights bare, Mamba 2 rounds what its head reads, Gemma a scale.

    RWKV divides weights in place when it is first evaluated.
    """
    model, wide = stored(kind, tmp_path, dtype)
    before = {n: v.clone() for n, v in [*model.state_dict().items()]}
    buffers = {n: v.clone() for n, v in model.named_buffers()}
    assert distance(read_only(model), wide) < 1e-6
    for name, value in {**model.state_dict(), **dict(model.named_buffers())}.items():
        known = {**before, **buffers}[name]
        assert value.dtype == known.dtype
        assert torch.equal(value, known)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_the_probe_lets_ordinary_models_share_their_memory(kind, tmp_path):
    model, _ = stored(kind, tmp_path)
    held = {p.data_ptr() for p in read_only(model).parameters()}
    layers = [m for m in model.model.modules() if type(m) is nn.Linear]
    assert {layer.weight.data_ptr() for layer in layers} <= held


@pytest.mark.parametrize("kind", ["mamba2", "gemma", "xglm"])
def test_without_a_look_at_the_code_logits_would_be_rounded(
    kind, tmp_path, monkeypatch
):
    model, wide = stored(kind, tmp_path)
    monkeypatch.setattr(frozen, "only_reads_exactly", lambda model: True)
    monkeypatch.setattr(frozen, "restore_rounded", lambda model: None)
    assert distance(read_only(model), wide) > 1e-5


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_base_under_adapters_that_train_is_not_rounded(kind, tmp_path, monkeypatch):
    """Gemma's scale of embeddings is in no file; the twin lets it be rounded."""

    def adapted():
        model, wide = stored(kind, tmp_path)
        held = add_lora(model, rank=2, alpha=2)
        freeze_base(held)
        return distance(held.eval(), wide)

    assert adapted() < 1e-6
    monkeypatch.setattr(frozen, "restore_rounded", lambda model: None)
    assert (adapted() > 1e-5) == (kind == "gemma")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "mamba2", "rwkv"])
def test_adapters_of_shadows_lie_over_a_model_that_is_exact(kind, tmp_path):
    model, wide = stored(kind, tmp_path)
    adapted = hold_exactly(lambda: add_lora(shared_copy(model), rank=2, alpha=2))
    adapted.eval()
    assert distance(adapted, wide) < 1e-6
    assert only_reads_exactly(adapted)
    trained = [n for n, p in adapted.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_models_with_adapters_are_measured_too(tmp_path):
    model, wide = stored("llama", tmp_path)
    adapted = add_lora(model, rank=2, alpha=2).bfloat16()
    assert any(v.dtype == torch.bfloat16 for v in adapted.buffers())
    assert distance(read_only(adapted), wide) < 1e-2


def test_a_probe_leaves_modes_alone(tmp_path):
    model, _ = stored("llama", tmp_path)
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    assert not only_reads_exactly(model)
    assert modes == [module.training for module in model.modules()]
