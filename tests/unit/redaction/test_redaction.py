"""Redaction keeps no sensitive code point and loses no record."""

from functools import partial

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier
from dptune.errors import DetectionError
from dptune.redaction.engine import Redaction, redact_dataset, redact_text, replacement
from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.spellings import one_form
from dptune.text import MASK, Span

PSEUDONYMS = Pseudonyms(key=b"0123456789abcdef", encryption_key=bytes(16))
TEXT = "Ann Lee met ann lee at 12 Elm St."


def span(start, end, entity_type="PERSON"):
    return Span(start=start, end=end, entity_type=entity_type)


SPANS = [span(0, 7), span(12, 19), span(23, 32, "ADDRESS")]


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        (Operator.MASK, "<mask> met <mask> at <mask>."),
        (Operator.TYPED, "<PERSON> met <PERSON> at <ADDRESS>."),
        (Operator.NUMBERED, "<PERSON_1> met <PERSON_1> at <ADDRESS_1>."),
        (Operator.DELETE, " met  at ."),
    ],
)
def test_redact_text_by_operator(operator, wanted):
    assert redact_text(TEXT, SPANS, operator).text == wanted


@pytest.mark.parametrize("operator", list(Operator))
def test_what_replaces_values_of_a_record_knows_no_other_record(operator, monkeypatch):
    """A number that goes on counting would tell what other records hold."""
    rows = [
        (f"{name} met Ann Lee.", f"u{i}") for i, name in enumerate(("Bo", "Ann Lee"))
    ]
    marks = [[span(0, 2), span(7, 14)], [span(0, 7), span(12, 19)]]

    def redacted(order):
        texts = {}
        for i in order:
            text, unit = rows[i]
            texts[unit] = redact_text(
                text, marks[i], operator, pseudonyms=PSEUDONYMS, unit_id=unit
            ).text
        return texts

    assert redacted([0, 1]) == redacted([1, 0]) == redacted([0]) | redacted([1])
    if operator is Operator.NUMBERED:
        views = []
        for order in ([0, 1], [1, 0]):
            counting = replacement(operator)
            patched = partial(lambda rule, *_, **__: rule, counting)
            monkeypatch.setattr("dptune.redaction.engine.replacement", patched)
            views.append(redacted(order))
        assert views[0] != views[1], "the twin numbers the corpus"


def test_redact_text_of_which_only_blanks_are_left_becomes_one_mask():
    """Blanks between deleted spans are no text: the record would vanish."""
    spans = [span(0, 3), span(4, 7)]
    for text in ("Ann Lee", "Ann\tLee", "Ann Lee \n"):
        found = redact_text(text, spans, Operator.DELETE)
        assert (found.text, len(found.edits)) == (MASK, 1)
    assert redact_text("Ann Lee!", spans, Operator.DELETE).text == " !"


def test_redact_text_adjacent_masks_become_one_unless_told():
    spans = [span(0, 3), span(4, 7)]
    assert redact_text("Ann Lee!", spans, Operator.MASK).text == "<mask>!"
    kept = redact_text("Ann Lee!", spans, Operator.MASK, merge_adjacent=False)
    assert kept.text == "<mask> <mask>!"
    assert redact_text("Ann\nLee", spans, Operator.MASK).text == "<mask>\n<mask>"


@pytest.mark.parametrize("operator", list(Operator))
def test_redact_text_empty_result_stays_as_the_mask(operator):
    redaction = redact_text(
        "Ann", [span(0, 3)], operator, pseudonyms=PSEUDONYMS, unit_id="u"
    )
    assert redaction.text == (MASK if operator is Operator.DELETE else redaction.text)
    assert redaction.text


def test_redact_text_without_spans_is_the_text():
    assert redact_text(" ", [], Operator.DELETE) == Redaction(text=" ", edits=())


@pytest.mark.parametrize("spans", [[span(0, 4), span(3, 7)], [span(0, 99)]])
def test_redact_text_bad_spans_raise(spans):
    with pytest.raises(DetectionError, match="disjoint and inside"):
        redact_text(TEXT, spans, Operator.MASK)


@st.composite
def cases(draw):
    text = draw(st.text("aAé😀 .\n\t-", min_size=1, max_size=40))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=10)))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    return text, [span(a, b, draw(st.sampled_from(["ID", "X"]))) for a, b in pairs]


def keeps_law(function, text, spans, operator):
    """Outside edits nothing changed, and every span lies inside an edit."""
    redaction = function(text, spans, operator)
    old = new = 0
    for edit in redaction.edits:
        if text[old : edit.start] != redaction.text[new : edit.new_start]:
            return False
        old, new = edit.end, edit.new_end
    inside = all(
        any(e.start <= s.start and s.end <= e.end for e in redaction.edits)
        for s in spans
    )
    return inside and text[old:] == redaction.text[new:] and bool(redaction.text)


@pytest.mark.parametrize("operator", list(Operator))
@given(case=cases())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_redact_text_replaces_every_span_and_nothing_else(operator, case):
    redact = partial(redact_text, pseudonyms=PSEUDONYMS, unit_id="u")
    assert keeps_law(redact, *case, operator)


def drops_last_edit(text, spans, operator):
    """A broken twin: forgets the last span."""
    return redact_text(text, spans[:-1], operator)


def test_redact_text_law_catches_a_forgotten_span():
    assert keeps_law(redact_text, TEXT, SPANS, Operator.MASK)
    assert not keeps_law(drops_last_edit, TEXT, SPANS, Operator.MASK)


def test_redaction_repr_hides_the_text():
    assert "met" not in repr(redact_text(TEXT, SPANS, Operator.MASK))


def test_one_form_folds_case_and_separators():
    assert one_form("O'Brien ") == one_form("obrien")
    assert one_form("--") == "--"


def test_redact_dataset_keeps_rows_and_columns_and_drops_spans():
    row = {"start": 0, "end": 3, "entity_type": "PERSON"}
    corpus = datasets.Dataset.from_dict(
        {
            "id": ["a", "b"],
            "text": ["Ann", "nothing here"],
            "unit_id": ["u", "v"],
            "split": ["train", "test"],
            "label": [1, 0],
            "spans": [[row], []],
        }
    )
    redacted = redact_dataset(corpus, operator=Operator.DELETE)
    assert redacted.column_names == ["id", "text", "unit_id", "split", "label"]
    assert redacted["text"][:] == [MASK, "nothing here"]
    assert redacted["id"][:] == ["a", "b"]


def test_redact_dataset_without_spans_raises():
    corpus = datasets.Dataset.from_dict({"id": ["a"], "text": ["x"]})
    with pytest.raises(DetectionError, match="must have the column spans"):
        redact_dataset(corpus, operator=Operator.MASK)


@pytest.mark.parametrize("operator", [Operator.MASK, Operator.TYPED, Operator.NUMBERED])
def test_second_redaction_leaves_what_the_first_wrote(operator):
    engine = build_engine(tier=Tier.LOW_ENTITY)
    text = "Grace Hill came in. Hunter Price (42) of 12 Elm St, Oxford rang Ann Lee."
    once = redact_text(text, engine.detect([text])[0], operator).text
    assert redact_text(once, engine.detect([once])[0], operator).text == once


def test_name_beside_a_mask_is_masked_and_the_mask_is_not():
    text = "<mask> Hunter and <HUNTER_1> wrote, <PERSON> Hunter too"
    spans = build_engine(tier=Tier.LOW_ENTITY).detect([text])[0]
    marked = [text[span.start : span.end] for span in spans]
    assert marked == ["Hunter", "HUNTER_1", "Hunter"]
