"""Commands that need no earlier run; those that do are in tests/integration."""

import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from cli import main as entry
from cli.training import next_steps, say_remedies
from dptune.accounting.store.store import BudgetStore
from dptune.errors import DataError, GateFailedError, Problem
from tests.budgets import cost, grant, request
from tests.unit.reports.samples import gate_decision

REPOSITORY = Path(__file__).resolve().parents[3]
COMMANDS = (
    "quickstart",
    "invent",
    "train",
    "compare",
    "calibrate",
    "doctor",
    "audit",
    "detect",
    "evaluate-detector",
    "decrypt",
    "review",
    "gate",
    "promote",
    "rollback",
    "status",
    "configs",
    "dashboard",
    "mlflow",
    "stack",
    "cluster",
)


def test_help_lists_every_command_and_exit_code(run_cli):
    outcome = run_cli("--help")
    assert outcome.code == 0
    for word in (*COMMANDS, "Exit codes"):
        assert word in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_teaches_and_creates_nothing(command, run_cli):
    outcome = run_cli(command, "--help")
    assert outcome.code == 0
    assert "Usage" in outcome.out
    assert not outcome.home.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("tarin",),
        ("train",),
        ("compare",),
        ("compare", "absent.yaml"),
        ("train", "x.yaml", "--sett", "a=1"),
        ("gate",),
        ("promote", "m"),
        ("mlflow", "--port", "0"),
        ("quickstart", "--seed", "-1"),
    ],
)
def test_wrong_arguments_exit_2_without_a_trace(arguments, run_cli):
    run_cli(*arguments).assert_refused()


def test_invent_makes_what_trains_and_overwrites_nothing(run_cli, tmp_path):
    own = tmp_path / "data" / "gold.jsonl"
    own.parent.mkdir()
    own.write_text("mine")
    first = run_cli("invent")
    assert first.code == 0, first.err
    assert f"stays   {own}" in first.out
    assert own.read_text() == "mine"
    assert "made" not in run_cli("invent").out
    rows = [json.loads(line) for line in (own.parent / "chats.jsonl").open()]
    assert len(rows) == 2600
    tokenizer = AutoTokenizer.from_pretrained(own.parent / "small_model")
    lengths = [len(tokenizer.apply_chat_template(r["messages"])) for r in rows[:20]]
    model = AutoModelForCausalLM.from_pretrained(own.parent / "small_model")
    assert max(lengths) <= model.config.n_positions


def test_configs_lists_every_file_and_creates_nothing(run_cli):
    outcome = run_cli("configs")
    assert outcome.code == 0
    for folder in ("train", "recipes", "gates", "profiles"):
        files = list((REPOSITORY / "configs" / folder).glob("*.yaml"))
        assert files
        for file in files:
            assert file.stem in outcome.out
    assert not outcome.home.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["abcd", "customersim", "diabetes130", "imdb", "sst2", "unsw_nb15", "wikitext2"],
)
def test_configuration_of_a_published_corpus_can_be_planned(name, run_cli, shared_data):
    file = REPOSITORY / "configs" / "train" / f"{name}.yaml"
    outcome = run_cli("calibrate", file, "--json", data_root=shared_data)
    assert outcome.code == 0, outcome.err


def test_calibrate_shows_both_relations_and_writes_its_report_only(
    values, write_config, run_cli
):
    outcome = run_cli("calibrate", write_config(values))
    assert outcome.code == 0, outcome.err
    for words in (
        "private finetune",
        "noise per step",
        "record, add or remove one",
        "selective, replace one ◂ plan",
        "What if the target were",
        "Same target, another batch size",
        "signal-to-noise",
        "δ = 0.0001",
    ):
        assert words in outcome.out
    report = outcome.home / "reports" / "tiny-jft-calibration.html"
    assert str(report) in outcome.out
    assert outcome.created == ["reports", "reports/tiny-jft-calibration.html"]


def test_calibrate_says_that_unprotected_training_has_no_guarantee(
    values, write_config, run_cli
):
    outcome = run_cli("calibrate", write_config(values), "--set", "recipe=no_dp")
    assert outcome.code == 0
    assert "∞" in outcome.out
    assert "What if" not in outcome.out
    assert "--set recipe=no_dp" in outcome.out


@pytest.mark.parametrize(
    ("name", "start"), [("a.html", b"<!DOCTYPE html>"), ("a.png", b"\x89PNG")]
)
def test_calibrate_writes_where_it_is_told(
    name, start, values, write_config, run_cli, tmp_path
):
    outcome = run_cli("calibrate", write_config(values), "--output", tmp_path / name)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / name).read_bytes().startswith(start)
    assert not outcome.home.exists()


