"""What is left after redaction."""

import datasets
import pytest

from dptune.errors import DetectionError
from dptune.redaction.engine import redact_dataset, redact_text
from dptune.redaction.operators import Operator
from dptune.redaction.residual import (
    residual_counts,
    residual_spelling_counts,
    residual_spellings,
    residual_values,
)
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


def span(text, value, kind="PERSON", nth=0):
    start = -1
    for _ in range(nth + 1):
        start = text.index(value, start + 1)
    return Span(start=start, end=start + len(value), entity_type=kind)


LEFT = [
    # text, what was found, parts, spellings, halves
    ("Ann Lee came. LEE, ANN went.", "Ann Lee", 0, 1, 0),
    ("Ann Lee came. Ask Lee.", "Ann Lee", 1, 0, 0),
    ("Ann Lee came. Ask ann or Lee.", "Ann Lee", 2, 0, 0),
    ("Ann Lee came; write to ann.lee@b.org", "Ann Lee", 0, 1, 0),
    ("Ann Lee came; annlee85 wrote", "Ann Lee", 0, 1, 0),
    ("José Díaz; jose diaz", "José Díaz", 0, 1, 0),
    ("F66DF is yours; [F]66DF", "F66DF", 0, 0, 0),
    ("acct 004-712 and 004712", "004-712", 0, 1, 0),
    ("Ann Lee came. A. Lee went.", "Ann Lee", 1, 0, 0),
    ("Ann Lee came. Annabel went to Leeds.", "Ann Lee", 0, 0, 0),
    ("Ann Lee came.", "Ann Lee", 0, 0, 0),
]


@pytest.mark.parametrize(("text", "value", "parts", "others", "halves"), LEFT)
def test_residual_sees_parts_and_other_spellings(text, value, parts, others, halves):
    left = residual_spellings(text, [span(text, value)])
    counts = (left.parts, left.spellings, left.halves)
    assert tuple(sum(c.values()) for c in counts) == (parts, others, halves)


HALVES = [
    ("Your code F66DF", (10, 11), 1),
    ("Linda1962 wrote", (0, 5), 1),
    ("Ann Lee", (0, 3), 0),
    ("Ann's dog", (0, 3), 0),
    ("x@y.org", (2, 7), 0),
    ("王小明来了", (0, 3), 0),
    ("Jose\u0301 came", (0, 4), 0),
]


@pytest.mark.parametrize(("text", "place", "count"), HALVES)
def test_residual_sees_marks_that_end_inside_a_word(text, place, count):
    mark = Span(start=place[0], end=place[1], entity_type="ID")
    assert sum(residual_spellings(text, [mark]).halves.values()) == count


def test_residual_sees_a_half_of_a_name_that_was_found_whole_elsewhere():
    text = "Pieter van Dijk came; van Dijk, Pieter"
    spans = [span(text, "Pieter van Dijk"), span(text, "Dijk, Pieter")]
    assert residual_spellings(text, spans).halves == {"PERSON": 1}


def test_residual_counts_leave_out_what_was_to_stay():
    row = {"start": 0, "end": 7, "entity_type": "PERSON"}
    text = "Ann Lee came. LEE, ANN and Ann Lee went; ask lee."
    corpus = datasets.Dataset.from_dict({"text": [text] * 2, "spans": [[row]] * 2})
    left = residual_spelling_counts(corpus)
    assert (left.parts, left.spellings) == ({"PERSON": 2}, {"PERSON": 2})
    none = residual_spelling_counts(corpus, kept={"PERSON"})
    assert (none.parts, none.spellings, none.halves) == ({}, {}, {})
    assert (
        residual_counts(corpus, corpus.remove_columns("spans"), kept={"PERSON"}) == {}
    )
