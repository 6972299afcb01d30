"""What is left after redaction."""

import datasets
import pytest

from dptune.errors import DetectionError
from dptune.redaction.engine import (
    redact_dataset,
    redact_text,
    residual_counts,
    residual_values,
)
from dptune.redaction.operators import Operator
from dptune.text import Span

TEXT = "Wanda met wanda and Jo. Jo left Wandalyn."
SPAN = Span(start=0, end=5, entity_type="PERSON")


def test_residual_values_sees_a_name_that_was_missed_elsewhere():
    redacted = redact_text(TEXT, [SPAN], Operator.MASK).text
    assert residual_values(TEXT, [SPAN], redacted) == {"PERSON": 1}
    both = [SPAN, Span(start=10, end=15, entity_type="PERSON")]
    assert (
        residual_values(TEXT, both, redact_text(TEXT, both, Operator.MASK).text) == {}
    )


def test_residual_values_ignores_short_values():
    jo = Span(start=20, end=22, entity_type="PERSON")
    redacted = redact_text(TEXT, [jo], Operator.MASK).text
    assert residual_values(TEXT, [jo], redacted) == {}


def test_residual_counts_adds_records():
    row = {"start": 0, "end": 5, "entity_type": "PERSON"}
    corpus = datasets.Dataset.from_dict({"text": [TEXT] * 3, "spans": [[row]] * 3})
    redacted = redact_dataset(corpus, operator=Operator.MASK)
    assert residual_counts(corpus, redacted) == {"PERSON": 3}
    with pytest.raises(DetectionError, match="one length"):
        residual_counts(corpus, redacted.select([0]))
