"""`run.py detect` and `evaluate-detector`: shown, measured, and nothing kept."""

import json

import pytest

TEXT = "Hi, I am Ann Lee, mail ann.lee@example.org today"


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


def test_detect_takes_markup_as_text(run_cli):
    outcome = run_cli("detect", "[bold]Ann Lee[/bold] said hi")
    assert "[bold]" in outcome.out


def test_config_and_other_choices_contradict_each_other(run_cli, values, write_config):
    config = write_config(values)
    refused = run_cli("detect", TEXT, "--config", config, "--tier", "high_entity")
    refused.assert_refused("must stand alone")
    assert run_cli("detect", TEXT, "--config", config).code == 0


@pytest.fixture
def gold(tmp_path):
    rows = [
        {
            "text": f"Hello Ann Lee, number {i}.",
            "spans": [{"start": 6, "end": 13, "entity_type": "PERSON"}],
        }
        for i in range(20)
    ]
    rows.append({"text": "my friend rose came", "entities": [[10, 14, "PERSON"]]})
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
