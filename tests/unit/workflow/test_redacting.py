"""The redacted view of a corpus, its key, and what is looked for in it."""

import re
from dataclasses import asdict

import pytest
from datasets import Dataset

from dptune.configfile import load_train_config
from dptune.conversation import Turn, join_turns, turns_of
from dptune.detection.engine import build_engine
from dptune.detection.labelling import detect_dataset
from dptune.detection.recognizer import Tier
from dptune.errors import ConfigError
from dptune.redaction.operators import Operator, RedactionSettings
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.text import Span
from dptune.workflow.preflight import check_selective
from dptune.workflow.redact import redact_corpus
from infra.workspace import REPOSITORY

KEY = b"k" * 32


@pytest.fixture(scope="module")
def labelled(corpus):
    engine = build_engine(tier=Tier.LOW_ENTITY)
    return corpus.with_dataset(detect_dataset(corpus.dataset, engine))


def redacted(labelled, operator, key=KEY):
    settings = RedactionSettings(operator=operator)
    return redact_corpus(
        labelled, settings, key=lambda: key, encryption_key=lambda _: key
    )


@pytest.mark.parametrize("operator", list(Operator))
def test_redact_corpus_keeps_rows_and_names_its_operator(labelled, operator):
    made, report = redacted(labelled, operator)
    assert made.dataset["id"] == labelled.dataset["id"]
    is_same = made.dataset["text"][:] == labelled.dataset["text"][:]
    assert is_same is (operator is Operator.KEEP)
    assert made.report.redaction == report.operator == operator.value
    assert report.validation.success


@pytest.mark.parametrize(
    ("operator", "emptied"), [(Operator.DELETE, 2), (Operator.MASK, 0)]
)
def test_turns_that_deletion_empties_are_read_and_counted(corpus, operator, emptied):
    said = (("I am Ann", "Ann", "who", "Ann, you"), ("Hi", "Ann"))
    texts = [
        join_turns(
            Turn(role=("user", "assistant")[i % 2], content=c, trained=bool(i % 2))
            for i, c in enumerate(contents)
        )
        for contents in said
    ]
    spans = [
        [Span(start=m.start(), end=m.end(), entity_type="PERSON") for m in found]
        for found in (re.finditer("Ann", text) for text in texts)
    ]
    rows = {"text": texts, "spans": [list(map(asdict, row)) for row in spans]}
    rows |= {name: ["0", "1"] for name in ("id", "unit_id")}
    labelled = corpus.with_dataset(Dataset.from_dict(rows))
    made, report = redacted(labelled, operator)
    learnt = [[t.trained for t in turns_of(x)] for x in made.dataset["text"]]
    assert learnt == [[False, not emptied, False, True], [False, not emptied]]
    assert report.num_emptied_turns == emptied


def test_redact_corpus_pseudonyms_depend_on_the_key_alone(labelled):
    one, same, other = (
        redacted(labelled, Operator.PSEUDONYM, key)[0].dataset["text"]
        for key in (KEY, KEY, KEY[::-1] + b"x")
    )
    assert one == same != other


def test_redact_corpus_asks_for_no_key_it_does_not_need(labelled):
    def refuse():
        raise AssertionError

    redact_corpus(labelled, RedactionSettings(), key=refuse)


def test_pseudonyms_of_unknown_locale_are_refused():
    with pytest.raises(ConfigError, match="locale must be"):
        Pseudonyms(key=bytes(16), locale="xx_YY").replacement("unit")


BY_TYPE = [
    ("mask", "{}", True),
    ("delete", "{}", True),
    ("mask", "{ORG: mask}", True),
    ("mask", "{ORG: delete}", False),
    ("mask", "{ORG: keep}", False),
    ("delete", "{DATE: shift_dates}", False),
    ("mask", "{CREDIT_CARD: {operator: partial}}", False),
    ("hash", "{}", False),
    ("encrypt", "{}", False),
]


@pytest.mark.parametrize(("operator", "by_type", "hides"), BY_TYPE)
def test_selective_promise_needs_one_hiding_operator_for_all_types(
    corpus, operator, by_type, hides
):
    """Mask for names and delete for dates tell "May" from May: types are secrets."""
    configs = REPOSITORY / "configs"
    changes = [
        f"redaction.operator={operator}",
        f"redaction.operators={by_type}",
        "recipe=jft",
        "privacy.notion=selective",
        "privacy.relation=replace_one",
    ]
    config = load_train_config(
        configs / "train" / "quickstart.yaml", configs=configs, overrides=changes
    )
    if hides:
        check_selective(config, corpus.report)
    else:
        with pytest.raises(
            ConfigError, match=r"redaction\.operator.*one for all types"
        ):
            check_selective(config, corpus.report)


def test_twin_that_looks_at_the_default_operator_alone_is_caught(corpus, monkeypatch):
    monkeypatch.setattr(
        "dptune.redaction.operators.operators_name",
        lambda default, _by_type: default.value,
    )
    with pytest.raises(pytest.fail.Exception):
        test_selective_promise_needs_one_hiding_operator_for_all_types(
            corpus, "mask", "{ORG: delete}", False
        )


def test_redaction_by_type_writes_each_and_checks_what_is_left(labelled):
    settings = RedactionSettings.model_validate(
        {"operators": {"PERSON": "pseudonym", "EMAIL": "keep", "DATE": "shift_dates"}}
    )
    made, report = redact_corpus(labelled, settings, key=lambda: KEY)
    assert report.operator == made.report.redaction
    assert report.operator == "keep+mask+pseudonym+shift_dates"
    assert report.validation.success, "what is kept on purpose is no failure"
    assert "EMAIL" not in report.residual_values
    assert report.residual_parts.keys() <= {"PERSON", "ENTITY"}
