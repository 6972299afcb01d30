"""Files that say another model than their configuration does, and weights of NaN."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MllamaForCausalLM,
    MllamaTextConfig,
)

from dptune.errors import ModelError
from dptune.models.loading import load_classifier, load_model, load_saved, load_source
from dptune.models.source import PathSource
from tests.support.encoders import word_tokenizer

TOKENIZER = word_tokenizer(("good", "bad"))
SIZES = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}


def stored(model, folder, **config):
    """Write a model, and change its configuration afterwards."""
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**SIZES | changes))


def added(folder, **tensors):
    """Put tensors into a folder's file, or others in their place."""
    file = folder / "model.safetensors"
    both = load_file(file) | tensors
    save_file(both, file, metadata={"format": "pt"})
    return folder


def refused(folder, match):
    with pytest.raises(ModelError, match=match) as caught:
        load_model(folder)
    assert len(str(caught.value)) < 400 + len(str(folder))


@pytest.mark.parametrize("kept", [0, 2])
def test_files_with_more_layers_than_the_configuration_are_refused(tmp_path, kept):
    folder = stored(llama(), tmp_path / "cut", num_hidden_layers=kept)
    more = rf"has {3 - kept} more, such as model\.layers\.{kept}: the model would be"
    refused(folder, more)


def test_biases_that_the_configuration_leaves_out_are_refused(tmp_path):
    folder = stored(llama(attention_bias=True), tmp_path / "b", attention_bias=False)
    refused(folder, "got 12, such as model.layers.0.self_attn.k_proj.bias")


def test_weights_of_other_shapes_are_named(tmp_path):
    folder = stored(llama(), tmp_path / "wide", intermediate_size=25)
    name = r"9 have others: model\.layers\.0\.mlp\.down_proj\.weight is \[16, 24\]"
    refused(folder, name)


def test_head_of_other_classes_is_refused_by_its_number(tmp_path):
    model = BertForSequenceClassification(BertConfig(**SIZES, num_labels=3))
    folder = stored(model, tmp_path / "three")
    assert load_saved(folder).class_names == ("LABEL_0", "LABEL_1", "LABEL_2")
    with pytest.raises(ModelError, match=r"is \[3\].*wants \[2\].*name as many class"):
        load_classifier(folder, num_labels=2)


def test_value_of_another_kind_is_no_traceback(tmp_path):
    folder = stored(llama(), tmp_path / "text", num_hidden_layers="three")
    refused(folder, "that transformers can load")


def test_what_is_no_part_of_the_model_is_left_out(tmp_path):
    more = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.0.self_attn.bias": torch.ones(1, 1, 4, 4),
        "v_head.summary.bias": torch.ones(1),
        "vision.layers.7.weight": torch.ones(2, 2),
        "model.embed_positions.position_ids": torch.arange(4),
    }
    folder = added(stored(llama(), tmp_path / "more"), **more)
    assert load_model(folder).model.config.num_hidden_layers == 3


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    folder = stored(llama(), tmp_path / "mtp", num_nextn_predict_layers=1)
    norm = {"model.layers.3.input_layernorm.weight": torch.ones(16)}
    assert load_model(added(folder, **norm)).model.config.num_hidden_layers == 3
    norm = {"model.layers.4.input_layernorm.weight": torch.ones(16)}
    refused(added(folder, **norm), "has 1 more")


def test_part_for_text_of_a_model_for_pictures_is_read_by_its_own_name(tmp_path):
    model = MllamaForCausalLM(MllamaTextConfig(**SIZES, num_key_value_heads=2))
    folder = stored(model, tmp_path / "text")
    again = load_model(folder).model
    assert type(again) is MllamaForCausalLM
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)
    stored(model, folder, architectures=["MllamaSomethingElse"])
    refused(folder, "that transformers can load")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_to_begin_with_has_finite_weights(tmp_path, value, dtype):
    model = llama().to(dtype)
    folder = stored(model, tmp_path / "nan")
    source = PathSource(kind="path", path="nan")
    given = {"data_root": tmp_path, "class_names": (), "dtype": None}
    assert load_source(source, **given).model.dtype == dtype
    broken = {"model.norm.weight": torch.full((16,), value, dtype=dtype)}
    added(folder, **broken)
    with pytest.raises(ModelError, match=r"1 hold NaN or infinite .* model\.norm"):
        load_source(source, **given)
