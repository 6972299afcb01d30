"""Real files of every format."""

from pathlib import Path

import pytest
import yaml

from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.readers import read_records
from dptune.data.records import ProblemLog
from dptune.privacy import PrivacyUnit
from tests.support.sources import parse_source

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "train"

CUSTOMERSIM = {
    "kind": "jsonl",
    "train": "customersim/train.jsonl.gz",
    "validation": "customersim/valid.jsonl.gz",
    "test": "customersim/test.jsonl.gz",
    "id_column": "id",
    "ids_are_per_split": True,
}
WIKITEXT = {
    "kind": "text",
    "train": "wikitext-2/wiki.valid.raw.gz",
    "test": "wikitext-2/wiki.test.raw.gz",
}
SST2 = {
    "kind": "csv",
    "train": "sst2/dev.tsv.gz",
    "test": "sst2/test.tsv.gz",
    "text_column": "sentence",
    "label_column": "label",
    "quote_character": None,
}


def build(shared_data, source, **arguments):
    defaults = {"privacy_unit": PrivacyUnit.RECORD, "near_duplicate_threshold": None}
    return build_corpus(
        parse_source(source), data_root=shared_data, **(defaults | arguments)
    )


def test_customersim_keeps_its_splits(shared_data):
    report = build(shared_data, CUSTOMERSIM).report
    assert report.num_records == {"train": 10_000, "validation": 1000, "test": 1000}
    assert report.num_exact_duplicates == 0


def test_abcd_is_split_with_labels(shared_data):
    source = {
        "kind": "jsonl",
        "path": "abcd/test.jsonl.gz",
        "id_column": "id",
        "label_column": "label",
    }
    corpus = build(shared_data, source)
    assert corpus.report.num_read == 1004
    assert min(corpus.report.num_records.values()) > 50
    assert isinstance(corpus.dataset["label"][0], str)


@pytest.mark.parametrize(("record", "number"), [("line", 5352), ("paragraph", 2480)])
def test_wikitext_is_cut_into_records(shared_data, record, number):
    corpus = build(
        shared_data, WIKITEXT | {"record": record}, allow_content_hash_ids=True
    )
    assert corpus.report.num_read == number
    assert corpus.report.ids_are_content_hashes
    assert corpus.report.num_records["validation"] > 0


def test_imdb_reads_parquet(shared_data):
    source = {
        "kind": "parquet",
        "train": "imdb/train.parquet",
        "test": "imdb/test.parquet",
        "label_column": "label",
    }
    corpus = build(shared_data, source, allow_content_hash_ids=True, max_records=2000)
    assert corpus.report.num_read == 50_000
    assert set(corpus.dataset["label"]) == {0, 1}


def test_sst2_reads_tsv(shared_data):
    corpus = build(shared_data, SST2, allow_content_hash_ids=True)
    assert corpus.report.num_read == 872 + 1821
    assert set(corpus.dataset["label"]) == {0, 1}


def test_diabetes_rows_become_text_of_patients(shared_data):
    source = {
        "kind": "csv",
        "path": "diabetes130/diabetic_data.csv.gz",
        "text_template": "A {age} patient, {gender}, stayed {time_in_hospital} days.",
        "id_column": "encounter_id",
        "unit_column": "patient_nbr",
    }
    corpus = build(
        shared_data,
        source,
        privacy_unit=PrivacyUnit.USER,
        duplicates=Duplicates.KEEP,
        max_records=2000,
    )
    assert sum(corpus.report.num_records.values()) == 2000
    assert sum(corpus.report.num_units.values()) < 2000


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        (
            "diabetes130",
            "The patient has the following profile. race is Caucasian. gender is ",
            "readmitted is NO.",
        ),
        ("unsw_nb15", "A udp flow of service - in state INT lasted ", "is Normal."),
    ],
)
def test_tables_are_told_by_the_template_of_their_configuration(
    shared_data, name, start, end
):
    values = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["data"]
    source = parse_source(values["source"])
    records = list(read_records(source, data_root=shared_data, log=ProblemLog()))
    assert len(records) > 80_000
    text = records[0].text
    assert text.startswith(start)
    assert text.endswith(end)
    assert "{" not in text
