"""Quality figures against a case small enough to count by hand."""

import pytest

from dptune.errors import DetectionError
from dptune.text import Span
from tests.support.detection_quality import evaluate


def span(start, end, entity_type="PERSON"):
    return Span(start=start, end=end, entity_type=entity_type)


TEXT = "Ann Lee, 12345 is ok"


def test_evaluate_by_hand():
    gold = [[span(0, 7), span(9, 14, "ID")]]
    predicted = [[span(0, 3), span(9, 14), span(18, 20)]]
    quality = evaluate(gold, predicted, [TEXT])
    assert quality.num_gold_spans == 2
    assert quality.num_predicted_spans == 3
    assert quality.span_recall == 0.5
    assert quality.span_precision == pytest.approx(2 / 3)
    assert quality.character_recall == pytest.approx(8 / 11)
    assert quality.character_precision == pytest.approx(8 / 10)
    assert quality.masked_share == pytest.approx(10 / 20)
    rows = {row.entity_type: row for row in quality.types}
    assert rows["PERSON"].span_recall == 0.0
    assert rows["PERSON"].character_recall == pytest.approx(3 / 6)
    assert rows["ID"].span_recall == 1.0


def test_evaluate_blanks_inside_a_span_need_no_cover():
    quality = evaluate([[span(0, 7)]], [[span(0, 3), span(4, 7)]], [TEXT])
    assert quality.span_recall == 1.0


def test_evaluate_nothing_is_perfect():
    quality = evaluate([[]], [[]], [""])
    assert quality.span_recall == quality.character_precision == 1.0
    assert quality.masked_share == 0.0


def test_evaluate_unequal_lengths_raise():
    with pytest.raises(DetectionError, match="1, 0, 1"):
        evaluate([[]], [], [""])
