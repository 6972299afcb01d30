"""The scanners find what they are for: planted pickles, planted personal data."""

import json
import pickle
import sqlite3
from contextlib import closing

import pytest
import torch
from safetensors.torch import save_file

from .scanning import Needles, is_pickle, leaks, personal_strings

NAME = "Zoë O'Hara-Lindqvist"
NEEDLES = Needles({NAME, "zoe@example.org", "078-05-1120"})


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_of_any_protocol_is_found_under_any_name(tmp_path, protocol):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps({"a": [1.0, "x"]}, protocol=protocol))
    assert is_pickle(path)


def test_torch_archive_is_found_under_any_name(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "weights.json")
    assert is_pickle(tmp_path / "weights.json")


def test_honest_files_are_no_pickles(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": [1, 2]}))
    (tmp_path / "b.json").write_text("[]")
    (tmp_path / "c.txt").write_text(".")
    (tmp_path / "d.txt").write_text("")
    for length in range(100, 140):  # some headers begin like a pickle
        tensors = {"x" * length: torch.zeros(length)}
        save_file(tensors, tmp_path / f"{length}.safetensors")
    assert not [path.name for path in tmp_path.iterdir() if is_pickle(path)]


@pytest.mark.parametrize(
    "text",
    [
        NAME,
        json.dumps({"name": NAME}),
        "<td>Zoë O&#x27;Hara-Lindqvist</td>",
        "row 3: zoe@example.org is no name",
        "ssn=078-05-1120;",
    ],
)
def test_planted_string_is_found_in_any_spelling(tmp_path, text):
    (tmp_path / "log.txt").write_text(text)
    assert list(leaks(NEEDLES, tmp_path)) == [str(tmp_path / "log.txt")]


def test_planted_string_is_found_across_pages_of_a_database(tmp_path):
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (a TEXT)")
        long = "x" * 4000 + " " + f"{NAME} " * 300
        connection.execute("INSERT INTO t VALUES (?)", (long,))
    connection.close()
    assert list(leaks(NEEDLES, tmp_path)) == [str(path)]


def test_only_named_artifacts_are_restricted(tmp_path):
    for place in ("stores/s/ingest/corpus/u/v", "stores/s/attack/exposure/u/v"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "records.arrow").write_text(NAME)
    assert [p.split("/stores/")[1].split("/")[1] for p in leaks(NEEDLES, tmp_path)] == [
        "attack"
    ]


def test_parts_of_longer_words_are_no_hit(tmp_path):
    (tmp_path / "a.txt").write_text("x078-05-11201 azoe@example.orgs")
    assert leaks(NEEDLES, tmp_path) == {}


def test_needles_hold_every_kind_of_personal_data():
    strings = personal_strings(num_records=260, seed=5)
    assert any("@" in s for s in strings)
    assert any(s.startswith("(") for s in strings)
    assert any(s.startswith("AC-") for s in strings)
    assert any(s.replace(" ", "").isalpha() and " " in s for s in strings)
