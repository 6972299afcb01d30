"""Readers of every kind of source."""

import csv
import gzip
import json
import os
import re

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dptune.data import parsers, readers
from dptune.data.building import build_corpus
from dptune.data.records import RawRecord
from dptune.data.splitting import SplitSettings
from dptune.errors import DataError
from dptune.privacy import PrivacyUnit
from tests.support.sources import parse_source, read_source

ROWS = [
    {"id": 1, "text": "one, two", "user": "a", "label": 0},
    {"id": 2, "text": 'say "hi"', "user": "b", "label": 1},
]
COLUMNS = {"id_column": "id", "unit_column": "user", "label_column": "label"}


def read(folder, **source):
    return read_source(parse_source(source), data_root=folder).to_dict()


def as_jsonl(path):
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS))


def as_gzipped_jsonl(path):
    path.write_bytes(
        gzip.compress("\r\n".join(json.dumps(row) for row in ROWS).encode())
    )


def as_csv(path):
    path.write_bytes(
        b'\xef\xbb\xbfid,text,user,label\r\n1,"one, two",a,0\r\n2,"say ""hi""",b,1\r\n'
    )


def as_tsv(path):
    path.write_text('id\ttext\tuser\tlabel\n1\tone, two\ta\t0\n2\tsay "hi"\tb\t1\n')


def as_utf16_csv(path):
    path.write_text(
        'id;text;user;label\n1;one, two;a;0\n2;"say ""hi""";b;1\n', encoding="utf-16"
    )


def as_parquet(path):
    table = pa.Table.from_pylist(ROWS)
    text = table["text"].cast(pa.large_string())
    pq.write_table(table.set_column(1, "text", text), path)


@pytest.mark.parametrize(
    ("write", "name", "settings"),
    [
        (as_jsonl, "a.jsonl", {"kind": "jsonl"}),
        (as_gzipped_jsonl, "a.jsonl.gz", {"kind": "jsonl"}),
        (as_csv, "a.csv", {"kind": "csv"}),
        (as_tsv, "a.tsv", {"kind": "csv", "quote_character": None}),
        (
            as_utf16_csv,
            "a.csv",
            {"kind": "csv", "delimiter": ";", "encoding": "utf-16"},
        ),
        (as_parquet, "a.parquet", {"kind": "parquet"}),
    ],
)
def test_read_source_of_every_table_gives_the_same(write, name, settings, tmp_path):
    write(tmp_path / name)
    assert read(tmp_path, path=name, **settings, **COLUMNS) == {
        "id": ["1", "2"],
        "text": ["one, two", 'say "hi"'],
        "unit_id": ["a", "b"],
        "label": [0, 1],
    }


def test_csv_field_may_be_as_long_as_a_text(tmp_path):
    """Python's own limit is 131,072 characters."""
    usual = csv.field_size_limit()
    row = f"1,{'a b ' * 40_000},{'x' * 200_000}"
    (tmp_path / "a.csv").write_text(f"id,text,note\n{row}\n")
    found = read(tmp_path, kind="csv", path="a.csv", id_column="id")
    assert [len(text) for text in found["text"]] == [160_000]
    assert csv.field_size_limit() == usual


def test_read_source_without_unit_column_owns_itself(tmp_path):
    as_jsonl(tmp_path / "a.jsonl")
    result = read(tmp_path, kind="jsonl", path="a.jsonl", id_column="id")
    assert result["unit_id"] == ["1", "2"]
    assert set(result) == {"id", "text", "unit_id"}


def test_read_source_without_id_column_hashes_content(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "a"}\n{"text": "b"}\n')
    ids = read(tmp_path, kind="jsonl", path="a.jsonl")["id"]
    assert ids[1] == f"{ids[0]}-2"
    assert len({*ids}) == 3
    assert all(name.startswith("text-") for name in ids)


def test_read_source_template_joins_columns(tmp_path):
    as_jsonl(tmp_path / "a.jsonl")
    result = read(
        tmp_path,
        kind="jsonl",
        path="a.jsonl",
        text_template="{user}/{{{label}}}: {text}",
    )
    assert result["text"] == ["a/{0}: one, two", 'b/{1}: say "hi"']


@pytest.mark.parametrize(
    ("value", "kind"),
    [(b"hello", "bytes"), (["hello"], "list"), ({"a": "hello"}, "dict")],
)
def test_read_source_template_takes_text_and_numbers_only(value, kind, tmp_path):
    rows = {"id": list(range(30)), "n": [1.5] * 30, "body": [value] * 30}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    settings = {"kind": "parquet", "path": "a.parquet", "id_column": "id"}
    assert read(tmp_path, **settings, text_template="{id}: {n}")["text"][3] == "3: 1.5"
    with pytest.raises(DataError) as refused:
        read(tmp_path, **settings, text_template="{id}: {body}")
    assert f"text must be a string, got {kind}" in str(refused.value)
    assert "a.parquet row 1" in str(refused.value)
    assert "hello" not in str(refused.value)


