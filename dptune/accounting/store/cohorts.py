"""Cohorts: privacy units with one history, kept by set operations in SQL.

A history is the set of reservations that read the unit. When a run reads part of a
cohort, the cohort is split: both halves keep the old history, one gets the new run
besides. So last month's units keep their spend under this month's superset, and new
units begin at zero. A million units are a handful of cohorts.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    MetaData,
    String,
    Table,
    case,
    cast,
    func,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.schema import DropTable

from dptune.accounting.store import schema
from dptune.accounting.store.reservations import UnitSet

_CHUNK: Final = 100_000
_STAGED: Final = Table(
    "staged",
    MetaData(),
    Column("name", String(32), primary_key=True),
    prefixes=["TEMPORARY"],
    sqlite_with_rowid=False,
)


@dataclass(frozen=True, kw_only=True)
class Touched:
    """What a run's units are in the store.

    Args:
        cohorts: how many units of each cohort are read.
        num_new: units that no run has read before.
    """

    cohorts: Mapping[int, int]
    num_new: int


def is_known(connection: Connection, unit_set: str) -> bool:
    """Whether an earlier run read exactly these units."""
    query = select(schema.unit_sets.c.digest).where(
        schema.unit_sets.c.digest == unit_set
    )
    return connection.execute(query).first() is not None


def stage(connection: Connection, units: UnitSet) -> None:
    """Put the names into a table of this connection, before any lock is taken."""
    connection.execute(DropTable(_STAGED, if_exists=True))
    _STAGED.create(connection, checkfirst=False)
    names = units.names
    for start in range(0, len(names), _CHUNK):
        chunk = literal(json.dumps(names[start : start + _CHUNK]))
        if connection.dialect.name == "sqlite":
            items = func.json_each(chunk).table_valued("value")
        else:
            items = func.json_array_elements_text(cast(chunk, JSON)).table_valued(
                "value"
            )
        connection.execute(insert(_STAGED).from_select(["name"], select(items.c.value)))


def touched_by_staged(connection: Connection, num_units: int) -> Touched:
    """Find the cohorts of the staged units."""
    query = (
        select(schema.units.c.cohort, func.count())
        .join_from(_STAGED, schema.units, schema.units.c.name == _STAGED.c.name)
        .group_by(schema.units.c.cohort)
    )
    found = dict(connection.execute(query).tuples().all())
    return Touched(cohorts=found, num_new=num_units - sum(found.values()))


def touched_by_known(connection: Connection, unit_set: str) -> Touched:
    """Find the cohorts of units that an earlier run read: all of them whole."""
    earlier = select(schema.reservations.c.id).where(
        schema.reservations.c.unit_set == unit_set
    )
    found = connection.execute(earlier.limit(1)).scalar_one()
    return Touched(cohorts=cohorts_of(connection, found), num_new=0)


def cover(
    connection: Connection, touched: Touched, *, data_set: str, reservation: str
) -> None:
    """Write a reservation into the history of its units, splitting cohorts."""
    sizes = _sizes(connection, touched.cohorts)
    parts = {c: n for c, n in touched.cohorts.items() if n < sizes[c]}
    covered = [c for c in touched.cohorts if c not in parts]
    numbers = _new_numbers(connection)
    halves = {cohort: next(numbers) for cohort in parts}
    if halves:
        _split(connection, halves, parts, data_set=data_set)
        covered += halves.values()
    if touched.num_new:
        covered.append(next(numbers))
        _add_new(connection, covered[-1], touched.num_new, data_set=data_set)
    rows = [{"cohort": c, "reservation": reservation} for c in covered]
    if rows:
        connection.execute(insert(schema.coverage), rows)


def histories(
    connection: Connection, cohorts: Sequence[int]
) -> dict[int, frozenset[str]]:
    """Read which reservations read each cohort."""
    found: dict[int, set[str]] = defaultdict(set)
    query = select(schema.coverage).where(schema.coverage.c.cohort.in_(cohorts))
    for cohort, reservation in connection.execute(query):
        found[cohort].add(reservation)
    return {cohort: frozenset(found[cohort]) for cohort in cohorts}


def cohort_sizes(connection: Connection, data_set: str) -> dict[int, int]:
    """Read how many units each cohort of a data set has."""
    query = select(schema.cohorts).where(schema.cohorts.c.data_set == data_set)
    return {row["id"]: row["size"] for row in connection.execute(query).mappings()}


def cohorts_of(connection: Connection, reservation: str) -> dict[int, int]:
    """Read the cohorts that a reservation covers, with their sizes."""
    query = (
        select(schema.cohorts.c.id, schema.cohorts.c.size)
        .join(schema.coverage, schema.coverage.c.cohort == schema.cohorts.c.id)
        .where(schema.coverage.c.reservation == reservation)
    )
    return dict(connection.execute(query).tuples().all())


def keep_names(connection: Connection, units: UnitSet) -> None:
    """Store a set of names for good, so that all histories can be built again."""
    connection.execute(
        insert(schema.unit_sets).values(digest=units.digest, names=units.packed)
    )


def _sizes(connection: Connection, cohorts: Mapping[int, int]) -> dict[int, int]:
    """Read the sizes of some cohorts."""
    query = select(schema.cohorts.c.id, schema.cohorts.c.size).where(
        schema.cohorts.c.id.in_(list(cohorts))
    )
    return dict(connection.execute(query).tuples().all())


def _new_numbers(connection: Connection) -> Iterator[int]:
    """Yield numbers for new cohorts; the write lock makes them unique."""
    last = connection.execute(select(func.max(schema.cohorts.c.id))).scalar() or 0
    while True:
        last += 1
        yield last


def _split(
    connection: Connection,
    halves: Mapping[int, int],
    counts: Mapping[int, int],
    *,
    data_set: str,
) -> None:
    """Move the staged part of each cohort to a new one of the same history."""
    old = schema.units.c.cohort
    connection.execute(
        update(schema.units)
        .where(old.in_(list(halves)), schema.units.c.name.in_(select(_STAGED.c.name)))
        .values(cohort=case(dict(halves), value=old, else_=null()))
    )
    for cohort, half in halves.items():
        size = schema.cohorts.c.size
        connection.execute(
            update(schema.cohorts)
            .where(schema.cohorts.c.id == cohort)
            .values(size=size - counts[cohort])
        )
        _add_cohort(connection, half, counts[cohort], data_set=data_set)
        inherited = select(literal(half), schema.coverage.c.reservation).where(
            schema.coverage.c.cohort == cohort
        )
        connection.execute(
            insert(schema.coverage).from_select(["cohort", "reservation"], inherited)
        )


def _add_new(connection: Connection, cohort: int, size: int, *, data_set: str) -> None:
    """Enter staged units that no run has read before."""
    _add_cohort(connection, cohort, size, data_set=data_set)
    known = select(schema.units.c.name).where(schema.units.c.name == _STAGED.c.name)
    new = select(_STAGED.c.name, literal(cohort)).where(~known.exists())
    connection.execute(insert(schema.units).from_select(["name", "cohort"], new))


def _add_cohort(
    connection: Connection, cohort: int, size: int, *, data_set: str
) -> None:
    """Enter a cohort."""
    connection.execute(
        insert(schema.cohorts).values(id=cohort, data_set=data_set, size=size)
    )
