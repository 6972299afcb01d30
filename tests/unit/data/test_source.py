"""The schema of sources."""

from pathlib import Path

import pytest

from dptune.data.source import (
    HubSource,
    JsonlSource,
    SyntheticSource,
    TextSource,
    describe_source,
    template_columns,
    template_parts,
)
from dptune.errors import ConfigError
from tests.support.sources import parse_source


def test_parse_source_round_trips_through_json():
    source = parse_source({"kind": "csv", "train": "a/b.tsv", "test": "c.tsv"})
    assert parse_source(source.model_dump(mode="json")) == source
    assert source.files() == (("train", Path("a/b.tsv")), ("test", Path("c.tsv")))


def test_parse_source_is_frozen():
    source = parse_source({"kind": "synthetic"})
    with pytest.raises(ValueError, match="frozen"):
        source.seed = 3


def test_parse_source_with_two_faults_reports_both():
    with pytest.raises(ConfigError) as caught:
        parse_source({"kind": "jsonl", "path": "x", "encoding": "no", "colour": 1})
    assert {problem.path for problem in caught.value.problems} == {
        "data.jsonl.encoding",
        "data.jsonl.colour",
    }


@pytest.mark.parametrize("name", ["utf-8", "utf-16", "latin-1", "utf-32", "cp1252"])
def test_encoding_known_is_accepted(name):
    assert TextSource(path=Path("x"), encoding=name).encoding == name


def test_template_parts_keep_literals_and_braces():
    assert template_parts("{{{a}}} b {c d}") == (
        ("{", None),
        ("", "a"),
        ("}", None),
        (" b ", "c d"),
    )
    assert template_columns("{a}{b}{a}") == ("a", "b", "a")


def test_columns_lists_each_once():
    source = JsonlSource(
        path=Path("x"), text_template="{q} {a} {q}", id_column="id", unit_column="q"
    )
    assert source.columns() == ("q", "a", "id")


@pytest.mark.parametrize(
    ("source", "description"),
    [
        (JsonlSource(path=Path("/secret/place/a.jsonl")), "jsonl: a.jsonl"),
        (TextSource(train=Path("w/a"), test=Path("w/b")), "text: w/a, w/b"),
        (
            HubSource(name="a/b", config="c", revision="d", split="train"),
            "hub: a/b@c@d",
        ),
        (HubSource(name="/secret/place", split="train"), "hub: place"),
        (
            SyntheticSource(num_records=5, private=False),
            "synthetic: 5 public dialogues, seed 0",
        ),
    ],
)
def test_describe_source_names_no_machine_path(source, description):
    assert describe_source(source) == description
