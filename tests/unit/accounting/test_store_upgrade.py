"""Stores that a program of before wrote: nothing that was spent changes by a bit.

`tests/golden/budget_store.v0001.json` was written by the last program of version v0001,
tables and what it reported.
"""

import json
from pathlib import Path

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import column as sql_column
from sqlalchemy import insert, table, text

from dptune.accounting.store import schema
from dptune.accounting.store.blocks import Block, stored_blocks
from dptune.accounting.store.database import open_engine, reading, writing
from dptune.accounting.store.migrations.versions import v0001_budget_store as first
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.verify import verify
from dptune.errors import ArtifactError
from tests.budgets import cost, killed, run, stored

GOLDEN = Path(__file__).parents[2] / "golden" / "budget_store.v0001.json"


@pytest.fixture(scope="module")
def known():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request, tmp_path, known):
    """A store of before, as it lay in its database."""
    url = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").fresh("old")
    engine = open_engine(url)
    with engine.connect() as connection, writing(connection):
        with Operations.context(MigrationContext.configure(connection)):
            first.upgrade()
        for name, rows in known["tables"].items():
            columns = [sql_column(field) for field in rows[0]]
            connection.execute(insert(table(name, *columns)), [*map(as_stored, rows)])
        connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('v0001')"))
    engine.dispose()
    return url


def as_stored(row):
    names = row.get("names")
    return row if names is None else {**row, "names": bytes.fromhex(names)}


def cohort_of_each(store):
    with store.engine.connect() as connection, reading(connection):
        found = [Block.read(*row) for _, row in stored_blocks(connection)]
    return {
        name: cohort
        for block in found
        for name, cohort in zip(hexadecimal(block), block.cohorts.tolist(), strict=True)
    }


def hexadecimal(block):
    packed = block.names.tobytes().hex()
    return [packed[i : i + 32] for i in range(0, len(packed), 32)]


def is_kept(store, known):
    """Whether every unit has its cohort, and every other table all that it had.

    No grant of before is adaptive.
    """
    tables = {**known["tables"]}
    tables["grants"] = [{**row, "adaptive": False} for row in tables["grants"]]
    units = {row["name"]: row["cohort"] for row in tables.pop("units")}
    kept = stored(store)
    return cohort_of_each(store) == units and all(
        kept[name]
        == sorted(
            tuple(as_stored(row)[c.name] for c in schema.metadata.tables[name].columns)
            for row in rows
        )
        for name, rows in tables.items()
    )


def test_store_of_before_is_the_same_and_goes_on(old, known):
    with BudgetStore.open(old) as store:
        assert is_kept(store, known)
        assert verify(store).success
        for now, then in zip(budgets(store, delta=1e-5), known["budgets"], strict=True):
            said = now.model_dump(mode="json")
            lines = zip(said.pop("lines"), then["lines"], strict=True)
            assert said == {name: then[name] for name in said}
            for line, was in lines:
                assert line == {"adaptive": False} | {
                    name: pytest.approx(value, rel=1e-10)
                    if isinstance(value, float)
                    else value
                    for name, value in was.items()
                }
        run(store, range(30, 50), "may", cost(2))
        (report,) = budgets(store, delta=1e-5, only="people")
        assert (report.num_units, report.num_cohorts) == (50, 7)
        assert verify(store).success


def test_twin_that_puts_units_into_a_fresh_cohort_is_caught(old, known):
    with BudgetStore.open(old) as store:
        with store.engine.connect() as connection, writing(connection):
            connection.execute(
                text("UPDATE unit_blocks SET cohorts = :c WHERE length(cohorts) = 4"),
                {"c": (9).to_bytes(4, "little")},
            )
        assert not is_kept(store, known)
        assert not verify(store).success


def test_upgrade_that_is_killed_is_done_again(old, known):
    died = [at for at in range(0, 120, 15) if killed(old, BudgetStore.open, at=at)]
    assert len(died) > 3
    with BudgetStore.open(old) as store:
        assert is_kept(store, known)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM cohorts WHERE id = 1",
        "UPDATE units SET name = 'zz' || substr(name, 3) WHERE cohort = 1",
        "UPDATE units SET name = upper(name)",
    ],
)
def test_store_with_units_that_none_can_have_is_left_as_it_was(old, damage):
    """In no cohort, or under names that belong into no block."""
    engine = open_engine(old)
    with engine.connect() as connection, writing(connection):
        connection.execute(text(damage))
    engine.dispose()
    for _ in range(2):
        with pytest.raises(ArtifactError, match="must be names, each in a cohort"):
            BudgetStore.open(old)


@pytest.mark.parametrize("old", ["postgresql"], indirect=True)
def test_units_are_kept_in_a_database_that_sorts_as_danes_do(old):
    """Who asks it for names between `ba` and `bb` does not get `baa`."""
    engine = open_engine(old)
    with engine.connect() as connection, writing(connection):
        to = 'ALTER TABLE units ALTER name TYPE varchar(32) COLLATE "da-x-icu"'
        connection.execute(text(to))
        for prefix in ("aa", "baa", "fcaa"):
            more = f"SELECT '{prefix}' || substr(name, {len(prefix) + 1}), cohort"
            connection.execute(text(f"INSERT INTO units {more} FROM units LIMIT 9"))
        units = dict(
            connection.execute(text("SELECT name, cohort FROM units")).tuples().all()
        )
        between = "SELECT count(*) FROM units WHERE name >= 'ba' AND name < 'bb'"
        found = connection.execute(text(between)).scalar_one()
        assert found < sum(name.startswith("ba") for name in units)
    engine.dispose()
    with BudgetStore.open(old) as store:
        assert cohort_of_each(store) == units
