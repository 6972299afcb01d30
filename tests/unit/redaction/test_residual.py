"""One mask per token, and what is left after redaction."""

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.errors import DetectionError
from dptune.redaction.engine import redact_dataset, redact_text
from dptune.redaction.operators import Operator
from dptune.redaction.residual import residual_counts, residual_values
from dptune.redaction.tokens import mask_tokens
from dptune.text import Span


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_mask_tokens_replaces_exactly_the_sensitive_ones(rows):
    ids, marks = [i for i, _ in rows], [m for _, m in rows]
    made = mask_tokens(ids, marks, mask_id=100)
    assert made.tolist() == [100 if m else i for i, m in rows]


def test_mask_tokens_takes_batches_and_refuses_other_shapes():
    made = mask_tokens(np.ones((2, 3)), np.eye(2, 3, dtype=bool), mask_id=7)
    assert made.tolist() == [[7, 1, 1], [1, 7, 1]]
    with pytest.raises(DetectionError, match="must have one shape"):
        mask_tokens([1, 2], [True], mask_id=7)
    with pytest.raises(DetectionError, match="mask_id"):
        mask_tokens([1], [True], mask_id=-1)


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
