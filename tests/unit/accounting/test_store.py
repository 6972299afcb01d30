"""What was spent stays spent, and nobody gets more than what is left."""

import dataclasses
import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from dptune.accounting.store import database
from dptune.accounting.store import store as store_module
from dptune.accounting.store.reservations import (
    NAME,
    ReservationStatus,
    UnitSet,
    distinct,
)
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets, history, open_runs
from dptune.accounting.store.tables import IdKind
from dptune.errors import (
    ArtifactError,
    BudgetExceededError,
    ConfigError,
    PrivacyError,
)
from dptune.privacy import Notion, PrivacyUnit, Purpose
from dptune.rounding import at_least, at_most
from tests.budgets import (
    REPLACE,
    cost,
    grant,
    no_guarantee,
    request,
    run,
    spent_epsilon,
    steps_event,
    stored,
)

HUNDRED = range(100)
MORE = range(150)


@pytest.fixture
def lite(sqlite_budget):
    made = BudgetStore.open(sqlite_budget())
    yield made
    made.engine.dispose()


def line(store, notion=Notion.RECORD):
    (report,) = budgets(store, delta=1e-5)
    return next(x for x in report.lines if x.notion == notion)


def state(store, held):
    return next(r for r in history(store) if r.id == held.id)


def test_second_run_is_composed_not_added(store):
    store.grant(grant(10.0))
    run(store, HUNDRED, "a", cost(100))
    run(store, HUNDRED, "b", cost(100))
    one, two = spent_epsilon(steps_event(100)), spent_epsilon(steps_event(200))
    assert line(store).spent == pytest.approx(two)
    assert two < 2 * one


def test_run_that_would_exceed_is_refused_with_figures_and_writes_nothing(store):
    store.grant(grant(spent_epsilon(steps_event(150))))
    run(store, HUNDRED, "a", cost(100))
    before = store.head()
    with pytest.raises(BudgetExceededError) as caught:
        store.reserve(request(MORE, "b", cost(100)))
    left = spent_epsilon(steps_event(150)) - spent_epsilon(steps_event(100))
    asked = spent_epsilon(steps_event(100))
    shown = at_least(left, digits=4), at_most(asked, digits=4)
    for words in (f"{shown[0]} is left", f"asks for {shown[1]}", "(100 units)"):
        assert words in str(caught.value)
    assert store.head() == before
    with pytest.raises(BudgetExceededError):
        store.preview(request(MORE, "b", cost(100)))


def test_new_units_of_a_superset_begin_at_zero(store):
    store.grant(grant(spent_epsilon(steps_event(150))))
    run(store, HUNDRED, "a", cost(100))
    run(store, range(100, 150), "b", cost(150))
    with pytest.raises(BudgetExceededError):
        store.reserve(request(range(99, 150), "c", cost(1)))
    (report,) = budgets(store, delta=1e-5)
    assert (report.num_units, report.num_cohorts) == (150, 2)


def test_superset_charges_old_units_on_top_and_splits_cohorts(store):
    store.grant(grant(10.0))
    run(store, HUNDRED, "january", cost(10))
    run(store, MORE, "february", cost(20))
    run(store, range(50, 200), "march", cost(40))
    (report,) = budgets(store, delta=1e-5)
    assert (report.num_units, report.num_cohorts) == (200, 4)
    assert line(store).spent == pytest.approx(spent_epsilon(steps_event(70)))
    assert line(store).worst_cohort_units == 50


def test_open_reservation_is_held_and_settling_frees_the_rest(store):
    store.grant(grant(spent_epsilon(steps_event(110))))
    held = store.reserve(request(HUNDRED, "a", cost(100), spare=cost(10)))
    with pytest.raises(BudgetExceededError):
        store.reserve(request(HUNDRED, "b", cost(10)))
    store.spend(held.id, cost(100), stage="private", num_steps=100)
    store.settle(held.id)
    store.settle(held.id)
    assert store.reserve(request(HUNDRED, "b", cost(10))).is_open


