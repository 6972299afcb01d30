"""A tiny BERT without dropout, sequences of two classes, noise from a known seed."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from dptune.local.training import UserSequences

POSITIONS = 6


class KnownNoise:
    """Stands for the secret stream: N(0, stddev^2) from a torch generator."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def add_to(self, values, *, stddev):
        values.add_(torch.randn(values.shape, generator=self.generator), alpha=stddev)


@pytest.fixture
def stream():
    return KnownNoise()


@pytest.fixture
def model():
    config = BertConfig(
        vocab_size=24,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BertForSequenceClassification(config).eval()


def sequences(count=24, *, first=5):
    """Class 1 has one word more often than class 0 does; lengths differ."""
    texts = [
        [2, *[first + 3 * (i % 2)] * (1 + i % 3), 4 + i % 5, 3] for i in range(count)
    ]
    return UserSequences.padded(
        texts, [i % 2 for i in range(count)], num_positions=POSITIONS, pad_token_id=0
    )
