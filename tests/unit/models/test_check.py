from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlavaConfig, Phi3Config, Phi3ForCausalLM

from dptune.errors import ModelError
from dptune.models import loading
from dptune.models.check import check_source
from dptune.models.source import PathSource

FIRST_TRAINING = 16
POSITIONS = 64
SHAPE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [8.0, 6.0, 5.0, 4.0],
    "factor": POSITIONS / FIRST_TRAINING,
}
LONG = {
    **SHAPE,
    "original_max_position_embeddings": FIRST_TRAINING,
    "rope_parameters": LONGROPE,
}


@pytest.fixture
def accepts(monkeypatch, tmp_path):
    def run(config, max_tokens):
        model = nn.Module()
        model.config = config
        loaded = SimpleNamespace(model=model)
        monkeypatch.setattr(loading, "load_model", lambda *_, **__: loaded)
        check_source(
            PathSource(kind="path", path="m"), data_root=tmp_path, max_tokens=max_tokens
        )

    return run


def test_sequence_longer_than_the_positions_is_refused(accepts):
    accepts(LlamaConfig(**SHAPE), POSITIONS)
    with pytest.raises(ModelError, match=f"at most {POSITIONS}"):
        accepts(LlamaConfig(**SHAPE), POSITIONS + 1)


def test_positions_that_depend_on_other_records_are_refused(accepts):
    config = Phi3Config(**LONG)
    accepts(config, FIRST_TRAINING)
    with pytest.raises(ModelError, match=f"at most {FIRST_TRAINING}"):
        accepts(config, FIRST_TRAINING + 1)


@pytest.mark.parametrize(
    ("longest", "is_moved"), [(FIRST_TRAINING, False), (FIRST_TRAINING + 1, True)]
)
def test_longest_record_moves_the_others_beyond_the_limit_only(longest, is_moved):
    """What the check is for: another row's logits depend on the length of a row."""
    torch.manual_seed(0)
    model = Phi3ForCausalLM(Phi3Config(**LONG)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 32, (2, longest))
    mask = torch.ones_like(ids)
    mask[0, 12:] = 0
    with torch.no_grad():
        together = model(input_ids=ids, attention_mask=mask).logits[0, :12]
        alone = model(input_ids=ids[:1, :12]).logits[0]
    assert torch.allclose(together, alone, atol=1e-4) != is_moved


def test_positions_of_a_model_for_text_and_pictures_are_those_of_its_text(accepts):
    text = LONG | {"model_type": "llama"}
    config = LlavaConfig(text_config=text, vision_config={"num_hidden_layers": 1})
    accepts(config, FIRST_TRAINING)
    with pytest.raises(ModelError, match=f"at most {FIRST_TRAINING}"):
        accepts(config, FIRST_TRAINING + 1)