def test_released_run_keeps_what_was_spent(store):
    store.grant(grant(10.0))
    held = store.reserve(request(HUNDRED, "a", cost(100)))
    store.spend(held.id, cost(30), stage="private", num_steps=30)
    store.release(held.id)
    found = line(store)
    assert found.spent == found.committed
    assert found.spent == pytest.approx(spent_epsilon(steps_event(30)))


def test_resumed_run_continues_its_own_reservation(store):
    store.grant(grant(spent_epsilon(steps_event(110))))
    asked = request(HUNDRED, "a", cost(100), spare=cost(10))
    held = store.reserve(asked)
    store.spend(held.id, cost(10), stage="private", num_steps=10)
    assert store.reserve(asked).id == held.id
    for _ in range(10):  # the first block is drawn twice: it was held in reserve
        store.spend(held.id, cost(10), stage="private", num_steps=10)
    assert state(store, held).spent == cost(110)
    with pytest.raises(BudgetExceededError):
        store.spend(held.id, cost(10), stage="private", num_steps=10)
    assert state(store, held).spent == cost(110)


def test_released_run_is_taken_up_again_only_if_the_rest_still_fits(store):
    store.grant(grant(spent_epsilon(steps_event(100))))
    asked = request(HUNDRED, "a", cost(100))
    held = store.reserve(asked)
    store.spend(held.id, cost(30), stage="private", num_steps=30)
    store.release(held.id)
    other = store.reserve(request(HUNDRED, "b", cost(50)))
    with pytest.raises(BudgetExceededError):
        store.reserve(asked)
    store.release(other.id)
    assert store.reserve(asked).id == held.id
    assert state(store, held).status is ReservationStatus.OPEN


def test_retried_step_goes_on_with_its_released_reservation_only_if_it_fits(lite):
    """A pod that failed has released it; the one that follows reserves nothing."""
    lite.grant(grant(1.01 * spent_epsilon(steps_event(100))))
    held = lite.reserve(request(HUNDRED, "a", cost(100)))
    lite.spend(held.id, cost(40), stage="s", num_steps=40)
    lite.release(held.id)
    lite.spend(held.id, cost(20), stage="s", num_steps=20)
    assert state(lite, held).is_open
    with pytest.raises(BudgetExceededError):
        lite.reserve(request(HUNDRED, "b", cost(30)))
    lite.release(held.id)
    other = lite.reserve(request(HUNDRED, "b", cost(30)))
    with pytest.raises(BudgetExceededError):
        lite.spend(held.id, cost(20), stage="s", num_steps=20)
    lite.release(other.id)
    lite.spend(held.id, cost(40), stage="s", num_steps=40)
    assert len(history(lite)) == 2
    assert line(lite).spent == pytest.approx(spent_epsilon(steps_event(100)))


def test_finished_run_repeats_for_nothing_even_with_an_empty_budget(lite):
    lite.grant(grant(spent_epsilon(steps_event(100))))
    held = run(lite, HUNDRED, "a", cost(100))
    before = lite.head()
    assert lite.reserve(request(HUNDRED, "a", cost(100))).id == held.id
    assert lite.head() == before
    with pytest.raises(BudgetExceededError):
        lite.reserve(request(HUNDRED, "a", cost(100)), again=True)


def test_run_of_another_plan_is_no_repetition(lite):
    """With another `data.public_units` it was let in, and refused at its first step."""
    lite.grant(grant(spent_epsilon(steps_event(100))))
    held = run(lite, HUNDRED, "a", cost(100))
    for ask in (lite.preview, lite.reserve):
        with pytest.raises(BudgetExceededError):
            ask(request(HUNDRED, "a", cost(100, noise=2.1)))
    lite.grant(grant(10.0))
    other = lite.reserve(request(HUNDRED, "a", cost(100, noise=2.1)))
    assert lite.reserve(request(HUNDRED, "a", cost(100))).id == held.id
    assert other.id != held.id


