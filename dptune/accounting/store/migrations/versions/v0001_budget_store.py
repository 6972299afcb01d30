"""The first tables, and triggers that forbid changing the record."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "v0001"
down_revision: Final = None
branch_labels: Final = None
depends_on: Final = None

_RECORD: Final = ("log", "unit_sets")
_REFUSAL: Final = "the record of spent budget is append-only"


def upgrade() -> None:
    """Create everything."""
    _create_record()
    _create_state()
    _create_units()
    for table in _RECORD:
        _forbid_changes(table)


def _create_record() -> None:
    """Create what is never changed, and the head of the log."""
    op.create_table(
        "log",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
    )
    op.create_table(
        "unit_sets",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("names", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )


def _create_state() -> None:
    """Create what follows from the log."""
    op.create_table(
        "data_sets",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("privacy_unit", sa.String(20), nullable=False),
        sa.Column("id_kind", sa.String(20), nullable=False),
        sa.Column("key_check", sa.String(32), nullable=False),
    )
    op.create_table(
        "grants",
        sa.Column("data_set", sa.String(100), primary_key=True),
        sa.Column("notion", sa.String(20), primary_key=True),
        sa.Column("relation", sa.String(20), primary_key=True),
        sa.Column("epsilon", sa.Float, nullable=False),
        sa.Column("delta", sa.Float, nullable=False),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("data_set", sa.String(100), nullable=False),
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("recipe", sa.String(100), nullable=False),
        sa.Column("purpose", sa.String(20), nullable=False),
        sa.Column("sweep", sa.String(100), nullable=False),
        sa.Column("unit_set", sa.String(64), nullable=False),
        sa.Column("num_units", sa.Integer, nullable=False),
        sa.Column("planned", sa.Text, nullable=False),
        sa.Column("spare", sa.Text, nullable=False),
        sa.Column("spent", sa.Text, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
    )
    op.create_index("reservations_by_run", "reservations", ["data_set", "run_key"])


def _create_units() -> None:
    """Create units and the cohorts that they belong to."""
    op.create_table(
        "cohorts",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data_set", sa.String(100), nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
    )
    op.create_table(
        "coverage",
        sa.Column("cohort", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("reservation", sa.String(32), primary_key=True),
    )
    op.create_index("coverage_by_reservation", "coverage", ["reservation"])
    op.create_table(
        "units",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("cohort", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )


def _forbid_changes(table: str) -> None:
    """Let the database refuse to edit or delete rows of the record."""
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION dptune_refuse() RETURNS trigger AS $$ "
        f"BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$ LANGUAGE plpgsql"
    )
    for verb, each in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.split()[0].lower()} BEFORE {verb} ON "
            f"{table} FOR EACH {each} EXECUTE FUNCTION dptune_refuse()"
        )
