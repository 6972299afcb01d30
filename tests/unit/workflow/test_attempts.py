"""A store that was deleted or set back is refused: the journals know what was spent."""

import shutil
from dataclasses import replace

import pytest

from cli.faults import fault_of
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.store import store as store_module
from dptune.accounting.store.attempts import Attempt, record_attempt
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError, ConfigError
from dptune.workflow import attempts, preflight
from dptune.workflow.attempts import (
    admit_lost_store,
    attempts_on,
    record_evaluation,
    record_trace,
    unpaid_charges,
)
from dptune.workflow.budget import Spender, budget_cost
from dptune.workflow.charging import PAID, pay
from dptune.workflow.preflight import BudgetPlace
from tests.budgets import request
from tests.unit.reports import samples


@pytest.fixture
def file(tmp_path):
    return tmp_path / "budget.db"


@pytest.fixture
def place(file, tmp_path):
    return BudgetPlace(url=f"sqlite:///{file}", key=b"k" * 32, runs=tmp_path / "runs")


def spend(place, *, run="a", steps=1, folder="1"):
    """Charge blocks as a stage does: the store first, then the journal."""
    store = BudgetStore.open(place.url)
    entry = samples.ledger_entry()
    held = store.reserve(request(range(5), run, budget_cost(entry).times(steps)))
    for _ in range(steps):
        journal = LedgerJournal(place.runs / folder / "ledger.jsonl")
        pay(entry, journal, Spender(place.url, reservation=held.id))
    store.settle(held.id)
    store.engine.dispose()


def lose(file):
    """Delete a store with all that lies beside it."""
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()


def test_store_that_was_paid_is_accepted(place):
    place.refuse_lost_store()  # nothing was ever run
    spend(place, steps=2)
    spend(place, run="b", folder="1.1")  # put aside
    place.refuse_lost_store()


def test_deleted_store_is_refused(place, file):
    spend(place, steps=3)
    lose(file)
    with pytest.raises(ArtifactError, match="3 charges"):
        place.refuse_lost_store()
    BudgetStore.open(place.url).engine.dispose()  # an empty one in its place
    with pytest.raises(ArtifactError, match="admit-loss"):
        place.refuse_lost_store()


@pytest.fixture
def restored(place, file, tmp_path):
    """A store that two projects paid, set back to before the second's last run."""
    colleague = replace(place, runs=tmp_path / "colleague")
    spend(colleague, run="theirs", steps=5)
    spend(place, run="mine")
    kept = tmp_path / "kept"
    kept.mkdir()
    for part in tmp_path.glob("budget.db*"):
        shutil.copy(part, kept)
    spend(place, run="lost", steps=3, folder="2")
    lose(file)
    for part in kept.iterdir():
        shutil.copy(part, tmp_path)
    return colleague


def test_older_copy_is_refused_whatever_others_paid_for_equal_blocks(place, restored):
    restored.refuse_lost_store()  # theirs is all there
    with pytest.raises(ArtifactError, match="1 journals"):
        place.refuse_lost_store()
    with BudgetStore.open(place.url) as store:
        assert unpaid_charges(store, place.runs) == 0
        loss = admit_lost_store(store, runs=place.runs, heads=(), reason="disk")
    assert len(loss.heads) == 1
    place.refuse_lost_store()


def test_twin_that_counts_charges_alone_takes_an_older_copy(
    place, restored, monkeypatch
):
    monkeypatch.setattr(attempts, "lost_payments", lambda *_: [])
    place.refuse_lost_store()


def test_note_of_a_payment_that_says_nothing_is_no_payment(place):
    spend(place)
    (note,) = place.runs.glob(f"*/{PAID}")
    for nonsense in ("", "[]", "{}", '{"sequence": "x", "hash": "y"}', "\u00e9"):
        note.write_text(nonsense)
        with pytest.raises(ArtifactError, match="1 journals"):
            place.refuse_lost_store()
    note.unlink()  # a training from before there were any
    place.refuse_lost_store()


@pytest.mark.parametrize("reason", ["", " \u200b", "-"])
def test_loss_is_not_admitted_without_a_reason(place, file, reason):
    spend(place)
    lose(file)
    with BudgetStore.open(place.url) as store:
        with pytest.raises(ConfigError, match="--reason"):
            admit_lost_store(store, runs=place.runs, heads=(), reason=reason)
        admit_lost_store(store, runs=place.runs, heads=(), reason="the disk broke")
    place.refuse_lost_store()