def test_training_again_is_a_new_reservation_and_frees_the_abandoned_one(lite):
    lite.grant(grant(spent_epsilon(steps_event(130))))
    asked = request(HUNDRED, "a", cost(100))
    first = lite.reserve(asked)
    lite.spend(first.id, cost(30), stage="private", num_steps=30)
    with pytest.raises(BudgetExceededError):
        lite.reserve(request(HUNDRED, "b", cost(100)))
    lite.release(first.id)
    second = lite.reserve(asked, again=True)
    assert second.id != first.id
    assert not state(lite, first).is_open


def test_lowered_grant_refuses_what_comes(lite):
    lite.grant(grant(10.0))
    held = lite.reserve(request(HUNDRED, "a", cost(100)))
    with pytest.raises(BudgetExceededError, match="open runs may still draw"):
        lite.grant(grant(0.01))
    lite.spend(held.id, cost(100), stage="private", num_steps=100)
    lite.settle(held.id)
    lite.grant(grant(0.01))
    with pytest.raises(BudgetExceededError):
        lite.spend(held.id, cost(1), stage="private", num_steps=1)


def test_every_grant_must_hold(lite):
    lite.grant(grant(100.0))
    lite.grant(grant(0.1, notion=Notion.SELECTIVE, relation=REPLACE))
    with pytest.raises(BudgetExceededError, match="selective"):
        lite.reserve(request(HUNDRED, "a", cost(100)))


def test_training_without_noise_is_infinite(lite):
    run(lite, HUNDRED, "a", no_guarantee())
    assert line(lite).spent == float("inf")
    lite.grant(grant(100.0))
    with pytest.raises(BudgetExceededError):
        lite.reserve(request(HUNDRED, "b", cost(1)))
    assert lite.reserve(request(range(100, 200), "c", cost(1))).is_open


def test_without_a_grant_all_is_recorded_unless_one_is_required(lite):
    run(lite, HUNDRED, "a", cost(100))
    assert line(lite).allowance is None
    with pytest.raises(BudgetExceededError, match="budget grant"):
        lite.reserve(request(HUNDRED, "b", cost(1), required=True))


def test_tuning_is_charged_and_told_apart(store):
    store.grant(grant(10.0))
    for trial in range(3):
        run(
            store,
            HUNDRED,
            f"t{trial}",
            cost(10 + trial),
            purpose=Purpose.TUNING,
            sweep="rates",
        )
    run(store, HUNDRED, "final", cost(50))
    (report,) = budgets(store, delta=1e-5)
    assert report.sweeps == {"rates": 3}
    assert line(store).tuning == pytest.approx(spent_epsilon(steps_event(33)))
    assert line(store).spent == pytest.approx(spent_epsilon(steps_event(83)))


@pytest.mark.parametrize(
    ("purpose", "sweep"), [(Purpose.TUNING, ""), (Purpose.TRAINING, "rates")]
)
def test_sweep_is_named_exactly_for_tuning(purpose, sweep):
    with pytest.raises(ConfigError, match="sweep"):
        request(HUNDRED, "a", cost(1), purpose=purpose, sweep=sweep)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": b"x" * 32}, "key"),
        ({"privacy_unit": PrivacyUnit.USER}, "privacy_unit"),
        ({"id_kind": IdKind.CONTENT_HASH}, "id_kind"),
    ],
)
def test_run_that_names_known_units_otherwise_is_refused(lite, changes, says):
    run(lite, HUNDRED, "a", cost(1))
    for ask, name in itertools.product((lite.preview, lite.reserve), "ab"):
        with pytest.raises(PrivacyError, match=says):
            ask(request(HUNDRED, name, cost(1), **changes))


def test_data_sets_of_other_names_are_other_people(lite):
    lite.grant(grant(spent_epsilon(steps_event(10))))
    run(lite, HUNDRED, "a", cost(10))
    run(lite, HUNDRED, "b", cost(10), data_set="others")
    assert [r.num_units for r in budgets(lite, delta=1e-5)] == [100, 100]


