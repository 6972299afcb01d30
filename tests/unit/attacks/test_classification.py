"""Attacks on class losses tell members where there is something to tell, else not."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import FNetConfig, FNetForSequenceClassification

from dptune.attacks import classification
from dptune.attacks.classification import (
    LabelledSequences,
    class_log_probs,
    class_scores,
    classification_membership,
    classification_utility,
)
from dptune.errors import DataError
from tests.support.models import tiny_bert_classifier

NUM = 40


class Remembering(nn.Module):
    """Sure of the class of every record whose first token is odd; the class is 1."""

    def __init__(self, strength):
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(float(strength)))

    def forward(self, input_ids, attention_mask):
        known = (input_ids[:, 0] % 2).float() * self.strength
        logits = torch.stack([torch.zeros_like(known), known], dim=1)
        return type("Output", (), {"logits": logits})()


def sequences(first, *, label=1):
    words = ["alpha", "beta", "gamma", "delta"]
    texts = [f"{words[i % 4]} {words[i // 4 % 4]} {i % 7}" for i in range(NUM)]
    tokens = [[first + 2 * i, 3] for i in range(NUM)]
    return LabelledSequences(tokens=tokens, labels=[label] * NUM, texts=texts)


def attack(model):
    return classification_membership(
        sequences(1),
        sequences(2),
        model=model,
        base_model=Remembering(0.0),
        model_digest="m",
        base_model_digest="b",
    )


def test_model_that_remembers_is_found_by_every_attack():
    report = attack(Remembering(4.0))
    assert {s.name: s.auc for s in report.signals} == {
        "loss": 1.0,
        "calibrated_loss": 1.0,
        "margin": 1.0,
        "modified_entropy": 1.0,
    }
    assert report.num_members == report.num_non_members == NUM


def test_model_that_learnt_nothing_is_not_told_from_chance():
    report = attack(Remembering(0.0))
    assert all(s.auc == 0.5 for s in report.signals)


def test_class_scores_agree_with_their_formulas():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    labels = np.array([1, 2])
    scores = class_scores(np.log(probs), np.log(np.full((2, 3), 1 / 3)), labels)
    own = np.array([0.2, 0.8])
    others = [0.7 * math.log(0.3) + 0.1 * math.log(0.9), 2 * 0.1 * math.log(0.9)]
    assert scores["loss"] == pytest.approx(np.log(own))
    assert scores["calibrated_loss"] == pytest.approx(np.log(own * 3))
    assert scores["margin"] == pytest.approx(np.log(own / (1 - own)))
    assert scores["modified_entropy"] == pytest.approx(
        (1 - own) * np.log(own) + np.array(others)
    )


def test_class_log_probs_do_not_depend_on_the_batch():
    model = tiny_bert_classifier()
    records = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 1]]
    together = class_log_probs(model, records, batch_size=4)
    alone = class_log_probs(model, records, batch_size=1)
    assert together == pytest.approx(alone, abs=1e-5)
    assert np.exp(together).sum(1) == pytest.approx(np.ones(4))


def test_class_log_probs_of_a_model_that_reads_padding_do_not_depend_on_it(monkeypatch):
    """FNet mixes all tokens of a row, padding too; the twin does not look."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2}
    config = FNetConfig(**sizes, intermediate_size=24, tpu_short_seq_length=16)
    model = FNetForSequenceClassification(config)
    records = [[4, 5, 6], [7], [8, 9, 10, 11, 12, 13]]
    alone = class_log_probs(model, records, batch_size=1)
    assert class_log_probs(model, records) == pytest.approx(alone, abs=1e-6)
    monkeypatch.setattr(classification, "apart", lambda model, parts, *_: parts)
    assert abs(class_log_probs(model, records) - alone).max() > 1e-3


@pytest.mark.parametrize("records", [[], [[1], []]])
def test_class_log_probs_refuse_records_without_tokens(records):
    with pytest.raises(DataError, match="at least one token"):
        class_log_probs(tiny_bert_classifier(), records)


def test_records_need_a_label_each():
    with pytest.raises(DataError, match="needs a label"):
        LabelledSequences(tokens=[[1]], labels=[])


def test_utility_stands_beside_base_and_majority():
    tokens = [[1], [2], [3], [5]]
    report = classification_utility(
        LabelledSequences(tokens=tokens, labels=[1, 0, 1, 0]),
        model=Remembering(4.0),
        base_model=Remembering(0.0),
        model_digest="m",
        corpus_fingerprint="c",
        split="test",
        majority_class=1,
    )
    assert report.accuracy == 0.75
    assert report.accuracy_interval.low == pytest.approx(0.194, abs=1e-3)
    assert (report.base_accuracy, report.majority_accuracy) == (0.5, 0.5)
    assert report.record_tokens == (1, 1, 1, 1)
    assert sum(report.record_nll) == pytest.approx(4 * report.nll_per_token)
