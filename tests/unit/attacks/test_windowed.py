"""Exposure under attention that sees a window only."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from dptune.attacks.canaries import CanarySpec

from .test_exposure import assert_same_as_brute_force


@pytest.mark.parametrize("window", [3, 64])
def test_exposure_with_sliding_window_equals_brute_force(merging_tokenizer, window):
    config = MistralConfig(
        vocab_size=len(merging_tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        sliding_window=window,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MistralForCausalLM(config)
    spec = CanarySpec(length=2, num_planted=5, num_held_out=5)
    assert_same_as_brute_force(model, spec, merging_tokenizer, bos=0)
