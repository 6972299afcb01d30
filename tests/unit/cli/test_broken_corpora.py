"""Corpora that cannot be used, through the command line: exit 2, nothing created.

What the library says of a hundred more is in tests/unit/data/test_broken.py.
"""

import json

import pytest

SENTINEL = "Zebediah Quartermain 078-05-1120 zeb@example.com"
ROWS = [{"id": f"g{i}", "text": f"{SENTINEL} line {i}"} for i in range(300)]
GOOD = "".join(json.dumps(row) + "\n" for row in ROWS)
JSONL = {"kind": "jsonl", "path": "a", "id_column": "id"}


def row(**fields):
    """Good rows and one more."""
    return GOOD + json.dumps(fields) + "\n"


CORPORA = {
    "empty": (b"", JSONL, "0 bytes"),
    "blank": (" \n\n", JSONL, "white space only"),
    "malformed": (GOOD + '{"id": 1, "text": "' + SENTINEL, JSONL, "row 301"),
    "array": (json.dumps(ROWS), JSONL, "got a JSON list"),
    "not UTF-8": (GOOD.encode() + b'{"id":1,"text":"\xe9"}\n', JSONL, "row 301"),
    "UTF-16": (GOOD.encode("utf-16"), JSONL, "byte 0"),
    "null text": (row(id="x", text=None), JSONL, "must not be null"),
    "empty text": (row(id="x", text=""), JSONL, "row 301 text must not be empty"),
    "lone surrogate": (GOOD + '{"id":"x","text":"\\ud800"}\n', JSONL, "surrogate"),
    "NUL": (row(id="x", text="a\0b"), JSONL, "NUL"),
    "duplicate id": (row(id="g3", text="other"), JSONL, "id must be unique"),
    "missing column": (GOOD, JSONL | {"text_column": "texts"}, "'text'"),
    "too few": (json.dumps(ROWS[0]) + "\n", JSONL, "at least"),
    "no stable ids": (GOOD, {"kind": "jsonl", "path": "a"}, "id_column"),
    "not Parquet": (GOOD, JSONL | {"kind": "parquet"}, "Parquet"),
    "CSV without header": (f"1,{SENTINEL}\n", JSONL | {"kind": "csv"}, "'text'"),
    "folder without a match": ("x", {"kind": "folder", "path": "../data"}, "got 0"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_train_on_a_broken_corpus_creates_nothing_and_quotes_nothing(
    name, values, write_config, run_cli, tmp_path
):
    content, source, says = CORPORA[name]
    data = content if isinstance(content, bytes) else content.encode()
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_bytes(data)
    values["data"]["source"] = source
    outcome = run_cli("train", write_config(values), data_root=folder)
    outcome.assert_refused(says)
    for word in SENTINEL.split():
        assert word not in outcome.out + outcome.err


def test_near_empty_corpus_after_deduplication_is_refused(
    values, write_config, run_cli, tmp_path
):
    rows = [{"id": str(i), "text": SENTINEL} for i in range(300)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a").write_text(lines)
    values["data"] |= {"source": JSONL, "duplicates": "drop_exact"}
    outcome = run_cli("train", write_config(values))
    outcome.assert_refused("after deduplication")
