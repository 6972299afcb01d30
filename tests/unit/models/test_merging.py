"""Adapters merged on the way to disk, one weight after the other."""

import copy
import json

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)
from transformers.models.mixtral import MixtralConfig, MixtralForCausalLM

from dptune.errors import ArtifactError, ModelError
from dptune.models import frozen, merging
from dptune.models.adapters import merge_adapter, save_adapter
from dptune.models.build import add_lora, seeded
from dptune.models.digest import model_digest
from dptune.models.frozen import freeze_base
from dptune.models.loading import load_model, save_model
from tests.unit.models.test_frozen import BITS

TOKENS = torch.tensor([[5, 9, 2, 7, 7, 3]])
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
}


@pytest.fixture
def llama(tokenizer):
    def make(*, tied=True, dtype=torch.bfloat16):
        config = LlamaConfig(
            vocab_size=len(tokenizer), tie_word_embeddings=tied, **SIZES
        )
        with seeded(0):
            model = LlamaForCausalLM(config)
        for parameter in model.parameters():  # buffers stay, as where files are read
            parameter.data = parameter.data.to(dtype)
        return model

    return make


def adapted(model, *, bits=None):
    model = add_lora(model, rank=3, alpha=8)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3, generator=generator)
    freeze_base(model, bits=bits)
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.float()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_merged_model_computes_what_was_trained(llama, tokenizer, tmp_path, tied, bits):
    model = adapted(llama(tied=tied), bits=bits)
    wanted, before = logits(model), copy.deepcopy(model.state_dict())
    save_model(model, tokenizer, tmp_path / "m")
    merged = load_model(tmp_path / "m", dtype=None).model
    assert merged.dtype == torch.float32
    torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("bits", BITS[1:])
def test_merging_over_other_weights_than_the_codes_is_seen(
    llama, tokenizer, tmp_path, monkeypatch, bits
):
    """The twin merges into what the files held before they were quantised."""
    plain = llama()
    model = adapted(copy.deepcopy(plain), bits=bits)
    weights = {id(m): None for m in model.modules()}
    names = {n.replace(".base_layer", ""): m for n, m in model.named_modules()}
    for name, module in plain.named_modules():
        layer = names.get(f"base_model.model.{name}")
        if isinstance(layer, frozen.FrozenLinear):
            weights[id(layer)] = module.weight
    wanted = logits(model)
    monkeypatch.setattr(
        frozen.FrozenLinear, "dense", lambda self, dtype: weights[id(self)].to(dtype)
    )
    save_model(model, tokenizer, tmp_path / "m")
    merged = load_model(tmp_path / "m").model
    assert (logits(merged) - wanted).abs().max() > 1e-2


