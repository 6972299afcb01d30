"""Migrations build what the code speaks to."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from dptune.accounting.store import migrations, schema
from dptune.accounting.store.database import open_engine, prepare, reading, writing
from dptune.errors import ArtifactError


def test_migrations_make_the_tables_of_the_schema(budget_url):
    engine = open_engine(budget_url)
    with engine.connect() as connection, reading(connection):
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == schema.VERSION
    engine.dispose()


def test_newest_migration_is_the_version_of_the_schema():
    config = Config()
    folder = migrations.__path__[0]
    config.set_main_option("script_location", folder)
    assert ScriptDirectory.from_config(config).get_current_head() == schema.VERSION


def test_store_of_a_newer_program_is_refused(budget_url):
    engine = open_engine(budget_url)
    with engine.connect() as connection, writing(connection):
        connection.execute(text("UPDATE alembic_version SET version_num = 'v9999'"))
    with pytest.raises(ArtifactError, match="newer"):
        prepare(engine)
    engine.dispose()
