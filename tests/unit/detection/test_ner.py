"""The spaCy recognizer: Table 1 of Shi et al. (2022), and what it refuses."""

import pickle

import pytest
import spacy

from dptune.detection.engine import build_engine
from dptune.detection.recognizer import DEFAULT_RECOGNIZERS, Tier
from dptune.detection.third_party import SpacyRecognizer
from dptune.errors import DependencyError, DetectionError

DIVORCE = "Did you hear Alice is getting divorced??"


@pytest.fixture(scope="module")
def pipeline(shared_data):
    return str(shared_data / "en_core_web_sm")


def test_recognize_missing_pipeline_names_command_and_offline_way():
    recognizer = SpacyRecognizer(pipeline="en_core_web_none", tier=Tier.LOW_ENTITY)
    with pytest.raises(DependencyError) as caught:
        recognizer.recognize(["x"])
    assert "python -m spacy download en_core_web_none" in str(caught.value)
    assert "local folder" in str(caught.value)


def test_recognize_pipeline_without_ner_is_refused(tmp_path):
    spacy.blank("en").to_disk(tmp_path / "blank")
    recognizer = SpacyRecognizer(pipeline=str(tmp_path / "blank"), tier=Tier.LOW_ENTITY)
    with pytest.raises(DetectionError, match="lacks ner"):
        recognizer.recognize(["x"])


@pytest.mark.parametrize(
    ("tier", "wanted"),
    [
        (Tier.LOW_ENTITY, {"Alice"}),
        (Tier.HIGH_ENTITY, {"Alice"}),
        (Tier.LOW_CONTEXTUAL, {"you", "Alice"}),
        (Tier.HIGH_CONTEXTUAL, {"you", "hear", "Alice"}),
    ],
)
def test_recognize_tiers_are_those_of_the_paper(pipeline, tier, wanted):
    spans = SpacyRecognizer(pipeline=pipeline, tier=tier).recognize([DIVORCE])[0]
    assert wanted <= {DIVORCE[s.start : s.end] for s in spans}


def test_recognize_low_entity_drops_other_types(pipeline):
    text = "Alice paid 20 dollars on Monday."
    low = SpacyRecognizer(pipeline=pipeline, tier=Tier.LOW_ENTITY).recognize([text])[0]
    high = SpacyRecognizer(pipeline=pipeline, tier=Tier.HIGH_ENTITY).recognize([text])
    assert "MONEY" not in {s.entity_type for s in low}
    assert "MONEY" in {s.entity_type for s in high[0]}


def test_recognize_entity_tier_runs_ner_alone(pipeline):
    recognizer = SpacyRecognizer(pipeline=pipeline, tier=Tier.LOW_ENTITY)
    recognizer.recognize(["x"])
    assert recognizer._language.pipe_names == ["ner"]
    copy = pickle.loads(pickle.dumps(recognizer))  # noqa: S301  # own bytes
    assert copy.fingerprint == recognizer.fingerprint


def test_build_engine_with_pipeline_unites_rules_and_model(pipeline):
    engine = build_engine(tier=Tier.LOW_ENTITY, spacy_pipeline=pipeline)
    assert engine.recognizers == (*DEFAULT_RECOGNIZERS, "spacy")
    found = engine.detect(["Alice has code 341752"])[0]
    assert {s.start for s in found} == {0, 15}
