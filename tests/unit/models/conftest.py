"""Tiny models made on the spot; small real ones from the developers' data."""

import pytest
from transformers import PreTrainedTokenizerFast

from dptune.models.build import build_gpt2
from dptune.models.loading import load_model
from dptune.models.tokenizer import train_tokenizer

TEXTS = [
    "The parcel was sent to the old house by the river.",
    "She asked the agent for the order number and the agent answered.",
    "On the second day the parcel came back to the agent, order 4711.",
] * 4


@pytest.fixture(scope="session")
def trained_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=300)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=300)


@pytest.fixture
def make_gpt2(tokenizer):
    def make(**changes):
        sizes = {
            "num_layers": 2,
            "num_heads": 2,
            "hidden_size": 16,
            "max_tokens": 32,
            "seed": 0,
        }
        return build_gpt2(tokenizer, **(sizes | changes))

    return make


@pytest.fixture
def stories(shared_data):
    return load_model(shared_data / "stories260k")


@pytest.fixture
def babyllama(shared_data):
    return load_model(shared_data / "babyllama105")
