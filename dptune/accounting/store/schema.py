"""Tables of the store. `migrations` builds them; a test compares both.

`log` and `unit_sets` are the record and are never changed. All other tables follow from
them and are there for speed; `verify` builds them again and compares.
"""

from typing import Final

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
)

VERSION: Final = "v0003"
"""Newest migration; a test compares."""

metadata: Final = MetaData()

log: Final = Table(
    "log",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("content", Text, nullable=False),
)
unit_sets: Final = Table(
    "unit_sets",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("names", LargeBinary, nullable=False),
)
head: Final = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("sequence", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
)
data_sets: Final = Table(
    "data_sets",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("privacy_unit", String(20), nullable=False),
    Column("id_kind", String(20), nullable=False),
    Column("key_check", String(32), nullable=False),
)
grants: Final = Table(
    "grants",
    metadata,
    Column("data_set", String(100), primary_key=True),
    Column("notion", String(20), primary_key=True),
    Column("relation", String(20), primary_key=True),
    Column("epsilon", Float, nullable=False),
    Column("delta", Float, nullable=False),
    Column("adaptive", Boolean, nullable=False, server_default=false()),
)
reservations: Final = Table(
    "reservations",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("sequence", Integer, nullable=False),
    Column("data_set", String(100), nullable=False),
    Column("run_key", String(64), nullable=False),
    Column("recipe", String(100), nullable=False),
    Column("purpose", String(20), nullable=False),
    Column("sweep", String(100), nullable=False),
    Column("unit_set", String(64), nullable=False),
    Column("num_units", Integer, nullable=False),
    Column("planned", Text, nullable=False),
    Column("spare", Text, nullable=False),
    Column("spent", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Index("reservations_by_run", "data_set", "run_key"),
)
cohorts: Final = Table(
    "cohorts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("data_set", String(100), nullable=False),
    Column("size", Integer, nullable=False),
)
coverage: Final = Table(
    "coverage",
    metadata,
    Column("cohort", Integer, primary_key=True, autoincrement=False),
    Column("reservation", String(32), primary_key=True),
    Index("coverage_by_reservation", "reservation"),
)
unit_blocks: Final = Table(
    "unit_blocks",
    metadata,
    Column("data_set", String(100), primary_key=True),
    Column("prefix", Integer, primary_key=True, autoincrement=False),
    Column("names", LargeBinary, nullable=False),
    Column("cohorts", LargeBinary, nullable=False),
)