def test_calibrate_prints_json_and_nothing_else(values, write_config, run_cli):
    outcome = run_cli("calibrate", write_config(values), "--json")
    found = json.loads(outcome.out)
    assert found["epsilon"] <= found["target_epsilon"] == 8.0
    assert {p["relation"] for p in found["promises"]} == {
        "add_or_remove_one",
        "replace_one",
    }
    assert len(found["what_if"]["by_batch"]["epsilon"]) >= 3
    assert not outcome.home.exists()


def test_no_next_step_overwrites_a_configuration_that_was_edited(
    run_cli, tmp_path, monkeypatch
):
    copy = "cp configs/train/own_text.yaml configs/train/mine.yaml"
    monkeypatch.chdir(tmp_path)
    made = run_cli("init", "a project")
    assert "next cd 'a project'" in " ".join(made.out.split())
    monkeypatch.chdir(tmp_path / "a project")
    assert any(copy in step for step in next_steps("m", policy="quickstart"))
    assert not any(copy in step for step in next_steps("m"))
    again = run_cli("init")
    assert copy in again.out
    assert "next cd" not in " ".join(again.out.split())
    Path("configs/train/mine.yaml").write_text("name: mine\n")
    assert not any(copy in step for step in next_steps("m", policy="quickstart"))
    assert copy not in run_cli("init").out


@pytest.mark.parametrize(
    ("outcome", "said"),
    [("BLOCK", "to pass Memorization: Train with more noise.\n"), ("PASS", "")],
)
def test_refusal_is_followed_by_what_would_change_it(outcome, said):
    console = Console(file=StringIO())
    say_remedies(console, gate_decision(outcome))
    assert console.file.getvalue() == said


def test_next_step_calls_another_policy_stricter_and_not_the_same():
    stricter = "dptune gate m --policy default  (decide again, stricter)"
    assert stricter in next_steps("m", policy="selective")
    for policy in ("default", None):  # of a refused version no stricter one helps
        assert stricter not in next_steps("m", policy=policy)


GRANT = ("budget", "grant", "people", "--delta", "1e-5", "--epsilon")


def test_history_says_what_is_held_beside_what_was_drawn(run_cli, store):
    held = store.reserve(request(["a"], "first", cost(5), spare=cost(2)))
    for drawn, left in ((0, 7), (3, 4)):
        row = run_cli("budget", "history", "people").out
        assert re.search(rf"open +{drawn} +{left} *$", row, re.MULTILINE), row
        store.spend(held.id, cost(3), stage="private", num_steps=3)
    store.settle(held.id)
    row = run_cli("budget", "history").out
    assert re.search(r"settled +6 +0 *$", row, re.MULTILINE), row


