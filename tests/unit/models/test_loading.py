"""Loading: what is accepted, and everything that is refused."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertConfig, BertModel, dynamic_module_utils

from dptune.errors import DependencyError, ModelError
from dptune.models.loading import (
    load_classifier,
    load_model,
    load_tokenizer,
    save_model,
)
from dptune.models.source import (
    ArchitectureSource,
    HubSource,
    PathSource,
    TrainedTokenizer,
)

TOKENS = torch.tensor([[3, 20, 40, 60, 80]])
HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def saved(make_gpt2, tokenizer, tmp_path) -> Path:
    folder = tmp_path / "saved"
    save_model(make_gpt2(), tokenizer, folder)
    return folder


def _edit(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))


def _architecture(tokenizer, **changes):
    fields = {
        "kind": "architecture",
        "num_layers": 1,
        "num_heads": 2,
        "hidden_size": 16,
        "max_tokens": 64,
        "tokenizer": tokenizer,
    }
    return ArchitectureSource(**(fields | changes))


@pytest.mark.parametrize(
    ("name", "num_tokens"), [("stories260k", 512), ("babyllama105", 105)]
)
def test_load_real_model_predicts_text(shared_data, name, num_tokens):
    source = PathSource(kind="path", path=name)
    loaded = load_model(source, data_root=shared_data)
    ids = torch.tensor([loaded.tokenizer.encode("Once upon a time, there was a")])
    loss = loaded.model(ids, labels=ids).loss.item()
    assert len(loaded.tokenizer) == num_tokens
    assert loss < 1.2
    assert not loaded.model.training
    assert loaded.tokenizer.pad_token == "</s>"


def test_load_saved_model_computes_the_same(saved, make_gpt2):
    model = load_model(saved).model
    assert torch.equal(model(TOKENS).logits, make_gpt2()(TOKENS).logits)


def test_load_saved_tokenizer_still_splits_digits(saved, tokenizer):
    loaded = load_model(str(saved)).tokenizer
    text = "order 341752 né\n<|endoftext|>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.pad_token_id == 1


def test_load_dtype_is_that_asked(saved):
    assert load_model(saved, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_load_tokenizer_without_pad_takes_end_of_text(shared_data):
    tokenizer = load_tokenizer(shared_data / "gpt2_tokenizer")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 50256
    assert len(tokenizer) == 50257


def test_load_missing_directory_is_refused(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_model(PathSource(kind="path", path="nothing"), data_root=tmp_path)


def test_load_source_without_data_root_is_refused():
    with pytest.raises(ModelError, match="data_root must be given"):
        load_model(PathSource(kind="path", path="nothing"))


def test_load_pickled_weights_are_refused(saved):
    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"pickled.*save_pretrained"):
        load_model(saved)


def test_load_no_weights_is_refused(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load_model(saved)


def test_load_model_that_writes_another_text_is_refused_by_name(saved):
    _edit(saved / "config.json", model_type="bart", is_encoder_decoder=True)
    with pytest.raises(ModelError, match="saved reads one text and writes another"):
        load_model(saved)


def test_load_weights_past_those_that_are_compared_are_refused(saved):
    _edit(saved / "config.json", transformers_weights="other.safetensors")
    with pytest.raises(ModelError, match=r"config\.json names a file of weights"):
        load_model(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float17"}, "must name a type of torch as its dtype, got 'float17'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "not installed"),
    ],
)
def test_load_what_transformers_cannot_is_refused_with_the_way_out(
    saved, changes, message
):
    _edit(saved / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_model(saved)


def test_load_truncated_weights_are_refused(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ModelError, match="transformers can load"):
        load_model(saved)


@pytest.fixture
def trap(saved, tmp_path) -> Path:
    """A file that appears if the code beside the model is ever imported."""
    mark = tmp_path / "ran"
    (saved / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    )
    return mark


def test_load_model_with_its_own_code_is_refused_and_not_run(saved, trap):
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    _edit(saved / "config.json", model_type="evil", auto_map=code)
    with pytest.raises(ModelError, match="auto_map"):
        load_model(saved)
    assert not trap.exists()


def test_load_trap_goes_off_where_code_is_trusted(saved, trap, tmp_path, monkeypatch):
    monkeypatch.setattr(
        dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    _edit(saved / "config.json", model_type="evil", auto_map=code)
    with pytest.raises(AttributeError):
        AutoConfig.from_pretrained(saved, trust_remote_code=True)
    assert trap.exists()


def test_load_known_model_with_code_beside_it_ignores_the_code(saved, trap):
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    _edit(saved / "config.json", auto_map=code)
    assert load_model(saved).model.config.model_type == "gpt2"
    assert not trap.exists()


def test_model_without_a_tokenizer_is_refused(saved):
    """One without words is made up in its place, to which every text is empty."""
    for file in saved.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="must have tokens for text, got none"):
        load_model(saved)


def test_load_tokenizer_with_its_own_code_is_not_run(saved, trap):
    _edit(
        saved / "tokenizer_config.json",
        tokenizer_class="EvilTokenizer",
        auto_map={"AutoTokenizer": ["evil.Slow", "evil.Fast"]},
    )
    with contextlib.suppress(ModelError):
        load_model(saved)
    assert not trap.exists()


def test_load_adapter_directory_is_refused(saved):
    (saved / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="adapter"):
        load_model(saved)


def test_load_unreadable_config_is_refused(saved):
    (saved / "config.json").write_text("[")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(saved)


def test_load_weights_that_are_missing_are_refused(saved):
    path = saved / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("transformer.h.0.attn.c_attn.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lacks 1 weights"):
        load_model(saved)


def test_load_tokenizer_larger_than_model_is_refused(saved, tokenizer):
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(saved)
    with pytest.raises(ModelError, match="301 tokens for 300 rows"):
        load_model(saved)


def test_load_without_tokenizer_is_refused(saved):
    (saved / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load_model(saved)


def test_load_hub_without_network_says_what_to_do(tmp_path):
    source = HubSource(kind="hub", id="nobody/nothing")
    with pytest.raises(DependencyError, match="hf download nobody/nothing") as caught:
        load_model(source, cache_dir=tmp_path)
    assert len(str(caught.value)) < 300
    assert caught.value.__suppress_context__


@pytest.fixture
def cache(saved, tmp_path) -> Path:
    """A hub cache that holds one model."""
    repository = tmp_path / "cache" / "models--nobody--something"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(HASH)
    shutil.copytree(saved, repository / "snapshots" / HASH)
    return tmp_path / "cache"


def test_load_hub_model_in_the_cache_needs_no_network(cache, make_gpt2):
    source = HubSource(kind="hub", id="nobody/something")
    loaded = load_model(source, cache_dir=cache)
    assert torch.equal(loaded.model(TOKENS).logits, make_gpt2()(TOKENS).logits)


def test_load_hub_revision_that_is_not_cached_is_refused(cache):
    source = HubSource(kind="hub", id="nobody/something", revision="other")
    with pytest.raises(DependencyError, match="revision other"):
        load_model(source, cache_dir=cache)


def test_load_architecture_takes_a_tokenizer_from_the_hub(cache, tokenizer):
    wanted = HubSource(kind="hub", id="nobody/something")
    loaded = load_model(_architecture(wanted), cache_dir=cache)
    assert loaded.tokenizer.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError, "Accept its licence"),
        (errors.RepositoryNotFoundError, "the hub has no model"),
        (errors.RevisionNotFoundError, "the hub has no model"),
    ],
)
def test_load_hub_refusal_says_what_to_do(monkeypatch, error, message):
    def refuse(*args, **kwargs):
        request = httpx.Request("GET", "https://hub.invalid")
        raise error("secret url", response=httpx.Response(404, request=request))

    monkeypatch.setattr("dptune.models.hub.snapshot_download", refuse)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(HubSource(kind="hub", id="nobody/nothing"))
    assert "secret" not in str(caught.value)


def test_load_architecture_trains_a_tokenizer_on_public_text(tmp_path):
    (tmp_path / "public.txt").write_text("the parcel and the house\n" * 9)
    (tmp_path / "more.jsonl").write_text('{"text": "the river bank"}\n' * 9)
    wanted = TrainedTokenizer(kind="trained", public_text=("public.txt", "more.jsonl"))
    source = _architecture(wanted, vocab_size=270)
    loaded = load_model(source, data_root=tmp_path)
    assert len(loaded.tokenizer) == loaded.model.config.vocab_size == 270
    assert loaded.tokenizer.model_max_length == 64
    assert "the" in loaded.tokenizer.get_vocab()


def test_load_architecture_takes_a_tokenizer_from_a_directory(shared_data):
    wanted = PathSource(kind="path", path="gpt2_tokenizer")
    loaded = load_model(_architecture(wanted), data_root=shared_data)
    assert loaded.model.config.vocab_size == 50257


def test_load_architecture_of_bytes_needs_no_data():
    wanted = TrainedTokenizer(kind="trained")
    source = _architecture(wanted, vocab_size=258, seed=3)
    loaded = load_model(source, dtype=torch.bfloat16)
    assert loaded.model.dtype == torch.bfloat16


@pytest.mark.parametrize("content", [None, "{}\n", "[1]\n", "no json\n"])
def test_load_architecture_unusable_public_text_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "public.jsonl").write_text(content)
    wanted = TrainedTokenizer(kind="trained", public_text=("public.jsonl",))
    with pytest.raises(ModelError, match="public text"):
        load_model(_architecture(wanted, vocab_size=300), data_root=tmp_path)


def _save_bert(tokenizer, folder):
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    save_model(BertModel(config, add_pooling_layer=False), tokenizer, folder)


def test_load_classifier_new_head_follows_the_seed(tokenizer, tmp_path):
    _save_bert(tokenizer, tmp_path / "bert")
    before = torch.get_rng_state()
    heads = [
        load_classifier(tmp_path / "bert", num_labels=3, seed=seed).model.classifier
        for seed in (1, 1, 2)
    ]
    assert heads[0].weight.shape == (3, 8)
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert torch.equal(before, torch.get_rng_state())


def test_load_classifier_incomplete_body_is_refused(tokenizer, tmp_path):
    _save_bert(tokenizer, tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("encoder.layer.0.attention.self.query.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="besides the classifier's head"):
        load_classifier(tmp_path / "bert", num_labels=2)


def test_load_classifier_one_label_is_refused(tmp_path):
    with pytest.raises(ModelError, match="num_labels must be at least 2"):
        load_classifier(tmp_path, num_labels=1)
