"""`run.py detect` and `evaluate-detector`: shown, measured, and nothing kept."""

import json
import re

import pytest

from dptune.conversation import turns_of
from dptune.data.messages import read_conversation
from tests.llm_server import reply, serving

TEXT = "Hi, I am Ann Lee, mail ann.lee@example.org please"


def test_detect_shows_spans_and_stores_nothing(run_cli):
    outcome = run_cli("detect", TEXT)
    assert outcome.code == 0, outcome.err
    assert "Ann Lee⟨PERSON⟩" in outcome.out
    assert "ann.lee@example.org⟨EMAIL⟩" in outcome.out
    assert not outcome.home.exists()


def test_detect_reads_a_file_and_writes_a_private_page(run_cli, tmp_path):
    file, page = tmp_path / "letter.txt", tmp_path / "page.html"
    file.write_text(TEXT + " <script>alert(1)</script>")
    outcome = run_cli("detect", file, "--html", page)
    assert outcome.code == 0, outcome.err
    assert page.stat().st_mode & 0o777 == 0o600
    content = page.read_text()
    assert "<script" not in content
    assert "Ann Lee" in content
    run_cli("detect", file, "--html", page).assert_refused("must be a new file")


@pytest.mark.parametrize("text", ["", "   "])
def test_detect_without_text_is_refused(text, run_cli):
    run_cli("detect", text).assert_refused("must hold some text")


@pytest.mark.parametrize("words", [(), ("--json",), ("--redact", "mask")])
def test_detect_refuses_a_path_that_leads_nowhere(words, run_cli, tmp_path):
    for name in ("lettres.jsonl", tmp_path / "lettres"):
        run_cli("detect", name, *words).assert_refused("file that exists", "input: -")


@pytest.mark.parametrize(
    "text", ["and/or", "ann.lee@example.org", "https://example.org/a.json", "Ann.Lee"]
)
def test_detect_takes_a_word_as_text(text, run_cli):
    assert run_cli("detect", text).code == 0


def test_detect_takes_markup_as_text(run_cli):
    outcome = run_cli("detect", "[bold]Ann Lee[/bold] said hi")
    assert "[bold]" in outcome.out


def test_config_and_other_choices_contradict_each_other(run_cli, values, write_config):
    config = write_config(values)
    refused = run_cli("detect", TEXT, "--config", config, "--tier", "high_entity")
    refused.assert_refused("must stand alone")
    assert run_cli("detect", TEXT, "--config", config).code == 0


def test_detect_keeps_no_answer_of_a_model(run_cli, values, write_config):
    """Valid answers quote the text, and a run keeps them in the project folder."""
    pytest.importorskip("openai", reason="needs the extra llm")

    def honest(message, _call):
        control = re.search(r"greet (\w+ \w+) from me", message)[1]
        names = [{"text": name, "kind": "person"} for name in (control, "rose")]
        return reply(json.dumps({"findings": names}))

    with serving(honest) as (url, seen):
        values["detection"] = {
            "recognizers": ["patterns", "llm"],
            "llm": {"base_url": url, "model": "m"},
        }
        config = write_config(values)
        outcome = run_cli("detect", "my cousin rose told me", "--config", config)
    assert outcome.code == 0, outcome.err
    assert seen
    assert "rose⟨PERSON⟩" in outcome.out
    assert not outcome.home.exists(), outcome.created


@pytest.fixture
def gold(tmp_path):
    rows = [
        {
            "text": f"Hello Ann Lee, number {i}.",
            "spans": [{"start": 6, "end": 13, "entity_type": "PERSON"}],
        }
        for i in range(20)
    ]
    rows.append({"text": "it is the desk again", "entities": [[10, 14, "PERSON"]]})
    path = tmp_path / "gold.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_evaluate_writes_page_figures_and_next_steps(gold, run_cli, tmp_path):
    page = tmp_path / "out.html"
    outcome = run_cli("evaluate-detector", "--gold", gold, "--output", page)
    assert outcome.code == 0, outcome.err
    assert "recall of gold spans" in outcome.out
    assert "next" in outcome.out
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert page.with_suffix(".svg").read_text().startswith("<svg")
    assert "Ann" not in page.read_text()
    assert not outcome.home.exists()


def test_evaluate_as_json_is_the_whole_measurement(gold, run_cli):
    outcome = run_cli("evaluate-detector", "--gold", gold, "--json")
    found = json.loads(outcome.out)
    assert found["recall"]["value"] == pytest.approx(20 / 21)
    assert found["recall"]["interval"]["low"] < 20 / 21
    assert not outcome.home.exists()


