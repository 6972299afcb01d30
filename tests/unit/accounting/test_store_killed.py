"""A process that is killed while it enters units leaves all of a run, or nothing."""

import pytest
from sqlalchemy import Engine, event

from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.verify import verify
from tests.budgets import cost, grant, killed, request, run, stored

OTHERS = range(6, 18)
"""Half of them known, so that a cohort is split, and half new."""
LATE = 36
"""A statement by which the log has the run, and not all of its units are written."""


@pytest.fixture
def url(budget_url):
    with BudgetStore.open(budget_url) as store:
        store.grant(grant(10.0))
        run(store, range(12), "before", cost(3))
    return budget_url


def reserve(url):
    with BudgetStore.open(url) as store:
        store.reserve(request(OTHERS, "killed", cost(5)))


def state(url):
    with BudgetStore.open(url) as store:
        return stored(store)


def test_kill_at_any_statement_leaves_nothing_of_the_run(url):
    before, at = state(url), 0
    while killed(url, reserve, at=at):
        assert state(url) == before, f"killed before statement {at}"
        at += 4
    assert at > LATE
    with BudgetStore.open(url) as store:
        assert verify(store).success
        (report,) = budgets(store, delta=1e-5)
        assert (report.num_units, report.num_cohorts) == (18, 3)
        assert (report.num_open, report.lines[0].worst_cohort_units) == (1, 6)


def reserve_in_pieces(url):
    def commit(connection, *_):
        connection.connection.commit()

    event.listen(Engine, "after_cursor_execute", commit)
    reserve(url)


def test_twin_that_commits_each_statement_is_caught(url):
    """A run is there without its units, which a superset would then not charge for."""
    before = state(url)
    assert killed(url, reserve_in_pieces, at=LATE)
    assert state(url) != before
    with BudgetStore.open(url) as store:
        assert not verify(store).success