def test_tables_of_the_budget_keep_words_and_ids_whole_in_a_narrow_terminal(
    run_cli, store, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    held = store.reserve(request(["a"], "first", cost(5), spare=cost(2)))
    assert held.id in run_cli("budget", "history").out
    shown = run_cli("budget", "show").out.split()
    assert {"people:", "allowed", "spent", "tuning", "record,", "selective,"} <= {
        *shown
    }


def test_grant_below_what_was_spent_says_what_follows(run_cli, store):
    held = store.reserve(request(["a"], "first", cost(5), spare=cost(2)))
    store.spend(held.id, cost(5), stage="private", num_steps=5)
    store.settle(held.id)
    told = {
        epsilon: "what comes is refused" in run_cli(*GRANT, epsilon).out
        for epsilon in ("0.001", "1000")
    }
    assert told == {"0.001": True, "1000": False}


def test_configs_lists_whole_sentences_and_how_to_use_them(run_cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run_cli("configs").out
    assert "configs/train: dptune train configs/train/NAME.yaml" in shown
    listed = (re.split(r"  +", ln.strip()) for ln in shown.splitlines() if "  " in ln)
    rows = {row[0]: row[-1] for row in listed}
    assert rows["selective"].endswith("or a review, and be small")
    assert rows["jft"] == "Just Fine-tune Twice"


def test_history_of_an_unknown_data_set_is_refused(run_cli, store):
    store.grant(grant(8.0), reason="")
    assert run_cli("budget", "history", "people").code == 0
    outcome = run_cli("budget", "history", "poeple")
    assert outcome.code == 2
    assert "one of people, got 'poeple'" in outcome.err


@pytest.fixture
def store(tmp_path):
    """The budget store of the project folder that `run_cli` works in."""
    (tmp_path / "home").mkdir()
    with BudgetStore.open(f"sqlite:///{tmp_path / 'home' / 'budget.db'}") as opened:
        yield opened


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_calibrate_refuses_what_the_data_set_cannot_pay_for_after_its_tables(
    options, values, write_config, run_cli
):
    values["budget"] = {"data_set": "letters"}
    path, words = write_config(values), ("--notion", "selective", "--delta", "1e-4")
    assert run_cli("budget", "grant", "letters", "--epsilon", "8", *words).code == 0
    outcome = run_cli("calibrate", path, *options)
    assert outcome.code == 2
    assert "spare block" in outcome.err
    assert "Nothing was created and no budget was spent." in outcome.err
    assert ("what_if" if options else "What if the target were") in outcome.out
    assert "next" not in outcome.out.splitlines()[-1]
    assert not (outcome.home / "reports").exists()
    assert run_cli("budget", "grant", "letters", "--epsilon", "20", *words).code == 0
    assert run_cli("calibrate", path, *options).code == 0


def test_adaptive_grant_is_told_and_shown(run_cli):
    terms = ("letters", "--epsilon", "8", "--delta", "1e-4", "--adaptive")
    outcome = run_cli("budget", "grant", *terms)
    assert "whatever is chosen for earlier releases" in " ".join(outcome.out.split())
    assert "adaptive" in run_cli("budget", "show").out


def test_calibrate_tells_a_wrong_output_with_all_other_problems(
    values, write_config, run_cli, tmp_path
):
    values["privacy"]["target_delta"] = 0.5
    path = write_config(values)
    for output in (tmp_path / "a.txt", tmp_path / "none" / "a.html"):
        outcome = run_cli("calibrate", path, "--output", output)
        outcome.assert_refused("2 problems", "--output", "privacy.target_delta")
    values["privacy"]["target_delta"] = 1e-4
    outcome = run_cli("calibrate", write_config(values), "--output", tmp_path / "a.gif")
    outcome.assert_refused("must end in .html or .png")


def raising(error):
    def command():
        raise error

    return lambda: command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GateFailedError("no"), 1),
        (DataError([Problem(path="row 1", message="must be text.")]), 2),
        (RuntimeError("record text Zebediah"), 3),
        (OSError("disk"), 3),
    ],
)
def test_errors_have_their_exit_codes_and_no_trace(error, code, run_cli, monkeypatch):
    monkeypatch.setattr(entry, "build_app", raising(error))
    outcome = run_cli()
    assert outcome.code == code
    assert "Traceback" not in outcome.out + outcome.err
    assert "Zebediah" not in outcome.out + outcome.err


def test_crash_leaves_its_trace_in_the_project_folder(run_cli, monkeypatch):
    monkeypatch.setattr(entry, "build_app", raising(RuntimeError("x")))
    outcome = run_cli()
    (trace,) = (outcome.home / "logs").glob("crash-*.txt")
    assert "RuntimeError" in trace.read_text()
    assert str(trace) in outcome.err.replace("\n", "")


def test_error_after_the_start_does_not_claim_that_nothing_happened(
    run_cli, monkeypatch
):
    error = DataError([Problem(path="row 1", message="must be text.")])
    error.add_note(entry.STARTED)
    monkeypatch.setattr(entry, "build_app", raising(error))
    outcome = run_cli()
    assert "Nothing was created" not in outcome.err
    assert "what was charged stays charged" in " ".join(outcome.err.split())


def test_interrupt_is_no_verdict(run_cli, monkeypatch):
    monkeypatch.setattr("cli.projects.speaker", raising(KeyboardInterrupt())())
    assert run_cli("configs").code not in (0, 1, 2)


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("gate", "m"), ("rollback", "m"), ("promote", "m", "--version", "1")],
)
def test_commands_on_versions_before_any_run_create_nothing(arguments, run_cli):
    run_cli(*arguments).assert_refused("nothing was trained in this project")


def test_findings_of_a_cluster_are_not_cut_off_in_a_narrow_terminal(
    run_cli, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run_cli("cluster", "check", "production")
    assert outcome.code == 1
    assert "…" not in outcome.out


def test_problem_without_a_path_begins_with_its_words(run_cli, tmp_path):
    (tmp_path / "file").write_text("no key")
    words = ("verify-decision", tmp_path / "file", "--key", tmp_path / "file")
    assert "  • --key must be" in run_cli(*words, "--digest", "x").err


def test_gate_with_a_broken_policy_is_refused(run_cli, tmp_path):
    policy = tmp_path / "p.yaml"
    policy.write_text("name: p\nnotion: selective\nmax_epsilons: 3\n")
    outcome = run_cli("gate", "m", "--policy", policy)
    outcome.assert_refused(
        "3 problems", "max_epsilons", "max_epsilon must", "max_delta"
    )


def test_run_py_returns_the_exit_code_to_the_shell(tmp_path):
    done = subprocess.run(
        [sys.executable, "run.py", "train", str(tmp_path / "none.yaml")],
        cwd=REPOSITORY,
        env=os.environ | {"DPTUNE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "existing file" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "home").exists()
