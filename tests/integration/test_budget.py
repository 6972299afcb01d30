"""The budget over real runs: reserved, spent, settled, shown, verified, refused."""

import json
import shlex
import stat
from datetime import timedelta

import pytest

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets, history
from dptune.accounting.store.verify import verify
from dptune.privacy import Notion
from dptune.workflow.budget import budget_cost

from .conftest import TINY


@pytest.fixture
def store(trained, project):
    made = BudgetStore.open(f"sqlite:///{project.home / 'budget.db'}")
    yield made
    made.engine.dispose()


def test_store_holds_what_the_journals_hold(store, project):
    charged = [
        budget_cost(entry)
        for file in (project.home / "runs").glob("*/ledger.jsonl")
        for entry in LedgerJournal(file).read().entries
    ]
    spent = [run.spent for run in history(store)]
    for notion in Notion:
        assert sum(c.count(notion) for c in spent) <= sum(
            c.count(notion) for c in charged
        )
    noisy = sum(c.count(Notion.SELECTIVE) for c in spent)
    assert noisy > sum(c.count(Notion.LOCAL) for c in spent)


def runs_of_the_fixture(store):
    return [run for run in history(store) if run.data_set == "default"]


def test_runs_are_settled_and_a_repeated_run_reserves_nothing(store):
    runs = runs_of_the_fixture(store)
    assert [r.recipe for r in runs[:2]] == ["jft", "no_dp"]
    assert {r.status for r in runs[:2]} == {ReservationStatus.SETTLED}
    assert len([r for r in runs if r.recipe == "jft"]) == 1
    assert all(r.is_complete for r in runs[:2])


def test_source_units_are_charged_and_canaries_are_not(store):
    assert {run.num_units for run in runs_of_the_fixture(store)} == {260}


def test_report_is_an_artifact_and_reaches_the_dossier(trained):
    report = trained["jft"].run.steps["settle_budget"].outputs["budget"][0].load()
    assert report.data_set == "default"
    assert report.num_open == 0
    assert report.head_sequence > 0


def test_store_verifies(store):
    assert verify(store).success


def test_key_is_for_its_owner_only(trained, project):
    key = project.home / "budget.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(bytes.fromhex(key.read_text())) == 32


def test_commands_show_what_was_spent(trained, project):
    code, text = project.run("budget", "show")
    assert code == 0
    for words in ("default", "selective, replace one", "260", "tuning", "next"):
        assert words in text
    code, text = project.run("budget", "history")
    assert code == 0
    for words in ("jft", "no_dp", "settled", "training"):
        assert words in text


def test_exported_head_confirms_the_store(trained, project):
    file = project.outside / "budget-export.json"
    assert project.run("budget", "export", file)[0] == 0
    assert project.run("budget", "export", file)[0] == 2
    code, text = project.run("budget", "verify", "--head", file)
    assert (code, "all as written" in text) == (0, True)
    content = json.loads(file.read_text())
    content["head"]["hash"] = "0" * 64
    file.write_text(json.dumps(content))
    code, text = project.run("budget", "verify", "--head", file)
    assert code == 1
    assert f"entry {content['head']['sequence']}" in text


@pytest.fixture
def lost(store, project):
    """The store is gone, and what was spent from it stands in journals and versions."""
    store.engine.dispose()
    files = list(project.home.glob("budget.db*"))
    for file in files:
        file.rename(project.outside / file.name)
    yield
    for file in project.home.glob("budget.db*"):
        file.unlink()
    for file in files:
        (project.outside / file.name).rename(file)


def test_lost_store_does_not_verify(lost, project):
    """`nothing was granted or spent`, it said; of a new one, `all as written`."""
    for there in (False, True):
        if there:
            BudgetStore.open(f"sqlite:///{project.home / 'budget.db'}").engine.dispose()
        code, text = project.run("budget", "verify")
        assert (code, "are not in the budget store" in text) == (1, True)
        assert "what paid for version" in text
        assert "all as written" not in text


def test_lost_store_is_not_taken_for_none(lost, project):
    code, text = project.run("budget", "export", project.outside / "none.json")
    assert (code, "must hold what earlier runs spent" in text) == (2, True)


def own(name, seed):
    """Texts of their own under a name of their own, see `dptune.workflow.naming`."""
    sets = (f"budget.data_set={name}", f"data.source.seed={seed}", "recipe=jft")
    return [part for one in sets for part in ("--set", one)]


