"""Grants that hold for runs which are chosen for what earlier ones released."""

import dataclasses

import pytest

from dptune.accounting.filters import filtered_epsilon
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.verify import verify
from dptune.errors import BudgetExceededError
from dptune.privacy import NeighboringRelation, Notion
from tests.budgets import cost, grant, request, run, spent_epsilon, steps_event

PEOPLE = range(100)
TERMS = {"delta": 1e-5, "relation": NeighboringRelation.ADD_OR_REMOVE_ONE}


def adaptive(epsilon):
    return dataclasses.replace(grant(epsilon), adaptive=True)


def line(store):
    (report,) = budgets(store, delta=1e-5)
    return next(x for x in report.lines if x.notion == Notion.RECORD)


def test_adaptive_grant_takes_what_the_filter_takes(store):
    both = filtered_epsilon(steps_event(200), **TERMS)
    assert both > 1.1 * spent_epsilon(steps_event(200))
    store.grant(adaptive(both))
    run(store, PEOPLE, "a", cost(100))
    run(store, PEOPLE, "b", cost(100))
    found = line(store)
    assert found.adaptive
    assert found.spent == pytest.approx(both)
    with pytest.raises(BudgetExceededError, match="whatever is chosen"):
        store.reserve(request(PEOPLE, "c", cost(1)))


def test_run_that_a_plain_grant_lets_in_is_refused_by_an_adaptive_one(store):
    allowed = spent_epsilon(steps_event(100))
    store.grant(grant(allowed * 1.01))
    store.preview(request(PEOPLE, "a", cost(100)))
    store.grant(adaptive(allowed * 1.01))
    with pytest.raises(BudgetExceededError):
        store.preview(request(PEOPLE, "a", cost(100)))


def test_grant_takes_the_place_of_one_that_was_adaptive_and_the_log_tells_both(store):
    store.grant(adaptive(9.0))
    run(store, PEOPLE, "a", cost(100))
    store.grant(grant(9.0))
    found = line(store)
    assert not found.adaptive
    assert found.spent == pytest.approx(spent_epsilon(steps_event(100)))


def test_table_that_forgets_that_a_grant_is_adaptive_is_found(sqlite_budget):
    store = BudgetStore.open(sqlite_budget())
    store.grant(adaptive(9.0))
    run(store, PEOPLE, "a", cost(100))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE grants SET adaptive = 0")
    found = verify(store)
    store.engine.dispose()
    assert [x.message for x in found.findings if "grants" in x.message]


@pytest.mark.parametrize("first", [None, grant(20.0), adaptive(20.0)])
def test_grant_below_what_open_runs_may_draw_is_refused(store, first):
    if first:
        store.grant(first)
    held = store.reserve(request(PEOPLE, "a", cost(100)))
    store.spend(held.id, cost(20), stage="s", num_steps=20)
    least = filtered_epsilon(steps_event(100), **TERMS)
    before = store.head()
    with pytest.raises(BudgetExceededError, match=f"budget release {held.id}"):
        store.grant(adaptive(least * 0.99))
    assert store.head() == before
    store.grant(adaptive(least * 1.01))
    store.spend(held.id, cost(80), stage="s", num_steps=80)
    store.settle(held.id)
    store.grant(adaptive(least * 0.5))  # takes nothing back, and refuses what comes
    with pytest.raises(BudgetExceededError):
        store.reserve(request(PEOPLE, "b", cost(1)))
