"""The tables are those of `tests/golden/budget_store.*.sql`, on both databases.

Stores are kept for years: a name, a type or a constraint that changes without a
migration is a store that cannot be read.
"""

from pathlib import Path

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dptune.accounting.store import schema
from dptune.accounting.store.migrations.versions import v0001_budget_store as first

GOLDEN = Path(__file__).parents[2] / "golden"
DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}
databases = pytest.mark.parametrize("database", DIALECTS)


class Pen:
    """Stands in for a connection, and writes down what it is asked to execute."""

    def __init__(self, dialect) -> None:
        self.dialect = dialect
        self.written = []

    def execute(self, statement, *_: object) -> None:
        text = str(statement.compile(dialect=self.dialect))
        self.written.append(" ".join(text.split()))


def golden(database):
    text = (GOLDEN / f"budget_store.{database}.sql").read_text(encoding="utf-8")
    return text.removesuffix(";\n").split(";\n\n")


@databases
def test_migration_writes_the_tables_and_guards_that_it_always_wrote(database):
    pen = Pen(DIALECTS[database])
    with Operations.context(MigrationContext(pen.dialect, pen, {})):
        first.upgrade()
    assert pen.written == golden(database)


@databases
def test_schema_speaks_to_exactly_these_tables(database):
    pen = Pen(DIALECTS[database])
    for table in schema.metadata.tables.values():
        pen.execute(CreateTable(table))
        for index in table.indexes:
            pen.execute(CreateIndex(index))
    made = [
        text
        for text in golden(database)
        if text.startswith(("CREATE TABLE", "CREATE INDEX"))
    ]
    assert pen.written == made


def test_migration_is_the_first_and_the_version_that_a_store_is_marked_with():
    assert (
        (first.revision, first.down_revision)
        == (schema.VERSION, None)
        == ("v0001", None)
    )
    assert first.branch_labels is first.depends_on is None
