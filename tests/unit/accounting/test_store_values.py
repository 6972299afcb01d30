"""Costs, reservations and rows are what the store adds up: their laws, by value."""

import sqlite3
import stat
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import dp_accounting as dpa
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from dptune.accounting.events import event_to_json
from dptune.accounting.store import database, schema
from dptune.accounting.store.allowances import NON_PRIVATE, Cost, Grant, History, total
from dptune.accounting.store.database import connecting, exists, open_engine, version
from dptune.accounting.store.reservations import Reservation, ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets, exported_head, history
from dptune.accounting.store.tables import IdKind, data_set_names, read_grants
from dptune.accounting.store.verify import verify
from dptune.errors import ArtifactError, ConfigError, PrivacyError
from dptune.files import locked
from dptune.privacy import Notion, PrivacyUnit, Purpose
from tests.budgets import ADD, REPLACE, grant, no_guarantee, request, run

GAUSSIAN = dpa.GaussianDpEvent(2.0)
KEY = event_to_json(GAUSSIAN)


def counted(**counts):
    """A cost of so many Gaussians, by the notion's name."""
    return Cost(tallies={Notion(name): {KEY: n} for name, n in counts.items()})


def test_cost_counts_every_mechanism_as_often_as_it_ran():
    both = dpa.ComposedDpEvent(
        [dpa.SelfComposedDpEvent(GAUSSIAN, 3), dpa.GaussianDpEvent(1.0)]
    )
    made = Cost.of({Notion.RECORD: both, Notion.LOCAL: GAUSSIAN})
    assert made.count(Notion.RECORD) == 4
    assert (made.count(Notion.LOCAL), made.count(Notion.SELECTIVE)) == (1, 0)
    assert made.tally(Notion.RECORD)[KEY] == 3
    assert Cost().event(Notion.RECORD) == dpa.NoOpDpEvent()
    assert counted(record=2).event(Notion.RECORD) == dpa.SelfComposedDpEvent(
        GAUSSIAN, 2
    )


def test_costs_add_up_notion_by_notion_and_times_is_adding():
    one = counted(record=2, local=1)
    assert one.plus(counted(record=3)) == counted(record=5, local=1)
    assert one.times(3) == one.plus(one).plus(one) == total([one] * 3)
    assert (one.times(1), one.times(0)) == (one, Cost())
    assert one.at_least(counted(record=1, local=4)) == counted(record=2, local=4)


def test_no_guarantee_counts_once_however_often_it_ran():
    nothing = no_guarantee()
    assert nothing.tally(Notion.RECORD) == {NON_PRIVATE: 1}
    assert nothing.plus(nothing) == nothing.times(7) == nothing
    both = nothing.plus(counted(record=2))
    assert both.times(3).tally(Notion.RECORD) == {NON_PRIVATE: 1, KEY: 6}


def test_cost_covers_what_is_not_more_of_anything():
    one = counted(record=2, local=1)
    for covered in (Cost(), one, counted(record=2), counted(local=1)):
        assert one.covers(covered)
    for more in (counted(record=3), counted(selective=1), counted(record=2, local=2)):
        assert not one.covers(more)


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "[]",
        '{"nobody": {}}',
        '{"record": 3}',
        '{"record": {"x": 1}}',
        '{"record": {"{}": 1}}',
    ],
)
def test_text_that_is_no_cost_is_refused(written):
    with pytest.raises(ArtifactError, match="cost must"):
        Cost.of_text(written)


def test_mechanism_that_is_not_in_canonical_form_is_no_cost():
    """Two spellings of one mechanism would be counted apart."""
    spaced = KEY.replace(":", ": ")
    with pytest.raises(ArtifactError, match="cost must map"):
        Cost.from_json({"record": {spaced: 1}})


def held(**changes):
    values = {
        "id": "r",
        "data_set": "people",
        "run_key": "k",
        "recipe": "dp_sgd",
        "purpose": Purpose.TRAINING,
        "sweep": "",
        "unit_set": "u",
        "num_units": 3,
        "planned": counted(record=4),
        "spare": counted(record=1),
        "spent": counted(record=3),
    }
    return Reservation(**(values | changes))


def test_reservation_commits_what_it_may_still_draw_and_closed_what_it_drew():
    assert held().committed == counted(record=5)
    assert held(spent=counted(record=9)).committed == counted(record=9)
    closed = held().closed(ReservationStatus.SETTLED)
    assert closed.committed == counted(record=3)
    assert (held().is_open, closed.is_open) == (True, False)


def test_reservation_allows_up_to_the_plan_and_the_spare_while_it_is_open():
    assert held().allows(counted(record=2))
    assert not held().allows(counted(record=3))
    assert not held().allows(counted(local=1))
    assert not held().closed(ReservationStatus.RELEASED).allows(Cost())
    assert held().spend(counted(record=2)).spent == counted(record=5)


def test_extended_reservation_holds_just_what_is_drawn_next_and_no_spare():
    longer = held().closed(ReservationStatus.RELEASED).extended(counted(record=4))
    assert (longer.planned, longer.spare) == (counted(record=7), Cost())
    assert longer.is_open
    assert held().extended(counted(record=1)).planned == counted(record=4)


