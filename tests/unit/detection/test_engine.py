"""Engines, labelled corpora, reports and refusals."""

import datasets
import pytest

from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.labelling import (
    detect_dataset,
    detection_report,
    refuse_if_nothing_found,
)
from dptune.detection.part_spans import spans_of
from dptune.detection.recognizer import DEFAULT_RECOGNIZERS, Tier
from dptune.errors import ConfigError, DetectionError

TEXTS = [
    "My name is Chloe Zhang and my access code is 341752.",
    "how can i help you?",
    "mail chloe@example.org",
]


@pytest.fixture
def corpus():
    return datasets.Dataset.from_dict(
        {
            "id": ["a", "b", "c"],
            "text": TEXTS,
            "unit_id": ["u1", "u2", "u1"],
            "split": ["train"] * 3,
        }
    )


@pytest.fixture(scope="module")
def engine():
    return build_engine(tier=Tier.LOW_ENTITY)


def test_build_engine_names_its_recognizers(engine):
    assert engine.recognizers == DEFAULT_RECOGNIZERS
    assert engine.tier is Tier.LOW_ENTITY


def test_build_engine_unknown_name_raises():
    with pytest.raises(ConfigError, match="recognizers must be of"):
        build_engine(tier=Tier.LOW_ENTITY, recognizers=("magic",))


def test_build_engine_spacy_without_pipeline_raises():
    with pytest.raises(ConfigError, match="spacy_pipeline must be given"):
        build_engine(tier=Tier.LOW_ENTITY, recognizers=("spacy",))


def test_detection_engine_without_recognizers_raises():
    with pytest.raises(ConfigError, match="at least one name"):
        DetectionEngine(tier=Tier.LOW_ENTITY, recognizers=[])


def test_fingerprint_depends_on_tier_and_recognizers_not_on_order():
    both = build_engine(tier=Tier.LOW_ENTITY).fingerprint
    swapped = build_engine(
        tier=Tier.LOW_ENTITY, recognizers=DEFAULT_RECOGNIZERS[::-1]
    ).fingerprint
    one = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns",)).fingerprint
    high = build_engine(tier=Tier.HIGH_ENTITY).fingerprint
    assert both == swapped
    assert len({both, one, high}) == 3


def test_detect_covers_the_union_of_the_recognizers(engine):
    alone = [
        build_engine(tier=Tier.LOW_ENTITY, recognizers=(name,)).detect(TEXTS)
        for name in engine.recognizers
    ]
    for united, *parts in zip(engine.detect(TEXTS), *alone, strict=True):
        wanted = {i for found in parts for s in found for i in range(s.start, s.end)}
        assert {i for s in united for i in range(s.start, s.end)} == wanted


@pytest.mark.parametrize("num_proc", [1, 2])
def test_detect_dataset_adds_spans_and_keeps_rows(corpus, engine, num_proc):
    progress = []
    labelled = detect_dataset(
        corpus, engine, num_proc=num_proc, on_progress=progress.append
    )
    assert labelled.column_names == ["id", "text", "unit_id", "split", "spans"]
    assert labelled["id"] == corpus["id"]
    assert progress[-1] == 3
    assert all(
        [(s.start, s.end, s.entity_type) for s in spans_of(row)]
        == [(s.start, s.end, s.entity_type) for s in found]
        for row, found in _pairs(labelled, engine)
    )
    fields = labelled.features["spans"].feature
    assert fields["start"].dtype == fields["end"].dtype == "int32"
    assert fields["confidence"].dtype == "float32"


def _pairs(labelled, engine):
    return zip(labelled["spans"], engine.detect(labelled["text"]), strict=True)


def test_detect_dataset_fingerprint_follows_corpus_and_engine(corpus, engine):
    first = detect_dataset(corpus, engine)._fingerprint
    high = build_engine(tier=Tier.HIGH_ENTITY)
    assert detect_dataset(corpus, engine)._fingerprint == first
    assert detect_dataset(corpus, high)._fingerprint != first


def test_detect_dataset_empty_corpus_stays_empty(corpus, engine):
    labelled = detect_dataset(corpus.select([]), engine)
    assert len(labelled) == 0
    assert "spans" in labelled.column_names


def test_detection_report_counts(corpus):
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "lexicon"))
    report = detection_report(detect_dataset(corpus, engine), engine, "f" * 64)
    assert report.num_records == 3
    assert report.num_records_with_spans == 2
    assert report.num_spans == {"EMAIL": 1, "ID": 1, "PERSON": 1}
    masked = len("Chloe Zhang") + len("341752") + len("chloe@example.org")
    assert report.masked_character_share == masked / sum(map(len, TEXTS))


def test_refuse_if_nothing_found_only_in_a_private_corpus(corpus, engine):
    silent = detect_dataset(corpus.select([1]), engine)
    report = detection_report(silent, engine, "f" * 64)
    with pytest.raises(DetectionError, match="num_records=1"):
        refuse_if_nothing_found(report, corpus_is_public=False)
    refuse_if_nothing_found(report, corpus_is_public=True)
    full = detection_report(detect_dataset(corpus, engine), engine, "f" * 64)
    refuse_if_nothing_found(full, corpus_is_public=False)


@pytest.mark.parametrize("blank", ["\u00a0", "\u202f", "\u2009"])
@pytest.mark.parametrize("text", ["Blessing Uche has the keys.", "Ms. Nguyen Thi Hoa"])
def test_a_name_is_marked_whole_whatever_its_blanks(text, blank):
    engine = build_engine(tier=Tier.LOW_ENTITY)
    plain, wide = engine.detect([text, text.replace(" ", blank)])
    assert [(s.start, s.end) for s in wide] == [(s.start, s.end) for s in plain]
