"""From one relation to the other: by a theorem, or not at all."""

import math

import dp_accounting as dpa
import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.adaptive import FilterTerms
from dptune.accounting.conversion import converted_epsilon, stated_epsilon
from dptune.accounting.events import (
    RenyiFilterDpEvent,
    merge_events,
    poisson_gaussian_event,
)
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.store.costs import Cost
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.verify import verify
from dptune.errors import PrivacyError
from dptune.privacy import NeighboringRelation, Notion
from tests import budgets as budget_cases

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def steps(rate=0.02, noise=1.5, count=100):
    return poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=count
    )


def test_converted_epsilon_same_relation_is_epsilon():
    for relation in (ADD, REPLACE):
        same = converted_epsilon(steps(), delta=1e-5, known=relation, wanted=relation)
        assert same == epsilon(steps(), delta=1e-5, relation=relation)


def test_converted_epsilon_to_replace_is_sound_and_never_tighter_than_its_own_pair():
    converted = converted_epsilon(steps(), delta=1e-5, known=ADD, wanted=REPLACE)
    assert epsilon(steps(), delta=1e-5, relation=REPLACE) <= converted < math.inf


def test_converted_epsilon_is_the_group_of_two():
    """(e, d) gives (2 e, d (1 + exp e))."""
    converted = converted_epsilon(steps(), delta=1e-5, known=ADD, wanted=REPLACE)
    one = converted / 2
    smaller = 1e-5 / (1 + math.exp(one))
    assert one == pytest.approx(epsilon(steps(), delta=smaller, relation=ADD), rel=1e-2)


def test_converted_epsilon_twin_that_keeps_epsilon_is_below_the_truth():
    """The broken twin: an add or remove epsilon read as replace."""
    twin = epsilon(steps(), delta=1e-5, relation=ADD)
    assert twin < epsilon(steps(), delta=1e-5, relation=REPLACE) * 0.8


@pytest.mark.parametrize(
    "event",
    [
        dpa.LaplaceDpEvent(2.0),
        RenyiFilterDpEvent(orders=(8.0,), divergences=(0.2,), relation=ADD.value),
    ],
)
def test_converted_epsilon_knows_what_replace_does_not(event):
    with pytest.raises(PrivacyError):
        epsilon(event, delta=1e-5, relation=REPLACE)
    converted = converted_epsilon(event, delta=1e-5, known=ADD, wanted=REPLACE)
    one = epsilon(event, delta=1e-5, relation=ADD)
    assert 2 * one * (1 - 1e-3) <= converted < 4 * one


def test_converted_epsilon_replace_to_add_or_remove_is_refused_with_the_reason():
    with pytest.raises(PrivacyError, match="number of units"):
        converted_epsilon(steps(), delta=1e-5, known=REPLACE, wanted=ADD)


def test_converted_epsilon_non_private_is_infinite():
    assert (
        converted_epsilon(
            dpa.NonPrivateDpEvent(), delta=1e-5, known=ADD, wanted=REPLACE
        )
        == math.inf
    )


def filter_of(relation):
    return FilterTerms(
        target_epsilon=3.0,
        target_delta=1e-6,
        sample_rate=0.1,
        relation=relation,
        orders=(6.0,),
    ).event


def test_stated_epsilon_of_a_filter_is_converted_refused_or_its_own():
    added, replaced = filter_of(ADD), filter_of(REPLACE)
    own = stated_epsilon(added, delta=1e-6, relation=ADD)
    assert own == pytest.approx(3.0, rel=1e-3)
    converted = stated_epsilon(added, delta=1e-6, relation=REPLACE)
    assert 2 * own < converted < math.inf
    assert stated_epsilon(replaced, delta=1e-6, relation=REPLACE) == pytest.approx(
        3.0, rel=1e-3
    )
    assert math.isinf(stated_epsilon(replaced, delta=1e-6, relation=ADD))
    both = merge_events([added, replaced])
    assert math.isinf(stated_epsilon(both, delta=1e-6, relation=ADD))
    assert math.isinf(stated_epsilon(both, delta=1e-6, relation=REPLACE))


def test_every_certificate_of_an_adaptive_run_can_be_issued():
    entry = LedgerEntry(
        stage="private",
        recipe="r",
        data_fingerprint="abc",
        privacy_unit="record",
        view="original",
        dp_event=filter_of(ADD),
        num_steps=100,
    )
    found = PrivacyLedger(entries=(entry,)).certificates(1e-6)
    assert [c.epsilon for c in found if c.relation is ADD] == pytest.approx([3.0], 1e-3)
    assert all(6.0 < c.epsilon < math.inf for c in found if c.relation is REPLACE)


def test_store_shows_and_verifies_a_filter_under_every_notion(tmp_path):
    store = BudgetStore.open(f"sqlite:///{tmp_path}/budget.db")
    store.grant(budget_cases.grant(10.0))
    event = filter_of(ADD)
    cost = Cost.of({Notion.RECORD: event, Notion.SELECTIVE: event})
    budget_cases.run(store, range(5), "a", cost)
    (report,) = budgets(store, delta=1e-6)
    assert [line.spent < math.inf for line in report.lines] == [True, True]
    assert verify(store).success
    store.engine.dispose()