def test_run_is_complete_once_all_of_the_plan_was_drawn():
    assert not held().is_complete
    assert held(spent=counted(record=4)).is_complete


def test_grant_is_named_by_notion_relation_and_delta():
    assert grant(1.0).label == "record (add or remove one) at delta 1e-05"
    for changes in ({"epsilon": 0.0}, {"delta": 1.0}):
        values = {"epsilon": 1.0, "delta": 1e-5} | changes
        with pytest.raises(ConfigError, match="target_"):
            Grant(data_set="d", notion=Notion.RECORD, relation=ADD, **values)
    with pytest.raises(PrivacyError, match="relation"):
        grant(1.0, notion=Notion.SELECTIVE, relation=ADD)


def test_history_composes_what_every_run_costs():
    made = History.of([counted(record=1), counted(record=2, local=1)], num_units=4)
    assert made == History(cost=counted(record=3, local=1), num_units=4)


# in a store


@pytest.fixture
def store(budget_url):
    made = BudgetStore.open(budget_url)
    yield made
    made.engine.dispose()


def test_grants_are_kept_apart_by_data_set_notion_and_relation(store):
    others = grant(2.0, data_set="others")
    replaced = grant(3.0, relation=REPLACE)
    for one in (grant(9.0), others, replaced, grant(1.0)):
        store.grant(one)
    run(store, range(3), "a", counted(record=1), data_set="third")
    with connecting(store.engine) as connection, connection.begin():
        assert read_grants(connection) == [others, grant(1.0), replaced]
        assert read_grants(connection, "others") == [others]
        assert data_set_names(connection) == ["others", "people", "third"]


def test_report_has_what_was_granted_first_and_then_the_usual_claims(store):
    store.grant(grant(70.0, notion=Notion.LOCAL, relation=REPLACE))
    run(store, range(3), "a", counted(record=2, local=4))
    store.reserve(request(range(2), "b", counted(record=3)))
    (found,) = budgets(store, delta=0.25)
    assert [(x.notion, x.relation, x.delta, x.allowance) for x in found.lines] == [
        ("local", "replace_one", 1e-5, 70.0),
        ("record", "add_or_remove_one", 0.25, None),
        ("selective", "replace_one", 0.25, None),
    ]
    assert (found.num_runs, found.num_open, found.privacy_unit) == (2, 1, "record")
    head = store.head()
    assert (found.head_sequence, found.head_hash) == (head.sequence, head.hash)
    assert [one.run_key for one in history(store)] == ["a", "b"]
    assert budgets(store, delta=0.25, only="people") == [found]
    (unknown,) = budgets(store, delta=0.25, only="nobody")
    assert (unknown.privacy_unit, unknown.num_units) == ("", 0)


def test_record_can_be_added_to_and_neither_changed_nor_deleted(store):
    run(store, range(3), "a", counted(record=1))
    for statement in (
        "UPDATE log SET content = '{}' WHERE sequence = 1",
        "DELETE FROM log",
        "UPDATE unit_sets SET digest = 'd'",
        "DELETE FROM unit_sets",
    ):
        with store.engine.connect() as connection, connection.begin() as transaction:
            with pytest.raises(DBAPIError, match="append-only"):
                connection.execute(text(statement))
            transaction.rollback()


def test_store_says_whether_it_is_there_and_of_which_version(budget_url, tmp_path):
    engine = open_engine(budget_url)
    assert exists(engine)
    with engine.connect() as connection, connection.begin():
        assert version(connection) == schema.VERSION
    engine.dispose()
    empty = open_engine(f"sqlite:///{tmp_path}/empty.db")
    assert not exists(empty)
    (tmp_path / "empty.db").touch()
    assert not exists(empty)
    with empty.connect() as connection, connection.begin():
        assert version(connection) is None
        connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
        assert version(connection) is None
    empty.dispose()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:budget?mode=memory&uri=true",
    ],
)
def test_store_in_memory_is_refused(url):
    """A grant was said to be there, and gone with the command."""
    with pytest.raises(ConfigError, match="must name a file"):
        open_engine(url)


@pytest.mark.parametrize("url", ["sqlite:///f.db", "postgresql://u@h/d"])
def test_engine_hides_what_it_is_asked_and_waits_for_locks(url, monkeypatch):
    """One connection, tried before it is used again, so that a server may restart."""
    asked = {}

    def made(parsed, **options):
        asked.update(options, driver=parsed.drivername)
        return real(parsed, **options)

    real = database.create_engine
    monkeypatch.setattr(database, "create_engine", made)
    engine = open_engine(url)
    is_file = url.startswith("sqlite")
    assert asked.pop("driver") == ("sqlite" if is_file else "postgresql+psycopg")
    waits = {"timeout": 120} if is_file else {"connect_timeout": 10}
    assert asked.pop("connect_args") == waits
    assert asked.pop("poolclass") is database.QueuePool
    assert asked == {"pool_size": 1, "pool_pre_ping": True, "hide_parameters": True}
    engine.dispose()


