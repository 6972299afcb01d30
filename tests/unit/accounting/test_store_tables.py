"""The tables are those of `tests/golden/budget_store.*.sql`, on both databases.

Stores are kept for years: a name, a type or a constraint that changes without a
migration is a store that cannot be read.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dptune.accounting.store import schema
from dptune.accounting.store.migrations.versions import v0001_budget_store as first
from dptune.accounting.store.migrations.versions import v0002_unit_blocks as second
from dptune.accounting.store.migrations.versions import v0003_adaptive_grants as third

GOLDEN = Path(__file__).parents[2] / "golden"
DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}
databases = pytest.mark.parametrize("database", DIALECTS)


class Pen:
    """Stands in for a connection, and writes down what it is asked to execute."""

    def __init__(self, dialect) -> None:
        self.dialect = dialect
        self.written = []

    def execute(self, statement, *_: object) -> "nullcontext[tuple[()]]":
        text = str(statement.compile(dialect=self.dialect))
        if not text.startswith("SELECT"):
            self.written.append(" ".join(text.split()))
        return nullcontext(())  # what an empty store answers


def golden(database, version="v0001"):
    file = GOLDEN / f"budget_store.{version}.{database}.sql"
    text = file.read_text(encoding="utf-8")
    return text.removesuffix(";\n").split(";\n\n")


@databases
def test_migration_writes_the_tables_and_guards_that_it_always_wrote(database):
    pen = Pen(DIALECTS[database])
    with Operations.context(MigrationContext(pen.dialect, pen, {})):
        first.upgrade()
        assert pen.written == golden(database)
        second.upgrade()
        assert pen.written == golden(database) + golden(database, "v0002")
        pen.written.clear()
        third.upgrade()
    assert pen.written == golden(database, "v0003")


@databases
def test_schema_speaks_to_exactly_these_tables(database):
    pen = Pen(DIALECTS[database])
    for table in schema.metadata.tables.values():
        pen.execute(CreateTable(table))
        for index in table.indexes:
            pen.execute(CreateIndex(index))
    (added,) = golden(database, "v0003")
    column = added.removeprefix("ALTER TABLE grants ADD COLUMN ")
    made = [
        text.replace(", PRIMARY KEY", f", {column}, PRIMARY KEY")
        if text.startswith("CREATE TABLE grants ")
        else text
        for text in golden(database) + golden(database, "v0002")
        if text.startswith(("CREATE TABLE", "CREATE INDEX"))
        and not text.startswith("CREATE TABLE units ")
    ]
    assert pen.written == made


def test_migrations_follow_one_another_to_the_version_that_a_store_is_marked_with():
    assert (first.revision, first.down_revision) == ("v0001", None)
    assert (second.revision, second.down_revision) == ("v0002", "v0001")
    assert (third.revision, third.down_revision) == (schema.VERSION, "v0002")
    for migration in (first, second, third):
        assert migration.branch_labels is migration.depends_on is None