def test_evaluate_names_rows_that_cannot_be_used(tmp_path, run_cli):
    path = tmp_path / "gold.jsonl"
    path.write_text('{"text": "Ann Lee"}\n')
    outcome = run_cli("evaluate-detector", "--gold", path)
    outcome.assert_refused("row 1", "docs/REVIEW.md")
    assert "Ann" not in outcome.err
    run_cli("evaluate-detector", "--gold", tmp_path / "none").assert_refused("readable")


def test_evaluate_lists_misses_and_false_alarms_in_a_private_file(
    gold, run_cli, tmp_path
):
    with gold.open("a") as sink:
        sink.write('\n{"text": "so I met Ann Lee there", "spans": []}')
    file = tmp_path / "misses.txt"
    outcome = run_cli("evaluate-detector", "--gold", gold, "--json", "--misses", file)
    assert outcome.code == 0, outcome.err
    assert file.stat().st_mode & 0o777 == 0o600
    content = file.read_text()
    assert "MISSED PERSON (text 21, 10 to 14)" in content
    assert "it is the [[desk]] again" in content
    assert "FALSE ALARM PERSON by tagger" in content
    assert "[[Ann Lee]]" in content
    assert "desk" not in outcome.out + outcome.err
    again = run_cli("evaluate-detector", "--gold", gold, "--misses", file)
    again.assert_refused("must be a new file")


def test_evaluate_tells_all_that_is_wrong_at_once(run_cli, tmp_path):
    arguments = ("--output", "x.txt", "--misses", tmp_path, "--gliner-model", "none")
    outcome = run_cli("evaluate-detector", "--gold", tmp_path / "none", *arguments)
    outcome.assert_refused("--output", "--misses", "readable", "gliner")


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "letters"
    (home / "old").mkdir(parents=True)
    (home / "a.txt").write_text(TEXT)
    (home / "old" / "b.txt").write_text("nothing but Bo Diaz")
    (home / ".hidden").write_bytes(b"\xff")
    return home


def test_detect_prints_json_without_the_text(run_cli, folder):
    outcome = run_cli("detect", folder, "--json")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["source"] for row in rows] == ["a.txt", "old/b.txt"]
    assert rows[0]["num_characters"] == len(TEXT)
    kinds = {span["entity_type"] for span in rows[0]["spans"]}
    assert kinds >= {"PERSON", "EMAIL"}
    assert "Ann" not in outcome.out
    assert not outcome.home.exists()


def test_detect_shows_a_folder_as_a_table(run_cli, folder):
    outcome = run_cli("detect", folder)
    assert outcome.code == 0, outcome.err
    assert "old/b.txt" in outcome.out
    assert "2 texts" in outcome.out
    assert "Ann" not in outcome.out


def test_detect_redacts_texts_and_folders(run_cli, folder, tmp_path):
    outcome = run_cli("detect", TEXT, "--redact", "typed")
    assert outcome.out.strip() == "Hi, I am <PERSON>, mail <EMAIL> please"
    target = tmp_path / "redacted"
    outcome = run_cli("detect", folder, "--redact", "mask", "--output", target)
    assert outcome.code == 0, outcome.err
    assert (target / "a.txt").read_text() == "Hi, I am <mask>, mail <mask> please"
    for file in (target / "a.txt", target / "old" / "b.txt"):
        assert file.stat().st_mode & 0o777 == 0o600
    assert not outcome.home.exists()
    assert not (target / ".hidden").exists()


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_file_of_a_folder_has_no_findings(run_cli, folder, tmp_path, text):
    (folder / "empty.txt").write_text(text)
    rows = run_cli("detect", folder, "--json").out.splitlines()
    spans = {row["source"]: row["spans"] for row in map(json.loads, rows)}
    assert list(spans) == ["a.txt", "empty.txt", "old/b.txt"]
    assert spans.pop("empty.txt") == []
    assert all(spans.values())
    assert "3 texts" in run_cli("detect", folder).out
    target = tmp_path / "redacted"
    assert run_cli("detect", folder, "--redact", "mask", "--output", target).code == 0
    assert (target / "empty.txt").read_text() == text