def test_file_is_durable_and_waits_and_is_locked_by_its_owner_alone(sqlite_budget):
    store = BudgetStore.open(sqlite_budget())
    with store.engine.connect() as connection, connection.begin():
        found = [
            connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    assert found == ["wal", 2, 120_000]
    store.grant(grant(1.0))
    lock = f"{store.engine.url.database}.lock"
    store.engine.dispose()
    assert stat.S_IMODE(Path(lock).stat().st_mode) == 0o600


def test_writer_sees_what_others_wrote_on_a_server_that_prefers_snapshots(postgres):
    prefers = "%20-cdefault_transaction_isolation%3Dserializable"
    with BudgetStore.open(postgres.fresh("snapshots") + prefers) as store:
        with ThreadPool(8) as pool:
            pool.map(
                lambda n: run(store, range(n, n + 9), f"run {n}", counted(record=1)),
                range(8),
            )
        assert verify(store).success
        assert store.head().sequence == 1 + 8 * 3


def server_with(url, **settings):
    """A server that is set so, for one store."""
    return url + "".join(f"%20-c{name}%3D{value}" for name, value in settings.items())


@pytest.mark.parametrize(
    ("set_by_server", "found"),
    [("off", "on"), ("on", "on"), ("local", "local"), ("remote_write", "remote_write")],
)
def test_what_is_spent_outlives_a_server_that_does_not_wait_for_its_disk(
    postgres, set_by_server, found
):
    """A server that was killed had forgotten up to five of twenty blocks."""
    url = server_with(postgres.fresh("durable"), synchronous_commit=set_by_server)
    with BudgetStore.open(url) as store, connecting(store.engine) as connection:
        with database.writing(connection):
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == (
                found
            )
        with database.reading(connection):
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == (
                set_by_server
            )


def test_store_takes_its_time_on_a_server_that_ends_what_waits(postgres):
    hurried = server_with(
        postgres.fresh("hurried"),
        idle_in_transaction_session_timeout=50,
        statement_timeout=400,
    )
    with BudgetStore.open(hurried) as store, ThreadPool(1) as pool:
        with connecting(store.engine) as connection:
            for transaction in (database.reading, database.writing):
                with transaction(connection):
                    time.sleep(0.2)
                    connection.exec_driver_sql("SELECT pg_sleep(0.5)")
        with BudgetStore.open(hurried) as other:
            with connecting(other.engine) as connection, database.writing(connection):
                waits = pool.apply_async(store.grant, (grant(1.0),))
                time.sleep(0.6)
            waits.get()
        assert verify(store).success


def test_writer_says_that_another_holds_the_file_and_does_not_wait_for_ever(
    sqlite_budget, monkeypatch
):
    """Such as one that was stopped in between (`Ctrl-Z`)."""
    monkeypatch.setattr(database, "_IN_QUEUE", 0.05)
    with BudgetStore.open(sqlite_budget()) as store:
        before = store.head()
        with locked(Path(f"{store.engine.url.database}.lock")):
            with pytest.raises(ArtifactError, match="another process holds it"):
                store.grant(grant(1.0))
            assert store.head() == before  # readers need no lock
        store.grant(grant(1.0))


class Busy:
    """A connection to a file whose mode others are switching, so many times."""

    def __init__(self, times):
        self.left = times

    def execute(self, statement):
        if "journal_mode" in statement and self.left:
            self.left -= 1
            raise sqlite3.OperationalError("busy")


def test_file_that_others_switch_is_tried_for_five_seconds(monkeypatch):
    waits = []
    monkeypatch.setattr(database.time, "sleep", waits.append)
    database._prepare_sqlite(Busy(99), None)
    assert sum(waits) == pytest.approx(5.5 - 0.1)
    waits.clear()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        database._prepare_sqlite(Busy(1000), None)
    assert sum(waits) == pytest.approx(5.5)
    assert max(waits) == pytest.approx(0.1)


def test_export_is_read_by_its_head_alone_and_anything_else_refused():
    head = exported_head('{"head": {"sequence": 3, "hash": "h"}}')
    assert (head.sequence, head.hash) == (3, "h")
    for wrong in ("{", "[]", "{}", '{"head": 1}', '{"head": {"sequence": "x"}}'):
        with pytest.raises(ArtifactError, match="budget export"):
            exported_head(wrong)


def test_request_fills_its_reservation():
    asked = request(
        range(3),
        "k",
        counted(record=2),
        spare=counted(record=1),
        purpose=Purpose.TUNING,
        sweep="rates",
    )
    made = asked.reservation()
    assert made == Reservation(
        id=made.id,
        data_set="people",
        run_key="k",
        recipe="dp_sgd",
        purpose=Purpose.TUNING,
        sweep="rates",
        unit_set=asked.units.digest,
        num_units=3,
        planned=counted(record=2),
        spare=counted(record=1),
    )
    assert len(made.id) == 32
    assert made.id != asked.reservation().id
    told = asked.data_set
    assert (told.name, told.key_check) == ("people", asked.units.key_check)
    assert (told.privacy_unit, told.id_kind) == (PrivacyUnit.RECORD, IdKind.SOURCE)
