"""Positions that go by the longest row of a batch, beyond the made-up rows."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from dptune.dpsgd import selfcheck
from dptune.dpsgd.isolation import LONGEST
from dptune.errors import ModelError

from .test_company import causal, check

FIRST = LONGEST + 100  # tokens of the first training
SHAPE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def longrope(**kind):
    return Phi3ForCausalLM(
        Phi3Config(
            **SHAPE,
            max_position_embeddings=4 * FIRST,
            original_max_position_embeddings=FIRST,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "short_factor": [1.0] * 4,
                "long_factor": [8.0, 6.0, 5.0, 4.0],
                "original_max_position_embeddings": FIRST,
            }
            | kind,
        )
    )


def dynamic():
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 8.0}
    return LlamaForCausalLM(
        LlamaConfig(**SHAPE, max_position_embeddings=FIRST, rope_parameters=rope)
    )


def moved(model):
    """How far a row's logits move beside a longer one."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        ids = torch.randint(3, 32, (2, 2 * FIRST))
        mask = torch.ones_like(ids)
        mask[0, 12:] = 0
        alone = model(input_ids=ids[:1, :12]).logits[0]
        beside = model(input_ids=ids, attention_mask=mask).logits[0, :12]
    return float((beside - alone).abs().max())


@pytest.mark.parametrize("make", [longrope, dynamic])
@pytest.mark.parametrize("changes", [{}, {"fixed_shapes": True}, {"autocast": True}])
def test_frequencies_that_another_row_decides_are_refused_however_long(make, changes):
    with pytest.raises(ModelError, match=f"at most {FIRST} and cut longer rows"):
        check(make(), **causal(max_tokens=FIRST + 1, **changes))


def test_frequencies_of_a_row_alone_are_its_own_unless_they_are_remembered():
    rows = causal(max_tokens=FIRST + 1, physical_batch_size=1)
    check(longrope(), **rows)
    with pytest.raises(ModelError, match="of kind dynamic"):
        check(dynamic(), **rows)


@pytest.mark.parametrize("make", [longrope, dynamic])
def test_made_up_rows_miss_frequencies_that_begin_beyond_them(make, monkeypatch):
    """The twin passes models that let one row move another."""
    monkeypatch.setattr(selfcheck, "_check_positions", lambda *_: None)
    check(make(), **causal(max_tokens=FIRST + 1))
    assert moved(make()) > 1e-3


def test_rows_up_to_the_first_training_pass():
    check(longrope(), **causal(max_tokens=FIRST))


def test_rows_beyond_the_positions_of_a_model_are_refused_before_a_charge():
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2)
    assert config.n_positions == LONGEST
    with pytest.raises(ModelError, match="names 1024 positions"):
        check(GPT2LMHeadModel(config), **causal(max_tokens=LONGEST + 1))