SETS = own("small", 51)


def test_run_that_the_data_set_cannot_pay_for_is_refused_before_it_starts(
    trained, project
):
    terms = ("--notion", "selective", "--delta", "1e-4")
    assert project.run("budget", "grant", "small", "--epsilon", "2", *terms)[0] == 0
    runs = len(list((project.home / "runs").iterdir()))
    for command in ("train", "budget reserve"):
        code, text = project.run(*command.split(), TINY, *SETS)
        assert code == 2
        assert "2 is left" in " ".join(text.split())
        assert "no budget was spent" in text
    assert len(list((project.home / "runs").iterdir())) == runs


def test_reserved_ahead_and_released(trained, project):
    name = own("ahead", 52)
    code, text = project.run("budget", "reserve", TINY, *name)
    assert code == 0, text
    assert f"dptune train {TINY} {shlex.join(name)}  (spends it)" in text
    (held,) = (r for r in runs_of(project) if r.data_set == "ahead")
    assert held.is_open
    assert project.run("budget", "reserve", TINY, *name)[0] == 0
    assert project.run("budget", "release", held.id)[0] == 0
    (held,) = (r for r in runs_of(project) if r.data_set == "ahead")
    assert held.status is ReservationStatus.RELEASED
    assert held.spent.count(Notion.RECORD) == 0


def test_show_names_a_run_that_holds_and_how_to_release_it(
    trained, project, monkeypatch
):
    name = own("killed", 53)
    assert project.run("budget", "reserve", TINY, *name)[0] == 0
    (held,) = (r for r in runs_of(project) if r.data_set == "killed")
    text = project.run("budget", "show")[1]
    assert f"open: {held.id}, jft on killed, 0 of" in text
    assert f"budget release {held.id}" not in text
    monkeypatch.setattr("cli.budget._STALE", timedelta(0))
    text = project.run("budget", "show")[1]
    assert f"`dptune budget release {held.id}`" in text
    assert f"next    dptune budget release {held.id}" in text
    assert project.run("budget", "release", held.id)[0] == 0
    assert "open:" not in project.run("budget", "show")[1]


def test_same_texts_under_another_name_are_refused(trained, project):
    """A fresh name bought a fresh budget and fresh counts of attempts."""
    renamed = ("--set", "budget.data_set=renamed", "--set", "recipe=jft")
    for command in ("train", "budget reserve"):
        code, text = project.run(*command.split(), TINY, *renamed)
        assert code == 2
        assert "under which these texts were charged" in " ".join(text.split())
    assert not [r for r in runs_of(project) if r.data_set == "renamed"]


def runs_of(project):
    store = BudgetStore.open(f"sqlite:///{project.home / 'budget.db'}")
    try:
        return history(store)
    finally:
        store.engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("grant", "x", "--epsilon", "-1", "--delta", "1e-5"), "target_epsilon"),
        (("grant", "X Y", "--epsilon", "1", "--delta", "1e-5"), "data_set"),
        (("grant", "x", "--epsilon", "1", "--delta", "1"), "target_delta"),
        (("release", "nobody"), "budget history"),
        (("verify", "--head", "nowhere.json"), "--head"),
        (("show", "--delta", "2"), "delta must be"),
    ],
)
def test_impossible_budget_commands_exit_2(trained, project, arguments, says):
    code, text = project.run("budget", *arguments)
    assert code == 2
    assert says in text
    assert "Traceback" not in text


def test_required_budget_refuses_a_data_set_without_a_grant(trained, project):
    name = (*own("nobody-granted", 54), "--set", "budget.required=true")
    code, text = project.run("train", TINY, *name)
    assert code == 2
    assert "budget grant nobody-granted" in " ".join(text.split())


def test_budget_of_the_finished_runs_is_what_the_plan_said(store, trained):
    plan = trained["jft"].run.steps["calibrate"].outputs["plan"][0].load()
    run = next(r for r in runs_of_the_fixture(store) if r.recipe == "jft")
    assert run.spent.covers(run.planned)
    (report,) = budgets(store, delta=plan.target_delta, only="default")
    (line,) = (x for x in report.lines if x.notion == "selective")
    assert line.spent == float("inf")  # no_dp trained on the same people
