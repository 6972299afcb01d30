"""Trials of a sweep are charged like runs, and the final model's card shows them."""

import pytest

from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.tables import IdKind
from dptune.errors import ConfigError
from dptune.privacy import PrivacyUnit, Purpose
from dptune.reports.card.page import render_markdown
from dptune.results import BudgetReservation
from dptune.settings import BudgetSettings
from dptune.workflow.budget import budget_cost, planned_costs, settle_budget
from dptune.workflow.charging import stage_entry
from tests.unit.reports import samples

from .conftest import PERFORMANCE, run_plan, stage

DELTA = 1e-3


@pytest.fixture
def url(sqlite_budget):
    return sqlite_budget()


def train(url, corpus, name, **how):
    """What a run does to the store: hold, spend all its blocks, settle."""
    plan = run_plan(stage(), num_units=corpus.report.num_units["train"])
    whole, spare = planned_costs(
        plan,
        corpus.report,
        redaction="mask",
        block_size=PERFORMANCE.block_size,
        seeded=False,
    )
    store = BudgetStore.open(url)
    units = UnitSet.of(corpus.source_units, key=b"k" * 32, data_set="people")
    held = store.reserve(
        Request(
            units=units,
            privacy_unit=PrivacyUnit.RECORD,
            id_kind=IdKind.SOURCE,
            run_key=name,
            recipe="r",
            planned=whole,
            spare=spare,
            **how,
        )
    )
    entry = stage_entry(
        corpus.report,
        plan.stages[0],
        recipe="r",
        first_step=0,
        num_steps=plan.stages[0].num_steps,
        fixed_seed=False,
    )
    store.spend(held.id, budget_cost(entry), stage="private", num_steps=5)
    store.engine.dispose()
    reservation = BudgetReservation(
        id=held.id, data_set="people", num_units=1, head_sequence=0, head_hash=""
    )
    ledger = PrivacyLedger(entries=(entry,))
    return settle_budget(url, reservation, delta=DELTA, ledger=ledger), ledger


def test_card_of_the_final_model_says_what_went_into_tuning(url, corpus):
    trial = {"purpose": Purpose.TUNING, "sweep": "rates"}
    for number in range(3):
        train(url, corpus, f"trial {number}", **trial)
    report, ledger = train(url, corpus, "final")
    (record,) = (line for line in report.lines if line.notion == "record")
    one, _ = (curve for curve in report.curves)
    alone = one.epsilon[-1]
    assert alone == pytest.approx(ledger.certificates(DELTA)[0].epsilon)
    assert alone < record.tuning < record.spent < 4 * alone
    assert report.sweeps == {"rates": 3}
    text = render_markdown(samples.card("private", budget=report))
    assert "3 recorded trials of 1 sweep" in text
    (row,) = (x for x in text.splitlines() if x.startswith("| All runs: record"))
    assert f"{record.tuning:.3g}"[:3] in row
    assert f"{record.spent:.3g}"[:3] in row


def test_twin_that_does_not_mark_its_trials_shows_no_tuning(url, corpus):
    """What is not marked is still charged: only the card's own line is empty."""
    train(url, corpus, "trial 0")
    report, _ = train(url, corpus, "final")
    (record,) = (line for line in report.lines if line.notion == "record")
    assert (record.tuning, report.sweeps) == (0.0, {})
    assert record.spent > report.curves[0].epsilon[-1]
    text = render_markdown(samples.card("private", budget=report))
    assert "No trial of a sweep is recorded" in text


def test_store_and_report_agree(url, corpus):
    report, _ = train(url, corpus, "final")
    store = BudgetStore.open(url)
    (again,) = budgets(store, delta=DELTA)
    store.engine.dispose()
    assert report.lines == again.lines


def test_sweep_is_configured_by_purpose():
    assert BudgetSettings(data_set="people", purpose="tuning", sweep="rates")
    with pytest.raises((ConfigError, ValueError), match="sweep"):
        BudgetSettings(data_set="people", purpose="tuning")
