"""Scores against equations 1 to 4 of SA-ADP, computed by hand."""

import pytest

from dptune.detection.recognizer import HIGH_ENTITY_TYPES
from dptune.detection.scoring import SensitivityTable, _table, score_entity_types
from dptune.errors import ConfigError


def test_score_entity_types_equals_the_paper_by_hand():
    counts = {"PERSON": 6, "ORG": 3, "CARDINAL": 1}
    table = score_entity_types(counts, counts_are_public=True)
    rows = {row.entity_type: row for row in table.rows}
    assert rows["PERSON"].score == pytest.approx(0.4 * 0.4 + 0.3 + 0.3)
    assert rows["ORG"].score == pytest.approx(0.4 * 0.7 + 0.3)
    assert rows["CARDINAL"].score == pytest.approx(0.4 * 0.9)
    assert [row.entity_type for row in table.rows] == ["PERSON", "ORG", "CARDINAL"]
    assert rows["CARDINAL"].tier_group == "low"
    assert rows["ORG"].tier_group == "high"


@pytest.mark.parametrize(
    ("share_of_cardinal", "group"), [(1.0, "none"), (0.98, "none"), (0.9, "low")]
)
def test_score_entity_types_tier_groups(share_of_cardinal, group):
    number = round(100 * share_of_cardinal)
    counts = {"CARDINAL": number, "PERCENT": 100 - number}
    rows = score_entity_types(counts, counts_are_public=True).rows
    assert {r.entity_type: r.tier_group for r in rows}["CARDINAL"] == group


def test_score_entity_types_gap_between_low_and_high_is_high():
    counts = {"ORG": 485, "PERSON": 515}  # ORG: 0.4 * 0.515 + 0.3 = 0.506
    rows = score_entity_types(counts, counts_are_public=True).rows
    assert {r.entity_type: r.tier_group for r in rows}["ORG"] == "high"


def test_score_entity_types_marks_whose_counts_they_are():
    assert score_entity_types({}, counts_are_public=True).counts == "public"
    assert score_entity_types({}, counts_are_public=False).counts == "non_private"


def test_score_entity_types_unknown_type_is_most_sensitive():
    table = score_entity_types({"NEW": 0}, counts_are_public=True)
    assert table.rows[0].score == pytest.approx(1.0)


def test_score_entity_types_negative_count_raises():
    with pytest.raises(ConfigError, match="PERSON"):
        score_entity_types({"PERSON": -1}, counts_are_public=True)


def test_sensitivity_table_survives_json():
    table = score_entity_types({"EMAIL": 2, "DATE": 1}, counts_are_public=False)
    assert SensitivityTable.model_validate_json(table.model_dump_json()) == table


def test_table_knows_every_type_that_detection_makes_and_cites():
    table = _table()
    assert len(table) >= 45
    assert not (HIGH_ENTITY_TYPES | {"PRON", "PROPN", "NOUN", "VERB"}) - set(table)
    assert all(cited for _, _, cited in table.values())