def test_store_whose_file_has_gone_does_not_begin_anew(place, file):
    spend(place)
    file.rename(file.with_suffix(".aside"))
    for opened in (BudgetStore.open, BudgetStore.find):
        with pytest.raises(ArtifactError, match="has gone") as caught:
            opened(place.url)
        assert fault_of(caught.value) is not None  # exit code 4, and no verdict
    assert not file.exists()
    file.with_suffix(".aside").rename(file)
    place.refuse_lost_store()


def test_twin_that_does_not_look_for_the_lock_begins_anew(place, file, monkeypatch):
    spend(place)
    file.rename(file.with_suffix(".aside"))
    monkeypatch.setattr(store_module, "refuse_lost", lambda _: None)
    BudgetStore.open(place.url).engine.dispose()
    assert file.exists()


def test_older_copy_of_the_store_is_refused(place, file, tmp_path):
    spend(place)
    for part in tmp_path.glob("budget.db*"):
        shutil.copy(part, tmp_path / f"old-{part.name}")
    spend(place, run="b", folder="2")
    for part in tmp_path.glob("budget.db*"):
        part.unlink()
    for part in tmp_path.glob("old-*"):
        part.rename(tmp_path / part.name.removeprefix("old-"))
    with pytest.raises(ArtifactError, match="1 charges"):
        place.refuse_lost_store()


def test_store_that_was_paid_for_something_else_is_refused(place, file):
    spend(place, steps=2)
    lose(file)
    other = samples.ledger_entry(stage="another")
    store = BudgetStore.open(place.url)
    held = store.reserve(request(range(5), "x", budget_cost(other)))
    for _ in range(2):
        store.spend(held.id, budget_cost(other), stage="another", num_steps=50)
    assert unpaid_charges(store, place.runs) == 2
    store.engine.dispose()


def test_loss_on_record_lets_runs_go_on_and_hides_no_other(place, file):
    spend(place, steps=2)
    lose(file)
    store = BudgetStore.open(place.url)
    admit_lost_store(store, runs=place.runs, heads=(), reason="the disk broke")
    assert unpaid_charges(store, place.runs) == 0
    store.engine.dispose()
    place.refuse_lost_store()
    LedgerJournal(place.runs / "9" / "ledger.jsonl").charge(samples.ledger_entry())
    with pytest.raises(ArtifactError, match="1 charges"):
        place.refuse_lost_store()


def test_twin_that_asks_the_store_alone_takes_an_empty_one(place, file, monkeypatch):
    spend(place, steps=3)
    lose(file)
    monkeypatch.setattr(preflight, "refuse_lost_store", lambda *_, **__: None)
    place.refuse_lost_store()


def test_trainings_evaluations_and_decisions_are_counted(place):
    spend(place)
    spend(place, run="b", folder="2")
    reports = (samples.exposure_report(), samples.membership_report())
    for _ in range(2):
        record_evaluation(place.url, reports, data_set="people")
    again = samples.exposure_report(planted_found=1)
    record_evaluation(place.url, (again,), data_set="people")
    store = BudgetStore.find(place.url)
    record_attempt(store, data_set="people", kind=Attempt.DECISION, subject="d")
    found = attempts_on(store, "people")
    assert (found.trainings, found.evaluations, found.decisions) == (2, 2, 1)
    assert attempts_on(store, "others").evaluations == 0
    store.engine.dispose()


def test_run_that_is_measured_while_it_trains_is_one_evaluation_of_a_draw(place):
    """One that was seen and ended before its attacks was none: others drew anew."""
    for run, canaries in (("a", "1"), ("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")):
        record_trace(place.url, run, canaries, data_set="people")
    record_evaluation(place.url, (samples.exposure_report(),), data_set="people")
    store = BudgetStore.find(place.url)
    assert attempts_on(store, "people").evaluations == 4
    store.engine.dispose()


def test_reservation_that_drew_nothing_is_no_training(place):
    store = BudgetStore.open(place.url)
    store.reserve(request(range(5), "a", budget_cost(samples.ledger_entry())))
    assert attempts_on(store, "people").trainings == 0
    store.engine.dispose()
