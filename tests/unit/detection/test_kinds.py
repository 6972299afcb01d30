"""What a name is called, and what the contextual tiers leave public."""

import pytest

from dptune.detection.engine import build_engine
from dptune.detection.lexicon import LexiconRecognizer
from dptune.detection.recognizer import Tier


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("He met Ivan Petrov there", "Ivan Petrov", "PERSON"),
        ("She works for Velmarix now", "Velmarix", "ORG"),
        ("a memo of Harlow Trading Ltd arrived", "Harlow Trading Ltd", "ORG"),
        ("my sister lives in Kosgrad", "Kosgrad", "GPE"),
        ("they flew to Kosgrad", "Kosgrad", "GPE"),
        ("a nice Croatian place", "Croatian", "NORP"),
        ("along Lake Veltra", "Lake Veltra", "LOC"),
        ("12 Elm Street, Boston", "Boston", "GPE"),
        ("the CIA said so", "CIA", "ORG"),
        ("by Velmar Inc. of", "Velmar Inc.", "ORG"),
        ("met him. Then Ana Duarte. Bob left", "Ana Duarte", "PERSON"),
    ],
)
def test_recognize_name_has_its_kind(text, name, kind):
    spans = LexiconRecognizer(tier=Tier.LOW_ENTITY).recognize([text])[0]
    assert (name, kind) in {(text[s.start : s.end], s.entity_type) for s in spans}


def public(text, tier):
    """Words that rules and lexicon leave, without the network's marks."""
    engine = build_engine(tier=tier, recognizers=("patterns", "lexicon"))
    spans = engine.detect([text])[0]
    marks = {i for s in spans for i in range(s.start, s.end)}
    position, words = 0, []
    for word in text.rstrip(".").split():
        start = text.index(word, position)
        position = start + len(word)
        if marks.isdisjoint(range(start, position)):
            words.append(word)
    return words


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("the great service was slow", "the great was slow", "the great was"),
        ("we want this old house", "want this old", "this old"),
        ("there is a problem", "is a", "a"),
        ("he has seen the same", "has seen the", "has the"),
        ("they have a car", "have a", "a"),
    ],
)
def test_detect_contextual_tiers_leave_modifiers_and_auxiliaries(text, low, high):
    left = public(text, Tier.LOW_CONTEXTUAL)
    assert left == low.split()
    assert public(text, Tier.HIGH_CONTEXTUAL) == high.split()


def test_detect_word_with_a_digit_is_sensitive_in_contextual_tiers():
    assert "s100" not in public("go with the s100 today", Tier.LOW_CONTEXTUAL)
