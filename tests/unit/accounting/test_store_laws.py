"""Laws of the store, and twins that break them.

The law: every unit is charged for the composition of everything that was drawn on it,
and the worst unit decides.
"""

import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.accounting.store.reservations import NAME, UnitSet
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.verify import verify
from tests.budgets import KEY, cost, request, run, spent_epsilon, steps_event

RUNS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 7), min_size=1),
        st.integers(1, 3),
        st.sampled_from((1.5, 2.5)),
    ),
    min_size=1,
    max_size=6,
)


def worst_unit(runs):
    """Compose each unit's own events, one unit after the other."""
    found = []
    for unit in {unit for ids, _, _ in runs for unit in ids}:
        own = [steps_event(n, noise=z) for ids, n, z in runs if unit in ids]
        found.append(spent_epsilon(*own))
    return max(found)


def spent(store):
    return max(r.lines[0].spent for r in budgets(store, delta=1e-5))


def play(store, runs):
    for number, (ids, steps, noise) in enumerate(runs):
        run(store, ids, f"run {number}", cost(steps, noise=noise))
    return spent(store)


def obeys(store, runs, *, player=play):
    return player(store, runs) == pytest.approx(worst_unit(runs), rel=1e-9)


@given(runs=RUNS)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_worst_cohort_is_the_worst_unit(runs, sqlite_budget):
    store = BudgetStore.open(sqlite_budget())
    assert obeys(store, runs)
    assert verify(store).success
    (report,) = budgets(store, delta=1e-5)
    own = {}
    for number, (ids, _, _) in enumerate(runs):
        for unit in ids:
            own.setdefault(unit, set()).add(number)
    assert report.num_units == len(own)
    assert report.num_cohorts == len({frozenset(history) for history in own.values()})
    store.engine.dispose()


MONTHS = [(set(range(4)), 3, 1.5), (set(range(8)), 3, 1.5)]


def test_law_holds_for_a_growing_data_set_on_both_databases(budget_url):
    store = BudgetStore.open(budget_url)
    assert obeys(store, MONTHS)
    store.engine.dispose()


def test_twin_that_adds_epsilons_per_data_set_name_is_caught(sqlite_budget):
    def added(_, runs):
        return sum(spent_epsilon(steps_event(n, noise=z)) for _, n, z in runs)

    assert not obeys(None, MONTHS, player=added)


def test_twin_that_forgets_the_superset_is_caught(sqlite_budget):
    def by_fingerprint(store, runs):
        for number, (ids, steps, noise) in enumerate(runs):
            name = f"corpus of {len(ids)} records"
            run(store, ids, f"{number}", cost(steps, noise=noise), data_set=name)
        return spent(store)

    store = BudgetStore.open(sqlite_budget())
    assert not obeys(store, MONTHS, player=by_fingerprint)
    store.engine.dispose()


def test_twin_that_charges_new_units_for_the_past_is_caught(sqlite_budget, monkeypatch):
    runs = [({0, 1}, 3, 1.5), ({2, 3}, 3, 1.5)]

    def one_cohort(ids, *, key, data_set):
        return UnitSet(
            data_set=data_set, names=np.array([b"0" * 16], NAME), key_check=""
        )

    monkeypatch.setattr(UnitSet, "of", one_cohort)
    store = BudgetStore.open(sqlite_budget())
    assert not obeys(store, runs)
    store.engine.dispose()


def test_twin_that_splits_without_the_old_history_is_caught(sqlite_budget):
    """The new half of a cohort forgets what its units spent before."""
    url = sqlite_budget()
    file = sqlite3.connect(url.removeprefix("sqlite:///"))
    file.execute(
        "CREATE TRIGGER twin AFTER INSERT ON coverage WHEN EXISTS (SELECT 1 FROM "
        "coverage WHERE reservation = new.reservation AND cohort < new.cohort) AND "
        "(SELECT count(*) FROM reservations) = 2 "
        "BEGIN DELETE FROM coverage WHERE rowid = new.rowid; END"
    )
    file.close()
    store = BudgetStore.open(url)
    assert not obeys(store, [({0, 1, 2, 3}, 3, 1.5), ({2, 3}, 3, 1.5)])
    assert not verify(store).success
    store.engine.dispose()


def test_preview_and_reserve_agree(sqlite_budget):
    store = BudgetStore.open(sqlite_budget())
    asked = request(range(5), "a", cost(5))
    assert store.preview(asked) == []
    named = UnitSet.of("01234", key=KEY, data_set="people")
    assert asked.units.digest == named.digest
    store.engine.dispose()