def test_read_source_template_does_not_format_values(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "{b} {a.x}", "b": "!"}\n')
    result = read(tmp_path, kind="jsonl", path="a.jsonl", text_template="{a}{b}")
    assert result["text"] == ["{b} {a.x}!"]


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ("line", ["= A =", "first  line", "second", "\u2028x"]),
        ("paragraph", ["= A =", "first  line\nsecond", "\u2028x"]),
        ("document", [" = A = \n\t\n first  line\r\nsecond\n \n\n\u2028x"]),
    ],
)
def test_read_source_of_text_cuts_records(record, texts, tmp_path):
    data = " = A = \n\t\n first  line\r\nsecond\n \n\n\u2028x\n"
    (tmp_path / "a.txt").write_bytes(data.encode())
    result = read(tmp_path, kind="text", path="a.txt", record=record)
    stripped = [text.strip() if record != "document" else text for text in texts]
    assert result["text"] == stripped
    assert set(result["unit_id"]) == {"a.txt"}


def test_read_source_of_text_documents_has_stable_ids(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    assert read(tmp_path, kind="text", path="a.txt", record="document")["id"] == [
        "a.txt"
    ]


def test_read_source_with_files_per_split_keeps_splits(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(json.dumps({"id": 0, "text": name}))
    result = read(
        tmp_path,
        kind="jsonl",
        train="a",
        validation="b",
        test="c",
        id_column="id",
        ids_are_per_split=True,
    )
    assert result["split"] == ["train", "validation", "test"]
    assert result["id"] == ["train/0", "validation/0", "test/0"]


def test_read_source_with_split_column_knows_aliases(tmp_path):
    rows = [
        {"text": name, "split": name}
        for name in ("train", "dev", "val", "valid", "test")
    ]
    (tmp_path / "a").write_text("\n".join(json.dumps(row) for row in rows))
    result = read(tmp_path, kind="jsonl", path="a", split_column="split")
    assert result["split"] == ["train", *["validation"] * 3, "test"]


def test_ids_per_split_are_those_of_the_split_however_it_is_spelt(tmp_path):
    """Mutant: an id for each spelling, so that one record is two units."""
    rows = [{"id": 40, "text": name, "split": name} for name in ("val", "validation")]
    (tmp_path / "a").write_text("\n".join(json.dumps(row) for row in rows))
    columns = {"id_column": "id", "split_column": "split", "ids_are_per_split": True}
    with pytest.raises(DataError, match="must be unique"):
        build_corpus(
            parse_source({"kind": "jsonl", "path": "a", **columns}),
            privacy_unit=PrivacyUnit.RECORD,
            data_root=tmp_path,
            min_records=1,
            validate=False,
        )
    (tmp_path / "a").write_text(json.dumps(rows[0]))
    assert read(tmp_path, kind="jsonl", path="a", **columns)["id"] == ["validation/40"]


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "d/b/2.txt": "two",
        "d/a/1.txt": "one\n\nmore",
        "d/.hidden/3.txt": "hidden",
        "d/c.md": "other",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_read_source_of_folder_takes_files_in_order(folder):
    result = read(folder, kind="folder", path="d")
    assert result["text"] == ["one\n\nmore", "two"]
    assert result["id"] == result["unit_id"] == ["a/1.txt", "b/2.txt"]


def test_read_source_of_folder_in_paragraphs_owns_by_file(folder):
    result = read(folder, kind="folder", path="d", record="paragraph")
    assert result["unit_id"] == ["a/1.txt", "a/1.txt", "b/2.txt"]


def test_read_source_of_folders_per_split_qualifies_names(folder):
    result = read(folder, kind="folder", train="d/a", test="d/b", pattern="*.txt")
    assert result["id"] == ["train/1.txt", "test/2.txt"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_read_source_of_folder_reads_tables(kind, tmp_path):
    (tmp_path / "d").mkdir()
    {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet}[kind](
        tmp_path / "d" / "a"
    )
    result = read(
        tmp_path, kind="folder", path="d", pattern="*", format=kind, **COLUMNS
    )
    assert result["id"] == ["1", "2"]
    assert result["label"] == [0, 1]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_mark_that_parts_columns_is_named_where_it_is_no_comma(mark, tmp_path):
    for quote, says in ("", f"delimiter to {mark!r}"), ('"', "set delimiter if"):
        rows = (["id", "text"], ["1", "a"])
        lines = (mark.join(f"{quote}{cell}{quote}" for cell in row) for row in rows)
        (tmp_path / "m.csv").write_text("\n".join(lines), encoding="utf-8")
        with pytest.raises(DataError, match=re.escape(says)):
            read(tmp_path, kind="csv", path="m.csv", **COLUMNS)


def test_read_source_of_hub_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "d").mkdir()
    as_parquet(tmp_path / "d" / "train.parquet")
    result = read(tmp_path, kind="hub", name="d", train="train", **COLUMNS)
    assert result["id"] == ["1", "2"]
    assert result["split"] == ["train", "train"]
    with pytest.raises(DataError, match="Did you mean 'text'"):
        read(tmp_path, kind="hub", name="d", split="train", text_column="text_")


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
@pytest.mark.parametrize("is_twin", [False, True])
def test_hub_directory_is_read_anew_when_its_files_change(
    name, is_twin, tmp_path, monkeypatch
):
    """Its twin leaves it to `datasets`, which knows files by their times."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    if is_twin:
        monkeypatch.setattr(parsers, "_cache_of", lambda _: str(tmp_path / "cache"))
    file = tmp_path / "d" / name
    file.parent.mkdir()
    found = []
    for word in ("old", "new"):
        line = json.dumps({"text": word}).encode()
        file.write_bytes(gzip.compress(line) if file.suffix == ".gz" else line)
        os.utime(file, (1e9, 1e9))
        found += read(tmp_path, kind="hub", name="d", split="train")["text"]
    assert found == ["old", "old" if is_twin else "new"]


def test_read_source_of_synthetic_needs_no_file():
    result = read(None, kind="synthetic", num_records=3)
    assert len(result["id"]) == 3
    assert result["unit_id"][1] == result["unit_id"][2]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4711, True),
        ("0", True),
        (5551234567, False),
        ("078051120", False),
        ("Ann Lee", False),
        (True, False),
        (-1, False),
        ("²", False),
    ],
)
def test_location_shows_short_numbers_only(value, shown):
    record = RawRecord(file="a", row=3, id=value, text="secret")
    assert record.location().startswith("a row 3")
    assert ("id" in record.location()) == shown
    assert "secret" not in repr(record)


def test_text_position_ids_name_file_and_line(tmp_path):
    (tmp_path / "a.txt").write_text("first\n\nthird\n")
    source = parse_source(
        {"kind": "text", "train": "a.txt", "position_ids": True, "record": "line"}
    )

    rows = read_source(source, data_root=tmp_path)

    assert rows["id"] == ["train/a.txt:1", "train/a.txt:3"]


def one_file(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("first\nsecond\nthird\n")


def by_link_beside_it(folder):
    one_file(folder / "d")
    (folder / "d" / "latest.txt").symlink_to("a.txt")
    return {"kind": "folder", "path": "d"}


def by_linked_folder(folder):
    one_file(folder / "d" / "v1")
    (folder / "d" / "current").symlink_to("v1", target_is_directory=True)
    return {"kind": "folder", "path": "d", "pattern": "*/*.txt"}


def by_folder_in_a_folder(folder):
    one_file(folder / "d" / "test")
    return {"kind": "folder", "train": "d", "test": "d/test"}


def by_two_splits(folder):
    one_file(folder)
    return {"kind": "text", "train": "a.txt", "test": "./a.txt"}


def by_link_of_another_split(folder):
    one_file(folder)
    (folder / "b.txt").symlink_to("a.txt")
    return {"kind": "text", "train": "a.txt", "test": "b.txt"}


TWICE = [
    *(by_link_beside_it, by_linked_folder, by_folder_in_a_folder),
    *(by_two_splits, by_link_of_another_split),
]


def documents(source, folder):
    """Build a corpus whose units are files, and return the units of every text."""
    corpus = build_corpus(
        parse_source(source),
        privacy_unit=PrivacyUnit.DOCUMENT,
        data_root=folder,
        splits=SplitSettings(validation=0, test=0),
        min_records=1,
        validate=False,
    )
    units = {}
    for row in corpus.dataset:
        units.setdefault(row["text"], set()).add(row["unit_id"])
    return units


@pytest.mark.parametrize("way", TWICE)
def test_file_that_is_there_twice_is_refused(way, tmp_path):
    with pytest.raises(DataError, match="must name each file once, got 1 that"):
        documents(way(tmp_path), tmp_path)


@pytest.mark.parametrize("way", TWICE)
def test_twin_that_takes_names_for_files_makes_two_units_of_one(
    way, tmp_path, monkeypatch
):
    monkeypatch.setattr(readers, "_not_read", lambda files, *_, **__: files)
    assert {len(units) for units in documents(way(tmp_path), tmp_path).values()} == {2}


def test_file_of_which_nothing_was_read_has_no_other_fault(tmp_path):
    one_file(tmp_path / "d")
    (tmp_path / "d" / "a.txt").write_bytes(gzip.compress(b"hello"))
    with pytest.raises(DataError) as refusal:
        documents({"kind": "folder", "path": "d"}, tmp_path)
    (problem,) = refusal.value.problems
    assert problem.message == "must be plain text, got gzip data."


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ('1,"a\nb"\n\n2," \n "\n3,c\n', "a.csv row 5 (id 2)"),
        ('1,"a\nb"\n2,"c\nd",e\n3,f\n', "a.csv row 4"),
        ('1,"a\nb"\n2,"c\nd\n3,e\n', "a.csv row 4"),
    ],
    ids=["a blank text", "a field too many", "a quote that is never closed"],
)
def test_row_of_a_table_is_the_line_that_it_begins_on(rows, named, tmp_path):
    (tmp_path / "a.csv").write_text(f"id,text\n{rows}")
    with pytest.raises(DataError) as refusal:
        read(tmp_path, kind="csv", path="a.csv", id_column="id")
    assert [problem.path for problem in refusal.value.problems] == [named]
