"""`run.py review`: written only where asked, refused helpfully, readable status."""

import json
import re

import pytest


@pytest.fixture
def config(values, write_config, tmp_path):
    rows = [
        {"id": f"r{i}", "text": f"Hello, I am Ann Lee. My pal frank rose came, {i}."}
        for i in range(260)
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "corpus.jsonl").write_text(lines + "\n")
    values["data"]["source"] = {
        "kind": "jsonl",
        "path": "corpus.jsonl",
        "id_column": "id",
    }
    values["data"]["near_duplicate_threshold"] = None
    return write_config(values)


def decisions_of(page, *, missed=()):
    """Decide every sentence of a page, as its reader would."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    decisions = []
    for item in data["items"]:
        at = item["text"].find("frank rose")
        places = [{"start": at, "end": at + 10}] if at >= 0 and missed else []
        decisions.append({"id": item["id"], "missed": places})
    return {
        "format": "dptune-review-decisions",
        "version": 1,
        "sample": data["sample"],
        "view": "original",
        "decisions": decisions,
    }


def test_export_import_status_tell_one_story(config, run_cli, tmp_path):
    page = tmp_path / "page.html"
    lines = tmp_path / "lines.jsonl"
    made = run_cli(
        "review", "export", config, "--html", page, "--jsonl", lines, "--size", 30
    )
    assert made.code == 0, made.err
    for file in (page, lines):
        assert file.stat().st_mode & 0o777 == 0o600
    assert "Ann Lee" not in lines.read_text()
    assert "without a single miss it shows" in made.out
    decisions = tmp_path / "decisions.json"
    decisions.write_text(json.dumps(decisions_of(page.read_text(), missed=True)))
    open_one = run_cli("review", "status")
    assert "0 of 30" in open_one.out
    nothing = tmp_path / "nothing.json"
    nothing.write_text(json.dumps(decisions_of(page.read_text())))
    assert "conditional" not in run_cli("review", "import", nothing).out
    taken = run_cli("review", "import", decisions)
    assert taken.code == 0, taken.err
    assert "30 of 30 decided" in taken.out
    assert "missing rate" in taken.out
    assert "conditional where marks matter" in taken.out
    after = run_cli("review", "status")
    assert "30 of 30" in after.out
    assert "1 phrases are always marked" in after.out
    for outcome in (made, open_one, taken, after):
        assert not re.search("(?i)ann lee|frank|rose", outcome.out + outcome.err)


def test_export_that_fails_leaves_nothing_behind(config, run_cli, tmp_path):
    """It left the key of reviews beside no review."""
    (tmp_path / "corpus.jsonl").write_text("no JSON\n")
    page = tmp_path / "page.html"
    run_cli("review", "export", config, "--html", page).assert_refused("row 1")
    assert not page.exists()


def test_export_without_a_file_is_refused_and_creates_nothing(config, run_cli):
    run_cli("review", "export", config).assert_refused("--html", "only where you say")


def test_export_never_overwrites(config, run_cli, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    outcome = run_cli("review", "export", config, "--html", page)
    outcome.assert_refused("must be a new file")
    assert page.read_text() == "mine"


def test_page_and_lines_are_two_files_however_they_are_written(
    config, run_cli, tmp_path
):
    same = tmp_path / "data" / ".." / "page.html"
    same.parent.parent.mkdir(exist_ok=True)
    outcome = run_cli(
        "review", "export", config, "--html", tmp_path / "page.html", "--jsonl", same
    )
    outcome.assert_refused("--jsonl", "must not be the page's file")


def test_import_before_any_export_says_what_to_do(run_cli, tmp_path):
    file = tmp_path / "d.json"
    file.write_text("{}")
    run_cli("review", "import", file).assert_refused("review export")
    run_cli("review", "import", tmp_path / "none.json").assert_refused("FILE")


def test_import_lists_every_problem_and_quotes_nothing(config, run_cli, tmp_path):
    page = tmp_path / "page.html"
    run_cli("review", "export", config, "--html", page, "--size", 20)
    values = decisions_of(page.read_text())
    values["decisions"][0]["missed"] = [{"start": 3, "end": 1}]
    values["decisions"][1]["id"] = "f" * 32
    file = tmp_path / "d.json"
    file.write_text(json.dumps(values))
    outcome = run_cli("review", "import", file)
    assert outcome.code == 2
    assert "2 problems" in outcome.err
    assert "decisions[0].missed[0]" in outcome.err
    assert "decisions[1].id" in outcome.err


def test_status_without_reviews_says_how_to_begin(run_cli):
    outcome = run_cli("review", "status")
    assert outcome.code == 0
    assert "review export" in outcome.out
    assert not outcome.home.exists()
