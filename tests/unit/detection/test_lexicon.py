"""Names, and the contextual supersets."""

import importlib.util

import pytest

from dptune.detection import words
from dptune.detection.lexicon import LexiconRecognizer
from dptune.detection.recognizer import Tier
from dptune.errors import DependencyError

LOW = LexiconRecognizer(tier=Tier.LOW_ENTITY)


def found(text, tier=Tier.LOW_ENTITY):
    spans = LexiconRecognizer(tier=tier).recognize([text])[0]
    return [(s.entity_type, text[s.start : s.end]) for s in spans]


NAMES = [
    ("my name is crystal minh", "crystal minh"),
    ("Did you hear Alice is getting divorced?", "Alice"),
    ("we met mr. elliott there", "mr. elliott"),
    ("He works for Owens, Duran and Oneal", "Duran and Oneal"),
    ("Faina D. Yefremova sang", "Faina D. Yefremova"),
    ("the University of Texas won", "University of Texas"),
    ("they flew to paris", "paris"),
    ("near Tampa bay now", "Tampa bay"),
    ("Chillicothe, OH is far", "Chillicothe"),
    ("ask at CCNG, Inc. now", "CCNG, Inc."),
    ("the US said", "US"),
]


@pytest.mark.parametrize(("text", "name"), NAMES)
def test_recognize_name_is_found(text, name):
    assert name in [value for _, value in found(text)]


@pytest.mark.parametrize(
    "text",
    [
        "What are you going to do about the custody of the kids?",
        "SYS: how can i help you today?\nUSR: it does not fit",
        "Thanks for the info",
        "I LOVE THIS PLACE SO MUCH",
        "Order ID and account number please",
    ],
)
def test_recognize_public_text_stays_public(text):
    assert found(text) == []


def test_recognize_introduced_name_is_followed_in_any_case():
    text = "USR: my name is norman bouchard\nSYS: hi norman\nACT: NORMAN noted"
    values = [value for _, value in found(text)]
    assert values == ["norman bouchard", "norman", "NORMAN"]


def test_recognize_types_organizations_and_places():
    assert found("at Mayo Clinic Hospital in France") == [
        ("ORG", "Mayo Clinic Hospital"),
        ("GPE", "France"),
    ]


def test_recognize_contextual_tiers_contain_each_other():
    text = "Did you hear Alice is getting divorced about the custody?"
    covered = []
    for tier in Tier:
        spans = LexiconRecognizer(tier=tier).recognize([text])[0]
        covered.append({i for s in spans for i in range(s.start, s.end)})
    assert covered[0] <= covered[1] <= covered[2] <= covered[3]
    low = {v: k for k, v in found(text, Tier.LOW_CONTEXTUAL)}
    assert low["you"] == "PRON"
    assert low["custody"] == "NOUN"
    assert "is" not in low
    high = {v: k for k, v in found(text, Tier.HIGH_CONTEXTUAL)}
    assert high["hear"] == "VERB"


def test_recognize_contraction_keeps_the_pronoun():
    assert ("PRON", "I") in found("I'm here", Tier.LOW_CONTEXTUAL)


def test_reading_of_compound_needs_every_part():
    assert words.reading_of("well-known") & words.KNOWN
    assert not words.reading_of("well-qwrtz") & words.LEXICAL


def test_load_lexicon_without_the_package_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    words.load_lexicon.cache_clear()
    with pytest.raises(DependencyError, match="pip install lemminflect"):
        words.load_lexicon()
    words.load_lexicon.cache_clear()
