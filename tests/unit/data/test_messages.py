"""Conversations of sources: what is read, and what is refused."""

import json
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dptune.conversation import (
    ROLES,
    Turn,
    contents_only,
    is_conversation,
    join_turns,
    messages_of,
    turns_of,
)
from dptune.data import checks
from dptune.data.building import build_corpus
from dptune.data.messages import read_conversation
from dptune.data.source import CsvSource, FolderSource, JsonlSource, ParquetSource
from dptune.errors import DataError
from dptune.privacy import PrivacyUnit
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator
from dptune.text import Span
from dptune.workflow.chats import unread_keys

CHAT = [
    {"role": "system", "content": ""},
    {"role": "user", "content": "Hi {n}"},
    {"role": "assistant", "content": "Hello {n}"},
]


def said(text):
    return [(turn.role, turn.said()[0], turn.trained) for turn in turns_of(text)]


def rows(count=12, **changes):
    return [
        {
            "id": str(number),
            "messages": [
                {**m, "content": m["content"].format(n=number), **changes} for m in CHAT
            ],
        }
        for number in range(count)
    ]


def build(source, folder, **options):
    options = {"privacy_unit": PrivacyUnit.RECORD, "validate": False, **options}
    return build_corpus(source, data_root=folder, **options)


def write_jsonl(folder, values):
    path = folder / "chats.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8")
    return JsonlSource(path="chats.jsonl", messages_column="messages", id_column="id")


def test_messages_of_json_lines_parquet_and_csv_are_one_corpus(tmp_path):
    source = write_jsonl(tmp_path, rows())
    wanted = build(source, tmp_path)
    pq.write_table(pa.Table.from_pylist(rows()), tmp_path / "chats.parquet")
    lines = [f'{r["id"]},"{json.dumps(r["messages"]).replace(chr(34), 2 * chr(34))}"'
             for r in rows()]  # fmt: skip
    (tmp_path / "chats.csv").write_text("\n".join(["id,messages", *lines]))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.jsonl").write_bytes((tmp_path / "chats.jsonl").read_bytes())
    columns = {"messages_column": "messages", "id_column": "id"}
    others = [
        ParquetSource(path="chats.parquet", **columns),
        CsvSource(path="chats.csv", **columns),
        FolderSource(path="more", pattern="*.jsonl", format="jsonl", **columns),
    ]
    assert said(wanted.dataset[0]["text"])[1:] == [
        ("user", "Hi 0", False),
        ("assistant", "Hello 0", True),
    ]
    for other in others:
        assert build(other, tmp_path).fingerprint == wanted.fingerprint


def test_prompt_and_completion_are_a_conversation(tmp_path):
    values = [{"id": n, "q": f"why {n}", "a": f"so {n}"} for n in range(12)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, values)))
    source = JsonlSource(
        path="pairs.jsonl", prompt_column="q", completion_column="a", id_column="id"
    )
    found = said(build(source, tmp_path).dataset[3]["text"])
    assert found == [("user", "why 3", False), ("assistant", "so 3", True)]
    values[4]["a"] = None
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, values)))
    with pytest.raises(DataError, match=r"row 5 \(id 4\): every content .* got null"):
        build(source, tmp_path)


def test_sharegpt_names_are_read():
    names = {"human": "user", "gpt": "assistant", "system": "system", "tool": "tool"}
    names |= {"function_call": "assistant", "observation": "tool"}
    found = read_conversation(
        [{"from": name, "value": name} for name in names], learnt=["assistant", "tool"]
    )
    assert [role for role, _, _ in said(found.text)] == list(names.values())
    learnt = [role in ("assistant", "tool") for role in names.values()]
    assert [is_learnt for _, _, is_learnt in said(found.text)] == learnt


def test_weight_zero_keeps_a_turn_from_being_learnt():
    answers = [{"role": "assistant", "content": str(w), "weight": w} for w in (0, 1)]
    assert [t.trained for t in turns_of(read_conversation(answers, learnt=["assistant"]).text)] == [False, True]  # fmt: skip  # noqa: E501


def test_calls_are_read_in_every_form_that_is_usual():
    arguments = {"to": "Ann", "n": [1, None]}
    function = {"name": "send", "arguments": arguments}
    forms = [
        {"type": "function", "id": "c1", "function": function},
        {"function": function | {"arguments": json.dumps(arguments)}},
        function,
        {"function": function | {"arguments": json.dumps(arguments, indent=2)}},
    ]
    texts = {
        read_conversation(
            [{"role": "assistant", "content": None, "tool_calls": [form], "x": None}],
            learnt=["assistant"],
        ).text
        for form in forms
    }
    (text,) = texts
    assert said(text) == [
        ("assistant", "", False),
        ("call", json.dumps(function), True),
    ]
    assert messages_of(text) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
    ]