def test_merged_model_takes_the_type_of_its_base(llama, tokenizer, tmp_path):
    model = adapted(llama())
    save_model(model, tokenizer, tmp_path / "m", dtype=torch.bfloat16)
    merged = load_model(tmp_path / "m", dtype=None).model
    assert {p.dtype for p in merged.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(logits(merged), logits(model), atol=0.1, rtol=0.1)


def test_merged_model_in_pieces_is_the_same(llama, tokenizer, tmp_path, monkeypatch):
    model = adapted(llama())
    whole = save_model(model, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(merging, "PIECE_BYTES", 5000)
    assert save_model(model, tokenizer, tmp_path / "pieces") == whole
    assert len(list((tmp_path / "pieces").glob("*.safetensors"))) > 3
    again = load_model(tmp_path / "pieces")
    found = save_model(again.model, again.tokenizer, tmp_path / "again")
    assert found == model_digest(tmp_path / "whole")


def test_merging_holds_one_piece_at_a_time(llama, tokenizer, tmp_path, monkeypatch):
    made, open_pieces = [], []
    weight, save = merging._weight, merging.save_file
    monkeypatch.setattr(
        merging, "_weight", lambda *args: made.append(1) or weight(*args)
    )

    def note(piece, *args, **options):
        open_pieces.append((len(piece), len(made)))
        save(piece, *args, **options)

    monkeypatch.setattr(merging, "save_file", note)
    monkeypatch.setattr(merging, "PIECE_BYTES", 5000)
    save_model(adapted(llama()), tokenizer, tmp_path / "m")
    done = 0
    for held, so_far in open_pieces:
        done += held
        assert so_far <= done + 1  # of the next piece one weight is there


def test_merged_experts_are_stored_as_their_architecture_stores_them(
    tokenizer, tmp_path
):
    config = MixtralConfig(vocab_size=len(tokenizer), num_local_experts=2, **SIZES)
    with seeded(0):
        model = MixtralForCausalLM(config)
    targets = ["q_proj", "v_proj"]
    model = add_lora(model, rank=2, alpha=4, target_modules=targets).eval()
    freeze_base(model)
    save_model(model, tokenizer, tmp_path / "m")
    merged = load_model(tmp_path / "m").model
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-5, rtol=1e-5)


EXPERTS = {
    **SIZES,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
HEADS = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "num_key_value_heads": 2,
}


def experts(kind, size):
    """Models of which peft adapts the experts' parameters, unasked."""
    if kind == "deepseek":
        return DeepseekV2ForCausalLM(
            DeepseekV2Config(vocab_size=size, **EXPERTS | HEADS)
        )
    return Glm4MoeForCausalLM(Glm4MoeConfig(vocab_size=size, head_dim=8, **EXPERTS))


@pytest.mark.parametrize("kind", ["deepseek", "glm"])
def test_adapters_of_experts_are_merged_and_stored(tokenizer, tmp_path, kind):
    with seeded(0):
        base = experts(kind, len(tokenizer))
    before = merging.base_digest(base)
    model = adapted(base)
    wrapped = [m for m in model.modules() if isinstance(m, merging.ParamWrapper)]
    assert len(wrapped) == 2
    assert merging.base_digest(model) == before
    wanted = logits(model)
    digest = save_model(model, tokenizer, tmp_path / "m")
    merged = load_model(tmp_path / "m").model
    torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)
    save_adapter(model, tokenizer, tmp_path / "adapter")
    with seeded(0):
        save_model(experts(kind, len(tokenizer)), tokenizer, tmp_path / "base")
    place = tmp_path / "base", tmp_path / "adapter", tmp_path / "again"
    assert merge_adapter(*place) == digest
    with torch.no_grad():
        for wrapper in wrapped:
            wrapper.lora_B["default"].weight.zero_()
    assert (logits(model) - wanted).abs().max() > 1e-3  # they do something


def test_merged_state_space_computes_what_was_trained(tokenizer, tmp_path):
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=16, state_size=4, num_hidden_layers=1
    )
    with seeded(0):
        model = MambaForCausalLM(config)
    model = adapted(model)
    save_model(model, tokenizer, tmp_path / "m")
    merged = load_model(tmp_path / "m").model
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_adapters_kept_by_themselves_merge_into_the_same_model(
    llama, tokenizer, tmp_path, bits
):
    save_model(llama(), tokenizer, tmp_path / "base")
    base = load_model(tmp_path / "base", dtype=None)
    model = adapted(base.model, bits=bits)
    wanted = save_model(model, tokenizer, tmp_path / "m")
    save_adapter(model, tokenizer, tmp_path / "adapter")
    size = sum(f.stat().st_size for f in (tmp_path / "adapter").glob("*.safetensors"))
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert size < trained + 10_000
    place = tmp_path / "base", tmp_path / "adapter", tmp_path / "again"
    assert merge_adapter(*place) == wanted


@pytest.mark.parametrize("said", ["4 bits", 3])
def test_adapters_beside_another_base_file_do_not_merge(
    llama, tokenizer, tmp_path, said
):
    save_model(llama(), tokenizer, tmp_path / "base")
    save_adapter(adapted(llama()), tokenizer, tmp_path / "adapter")
    (tmp_path / "adapter" / "base.json").write_text(json.dumps({"quantization": said}))
    with pytest.raises(ArtifactError, match="must name 4, 8 or no bits"):
        merge_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "m")


def test_adapters_of_another_model_do_not_merge(llama, make_gpt2, tokenizer, tmp_path):
    save_model(make_gpt2(), tokenizer, tmp_path / "base")
    save_adapter(adapted(llama()), tokenizer, tmp_path / "adapter")
    with pytest.raises(ModelError, match="must hold adapters of base"):
        merge_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "m")
