"""Tiny tokenizers and models for attacks."""

import random
import string

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)


def make_tokenizer(*, individual_digits: bool, vocab_size: int = 400):
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([digits, byte_level])
        if individual_digits
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>"],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    draw = random.Random(0)  # noqa: S311 - test data
    lines = ["my access code is here", "the pin of my card was"] * 20
    lines += [f" {draw.randrange(1000)} {draw.randrange(10)}" for _ in range(300)]
    lines += ["".join(draw.choices(string.ascii_uppercase, k=3)) for _ in range(100)]
    tokenizer.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def make_model(kind: str, *, vocab_size: int, seed: int = 0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "gpt2":
            config = GPT2Config(
                vocab_size=vocab_size,
                n_layer=2,
                n_embd=32,
                n_head=4,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=0,
                initializer_range=0.3,
                # dropout draws from the global generator, which no test seeds
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
            return GPT2LMHeadModel(config)
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            bos_token_id=0,
            eos_token_id=0,
            initializer_range=0.3,
        )
        return LlamaForCausalLM(config)


def make_crossing_tokenizer():
    """Tokens that reach over blanks and signs: BPE without words, as some have it."""
    tokenizer = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = whole
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=264,
        special_tokens=["<s>"],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(["s 1", "s 4", "7. ", "3. "] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="session")
def crossing_tokenizer():
    """The tokens before and behind a secret depend on it."""
    return make_crossing_tokenizer()


@pytest.fixture(scope="session", name="make_model")
def make_model_fixture():
    """Factory of tiny random models of two architectures."""
    return make_model


@pytest.fixture(scope="session")
def digit_tokenizer():
    """One token per digit."""
    return make_tokenizer(individual_digits=True)


@pytest.fixture(scope="session")
def merging_tokenizer():
    """Tokens of several digits, such as GPT-2's."""
    return make_tokenizer(individual_digits=False)
