"""Corpora are those of before they were made on disk.

`corpora.json` was written by the program that held all records in memory, compared text
with text and named row after row: its rows in order, ids, splits, copies, counts and
messages. It changes for no other reason than that one of these is meant to change.
"""

import json
from pathlib import Path

import pytest

from tests.support.corpora import CASES, outcome

FILE = Path(__file__).with_name("corpora.json")


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_corpus_is_that_of_before(name, golden, tmp_path):
    found = outcome(CASES[name], tmp_path, folder=tmp_path / ".work")
    assert json.loads(json.dumps(found)) == golden[name]


def test_corpora_are_of_all_kinds(golden):
    assert golden.keys() == CASES.keys()
    assert len({case.source["kind"] for case in CASES.values()}) == 6
    assert sum("problems" in found for found in golden.values()) > 6
    assert sum("problems" not in found for found in golden.values()) > 25