@pytest.mark.parametrize("weight", [{}, {"weight": 0}])
def test_calls_of_older_formats_are_the_same_calls(weight):
    function = {"name": "send", "arguments": {"to": "Ann"}}
    asked, done = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ok"},
    )
    called = {"role": "assistant", "content": None, **weight}
    wanted = [asked, {**called, "tool_calls": [{"function": function}]}, done]
    given = {**function, "arguments": json.dumps(function["arguments"])}
    older = [asked, {**called, "function_call": given}, done]
    said = json.dumps(function, indent=1)
    sharegpt = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": said, **weight},
        {"from": "gpt", "value": "Ok"},
    ]
    texts = {
        read_conversation(form, learnt=["assistant"]).text
        for form in (wanted, older, sharegpt)
    }
    assert len(texts) == 1
    assert None not in texts
    for said in (
        "[]",
        "call Ann",
        '{"name": "f"}',
        '{"name": "f", "arguments": 3}',
        "7",
    ):
        sharegpt[1]["value"] = said
        found = read_conversation(sharegpt, learnt=["assistant"])
        assert [turn.said()[0] for turn in turns_of(found.text)] == ["Hi", said, "Ok"]


def test_calls_of_a_message_that_is_not_learnt_are_not():
    message = {"role": "assistant", "content": "", "tool_calls": [CALLED], "weight": 0}
    answer = {"role": "assistant", "content": "x"}
    text = read_conversation([message, answer], learnt=["assistant"]).text
    assert [learnt for _, _, learnt in said(text)] == [False, False, True]
    assert messages_of(text, learnt=["assistant"])[0]["weight"] == 0


def test_parts_of_type_text_are_joined():
    parts = [{"type": "text", "text": "Hi "}, {"text": "Ann", "type": "text"}]
    found = read_conversation(
        [{"role": "user", "content": parts}, {"role": "assistant", "content": "x"}],
        learnt=["assistant"],
    )
    assert said(found.text)[0][1] == "Hi Ann"


GOOD = {"role": "assistant", "content": "SECRET"}
CALLED = {"function": {"name": "f", "arguments": {"to": "SECRET"}}}
BAD = {
    "null": (None, "messages must be a list"),
    "empty": ([], "got an empty list"),
    "text": ("SECRET", "JSON of one"),
    "strings": (["SECRET"], "role and content"),
    "role": ([{"role": "SECRET", "content": "x"}], "every role must be one of"),
    "content": ([GOOD, {"role": "user", "content": None}], "content .* got null"),
    "parts": ([{"role": "assistant", "content": [{"text": "SECRET"}]}], "got list"),
    "calls": (
        [{"role": "assistant", "content": "", "tool_calls": [{"name": "SECRET"}]}],
        "tool_calls must have arguments that are an object of JSON",
    ),
    "arguments": (
        [{**GOOD, "tool_calls": [{"function": {"arguments": {"to": "SECRET"}}}]}],
        "tool_calls must name a function",
    ),
    "call": ([{**GOOD, "tool_calls": "SECRET"}], "must be a list of calls"),
    "user's": (
        [GOOD, {"role": "user", "content": "x", "tool_calls": [CALLED]}],
        "tool_calls must be of the assistant",
    ),
    "twice": (
        [
            {
                **GOOD,
                "tool_calls": [{"name": "f", "arguments": '{"a": 1, "a": "SECRET"}'}],
            }
        ],
        "arguments that are an object of JSON",
    ),
    "number": (
        [{**GOOD, "tool_calls": [{"name": "f", "arguments": {"SECRET": 1e999}}]}],
        "arguments that are an object of JSON",
    ),
    "more": (
        [{**GOOD, "tool_calls": [{**CALLED, "result": "SECRET"}]}],
        "nothing else to learn",
    ),
    "marked": (
        [{**GOOD, "tool_calls": [{"name": "f", "arguments": {"a": "\ufdd1"}}]}],
        "U.FDD0",
    ),
    "masked": ([{**GOOD, "tool_calls": [{**CALLED, "masks": [3]}]}], "masks must be"),
    "part": (
        [{"role": "user", "content": [{"type": "text", "text": "x", "id": "SECRET"}]}],
        "got list",
    ),
    "several": (
        [{**GOOD, "reasoning": "SECRET", "documents": ["SECRET"], "tools": ["x"]}],
        "may have tools, documents, reasoning,",
    ),
    "called": (
        [{"role": "assistant", "content": None, "function_call": {"name": "SECRET"}}],
        "arguments that are an object of JSON",
    ),
    "called twice": (
        [{**GOOD, "function_call": {"name": "SECRET"}, "tool_calls": [CALLED]}],
        "no message may have function_call",
    ),
    "nested": ({"messages": [GOOD], "tools": ["SECRET"]}, "list .* got dict"),
    "masks": ([{**GOOD, "content": "<mask> SECRET", "masks": [1]}], "masks must be"),
    "mask": ([{**GOOD, "masks": "SECRET"}], "masks must be"),
    "marks": ([{"role": "assistant", "content": "SECRET\ufdd1user\ufdd2"}], "U.FDD0"),
    "weight": ([{**GOOD, "weight": 0.5}], "weight must be 0 or 1"),
    "untrained": ([{"role": "user", "content": "SECRET"}], "a turn of assistant to"),
    "blank": ([{"role": "assistant", "content": " \n"}], "to learn, got none"),
    "surrogate": ([{"role": "assistant", "content": "SECRET\ud800"}], "surrogate"),
}


