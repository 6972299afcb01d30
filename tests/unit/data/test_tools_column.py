"""Functions that conversations of a source declare, in a column beside messages."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dptune.conversation import TOOLS, tools_of, turns_of
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.messages import read_conversation
from dptune.data.source import CsvSource, JsonlSource, ParquetSource
from dptune.errors import DataError
from dptune.privacy import PrivacyUnit
from dptune.workflow.chats import unread_keys

COLUMNS = {"messages_column": "messages", "tools_column": "tools", "id_column": "id"}


def function(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": []}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Calls {name}",
            "parameters": parameters,
        },
    }


TOOLS_OF = [
    function("pay", to={"type": "string", "description": "Who"}),
    function("ask", n={"type": "integer", "default": 3}),
]


def rows(count=12):
    return [
        {
            "id": str(number),
            "messages": [
                {"role": "user", "content": f"Hi {number}"},
                {"role": "assistant", "content": f"Hello {number}"},
            ],
            "tools": TOOLS_OF if number % 3 else None,
        }
        for number in range(count)
    ]


def build(source, folder, **options):
    return build_corpus(
        source,
        data_root=folder,
        privacy_unit=PrivacyUnit.RECORD,
        validate=False,
        **options,
    )


def write_jsonl(folder, values):
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, values)))
    return JsonlSource(path="chats.jsonl", **COLUMNS)


def test_tools_of_json_lines_parquet_and_csv_are_one_corpus(tmp_path):
    wanted = build(write_jsonl(tmp_path, rows()), tmp_path)
    first = {turn.role for turn in turns_of(wanted.dataset[0]["text"])}
    assert first == {"user", "assistant"}
    text = wanted.dataset[1]["text"]
    assert tools_of(text) == TOOLS_OF
    declared = [turn for turn in turns_of(text) if turn.role == TOOLS]
    assert [turn.speaker for turn in declared] == ["system", "system"]
    assert not any(turn.trained for turn in declared)
    left_out = [{k: v for k, v in row.items() if v is not None} for row in rows()]
    same = build(write_jsonl(tmp_path, left_out), tmp_path)
    assert same.fingerprint == wanted.fingerprint
    pq.write_table(pa.Table.from_pylist(rows()), tmp_path / "nested.parquet")
    texts = [
        {k: v if k == "id" else json.dumps(v or "") for k, v in row.items()}
        for row in rows()
    ]
    for row in texts:
        row["tools"] = "" if row["tools"] == '""' else row["tools"]
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "json.parquet")
    with (tmp_path / "chats.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(texts[0]))
        writer.writeheader()
        writer.writerows(texts)
    for other in (
        ParquetSource(path="nested.parquet", **COLUMNS),
        ParquetSource(path="json.parquet", **COLUMNS),
        CsvSource(path="chats.csv", **COLUMNS),
    ):
        assert build(other, tmp_path).fingerprint == wanted.fingerprint


def test_bare_functions_are_read_as_openai_wrote_them_before():
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    bare = [one["function"] for one in TOOLS_OF]
    texts = {
        read_conversation(asked, learnt=["assistant"], tools=given).text
        for given in (TOOLS_OF, bare, json.dumps(TOOLS_OF))
    }
    assert len(texts) == 1
    for nothing in (None, [], "", "[]"):
        text = read_conversation(asked, learnt=["assistant"], tools=nothing).text
        assert text == read_conversation(asked, learnt=["assistant"]).text


def test_tools_are_part_of_what_a_record_is_known_by(tmp_path):
    values = rows(120)
    for row in values:
        row["messages"] = rows(1)[0]["messages"]
        row["tools"] = [function(f"pay_{int(row['id']) // 2}")]
    source = write_jsonl(tmp_path, values)
    report = build(source, tmp_path, duplicates=Duplicates.KEEP).report
    assert report.num_exact_duplicates == 60


def test_tools_of_all_make_no_conversations_near_duplicates(tmp_path):
    values = rows(30)
    for row in values:
        row["tools"] = [function(f"call_{n}") for n in range(20)]
        words = [f"w{row['id']}{n}" for n in range(20)]
        row["messages"][0]["content"] = " ".join(words)
    report = build(write_jsonl(tmp_path, values), tmp_path).report
    assert report.num_near_duplicates == 0


BAD = {
    "text": "SECRET",
    "object": {"name": "SECRET"},
    "words": ["SECRET"],
    "nameless": [{"type": "function", "function": {"description": "SECRET"}}],
    "name": [function('SECRET"')],
    "list": [{"type": "function", "function": ["SECRET"]}],
    "mark": [function("f", a={"description": "SECRET\ufdd1"})],
    "key": [function("f", **{"SECRET\ufdd0": {}})],
    "half": [function("f", a={"description": "SECRET\ud800"})],
    "number": [function("f", a={"default": 1e999})],
    "masks": [function("f") | {"masks": [3]}],
}


def test_bad_tools_are_named_by_row_at_once_without_text(tmp_path):
    values = [*rows(), *(rows(1)[0] | {"id": n, "tools": t} for n, t in BAD.items())]
    with pytest.raises(DataError) as caught:
        build(write_jsonl(tmp_path, values), tmp_path)
    message = str(caught.value)
    assert "SECRET" not in message
    for row in range(len(rows()) + 1, len(values) + 1):
        (line,) = [line for line in message.splitlines() if f"row {row}" in line]
        assert "tools must" in line
    deep = {"a": 1}
    for _ in range(250):
        deep = {"a": deep}
    asked = [{"role": "assistant", "content": "b"}]
    found = read_conversation(
        asked, learnt=["assistant"], tools=[function("f", a=deep)]
    )
    assert found.text is None


def test_tools_that_no_setting_names_are_told(tmp_path):
    source = write_jsonl(tmp_path, rows())
    assert unread_keys(build(source, tmp_path).report) == ()
    unnamed = source.model_copy(update={"tools_column": None})
    (warning,) = unread_keys(build(unnamed, tmp_path).report)
    assert "column tools (1)" in warning
    assert "data.source.tools_column" in warning
