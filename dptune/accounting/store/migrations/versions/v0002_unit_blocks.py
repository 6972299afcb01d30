"""Units of a data set in blocks of sorted names, in place of a row for each."""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from alembic import op

from dptune.errors import ArtifactError

revision: Final = "v0002"
down_revision: Final = "v0001"
branch_labels: Final = None
depends_on: Final = None

_AT_ONCE: Final = 10_000
_NAME: Final = re.compile("[0-9a-f]{32}")
_BYTES: Final = {"sqlite": "BINARY", "postgresql": "C"}
"""Collations of bytes: a database may sort text as a language does, `aa` behind `z`."""
_units: Final = sa.table("units", sa.column("name"), sa.column("cohort"))
_cohorts: Final = sa.table("cohorts", sa.column("id"), sa.column("data_set"))
_blocks: Final = sa.table(
    "unit_blocks",
    sa.column("data_set"),
    sa.column("prefix"),
    sa.column("names", sa.LargeBinary),
    sa.column("cohorts", sa.LargeBinary),
)


def upgrade() -> None:
    """Create the blocks, and put every unit into them with its cohort of before."""
    op.create_table(
        "unit_blocks",
        sa.Column("data_set", sa.String(100), primary_key=True),
        sa.Column("prefix", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("names", sa.LargeBinary, nullable=False),
        sa.Column("cohorts", sa.LargeBinary, nullable=False),
    )
    database = op.get_bind()
    query = (
        sa.select(_units, _cohorts.c.data_set)
        .outerjoin_from(_units, _cohorts, _cohorts.c.id == _units.c.cohort)
        .order_by(_units.c.name.collate(_BYTES[database.dialect.name]))
        .execution_options(yield_per=_AT_ONCE)
    )
    with database.execute(query) as found:
        for prefix, units in groupby(found, lambda unit: unit.name[:2]):
            _write(prefix, units)
    op.drop_table("units")


def _write(prefix: str, units: Iterable[Any]) -> None:
    """Write the block of each data set that has units of one first byte."""
    found = defaultdict(list)
    for name, cohort, data_set in units:
        if data_set is None or not _NAME.fullmatch(name):
            raise ArtifactError(
                "the budget store's units must be names, each in a cohort of the "
                "store, got others. Restore it from a backup, or look with `dptune "
                "budget verify` of the program that wrote it."
            )
        found[data_set].append((bytes.fromhex(name), cohort))
    for data_set, block in found.items():
        names, cohorts = zip(*block, strict=True)
        values = {"data_set": data_set, "prefix": int(prefix, 16)}
        values["names"] = b"".join(names)
        values["cohorts"] = np.array(cohorts, "<i4").tobytes()
        op.get_bind().execute(sa.insert(_blocks).values(values))