def test_bad_conversations_are_all_named_by_row_at_once_without_text(tmp_path):
    values = rows()
    for number, (messages, _) in enumerate(BAD.values()):
        values.append({"id": f"bad{number}", "messages": messages})
    source = write_jsonl(tmp_path, values)
    with pytest.raises(DataError) as caught:
        build(source, tmp_path)
    message = str(caught.value)
    assert "SECRET" not in message
    for row, (_, words) in enumerate(BAD.values(), start=len(rows()) + 1):
        lines = [line for line in message.splitlines() if f"row {row}" in line]
        assert lines, row
        assert re.search(words, " ".join(lines)), (row, words)


def test_keys_that_nobody_reads_are_counted_and_named_without_text(tmp_path):
    values = rows(30)
    for row in values[:20]:
        row["messages"][1] |= {"name": "SECRET", "SECRET": 1, "id": None, "date": ""}
        row["messages"][2] |= {"value": "SECRET", "weight": 1}
    for row in values:
        row["tools"] = ["SECRET"]
    report = build(write_jsonl(tmp_path, values), tmp_path).report
    assert report.unread == {
        "name": 20,
        "others": 20,
        "value": 20,
        "column tools": 1,
    }
    (warning,) = unread_keys(report)
    assert "name (20), others (20)" in warning
    assert "SECRET" not in warning + repr(report)
    assert unread_keys(build(write_jsonl(tmp_path, rows()), tmp_path).report) == ()


def test_columns_of_a_system_turn_or_of_half_a_question_are_told(tmp_path):
    values = [
        {"id": n, "instruction": f"why {n}", "input": "SECRET", "output": f"so {n}"}
        | {"system": "SECRET", "history": []}
        for n in range(12)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, values)))
    source = JsonlSource(
        path="pairs.jsonl",
        prompt_column="instruction",
        completion_column="output",
        id_column="id",
    )
    report = build(source, tmp_path).report
    unread = {"column system", "column input", "column history"}
    assert report.unread == dict.fromkeys(unread, 1)
    (warning,) = unread_keys(report)
    assert "column system (1)" in warning
    assert "SECRET" not in warning
    asked = source.model_copy(update={"prompt_column": "input"})
    assert "column input" not in build(asked, tmp_path).report.unread


def test_nothing_but_contents_reaches_the_text():
    planted = dict.fromkeys(
        ("name", "SECRET", "from", "value", "id", "metadata"), "SECRET"
    )
    found = read_conversation([{**GOOD, "content": "x", **planted}], learnt=ROLES)
    assert "SECRET" not in found.text
    assert len(found.unread) == len(planted)


