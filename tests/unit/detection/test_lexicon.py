"""Names, and the contextual supersets."""

import importlib.util

import pytest

from dptune.detection import names, words
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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("we met Jose\u0301 there", "Jose\u0301"),
        ("we met Zoe\u0308 Vrba there", "Zoe\u0308 Vrba"),
        ("we met N\u0303urk there", "N\u0303urk"),
        ("we met Gr\u200bzgorz there", "Gr\u200bzgorz"),
        ("we met Kra\u00adsnov there", "Kra\u00adsnov"),
        ("प्रिया ने कहा", "प्रिया"),
        ("তাসনিম বলল", "তাসনিম"),
        ("பிரியா சொன்னாள்", "பிரியா"),
        ("ప్రియాంక చెప్పింది", "ప్రియాంక"),
        ("שָׁלוֹם אָמַר", "שָׁלוֹם"),
        ("مُحَمَّد قال", "مُحَمَّد"),
        ("សុខា និយាយ", "សុខា"),
        ("မောင်မောင် ပြောတယ်", "မောင်မောင်"),
        ("Φωτεινή είπε", "Φωτεινή"),
        ("Наталья сказала", "Наталья"),
    ],
)
def test_recognize_marks_and_joiners_do_not_cut_a_word(text, name):
    (start, end) = (text.index(name), text.index(name) + len(name))
    spans = LOW.recognize([text])[0]
    assert any(s.start <= start and end <= s.end for s in spans)


PARTICLES = [
    ("she asked van Dijk twice", "van Dijk"),
    ("she asked Van Dijk twice", "Van Dijk"),
    ("the late de la Cruz", "de la Cruz"),
    ("it was von Trapp again", "von Trapp"),
    ("by al-Rashid in spring", "al-Rashid"),
    ("with bin Salman there", "bin Salman"),
]


@pytest.mark.parametrize(("text", "name"), PARTICLES)
def test_recognize_particles_belong_to_the_name(text, name):
    assert name in [value for _, value in found(text)]


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("I met Ann. The dog barked.", "The"),
        ("I met Lee. We left.", "We"),
        ("Ask Omar. He knows.", "He"),
        ("This is Ivo. Nobody else came.", "Nobody"),
    ],
)
def test_recognize_short_name_ends_with_its_sentence(text, public):
    spans = LOW.recognize([text])[0]
    start = text.index(f" {public}") + 1
    assert all(s.end <= start for s in spans)
    assert spans


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("St. Clair left", "St. Clair"),
        ("the J. Arbuthnot files", "J. Arbuthnot"),
        ("Messrs. Pim left", "Messrs. Pim"),
    ],
)
def test_recognize_abbreviation_does_not_end_a_name(text, name):
    assert name in [value for _, value in found(text)]


@pytest.mark.parametrize(
    "text",
    ["your name is required", "the file name is misspelled", "this name is taken"],
)
def test_recognize_what_a_name_is_stays(text):
    assert found(text) == []


def test_recognize_introduced_adjective_is_a_name():
    assert found("my name is sunny") == [("PERSON", "sunny")]


AUXILIARIES = [
    "Please call.\nBest regards,\n⟦Will⟧",
    "Thanks again!\n⟦Will⟧\nSent from my phone",
    "Let me know. - ⟦Will⟧",
    "My name is ⟦Will⟧ and I live here",
    "my name is ⟦will⟧ and i live here",
    "This is ⟦Will⟧ calling about my bill",
    "I'm ⟦Will⟧, a plumber",
    "Hi ⟦Will⟧, thanks",
    "Dear ⟦May⟧,",
    "⟦Will⟧: did you get it?\n⟦May⟧: yes I did",
    "cc: ⟦Will⟧, ⟦May⟧, Art",
    "Ask ⟦Will⟧. ⟦Will⟧ said yes.",
    "Mr ⟦Will⟧ called",
    "please ask Mr ⟦Do⟧ or Ms ⟦So⟧",
    "Dr. ⟦An⟧ can see you",
]


def parted(line):
    """Return a text without its brackets, and its values."""
    return line.replace("⟦", "").replace("⟧", ""), {
        part.partition("⟧")[0] for part in line.split("⟦")[1:]
    }


def unmarked(line):
    text, wanted = parted(line)
    marked = {word for _, value in found(text) for word in value.split()}
    return wanted - {word.strip(".") for word in marked}


@pytest.mark.parametrize("line", AUXILIARIES)
def test_names_that_are_auxiliaries_are_found(line):
    assert not unmarked(line)


@pytest.mark.parametrize(
    "text",
    [
        "Will you come? May I?",
        "1. Will this work?",
        "How It Will Work",
        "WILL YOU COME NOW PLEASE",
        "it will be; you may go",
        "the name is will be changed",
        "Will the shop open?",
        "i saw it. An hour later it was gone",
    ],
)
def test_auxiliaries_are_no_names(text):
    marked = " ".join(value for _, value in found(text)).lower().split()
    assert not {"will", "may", "an"} & {*marked}


def test_twin_that_takes_will_for_an_auxiliary_misses_names(monkeypatch):
    monkeypatch.setattr(names, "_mark_auxiliaries", lambda _text, _words: None)
    assert sum(bool(unmarked(line)) for line in AUXILIARIES) >= len(AUXILIARIES) / 2
