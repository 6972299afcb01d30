"""Models that are measured by a script: what says of no token what comes next."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

import dptune
from dptune.errors import ConfigError
from dptune.testing import tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
NUM_TOKENS = max(TOKENIZER.get_vocab().values()) + 1
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}


def classifier():
    config = GPT2Config(vocab_size=NUM_TOKENS, **GPT2)
    return GPT2ForSequenceClassification(config)


def few_positions():
    return GPT2LMHeadModel(GPT2Config(vocab_size=NUM_TOKENS, n_positions=8, **GPT2))


def few_tokens():
    return GPT2LMHeadModel(GPT2Config(vocab_size=NUM_TOKENS - 1, **GPT2))


def encoder():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=NUM_TOKENS, intermediate_size=16, **sizes)
    model = BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    return model


def two_texts():
    sizes = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    return T5ForConditionalGeneration(T5Config(vocab_size=NUM_TOKENS, **sizes))


def no_language():
    return torch.nn.Linear(2, 2)


WRONG = {
    classifier: r"logits for every token, got shape \[1, 2\]",
    few_positions: "must compute a row of [0-9]+ tokens, which raised IndexError",
    few_tokens: f"must have the {NUM_TOKENS} tokens that it is asked for",
    encoder: "must be causal",
    two_texts: "which raised ValueError",
    no_language: "which raised TypeError",
}


@pytest.mark.parametrize("made", WRONG)
def test_model_that_cannot_be_measured_is_refused_by_name(made):
    model, fine = made(), tiny_model()
    drawn = dptune.canaries(num_planted=2, num_held_out=2, length=2)
    texts = [f"call {number} on day {number % 7}" for number in range(40)]
    sides = {"members": texts[:20], "non_members": texts[20:], "max_tokens": 16}
    calls = {
        "model": lambda: dptune.exposure(model, fine, TOKENIZER, drawn),
        "base_model": lambda: dptune.membership(fine, model, TOKENIZER, **sides),
        "": lambda: dptune.extraction(model, TOKENIZER, drawn, num_trials=4),
    }
    for name, call in calls.items():
        with pytest.raises(ConfigError, match=f"{name}.*{WRONG[made]}"):
            call()


def test_opening_token_that_no_model_has_is_refused():
    drawn = dptune.canaries(num_planted=2, num_held_out=2, length=2)
    with pytest.raises(ConfigError, match="base_model: must have the 1000 tokens"):
        dptune.exposure(tiny_model(), tiny_model(), TOKENIZER, drawn, bos_token_id=999)