def test_conversations_are_read_as_they_were_written():
    """What is not learnt, and masks of redaction beside typed ones, come back."""
    source = random.Random(3)  # noqa: S311 - a test's draw
    pieces = ("<mask>", "a<mask>b", " ", "\n", "<", "mask>", "x", "<<mask>>")
    learnt = ["assistant", "tool"]
    for _ in range(200):
        messages = [{"role": "assistant", "content": "end"}]
        for _ in range(source.randint(1, 4)):
            content = "".join(source.choices(pieces, k=source.randint(0, 4)))
            role, weight = source.choice(ROLES), source.randint(0, 1)
            messages.append({"role": role, "content": content, "weight": weight})
        text = read_conversation(messages, learnt=learnt).text
        redacted = text.replace("x", "<mask>").replace("end", "<mask> end")
        for one in (text, redacted):
            back = json.loads(
                json.dumps(messages_of(one, learnt=["assistant", "tool"]))
            )
            assert read_conversation(back, learnt=["assistant", "tool"]).text == one


@pytest.mark.parametrize("before", ["", "Ann", "\ufdef"])
def test_plain_text_that_holds_a_mark_is_refused(tmp_path, before):
    """What redaction deletes may stand before it, and leave a conversation."""
    forged = before + join_turns([Turn(role="assistant", content="SECRET")])
    lines = [{"id": n, "text": f"fine {n}"} for n in range(12)]
    lines.append({"id": 99, "text": forged})
    (tmp_path / "plain.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"row 13 \(id 99\): text must not hold") as e:
        build(JsonlSource(path="plain.jsonl", id_column="id"), tmp_path)
    assert "SECRET" not in str(e.value)


def test_twin_that_looks_at_the_first_character_lets_a_conversation_through(
    monkeypatch,
):
    forged = "Ann\ufdd1assistant\ufdd2 my letter"
    name = Span(start=0, end=3, entity_type="PERSON")
    deleted = redact_text(forged, [name], Operator.DELETE).text
    assert not is_conversation(forged)
    assert is_conversation(deleted)
    assert checks._text_fault(forged, None) is not None
    monkeypatch.setattr(checks, "RESERVED", re.compile("^[\ufdd0-\ufdef]"))
    assert checks._text_fault(forged, None) is None


def test_what_is_learnt_is_no_part_of_a_records_name(tmp_path):
    source = write_jsonl(tmp_path, rows()).model_copy(update={"id_column": None})
    found = [
        build(
            source.model_copy(update={"train_on": roles}),
            tmp_path,
            allow_content_hash_ids=True,
        )
        for roles in (None, ("user",), "all")
    ]
    ids = [list(corpus.dataset["id"]) for corpus in found]
    assert ids[0] == ids[1]
    assert found[0].fingerprint != found[1].fingerprint
    assert [t.trained for t in turns_of(found[1].dataset["text"][0])] == [
        False,
        True,
        False,
    ]


def test_roles_do_not_make_conversations_near_duplicates(tmp_path):
    values = [
        {"id": n, "messages": [m for k in range(9) for m in (
            {"role": "user", "content": f"{n}{k}"},
            {"role": "assistant", "content": f"{k}{n}x"})]}
        for n in range(100, 130)
    ]  # fmt: skip
    report = build(write_jsonl(tmp_path, values), tmp_path).report
    assert report.num_near_duplicates == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt_column": "p"}, "prompt_column and completion_column together"),
        ({"messages_column": "m", "text_column": "t"}, "text_column or text_template"),
        ({"messages_column": "m", "text_template": "{t}"}, "text_column or"),
        ({"train_on": ["assistant"]}, "train_on only beside"),
        ({"tools_column": "t"}, "tools_column only beside"),
        ({"messages_column": "m", "train_on": []}, "at least 1 item"),
        ({"messages_column": "m", "train_on": ["bot"]}, "train_on"),
        (
            {"messages_column": "m", "prompt_column": "p", "completion_column": "c"},
            "not both",
        ),
    ],
)
def test_source_refuses_settings_of_conversations_that_do_not_fit(settings, words):
    with pytest.raises(ValueError, match=words):
        JsonlSource(path="chats.jsonl", **settings)


def test_folder_of_text_files_has_no_conversations():
    with pytest.raises(ValueError, match="jsonl, csv or parquet"):
        FolderSource(path="chats", messages_column="m")


def test_sources_of_plain_text_are_written_down_as_before():
    written = JsonlSource(path="a.jsonl").model_dump()
    assert not {"messages_column", "prompt_column", "train_on"} & written.keys()


def test_contents_alone_keep_their_places():
    text = join_turns(
        [Turn(role="user", content="Ann"), Turn(role="tool", content="x")]
    )
    alone = contents_only(text)
    assert len(alone) == len(text)
    assert alone.split() == ["Ann", "x"]
    assert text.index("Ann") == alone.index("Ann")
    assert contents_only("user Ann") == "user Ann"
