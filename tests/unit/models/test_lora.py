"""Low-rank adapters on Linear and Conv1D layers."""

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GemmaConfig,
    GemmaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from dptune.errors import ModelError
from dptune.models.adapters import save_adapter
from dptune.models.build import add_lora
from dptune.models.loading import load_model, save_model

TOKENS = torch.tensor([[3, 20, 40, 60, 80]])


def _trainable(model):
    return [name for name, p in model.named_parameters() if p.requires_grad]


def _randomize(adapted):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=generator)


def test_lora_starts_at_the_base_model(make_gpt2):
    base = make_gpt2()
    before = base(TOKENS).logits
    adapted = add_lora(base, rank=2, alpha=8)
    assert torch.equal(adapted(TOKENS).logits, before)
    names = _trainable(adapted)
    assert len(names) == 2 * 2 * 4
    assert all("lora_" in name for name in names)


def test_lora_gpt2_is_transposed_and_llama_is_not(make_gpt2, babyllama):
    gpt2 = add_lora(make_gpt2(), rank=2, alpha=4)
    llama = add_lora(babyllama.model, rank=2, alpha=4)
    assert gpt2.peft_config["default"].fan_in_fan_out
    assert not llama.peft_config["default"].fan_in_fan_out
    assert len(_trainable(llama)) == 5 * 7 * 2


def test_lora_same_seed_gives_same_start_and_leaves_global_state(make_gpt2):
    before = torch.get_rng_state()
    parts = [
        torch.cat([p.flatten() for n, p in m.named_parameters() if "lora_A" in n])
        for m in (
            add_lora(make_gpt2(), rank=2, alpha=4, seed=seed) for seed in (5, 5, 6)
        )
    ]
    assert torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[0], parts[2])
    assert torch.equal(before, torch.get_rng_state())


def test_lora_merged_on_save_computes_the_same(make_gpt2, tokenizer, tmp_path):
    adapted = add_lora(make_gpt2(), rank=2, alpha=8)
    _randomize(adapted)
    before = {n: p.detach().clone() for n, p in adapted.named_parameters()}
    wanted = adapted(TOKENS).logits
    save_model(adapted, tokenizer, tmp_path / "m")
    after = dict(adapted.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    merged = load_model(tmp_path / "m").model
    torch.testing.assert_close(merged(TOKENS).logits, wanted)
    base = make_gpt2()(TOKENS).logits
    assert (wanted - base).abs().max() > 1e-2


def test_lora_merged_llama_computes_the_same(babyllama, tmp_path):
    adapted = add_lora(babyllama.model, rank=4, alpha=8)
    _randomize(adapted)
    wanted = adapted(TOKENS).logits
    save_model(adapted, babyllama.tokenizer, tmp_path / "m")
    merged = load_model(tmp_path / "m").model
    torch.testing.assert_close(merged(TOKENS).logits, wanted, atol=1e-4, rtol=1e-4)


def test_lora_saved_adapter_names_no_machine_path(make_gpt2, tokenizer, tmp_path):
    save_model(make_gpt2(), tokenizer, tmp_path / "base")
    base = load_model(tmp_path / "base").model
    adapted = add_lora(base, rank=2, alpha=4)
    save_adapter(adapted, tokenizer, tmp_path / "m")
    assert {p.name for p in (tmp_path / "m").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    for path in (tmp_path / "m").rglob("*.json"):
        assert str(tmp_path) not in path.read_text()


def test_lora_classifier_trains_its_head():
    config = BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    adapted = add_lora(BertForSequenceClassification(config), rank=2, alpha=4)
    assert any("classifier" in name for name in _trainable(adapted))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0, "alpha": 1}, "rank must be"),
        ({"rank": 1, "alpha": 0}, "alpha positive"),
        ({"rank": 1, "alpha": 1, "dropout": 1.0}, "dropout"),
        ({"rank": 1, "alpha": 1, "target_modules": ["q_proj"]}, "matches none"),
        ({"rank": 1, "alpha": 1, "target_modules": ["ln_1"]}, "LayerNorm"),
        ({"rank": 1, "alpha": 1, "target_modules": ["lm_head"]}, "tied"),
        ({"rank": 1, "alpha": 1, "last_layers": 0}, "last_layers must be from 1 to 2"),
        ({"rank": 1, "alpha": 1, "last_layers": 3}, "last_layers must be from 1 to 2"),
    ],
)
def test_lora_impossible_arguments_are_refused(make_gpt2, arguments, message):
    with pytest.raises(ModelError, match=message):
        add_lora(make_gpt2(), **arguments)


def test_lora_mixed_layouts_are_refused(make_gpt2):
    model = make_gpt2(tie_word_embeddings=False)
    with pytest.raises(ModelError, match="all Linear or all Conv1D"):
        add_lora(model, rank=1, alpha=1, target_modules=["c_attn", "lm_head"])


def test_lora_twice_is_refused(make_gpt2):
    with pytest.raises(ModelError, match="once only"):
        add_lora(add_lora(make_gpt2(), rank=1, alpha=1), rank=1, alpha=1)


def test_lora_of_any_architecture_adapts_all_linear_layers_below_the_head():
    config = GemmaConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=8,
    )
    adapted = add_lora(GemmaForCausalLM(config), rank=1, alpha=1)
    layers = {name.split(".")[-4] for name in _trainable(adapted)}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert layers == attention | {"gate_proj", "up_proj", "down_proj"}


def test_lora_leaves_out_what_state_spaces_read_past():
    config = MambaConfig(
        vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=1
    )
    adapted = add_lora(MambaForCausalLM(config), rank=1, alpha=1)
    layers = {name.split(".")[-4] for name in _trainable(adapted)}
    assert layers == {"in_proj", "x_proj"}
    for taken in ("out_proj", "dt_proj"):
        with pytest.raises(ModelError, match=f"takes the weight of .*mixer.{taken} by"):
            add_lora(MambaForCausalLM(config), rank=1, alpha=1, target_modules=[taken])


def test_lora_without_a_layer_to_adapt_asks_for_targets(make_gpt2):
    model = make_gpt2()
    model.transformer.h = nn.ModuleList()
    with pytest.raises(ModelError, match="target_modules must be given"):
        add_lora(model, rank=1, alpha=1)


def test_lora_rank_stabilised_scales_by_the_root_of_the_rank(make_gpt2):
    for use_rslora, scale in ((False, 2.0), (True, 4.0)):
        adapted = add_lora(make_gpt2(), rank=4, alpha=8, use_rslora=use_rslora)
        scales = {
            module.scaling["default"]
            for module in adapted.modules()
            if isinstance(module, LoraLayer)
        }
        assert scales == {scale}


@pytest.mark.parametrize("targets", [None, ["c_attn", "c_proj"]])
def test_lora_on_the_last_layers_leaves_the_others_alone(make_gpt2, targets):
    arguments = {"rank": 1, "alpha": 2, "target_modules": targets}
    everywhere = _trainable(add_lora(make_gpt2(num_layers=12), **arguments))
    last = _trainable(add_lora(make_gpt2(num_layers=12), last_layers=2, **arguments))
    assert last == [n for n in everywhere if ".h.10." in n or ".h.11." in n]


def test_lora_not_finite_is_not_merged(make_gpt2, tokenizer, tmp_path):
    adapted = add_lora(make_gpt2(), rank=1, alpha=1)
    with torch.no_grad():
        next(p for n, p in adapted.named_parameters() if "lora_B" in n).fill_(
            float("nan")
        )
    with pytest.raises(ModelError, match="finite"):
        save_model(adapted, tokenizer, tmp_path / "m")