def test_unknown_reservation_is_refused(lite):
    with pytest.raises(ArtifactError, match="reservation"):
        lite.spend("nobody", cost(1), stage="private", num_steps=1)


def test_empty_set_of_units_is_refused():
    with pytest.raises(ConfigError, match="at least one unit"):
        request([], "a", cost(1))


def test_order_and_repetition_of_ids_do_not_matter():
    one = request([3, 1, 2, 1], "a", cost(1)).units
    assert one.digest == request([1, 2, 3], "a", cost(1)).units.digest
    assert len(one) == 3


def test_store_that_is_not_there_is_not_created(tmp_path):
    file = tmp_path / "none.db"
    assert BudgetStore.find(f"sqlite:///{file}") is None
    assert not file.exists()


def test_store_that_was_used_leaves_no_connection(tmp_path, monkeypatch):
    made = []

    def open_engine(url):
        made.append(database.open_engine(url))
        return made[-1]

    monkeypatch.setattr(store_module, "open_engine", open_engine)
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    assert BudgetStore.find(url) is None
    with BudgetStore.open(url) as store:
        store.head()
    with BudgetStore.find(url) as store:
        store.head()
    with database.connecting(made[-1]) as connection, connection.begin():
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'later'")
    with pytest.raises(ArtifactError):
        BudgetStore.find(url)
    made[-2].dispose()
    assert [engine.pool.checkedin() for engine in made] == [0] * 4


@pytest.mark.parametrize("url", ["mysql://secret@host/x", "nonsense", ""])
def test_other_databases_are_refused_without_quoting_the_url(url):
    with pytest.raises(ConfigError) as caught:
        BudgetStore.open(url)
    assert "secret" not in str(caught.value)


def test_database_that_does_not_answer_is_an_error_of_ours(tmp_path):
    with pytest.raises(ArtifactError, match="must answer"):
        BudgetStore.open(f"sqlite:///{tmp_path}/no/such/folder.db")


def test_reservation_is_a_value(lite):
    held = lite.reserve(request(HUNDRED, "a", cost(1)))
    assert dataclasses.replace(held) == held
    assert "people" in repr(held)


IDS = [f"customer-{number}-secret" for number in HUNDRED]


def has_ids(store):
    """Whether any value of any table holds part of an id."""
    values = [v for rows in stored(store).values() for row in rows for v in row]
    return any(b"customer-" in (v if isinstance(v, bytes) else str(v).encode())
               for v in values)  # fmt: skip


def test_no_source_id_is_stored(store):
    run(store, IDS, "a", cost(1))
    assert not has_ids(store)


def test_twin_that_stores_ids_for_their_hashes_is_caught(store):
    packed = b"".join(unit.encode()[:16] for unit in IDS)
    names = distinct(np.frombuffer(packed, NAME))
    units = UnitSet(data_set="people", names=names, key_check="")
    run(store, [], "a", cost(1), units=units)
    assert has_ids(store)


def test_open_runs_are_those_that_hold_and_when_they_were_heard(store):
    held = store.reserve(request(HUNDRED, "a", cost(10)))
    other = store.reserve(request(HUNDRED, "b", cost(10)))
    store.spend(held.id, cost(1), stage="private", num_steps=1)
    store.settle(other.id)
    (found,) = open_runs(store)
    assert found.reservation.id == held.id
    assert abs(found.heard_at - datetime.now(tz=UTC)) < timedelta(minutes=5)


def test_several_runs_are_previewed_together_and_finished_ones_ask_nothing(lite):
    lite.grant(grant(spent_epsilon(steps_event(250))))
    run(lite, HUNDRED, "a", cost(100))
    repeated, b = request(HUNDRED, "a", cost(100)), request(HUNDRED, "b", cost(100))
    assert lite.preview_all([repeated]) == []
    head = lite.head()
    assert lite.preview_all([repeated, b])
    with pytest.raises(BudgetExceededError):
        lite.preview_all([repeated, b, request(HUNDRED, "c", cost(100))])
    with pytest.raises(BudgetExceededError):
        lite.preview_all([repeated, b], again=True)
    assert lite.head() == head


