"""Saving, and the digest of what was saved."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dptune.errors import ArtifactError, ModelError
from dptune.models.loading import load_model, model_digest, save_model


@pytest.fixture
def saved(make_gpt2, tokenizer, tmp_path):
    save_model(make_gpt2(), tokenizer, tmp_path / "m")
    return tmp_path / "m"


def test_save_writes_no_pickle(saved):
    assert {p.suffix for p in saved.iterdir()} == {".json", ".safetensors"}


def test_digest_is_stable_over_load_and_save(saved, tmp_path):
    first = model_digest(saved)
    loaded = load_model(saved)
    assert save_model(loaded.model, loaded.tokenizer, tmp_path / "again") == first
    assert len(first) == 64


@pytest.mark.parametrize("name", ["stories260k", "babyllama105"])
def test_digest_of_a_real_model_is_that_of_its_copy(shared_data, tmp_path, name):
    loaded = load_model(shared_data / name)
    again = save_model(loaded.model, loaded.tokenizer, tmp_path / "again")
    assert again == model_digest(shared_data / name)


def test_digest_forgets_the_padding_of_the_last_call(make_gpt2, tokenizer, tmp_path):
    first = save_model(make_gpt2(), tokenizer, tmp_path / "a")
    tokenizer(["a", "bc"], padding=True, truncation=True, max_length=1)
    assert save_model(make_gpt2(), tokenizer, tmp_path / "b") == first
    assert tokenizer.backend_tokenizer.padding is not None


def test_digest_is_the_same_for_one_file_and_for_shards(saved, tmp_path):
    loaded = load_model(saved)
    folder = tmp_path / "shards"
    loaded.model.save_pretrained(folder, max_shard_size="10KB")
    loaded.tokenizer.save_pretrained(folder)
    assert not (folder / "model.safetensors").exists()
    assert model_digest(folder) == model_digest(saved)


def test_digest_one_changed_bit_changes_it(saved):
    before = model_digest(saved)
    path = saved / "model.safetensors"
    tensors = load_file(path)
    flat = tensors["transformer.wpe.weight"].view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(1.0))
    save_file(tensors, path, metadata={"format": "pt"})
    assert model_digest(saved) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_digest_changed_setting_changes_it(saved, name):
    before = model_digest(saved)
    content = json.loads((saved / name).read_text()) | {"extra": 1}
    (saved / name).write_text(json.dumps(content))
    assert model_digest(saved) != before


def test_digest_of_another_template_under_the_usual_name_is_another(saved):
    before = model_digest(saved)
    (saved / "additional_chat_templates").mkdir()
    place = saved / "additional_chat_templates" / "default.jinja"
    place.write_text("{{ messages[0].content }}")
    assert load_model(saved).tokenizer.chat_template == place.read_text()
    assert model_digest(saved) != before


def test_saved_tokenizer_has_the_template_that_conversations_are_written_by(
    make_gpt2, tokenizer, tmp_path
):
    tokenizer.chat_template = {"default": "usual", "tool_use": "other"}
    save_model(make_gpt2(), tokenizer, tmp_path / "m")
    assert load_model(tmp_path / "m").tokenizer.chat_template == "usual"
    assert all(path.is_file() for path in (tmp_path / "m").iterdir())
    assert "tool_use" in tokenizer.chat_template


def test_digest_ignores_where_a_model_was_loaded(saved):
    before = model_digest(saved)
    path = saved / "config.json"
    content = json.loads(path.read_text()) | {"_name_or_path": "elsewhere"}
    path.write_text(json.dumps(content, indent=7))
    assert model_digest(saved) == before


def test_digest_of_bfloat16_and_float32_differ(saved, tmp_path):
    loaded = load_model(saved, dtype=torch.bfloat16)
    digest = save_model(loaded.model, loaded.tokenizer, tmp_path / "half")
    assert digest != model_digest(saved)


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
def test_digest_of_an_incomplete_directory_is_refused(saved, broken):
    (saved / broken).unlink()
    with pytest.raises(ArtifactError, match=broken):
        model_digest(saved)


def test_digest_of_truncated_weights_is_refused(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ArtifactError, match="complete safetensors file"):
        model_digest(saved)


@pytest.mark.parametrize("places", [{"a": "../other.safetensors"}, {"a": 1}, ["a"]])
def test_digest_of_an_index_that_points_elsewhere_is_refused(saved, places):
    (saved / "model.safetensors").unlink()
    index = {"weight_map": places}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match="beside it"):
        model_digest(saved)
    with pytest.raises(ModelError, match="beside it"):
        load_model(saved)


def test_save_into_a_used_directory_is_refused(saved, make_gpt2, tokenizer):
    with pytest.raises(ArtifactError, match="absent or empty"):
        save_model(make_gpt2(), tokenizer, saved)
