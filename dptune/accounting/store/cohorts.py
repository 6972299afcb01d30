"""Cohorts: privacy units with one history, kept by joins of sorted names.

A history is the set of reservations that read the unit. When a run reads part of a
cohort, the cohort is split: both halves keep the old history, one gets the new run
besides. So last month's units keep their spend under this month's superset, and new
units begin at zero. A million units are a handful of cohorts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, insert, literal, select, update

from dptune.accounting.store import schema
from dptune.accounting.store.blocks import (
    COHORT,
    Block,
    count_numbers,
    read_blocks,
    write_block,
)
from dptune.accounting.store.reservations import Names, UnitSet, locate


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


def touched_by(connection: Connection, units: UnitSet) -> Touched:
    """Find the cohorts of a run's units."""
    if is_known(connection, units.digest):
        return _touched_by_known(connection, units.digest)
    found = Counter[int]()
    for _, block, wanted in read_blocks(connection, units):
        places, known = locate(block.names, wanted)
        found.update(count_numbers(block.cohorts[places[known]]))
    return Touched(cohorts=dict(found), num_new=len(units) - found.total())


def count_known(connection: Connection, units: UnitSet, names: Names) -> int:
    """Count those of some names of a data set that earlier runs were charged for."""
    return int(are_known(connection, replace(units, names=names)).sum())


def are_known(connection: Connection, units: UnitSet) -> NDArray[np.bool_]:
    """Tell of each unit, in order, whether earlier runs were charged for it."""
    blocks = read_blocks(connection, units)
    found = [locate(block.names, wanted)[1] for _, block, wanted in blocks]
    return np.concatenate([np.empty(0, bool), *found])


def _touched_by_known(connection: Connection, unit_set: str) -> Touched:
    """Find the cohorts of units that an earlier run read: all of them whole."""
    earlier = select(schema.reservations.c.id).where(
        schema.reservations.c.unit_set == unit_set
    )
    found = connection.execute(earlier.limit(1)).scalar_one()
    return Touched(cohorts=cohorts_of(connection, found), num_new=0)


def cover(
    connection: Connection, touched: Touched, *, units: UnitSet, reservation: str
) -> None:
    """Write a reservation into the history of its units, splitting cohorts."""
    sizes = _sizes(connection, touched.cohorts)
    parts = {c: n for c, n in touched.cohorts.items() if n < sizes[c]}
    covered = [c for c in touched.cohorts if c not in parts]
    numbers = _new_numbers(connection)
    halves = {cohort: next(numbers) for cohort in parts}
    fresh = next(numbers)
    for cohort, half in halves.items():
        _split(connection, cohort, half, parts[cohort], data_set=units.data_set)
    covered += halves.values()
    if touched.num_new:
        _add_cohort(connection, fresh, touched.num_new, data_set=units.data_set)
        covered.append(fresh)
    if halves or touched.num_new:
        _move(connection, units, halves, fresh=fresh)
    rows = [{"cohort": c, "reservation": reservation} for c in covered]
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
    packed = units.names.tobytes()
    connection.execute(
        insert(schema.unit_sets).values(digest=units.digest, names=packed)
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
    connection: Connection, cohort: int, half: int, size: int, *, data_set: str
) -> None:
    """Give part of a cohort's units a cohort of their own, of the same history."""
    connection.execute(
        update(schema.cohorts)
        .where(schema.cohorts.c.id == cohort)
        .values(size=schema.cohorts.c.size - size)
    )
    _add_cohort(connection, half, size, data_set=data_set)
    inherited = select(literal(half), schema.coverage.c.reservation).where(
        schema.coverage.c.cohort == cohort
    )
    connection.execute(
        insert(schema.coverage).from_select(["cohort", "reservation"], inherited)
    )


def _move(
    connection: Connection, units: UnitSet, halves: Mapping[int, int], *, fresh: int
) -> None:
    """Put a run's units into the halves of their cohorts, and new ones into `fresh`."""
    moved = np.arange(fresh + 1, dtype=COHORT)
    moved[list(halves)] = list(halves.values())
    for prefix, block, wanted in read_blocks(connection, units):
        places, known = locate(block.names, wanted)
        cohorts = block.cohorts.copy()
        cohorts[places[known]] = moved[cohorts[places[known]]]
        made = Block(
            names=np.insert(block.names, places[~known], wanted[~known]),
            cohorts=np.insert(cohorts, places[~known], fresh),
        )
        write_block(
            connection, made, data_set=units.data_set, prefix=prefix, before=block
        )


def _add_cohort(
    connection: Connection, cohort: int, size: int, *, data_set: str
) -> None:
    """Enter a cohort."""
    connection.execute(
        insert(schema.cohorts).values(id=cohort, data_set=data_set, size=size)
    )
