"""Fresh GPT-2 models."""

import pytest
import torch

from dptune.errors import ModelError


def _weights(model):
    return torch.cat([p.flatten() for p in model.parameters()])


def test_build_same_seed_gives_same_weights(make_gpt2):
    assert torch.equal(_weights(make_gpt2()), _weights(make_gpt2()))
    assert not torch.equal(_weights(make_gpt2()), _weights(make_gpt2(seed=1)))


def test_build_leaves_the_global_random_state_alone(make_gpt2):
    before = torch.get_rng_state()
    make_gpt2()
    assert torch.equal(before, torch.get_rng_state())


def test_build_config_follows_the_tokenizer(make_gpt2, tokenizer):
    model = make_gpt2()
    config = model.config
    assert config.vocab_size == len(tokenizer)
    assert (config.bos_token_id, config.eos_token_id) == (0, 0)
    assert config.pad_token_id == tokenizer.pad_token_id
    assert config._attn_implementation == "sdpa"
    assert not config.use_cache
    assert model.generation_config.use_cache
    assert not model.training


@pytest.mark.parametrize("tied", [True, False])
def test_build_ties_the_output_layer_on_demand(make_gpt2, tied):
    model = make_gpt2(tie_word_embeddings=tied)
    shared = model.lm_head.weight is model.transformer.wte.weight
    assert shared == tied


def test_build_dropout_reaches_every_place(make_gpt2):
    config = make_gpt2(dropout=0.25).config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.25,) * 3


@pytest.mark.parametrize(
    "change",
    [{"num_heads": 3}, {"num_layers": 0}, {"max_tokens": 1}, {"dropout": 1.0}],
)
def test_build_impossible_sizes_are_refused(make_gpt2, change):
    with pytest.raises(ModelError, match=next(iter(change))):
        make_gpt2(**change)
