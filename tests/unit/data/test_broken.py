"""Broken inputs: each is refused with words that help and never with its own text."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dptune.data.building import build_corpus
from dptune.data.splitting import SplitSettings
from dptune.errors import ConfigError, DataError, DependencyError, DptuneError
from dptune.privacy import PrivacyUnit
from tests.support.sources import parse_source

SENTINEL = "Zebediah Quartermain 078-05-1120 zeb@example.com"
GOOD = [
    {"id": f"g{i}", "text": f"{SENTINEL} line {i}", "user": i % 9} for i in range(40)
]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """One broken input.

    Args:
        write: makes the files in a folder.
        source: what is asked for.
        error: the type that must be raised.
        says: what the message must hold.
        arguments: of `build_corpus`.
    """

    write: Callable[[Path], object] = lambda folder: None
    source: Mapping[str, object]
    error: type[DptuneError] = DataError
    says: str
    arguments: Mapping[str, object] = field(default_factory=dict)


def jsonl(*rows, name="a.jsonl"):
    """Write rows, or raw lines, below forty good rows."""

    def write(folder):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        good = [json.dumps(row) for row in GOOD]
        (folder / name).write_text("\n".join([*good, *lines]) + "\n")

    return write


def raw(data, name="a.jsonl"):
    """Write bytes or text."""
    data = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(data)


def parquet(columns, name="a.parquet"):
    """Write a Parquet file."""
    return lambda folder: pq.write_table(pa.table(columns), folder / name)


def both(*writers):
    """Write several files."""
    return lambda folder: [writer(folder) for writer in writers]


def lines(rows):
    """Write rows as JSON lines in memory."""
    return "".join(json.dumps(row) + "\n" for row in rows)


J = {"kind": "jsonl", "path": "a.jsonl", "id_column": "id"}
C = {"kind": "csv", "path": "a.csv", "id_column": "id"}
P = {"kind": "parquet", "path": "a.parquet", "id_column": "id"}
T = {"kind": "text", "path": "a.txt"}
CSV_GOOD = "id,text\n" + "".join(f"{i},{SENTINEL} {i}\n" for i in range(20))
USER = {"privacy_unit": PrivacyUnit.USER}
HASHES = {"allow_content_hash_ids": True}
PAIR = {"kind": "jsonl", "train": "a.jsonl", "test": "b.jsonl", "id_column": "id"}

BROKEN = {
    # files
    "missing file": Broken(source=J, says="must exist"),
    "path is a folder": Broken(
        write=lambda folder: (folder / "a.jsonl").mkdir(),
        source=J,
        says="kind: folder",
    ),
    "path name too long": Broken(source=J | {"path": "x" * 300}, says="readable"),
    "folder name too long": Broken(
        source={"kind": "folder", "path": "x" * 300}, says="must be"
    ),
    "empty file": Broken(write=raw(b""), source=J, says="0 bytes"),
    "blank file": Broken(write=raw(b" \n\n"), source=J, says="white space only"),
    "not a gzip file": Broken(
        write=raw(SENTINEL, "a.jsonl.gz"),
        source=J | {"path": "a.jsonl.gz"},
        says="complete gzip",
    ),
    "cut gzip file": Broken(
        write=raw(gzip.compress(lines(GOOD).encode())[:-30], "a.jsonl.gz"),
        source=J | {"path": "a.jsonl.gz"},
        says="complete gzip",
    ),
    "damaged gzip file": Broken(
        write=raw(gzip.compress(b"x" * 9999)[:15] + b"\xff" * 40, "a.txt.gz"),
        source=T | {"path": "a.txt.gz"},
        says="complete gzip",
    ),
    "gzip without suffix": Broken(
        write=raw(gzip.compress(b"x")), source=J, says="suffix .gz"
    ),
    "undecodable bytes": Broken(
        write=raw(f'{{"id": 1, "text": "{SENTINEL}"}}\n'.encode() + b'"\xe9t\xe9"\n'),
        source=J,
        says="row 2 (byte 71); row 2 (byte 73)",
    ),
    "many undecodable bytes": Broken(
        write=raw(b"a\xff\n" * 9, "a.txt"), source=T, says="row 5 (byte 13); and more"
    ),
    "utf-16 read as utf-8": Broken(
        write=raw(SENTINEL.encode("utf-16"), "a.txt"), source=T, says="byte 0"
    ),
    "broken utf-16": Broken(
        write=raw(b"\xff\xfea\x00\x00\xd8", "a.txt"),
        source=T | {"encoding": "utf-16"},
        says="must be valid utf-16",
    ),
    "folder missing": Broken(
        source={"kind": "folder", "path": "none"}, says="must be a folder"
    ),
    "folder without a match": Broken(
        write=lambda folder: (folder / "d").mkdir(),
        source={"kind": "folder", "path": "d"},
        says="got 0",
    ),
    # JSON lines
    "key twice": Broken(
        write=jsonl('{"id": "1", "text": "a", "text": "b"}'),
        source=J,
        says="row 41: must name every key",
    ),
    "malformed JSON": Broken(
        write=jsonl(f'{{"id": 1, "text": "{SENTINEL}'), source=J, says="row 41"
    ),
    "JSON array": Broken(write=raw(json.dumps(GOOD)), source=J, says="got a JSON list"),
    "JSON line is a string": Broken(
        write=jsonl(json.dumps(SENTINEL)), source=J, says="got a JSON str"
    ),
    "JSON nested too deep": Broken(
        write=jsonl("[" * 100_000), source=J, says="malformed JSON"
    ),
    "JSON number too long": Broken(
        write=jsonl("1" * 5000), source=J, says="malformed JSON"
    ),
    "JSON column missing everywhere": Broken(
        write=jsonl(), source=J | {"text_column": "texts"}, says="Did you mean 'text'"
    ),
    "JSON column missing once": Broken(
        write=jsonl({"id": 7, "txt": SENTINEL}), source=J, says="row 41"
    ),
    # CSV
    "CSV without header": Broken(
        write=raw(f"1,{SENTINEL}\n2,{SENTINEL}\n", "a.csv"),
        source=C,
        says="must have the column 'text'",
    ),
    "CSV row too short": Broken(
        write=raw(f"{CSV_GOOD}{SENTINEL}\n", "a.csv"), source=C, says="row 22"
    ),
    "CSV row too long": Broken(
        write=raw(f"{CSV_GOOD}1,{SENTINEL},3\n", "a.csv"), source=C, says="2 fields"
    ),
    "CSV open quote": Broken(
        write=raw(f'{CSV_GOOD}1,"{SENTINEL}\n', "a.csv"), source=C, says="stray quote"
    ),
    "CSV stray quote": Broken(
        write=raw(f'{CSV_GOOD}1,"{SENTINEL}" x\n', "a.csv"),
        source=C,
        says="quote_character",
    ),
    "CSV field too long": Broken(
        write=raw(f"{CSV_GOOD}1,{SENTINEL * 9000}\n", "a.csv"),
        source=C,
        says="max_characters",
    ),
    "CSV header only": Broken(
        write=raw("id,text\n", "a.csv"), source=C, says="got 0 read"
    ),
    "CSV column twice": Broken(
        write=raw("id,text,text\n1,a,b\n", "a.csv"), source=C, says="got several"
    ),
    # Parquet
    "not a Parquet file": Broken(
        write=raw(SENTINEL, "a.parquet"), source=P, says="must be a Parquet file"
    ),
    "Parquet column missing": Broken(
        write=parquet({"id": [1], "body": [SENTINEL]}), source=P, says="'text'"
    ),
    "Parquet text of numbers": Broken(
        write=parquet({"id": [1, 2], "text": [1.5, 2.5]}), source=P, says="got float"
    ),
    "Parquet text of bytes": Broken(
        write=parquet({"id": [1], "text": [SENTINEL.encode()]}),
        source=P,
        says="got bytes",
    ),
    "Parquet id of fractions": Broken(
        write=parquet({"id": [1.0, None], "text": [SENTINEL] * 2}),
        source=P,
        says="got float. Write ids as whole numbers or strings.",
    ),
    # values
    "null text": Broken(
        write=jsonl({"id": 1, "text": None}), source=J, says="text must not be null"
    ),
    "NaN text": Broken(
        write=jsonl('{"id": 4711, "text": NaN}'), source=J, says="row 41 (id 4711)"
    ),
    "empty text": Broken(
        write=jsonl({"id": 1, "text": ""}), source=J, says="got nothing"
    ),
    "blank text": Broken(
        write=jsonl({"id": 1, "text": " \n\u3000"}), source=J, says="white space only"
    ),
    "text is a list": Broken(
        write=jsonl({"id": 1, "text": [SENTINEL]}), source=J, says="got list"
    ),
    "text with a lone surrogate": Broken(
        write=jsonl('{"id": 1, "text": "\\ud800 x"}'), source=J, says="surrogate"
    ),
    "text with NUL": Broken(
        write=jsonl({"id": 1, "text": "a\0b"}), source=J, says="NUL"
    ),
    "text too long": Broken(
        write=jsonl({"id": 1, "text": SENTINEL * 9}),
        source=J,
        says="max_characters=200",
        arguments={"max_characters": 200},
    ),
    "mojibake": Broken(
        write=jsonl({"id": 1, "text": "CafÃ© crÃ¨me"}), source=J, says="mojibake"
    ),
    "null id": Broken(
        write=jsonl({"id": None, "text": "x"}), source=J, says="id must not be null"
    ),
    "blank id": Broken(write=jsonl({"id": " ", "text": "x"}), source=J, says="nothing"),
    "boolean id": Broken(
        write=jsonl({"id": True, "text": "x"}), source=J, says="got bool"
    ),
    "id too long": Broken(
        write=jsonl({"id": SENTINEL * 9, "text": "x"}), source=J, says="1 to 200"
    ),
    "id with a lone surrogate": Broken(
        write=jsonl('{"id": "\\udfff", "text": "x"}'), source=J, says="surrogate"
    ),
    "duplicate id": Broken(
        write=jsonl({"id": "g3", "text": "x"}), source=J, says="id must be unique"
    ),
    "id is a text column": Broken(
        write=jsonl({"id": 1, "text": GOOD[0]["text"]}),
        source=J | {"id_column": "text"},
        says="id must be unique",
    ),
    "no stable ids": Broken(
        write=jsonl(), source={"kind": "jsonl", "path": "a.jsonl"}, says="id_column"
    ),
    "no stable ids for lines": Broken(
        write=raw(SENTINEL, "a.txt"), source=T, says="allow_content_hash_ids"
    ),
    "no unit column": Broken(
        write=jsonl(), source=J, says="unit_column", arguments=USER
    ),
    "null unit": Broken(
        write=jsonl({"id": 1, "text": "x", "user": None}),
        source=J | {"unit_column": "user"},
        says="unit must not be null",
        arguments=USER,
    ),
    "null label": Broken(
        write=both(
            parquet(
                {
                    "id": list(range(12)),
                    "text": [f"{SENTINEL} {i}" for i in range(12)],
                    "label": [1] * 11 + [None],
                }
            )
        ),
        source=P | {"label_column": "label"},
        says="row 12 (id 11): label must be",
    ),
    "labels of two types": Broken(
        write=raw(
            lines(
                {"id": i, "text": f"x {i}", "label": 1 if i else "one"}
                for i in range(9)
            )
        ),
        source=J | {"label_column": "label"},
        says="got both",
    ),
    "label beyond 64 bits": Broken(
        write=raw(
            lines(
                {"id": i, "text": f"x {i}", "label": 10**30 if i == 8 else 1}
                for i in range(40)
            )
        ),
        source=J | {"label_column": "label"},
        says="row 9 (id 8): label must be a whole number of 64 bits",
    ),
    "null in a template": Broken(
        write=jsonl({"id": 1, "text": None, "user": 1}),
        source=J | {"text_template": "{user}: {text}"},
        says="text must not be null",
    ),
    # the whole corpus
    "too few records": Broken(write=raw(lines(GOOD[:3])), source=J, says="got 3 read"),
    "too few distinct records": Broken(
        write=raw(lines({"id": i, "text": SENTINEL} for i in range(20))),
        source=J,
        says="got 1 kept after deduplication",
    ),
    "split empty by chance": Broken(
        write=raw(lines(GOOD[:10])),
        source=J,
        says="split test: must hold a record, got 0",
        arguments={"splits": SplitSettings(validation=0.6, test=0.001)},
    ),
    "one unit only": Broken(
        write=raw(lines(row | {"user": "u"} for row in GOOD)),
        source=J | {"unit_column": "user"},
        says="split validation: must hold a record, got 0",
        arguments=USER,
    ),
    "split file empty": Broken(
        write=both(jsonl(), raw(b"", "b.jsonl")), source=PAIR, says="b.jsonl"
    ),
    "split file without records": Broken(
        write=both(raw(CSV_GOOD, "a.csv"), raw("id,text\n", "b.csv")),
        source={"kind": "csv", "train": "a.csv", "test": "b.csv", "id_column": "id"},
        says="split test: must hold a record, got 0",
    ),
    "split file missing": Broken(write=jsonl(), source=PAIR, says="b.jsonl"),
    "ids start anew": Broken(
        write=both(jsonl(), jsonl(name="b.jsonl")),
        source=PAIR,
        says="ids_are_per_split",
    ),
    "user in two splits": Broken(
        write=both(jsonl(), raw(lines([{"id": 1, "text": "x", "user": 3}]), "b.jsonl")),
        source=PAIR | {"unit_column": "user"},
        says="in one split",
        arguments=USER,
    ),
    "unknown split": Broken(
        write=raw(lines(row | {"split": SENTINEL} for row in GOOD)),
        source=J | {"split_column": "split"},
        says="split must be train, validation or test",
    ),
    "null split": Broken(
        write=raw(lines(row | {"split": None} for row in GOOD)),
        source=J | {"split_column": "split"},
        says="split must be",
    ),
    # the hub
    "hub without a network": Broken(
        source={"kind": "hub", "name": "nobody/nothing", "split": "train"},
        error=DependencyError,
        says="hf download nobody/nothing",
    ),
    "hub folder without data": Broken(
        write=lambda folder: (folder / "d").mkdir(),
        source={"kind": "hub", "name": "d", "split": "train"},
        error=DependencyError,
        says="data.name",
    ),
    # the configuration
    "unknown kind": Broken(source={"kind": "excel"}, error=ConfigError, says="data"),
    "no kind": Broken(source={"path": "x"}, error=ConfigError, says="kind"),
    "unknown key": Broken(
        source=J | {"txt": SENTINEL}, error=ConfigError, says="data.jsonl.txt"
    ),
    "no path": Broken(
        source={"kind": "text"}, error=ConfigError, says="path and train"
    ),
    "path and train": Broken(
        source=J | {"train": "x"}, error=ConfigError, says="exactly one"
    ),
    "path and test": Broken(
        source=J | {"test": "x"}, error=ConfigError, says="set train"
    ),
    "files and split column": Broken(
        source=PAIR | {"split_column": "x"}, error=ConfigError, says="split_column"
    ),
    "path with NUL": Broken(source=J | {"path": "a\0b"}, error=ConfigError, says="NUL"),
    "unknown encoding": Broken(
        source=J | {"encoding": "klingon"}, error=ConfigError, says="encoding"
    ),
    "encoding that is none": Broken(
        source=J | {"encoding": "rot13"}, error=ConfigError, says="encoding"
    ),
    "template with an attribute": Broken(
        source=J | {"text_template": "{text.__class__}"},
        error=ConfigError,
        says="plain",
    ),
    "template with an index": Broken(
        source=J | {"text_template": "{text[0]}"}, error=ConfigError, says="plain"
    ),
    "template with a format": Broken(
        source=J | {"text_template": "{text:>9999999}"}, error=ConfigError, says="plain"
    ),
    "template with a conversion": Broken(
        source=J | {"text_template": "{text!r}"}, error=ConfigError, says="plain"
    ),
    "template without columns": Broken(
        source=J | {"text_template": "hello"}, error=ConfigError, says="one column"
    ),
    "template with an open brace": Broken(
        source=J | {"text_template": "{text"}, error=ConfigError, says="balanced"
    ),
    "delimiter of two characters": Broken(
        source=C | {"delimiter": "::"}, error=ConfigError, says="one character"
    ),
    "delimiter is the quote": Broken(
        source=C | {"delimiter": '"'}, error=ConfigError, says="apart"
    ),
    "pattern leaves the folder": Broken(
        source={"kind": "folder", "path": ".", "pattern": "../*"},
        error=ConfigError,
        says="relative glob",
    ),
    "pattern is malformed": Broken(
        source={"kind": "folder", "path": ".", "pattern": "**x"},
        error=ConfigError,
        says="relative glob",
    ),
    "hub without a split": Broken(
        source={"kind": "hub", "name": "x"}, error=ConfigError, says="split and train"
    ),
    "hub with split and test": Broken(
        source={"kind": "hub", "name": "x", "split": "a", "test": "b"},
        error=ConfigError,
        says="set train",
    ),
    "hub with splits and split column": Broken(
        source={"kind": "hub", "name": "x", "train": "a", "split_column": "b"},
        error=ConfigError,
        says="split_column",
    ),
    "synthetic without records": Broken(
        source={"kind": "synthetic", "num_records": 0}, error=ConfigError, says="than"
    ),
    # arguments
    "threshold out of range": Broken(
        write=jsonl(),
        source=J,
        error=ConfigError,
        says="near_duplicate_threshold",
        arguments={"near_duplicate_threshold": 1.5},
    ),
    "fewer records than the least": Broken(
        write=jsonl(),
        source=J,
        error=ConfigError,
        says="max_records",
        arguments={"max_records": 3},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_build_corpus_of_broken_input_names_fault_without_text(name, tmp_path):
    case = BROKEN[name]
    case.write(tmp_path)
    arguments = {"privacy_unit": PrivacyUnit.RECORD} | dict(case.arguments)

    with pytest.raises(case.error) as caught:
        build_corpus(parse_source(case.source), data_root=tmp_path, **arguments)

    assert type(caught.value) is case.error
    assert case.says in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    for word in (*SENTINEL.split(), str(tmp_path)):
        assert word not in f"{caught.value} {caught.value!r}"


def test_broken_table_is_long():
    assert len(BROKEN) >= 80


def test_build_corpus_with_many_faults_tells_all_at_once(tmp_path):
    bad = [
        {"id": 1, "text": None},
        {"id": 2, "text": ""},
        {"id": 2, "text": "x"},
        {"id": 3, "text": 7},
    ]
    both(jsonl(*bad), raw(SENTINEL.encode("utf-16"), "b.jsonl"))(tmp_path)
    with pytest.raises(DataError) as caught:
        build_corpus(
            parse_source(PAIR), privacy_unit=PrivacyUnit.RECORD, data_root=tmp_path
        )
    assert len(caught.value.problems) == 5
    assert "undecodable" in str(caught.value)


def test_build_corpus_with_a_fault_in_every_row_names_five(tmp_path):
    raw(lines({"id": i, "text": None} for i in range(1000)))(tmp_path)
    with pytest.raises(DataError) as caught:
        build_corpus(
            parse_source(J), privacy_unit=PrivacyUnit.RECORD, data_root=tmp_path
        )
    assert "and 995 more rows" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_split_settings_out_of_range_tell_both():
    with pytest.raises(ConfigError) as caught:
        SplitSettings(validation=-0.1, test=float("nan"))
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="leave a share"):
        SplitSettings(validation=0.5, test=0.5)
