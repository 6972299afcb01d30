"""The redacted view of a corpus, its key, and what is looked for in it."""

import pytest

from dptune.config import RedactionSettings
from dptune.detection.engine import build_engine, detect_dataset
from dptune.detection.recognizer import Tier
from dptune.errors import ConfigError
from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.workflow.redact import redact_corpus

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
