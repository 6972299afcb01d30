"""What every recognizer must do, whatever it finds."""

import pickle

import pytest

from dptune.detection.lexicon import LexiconRecognizer
from dptune.detection.patterns import PatternRecognizer
from dptune.detection.recognizer import Tier, entity_types, fingerprint_of
from dptune.detection.tagger import TaggerRecognizer

TEXTS = [
    "",
    " \n",
    "My name is Chloe Zhang, call (977) 625-2661.",
    "naïve 😀 Zoë’s e-mail — zoe@example.org",
    "İstanbul’da 北京 Ωμέγα 12345678",
]


@pytest.fixture(
    params=[PatternRecognizer, LexiconRecognizer, TaggerRecognizer],
    ids=lambda kind: kind.name,
)
def kind(request):
    return request.param


@pytest.mark.parametrize("tier", list(Tier))
def test_recognize_gives_one_list_per_text_with_spans_inside(kind, tier):
    spans = kind(tier=tier).recognize(TEXTS)
    assert len(spans) == len(TEXTS)
    assert spans[0] == spans[1] == []
    for text, found in zip(TEXTS, spans, strict=True):
        assert all(s.end <= len(text) and s.recognizer == kind.name for s in found)


def test_recognize_is_deterministic_and_independent_of_the_batch(kind):
    recognizer = kind(tier=Tier.HIGH_CONTEXTUAL)
    together = recognizer.recognize(TEXTS)
    assert together == [recognizer.recognize([text])[0] for text in TEXTS]


def test_fingerprint_is_stable_and_survives_a_copy(kind):
    recognizer = kind(tier=Tier.LOW_ENTITY)
    assert recognizer.fingerprint == kind(tier=Tier.LOW_ENTITY).fingerprint
    copy = pickle.loads(pickle.dumps(recognizer))  # noqa: S301  # own bytes
    assert copy.fingerprint == recognizer.fingerprint
    assert copy.recognize(TEXTS) == recognizer.recognize(TEXTS)


def test_fingerprint_changes_with_the_tier():
    prints = {LexiconRecognizer(tier=tier).fingerprint for tier in Tier}
    assert len(prints) == len(Tier)
    low, high = (PatternRecognizer(tier=t).fingerprint for t in list(Tier)[:2])
    assert low != high


def test_entity_types_grow_with_the_tier():
    assert entity_types(Tier.LOW_ENTITY) < entity_types(Tier.HIGH_ENTITY)
    assert {"EMAIL", "ID", "PERSON", "DATE"} <= entity_types(Tier.LOW_ENTITY)


def test_fingerprint_of_is_not_fooled_by_concatenation():
    assert fingerprint_of(("ab", "c")) != fingerprint_of(("a", "bc"))
