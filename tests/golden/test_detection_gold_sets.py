"""The bars that detection by rules holds on gold spans of real and generated text.

`presidio_synth` (Microsoft, MIT), Universal NER and UD English EWT (CC BY-SA 4.0) and
ABCD (ASAPP, MIT) are read from ../shared/data. Measured figures are in
docs/DETECTION.md.
"""

import json
import re

import pytest

from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier
from tests import detection_gold as gold

ROUNDS = 150


@pytest.fixture(scope="module")
def low():
    return build_engine(tier=Tier.LOW_ENTITY)


def test_presidio_synth_spans_are_fully_covered_and_typed(shared_data):
    engine = build_engine(tier=Tier.HIGH_ENTITY)
    quality = gold.measure_presidio(shared_data, engine.detect)
    assert quality.num_gold_spans == 2863
    assert quality.span_recall >= 0.95
    recall = {row.entity_type: row.span_recall for row in quality.types}
    structured = ["EMAIL_ADDRESS", "US_SSN", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS"]
    structured += ["PHONE_NUMBER", "DOMAIN_NAME", "ZIP_CODE", "US_DRIVER_LICENSE"]
    assert min(recall[name] for name in structured) >= 0.98
    assert gold.measure_types(shared_data, engine.detect).accuracy >= 0.80


@pytest.mark.parametrize(
    ("style", "recall"), [("as it is", 0.96), ("lower case", 0.90), ("capitals", 0.92)]
)
def test_uner_ewt_token_recall_and_masked_words(shared_data, low, style, recall):
    rows = gold.styled(gold.uner(shared_data, "test"), style)
    figures = gold.measure_words(rows, low.detect)
    assert figures.recall >= recall
    assert figures.masked_share <= 0.17


@pytest.mark.parametrize(
    ("tier", "recall", "masked"),
    [(Tier.LOW_CONTEXTUAL, 0.985, 0.45), (Tier.HIGH_CONTEXTUAL, 0.98, 0.54)],
)
def test_ewt_contextual_recall_and_masked_tokens(shared_data, tier, recall, masked):
    is_high = tier is Tier.HIGH_CONTEXTUAL
    rows = list(gold.contextual(shared_data, "test", high=is_high))
    figures = gold.measure_words(rows, build_engine(tier=tier).detect)
    assert figures.recall >= recall
    assert figures.masked_token_share <= masked


def test_abcd_names_are_found_wherever_they_stand(shared_data, low):
    figures = gold.measure_abcd_names(shared_data, low.detect)
    assert figures.gold > 3000
    assert figures.recall >= 0.99


def test_customersim_numbers_are_all_found(shared_data, low):
    folder = shared_data / "customersim"
    files = ("test.jsonl.gz", "canaries.jsonl.gz")
    lines = [line for name in files for line in gold.read(folder / name).splitlines()]
    texts = [json.loads(line)["text"] for line in lines]
    shape = re.compile(
        r"\d{5,}|\d{3}-\d{5}-\d{4}|\b(?=\w*\d)(?=\w*[A-Z])[A-Z0-9]{10}\b"
    )
    total = 0
    for text, spans in zip(texts, low.detect(texts), strict=True):
        marks = {i for s in spans for i in range(s.start, s.end)}
        for match in shape.finditer(text):
            total += 1
            assert all(i in marks for i in range(*match.span()) if text[i] != "-")
    assert total > 1900


def test_structured_values_are_found_however_they_are_written(low):
    recall = gold.measure_structured(low.detect, seed=7, rounds=ROUNDS)
    assert len(recall) == 6
    assert min(recall.values()) >= 0.98


def test_near_misses_are_not_flagged(low):
    """A failed checksum may still be some other number (ID), never a card."""
    called, flagged = gold.measure_near_misses(low.detect, seed=8, rounds=ROUNDS)
    assert max(called.values()) <= 0.05
    assert max(flagged.values()) <= 0.05
