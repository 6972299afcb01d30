"""Corpora from source to fingerprint."""

import time
from collections import defaultdict
from pathlib import Path

import datasets
import pytest

from dptune.data import building as corpus_module
from dptune.data.building import build_corpus, corpus_fingerprint
from dptune.data.duplicates import Duplicates
from dptune.data.source import JsonlSource, SyntheticSource
from dptune.data.splitting import SplitSettings
from dptune.errors import DataError
from dptune.privacy import PrivacyUnit
from dptune.results import Expectation, ValidationReport


@pytest.fixture
def source(write_jsonl, rows):
    return JsonlSource(path=write_jsonl(rows), id_column="id", unit_column="user")


def build(source, **arguments):
    defaults = {
        "privacy_unit": PrivacyUnit.RECORD,
        "splits": SplitSettings(validation=0.3, test=0.3),
    }
    return build_corpus(source, **(defaults | arguments))


def test_build_corpus_reports_what_it_holds(source, rows):
    corpus = build(source, privacy_unit=PrivacyUnit.USER)
    assert corpus.dataset.column_names == ["id", "text", "unit_id", "split"]
    assert corpus.dataset["text"][:] == [row["text"] for row in rows]
    report = corpus.report
    assert (
        report.fingerprint == corpus.fingerprint == corpus_fingerprint(corpus.dataset)
    )
    assert report.num_read == sum(report.num_records.values()) == 30
    assert sum(report.num_units.values()) == 10
    assert report.num_characters == sum(len(row["text"]) for row in rows)
    assert report.source == "jsonl: corpus.jsonl"
    assert report.validation.success
    assert not report.ids_are_content_hashes
    assert rows[0]["text"] not in f"{corpus!r}{report.model_dump_json()}"


@pytest.mark.parametrize(
    ("unit", "number"), [(PrivacyUnit.RECORD, 30), (PrivacyUnit.USER, 10)]
)
def test_build_corpus_never_divides_a_unit(source, unit, number):
    dataset = build(source, privacy_unit=unit).dataset
    sides = defaultdict(set)
    for name, split in zip(dataset["unit_id"], dataset["split"], strict=True):
        sides[name].add(split)
    assert len(sides) == number
    assert all(len(found) == 1 for found in sides.values())


def test_build_corpus_twice_gives_the_same(source):
    assert build(source).fingerprint == build(source).fingerprint
    assert build(source).fingerprint != build(source, seed=1).fingerprint


def test_corpus_split_selects_records(source):
    corpus = build(source)
    parts = [corpus.split(name) for name in ("train", "validation", "test")]
    assert sum(part.num_rows for part in parts) == 30
    assert set(parts[0]["split"]) == {"train"}
    assert corpus.split("other").num_rows == 0


def test_build_corpus_drops_copies_before_splitting(write_jsonl, rows):
    copies = [row | {"id": f"c{i}"} for i, row in enumerate(rows[:5])]
    path = write_jsonl([*rows, *copies])
    report = build(JsonlSource(path=path, id_column="id")).report
    assert report.num_exact_duplicates == report.num_duplicates_across_units == 5
    assert sum(report.num_records.values()) == 30
    kept = build(JsonlSource(path=path, id_column="id"), duplicates=Duplicates.KEEP)
    assert sum(kept.report.num_records.values()) == 35
    assert kept.report.num_duplicates_across_units == 0


def test_build_corpus_with_content_hashes_says_so(write_jsonl, rows):
    path = write_jsonl(rows)
    report = build(JsonlSource(path=path), allow_content_hash_ids=True).report
    assert report.ids_are_content_hashes
    owned = build(
        JsonlSource(path=path, unit_column="user"), privacy_unit=PrivacyUnit.USER
    )
    assert owned.report.ids_are_content_hashes


def test_build_corpus_with_fewer_records_takes_a_seeded_sample(source):
    few = build(source, max_records=20).dataset
    assert few.num_rows == 20
    assert set(few["id"]) < set(build(source).dataset["id"])
    assert set(few["id"]) != set(build(source, max_records=20, seed=1).dataset["id"])