def test_redacted_conversations_are_read_again_as_they_were_redacted(
    run_cli, values, write_config, tmp_path
):
    chats = [
        {
            "id": n,
            "messages": [
                {"role": "user", "content": f"{n}: <mask>, ann.lee{n}@web.de"},
                {"role": "assistant", "content": "No.", "weight": 0},
                {"role": "assistant", "content": "Sent to ann.lee@web.de"},
            ],
            "tools": [
                {"name": "send", "description": "As <mask>"},
                {"name": "bill", "description": "<mask>", "to": f"ann.lee{n}@web.de"},
            ],
        }
        for n in range(12)
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    source = {"kind": "jsonl", "path": "chats.jsonl", "messages_column": "messages"}
    source |= {"tools_column": "tools", "id_column": "id"}
    values["data"] = {"source": source} | {
        "privacy_unit": "record", "duplicates": "keep", "min_records": 10,
    }  # fmt: skip
    values["model"] = {"source": {"kind": "path", "path": "none"}, "max_tokens": 96}
    values["canaries"]["role"] = "assistant"
    config, target = write_config(values), tmp_path / "out.jsonl"
    outcome = run_cli(
        "detect", "--config", config, "--redact", "config", "--output", target
    )
    assert outcome.code == 0, outcome.err
    for line in target.read_text().splitlines():
        row = json.loads(line)
        text = read_conversation(
            row["messages"], learnt=["assistant"], tools=row["tools"]
        ).text
        assert [t.trained for t in turns_of(text)] == [False] * 4 + [True]
        send, bill, typed, *_, redacted = turns_of(text)
        assert send.said()[0].count("<mask>") == 1 + send.content.count("<mask>") == 1
        assert bill.said()[0].count("<mask>") == 1 + bill.content.count("<mask>") == 2
        assert typed.said()[0].count("<mask>") == 2
        assert typed.content.count("<mask>") == redacted.content.count("<mask>") == 1
        assert "ann.lee" not in text
    shown = run_cli("detect", "--config", config, "--json")
    assert shown.code == 0, shown.err
    rows = {row["source"]: row for row in map(json.loads, shown.out.splitlines())}
    for chat in chats:
        contents = [message["content"] for message in chat["messages"]]
        marked = {
            contents[span["message"]][span["start"] : span["end"]]
            for span in rows[str(chat["id"])]["spans"]
            if span["entity_type"] == "EMAIL" and "message" in span
        }
        assert marked == {f"ann.lee{chat['id']}@web.de", "ann.lee@web.de"}
        (place,) = [s for s in rows[str(chat["id"])]["spans"] if "tool" in s]
        function = {"type": "function", "function": chat["tools"][place["tool"]]}
        said = json.dumps(function)[place["start"] : place["end"]]
        assert said == f"ann.lee{chat['id']}@web.de"


def test_detect_reads_the_corpus_of_a_configuration(
    run_cli, values, write_config, tmp_path
):
    config = write_config(values)
    outcome = run_cli("detect", "--config", config)
    assert outcome.code == 0, outcome.err
    assert "PERSON" in outcome.out
    target = tmp_path / "corpus.jsonl"
    outcome = run_cli(
        "detect", "--config", config, "--redact", "config", "--output", target
    )
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert {"id", "unit_id", "split", "text"} == set(rows[0])
    assert any("<mask>" in row["text"] for row in rows)
    assert target.stat().st_mode & 0o777 == 0o600


WRONG = [
    ((), ("TEXT",)),
    ((TEXT, "--output", "new"), ("--output",)),
    ((TEXT, "--redact", "burn"), ("--redact", "must be one of")),
    ((TEXT, "--redact", "config"), ("--redact",)),
    ((TEXT, "--redact", "encrypt"), ("DPTUNE_REDACTION_KEY",)),
    ((TEXT, "--only"), ("--only",)),
    ((TEXT, "--recognizer", "nope"), ("recognizers must be",)),
    ((TEXT, "--token-classifier", "nope"), ("local folder",)),
    (("", "--redact", "burn", "--recognizer", "nope"), ("TEXT", "--redact", "nope")),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_detect_tells_all_that_is_wrong_at_once(run_cli, arguments, says):
    run_cli("detect", *arguments).assert_refused(*says)


def test_detect_names_every_file_that_cannot_be_read_and_writes_nothing(
    run_cli, folder, tmp_path
):
    (folder / "bad.bin").write_bytes(b"\xff\xfe\xff")
    (folder / "worse.bin").write_bytes(b"\xff\xfe\xff")
    target = tmp_path / "redacted"
    outcome = run_cli("detect", folder, "--redact", "mask", "--output", target)
    outcome.assert_refused("bad.bin", "worse.bin")
    assert not target.exists()


def test_recognizer_that_is_named_adds_to_the_defaults(run_cli):
    alone = run_cli("detect", TEXT, "--recognizer", "patterns", "--only")
    assert "PERSON" not in alone.out
    added = run_cli("detect", TEXT, "--recognizer", "patterns")
    assert "patterns, tagger" in added.out
    assert "PERSON" in added.out