def test_release_of_one_run_leaves_the_others_what_they_hold(lite):
    """A failed run gives back its own; who trains beside it goes on."""
    one, other = (lite.reserve(request(HUNDRED, key, cost(10))) for key in "ab")
    lite.release_run("people", "a")
    assert not state(lite, one).is_open
    assert state(lite, other).is_open
    again = lite.reserve(request(HUNDRED, "b", cost(10)), again=True)
    third = lite.reserve(request(HUNDRED, "c", cost(10)))
    lite.reserve(request(HUNDRED, "b", cost(10)), again=True)
    assert not state(lite, again).is_open
    assert state(lite, third).is_open


def test_known_units_are_charged_after_others_were_read_in_between(store):
    """What was staged last are the others."""
    run(store, HUNDRED, "a", cost(10))
    run(store, range(200, 210), "b", cost(1))
    run(store, HUNDRED, "c", cost(10))
    assert line(store).spent == pytest.approx(spent_epsilon(steps_event(20)))
    assert line(store).worst_cohort_units == 100


NAMES = {"NFC": ["Jos\u00e9", "ann"], "NFD": ["Jose\u0301", "ann"]}
"""One person, written twice: equal to the eye, and other bytes."""


@pytest.mark.parametrize(("first", "second"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_ids_in_another_form_of_unicode_are_refused(store, first, second):
    """They named units of their own, with a fresh budget."""
    store.grant(grant(spent_epsilon(steps_event(150))))
    run(store, NAMES[first], "a", cost(100))
    before = store.head()
    asked = request([*NAMES[second], "new"], "b", cost(10))
    for ask in (store.preview, store.reserve):
        with pytest.raises(PrivacyError, match="one form of Unicode, but 1 are"):
            ask(asked)
    assert store.head() == before
    run(store, [*NAMES[first], "new"], "b", cost(10))  # the form of before


UNSEEN = {
    "blank": "u1 ",
    "no_break": "\u00a0u1",
    "return": "u1\r",
    "byte_order": "\ufeffu1",
    "no_width": "u\u200b1",
    "hyphen": "u\u00ad1",
    "direction": "u1\u200e",
}


@pytest.mark.parametrize("unit", UNSEEN.values(), ids=UNSEEN)
def test_ids_told_apart_by_what_nobody_sees_are_refused(store, unit):
    """`u1` and `u1 ` were two units, with a budget each."""
    store.grant(grant(spent_epsilon(steps_event(150))))
    run(store, ["u1", "u2"], "a", cost(10))
    before = store.head()
    for ask in (store.preview, store.reserve):
        with pytest.raises(PrivacyError, match="show all that they hold, but 1 that"):
            ask(request([unit, "u2"], "b", cost(10)))
    assert store.head() == before


@pytest.mark.parametrize(
    "unit", ["u 1", "می\u200cخواهم", "❤\ufe0f", "José", "山田"], ids=ascii
)
def test_ids_that_show_all_that_they_hold_are_taken(store, unit):
    run(store, [unit], "a", cost(10))


def test_ids_that_were_charged_with_what_nobody_sees_go_on(store, monkeypatch):
    """A store of before this rule keeps counting under the ids that it knows."""
    asked = request(["u1 ", "u2"], "a", cost(10))
    units = dataclasses.replace(asked.units, unseen=asked.units.unseen[:0])
    store.reserve(dataclasses.replace(asked, units=units))
    run(store, ["u1 ", "u2", "u3"], "b", cost(10))
    with pytest.raises(PrivacyError, match="but 1 that"):
        store.reserve(request(["u1 ", "u3 "], "c", cost(10)))


def test_two_forms_of_one_id_in_a_run_are_refused():
    with pytest.raises(PrivacyError, match="one form of Unicode") as refused:
        request([*NAMES["NFC"], *NAMES["NFD"]], "a", cost(1))
    assert "Jos" not in str(refused.value)
