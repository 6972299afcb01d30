"""Expectations: each passes a sound corpus and fails its broken twin."""

import datasets
import pytest

from dptune.data.validation import count_left, validate_corpus, validate_redacted
from dptune.errors import ConfigError

SOUND = {
    "id": ["1", "2", "3"],
    "text": ["hello there", "good bye", "see you"],
    "unit_id": ["a", "a", "b"],
    "split": ["train", "train", "test"],
}
SECRET = "Zebediah Quartermain"


def corpus(**columns):
    return datasets.Dataset.from_dict(SOUND | columns)


def failed(report):
    return {item.name for item in report.expectations if not item.success}


def test_validate_corpus_of_sound_one_succeeds():
    report = validate_corpus(corpus(), view="ingest")
    assert report.success
    assert report.view == "ingest"
    assert len(report.expectations) == 14


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"id": ["1", "2", "2"]}, {"id_unique"}),
        ({"id": ["1", None, "2"]}, {"id_not_null"}),
        ({"text": [SECRET, None, "x"]}, {"text_not_null"}),
        ({"text": [SECRET, "", "x"]}, {"text_length", "text_not_blank"}),
        ({"text": [SECRET, " \n ", "x"]}, {"text_not_blank"}),
        ({"text": [SECRET, "y" * 101, "x"]}, {"text_length"}),
        ({"text": [SECRET, SECRET, "x"]}, {"duplicate_share"}),
        ({"text": [SECRET, "x", SECRET]}, {"duplicate_share", "no_text_leak"}),
        ({"text": [SECRET, "cafÃ©", "x"]}, {"no_mojibake"}),
        ({"unit_id": ["a", "b", "b"]}, {"no_unit_leak"}),
        ({"unit_id": ["a", None, "b"]}, {"unit_id_not_null"}),
        ({"split": ["train", "dev", "test"]}, {"split_known", "no_unit_leak"}),
        ({"split": ["train", "train", None]}, {"split_not_null"}),
    ],
)
def test_validate_corpus_of_broken_twin_fails(columns, names):
    report = validate_corpus(corpus(**columns), view="x", max_characters=100)
    assert failed(report) == names
    assert not report.success
    assert SECRET not in report.model_dump_json()


def test_validate_corpus_without_a_column_fails_quietly():
    report = validate_corpus(corpus().remove_columns("text"), view="x")
    assert {"columns", "text_not_null", "text_length"} <= failed(report)
    assert "id_unique" not in failed(report)


def test_validate_corpus_with_too_few_rows_fails():
    assert failed(validate_corpus(corpus(), view="x", min_records=4)) == {"row_count"}


def test_validate_corpus_bounds_can_be_raised():
    twins = corpus(text=["cafÃ©", "cafÃ©", "x"])
    report = validate_corpus(
        twins, view="x", max_duplicate_share=0.34, max_mojibake_share=0.67
    )
    assert report.success


def test_validate_redacted_of_clean_text_succeeds():
    texts = ["<mask> at <EMAIL>", "order 843-58572-7002 of $5.00", ""]
    report = validate_redacted(count_left(datasets.Dataset.from_dict({"text": texts})))
    assert report.success
    assert len(report.expectations) == 5


@pytest.mark.parametrize(
    ("leak", "name"),
    [
        ("zeb@example.com", "no_email"),
        ("078-05-1120", "no_us_ssn"),
        ("4111 1111 1111 1111", "no_credit_card"),
        ("DE89 3704 0044 0532 0130 00", "no_iban"),
    ],
)
def test_validate_redacted_of_leak_fails_without_text(leak, name, caplog, capsys):
    dataset = datasets.Dataset.from_dict({"text": ["clean", f"{SECRET} {leak}"]})
    report = validate_redacted(count_left(dataset))
    assert failed(report) == {name}
    output = capsys.readouterr()
    for place in (report.model_dump_json(), caplog.text, output.out, output.err):
        assert SECRET not in place
        assert leak not in place


def test_validate_redacted_of_chosen_types_ignores_others():
    dataset = datasets.Dataset.from_dict({"text": ["a@example.org"]})
    assert validate_redacted(count_left(dataset), entity_types=("US_SSN",)).success


def test_validate_redacted_of_unknown_type_is_refused():
    dataset = datasets.Dataset.from_dict({"text": ["x"]})
    with pytest.raises(ConfigError, match="PERSON"):
        validate_redacted(count_left(dataset), entity_types=("PERSON",))


def test_validate_redacted_without_text_fails():
    report = validate_redacted(count_left(datasets.Dataset.from_dict({"id": ["1"]})))
    assert not report.success