def test_limit_on_records_lets_one_unit_push_out_others_and_says_so(write_jsonl, rows):
    """Adding one user takes records from many, which no claim on one user covers."""
    more = [{"id": f"n{i}", "text": f"note {i} of one more user"} for i in range(30)]

    def kept(rows):
        path = write_jsonl(rows)
        source = JsonlSource(path=path, id_column="id", unit_column="user")
        corpus = build(source, privacy_unit=PrivacyUnit.USER, max_records=30)
        units = defaultdict(set)
        for unit, text in zip(
            corpus.dataset["unit_id"], corpus.dataset["text"], strict=True
        ):
            units[unit].add(text)
        return units, corpus.report.sampled

    without, is_sampled = kept(rows)
    assert is_sampled  # of its neighbor some are left out
    with_one_more, is_sampled = kept([*rows, *(m | {"user": "new"} for m in more)])
    assert is_sampled
    assert sum(without[unit] != with_one_more.get(unit) for unit in without) > 1


def test_build_corpus_keeps_labels(write_jsonl, rows):
    path = write_jsonl([row | {"label": f"{i % 2}"} for i, row in enumerate(rows)])
    dataset = build(
        JsonlSource(path=path, id_column="id", label_column="label")
    ).dataset
    assert dataset["label"][:4] == [0, 1, 0, 1]


def test_build_corpus_that_fails_an_expectation_is_refused(source, monkeypatch):
    verdict = ValidationReport(
        view="ingest",
        success=False,
        expectations=(Expectation(name="row_count", success=False),),
    )
    monkeypatch.setattr(corpus_module, "validate_corpus", lambda *_, **__: verdict)
    with pytest.raises(DataError, match="row_count"):
        build(source)
    unasked = build(source, validate=False)
    assert not unasked.report.validation.success
    assert not unasked.report.validation.expectations


def test_build_corpus_relative_path_starts_at_data_root(source):
    relative = source.model_copy(update={"path": Path(source.path.name)})
    assert build(relative, data_root=source.path.parent) == build(source)


EDITS = {
    "text": ["a", "c"],
    "id": ["1", "3"],
    "unit_id": ["u", "w"],
    "split": ["train", "train"],
    "label": [0, 0],
}
BASE = {
    "id": ["1", "2"],
    "text": ["a", "b"],
    "unit_id": ["u", "v"],
    "split": ["train", "test"],
    "label": [0, 1],
}


def test_corpus_fingerprint_ignores_order():
    turned = {name: values[::-1] for name, values in BASE.items()}
    one, two = (datasets.Dataset.from_dict(c) for c in (BASE, turned))
    assert corpus_fingerprint(one) == corpus_fingerprint(two)


@pytest.mark.parametrize("column", EDITS)
def test_corpus_fingerprint_sees_every_edit(column):
    edited = BASE | {column: EDITS[column]}
    one, two = (datasets.Dataset.from_dict(c) for c in (BASE, edited))
    assert corpus_fingerprint(one) != corpus_fingerprint(two)


def test_corpus_fingerprint_keeps_columns_apart():
    one = datasets.Dataset.from_dict({"id": ["ab"], "text": ["x"], "unit_id": ["c"]})
    two = datasets.Dataset.from_dict({"id": ["a"], "text": ["x"], "unit_id": ["bc"]})
    assert corpus_fingerprint(one) != corpus_fingerprint(two)


def test_build_corpus_of_two_thousand_dialogues_is_quick():
    build(SyntheticSource(num_records=20))  # Great Expectations is loaded
    start = time.process_time()
    corpus = build(SyntheticSource(num_records=2000), privacy_unit=PrivacyUnit.USER)
    assert time.process_time() - start < 4
    assert corpus.report.num_exact_duplicates == 0
    assert corpus.report.num_near_duplicates < 20
