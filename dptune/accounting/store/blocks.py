"""Units of a data set and the cohort of each, in blocks of a few columns.

A block holds all units whose names begin with one byte: names, sorted, and cohorts, as
bytes of the database. Ten million units are 256 rows of 40,000, which numpy joins with
the sorted names of a run faster than a database joins tables, and of which a few are in
memory at a time. Names are hashes: blocks are equally large.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, select, update

from dptune.accounting.store import schema
from dptune.accounting.store.reservations import (
    NAME,
    Names,
    UnitSet,
    is_sorted,
)
from dptune.errors import ArtifactError

COHORT: Final = np.dtype("<i4")
_PREFIXES: Final = range(256)
_AT_ONCE: Final = 16

Cohorts = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Units of one data set whose names begin with one byte.

    Args:
        names: sorted.
        cohorts: of each name.
    """

    names: Names
    cohorts: Cohorts

    @classmethod
    def read(cls, names: bytes, cohorts: bytes) -> Self:
        """Read the columns of a row.

        Raises:
            ArtifactError: they are no columns of one length, or the names have no
                order: units that are there would not be found, and look new.
        """
        count, torn = divmod(len(names), NAME.itemsize)
        whole = not torn and len(cohorts) == count * COHORT.itemsize
        if not whole or not is_sorted(np.frombuffer(names, NAME)):
            raise ArtifactError(
                "a block of units must hold whole names in order and a cohort for "
                "each, got other bytes. Restore the store from a backup."
            )
        return cls(
            names=np.frombuffer(names, NAME), cohorts=np.frombuffer(cohorts, COHORT)
        )


_EMPTY: Final = Block.read(b"", b"")


def by_prefix(names: Names) -> list[Names]:
    """Split sorted names by their first bytes."""
    return np.split(names, np.searchsorted(names, [bytes([p]) for p in _PREFIXES[1:]]))


def count_numbers(cohorts: Cohorts) -> dict[int, int]:
    """Count how many units are in each cohort."""
    numbers, counts = np.unique(cohorts, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def stored_blocks(
    connection: Connection,
) -> Iterator[tuple[tuple[str, int], tuple[bytes, bytes]]]:
    """Read every block, unchecked: where it stands, and its columns."""
    query = select(schema.unit_blocks).execution_options(yield_per=_AT_ONCE)
    for row in connection.execute(query).mappings():
        yield (row["data_set"], row["prefix"]), (row["names"], row["cohorts"])


def read_blocks(
    connection: Connection, units: UnitSet
) -> Iterator[tuple[int, Block, Names]]:
    """Read every block in which a run has units: its prefix, itself, and these units.

    A block that is not there yet is empty. The caller may write the one it was given.
    """
    parts = by_prefix(units.names)
    here = [prefix for prefix in _PREFIXES if len(parts[prefix])]
    for start in range(0, len(here), _AT_ONCE):
        wanted = here[start : start + _AT_ONCE]
        table = schema.unit_blocks.c
        query = select(table.prefix, table.names, table.cohorts).where(
            table.data_set == units.data_set, table.prefix.in_(wanted)
        )
        found = {row[0]: Block.read(*row[1:]) for row in connection.execute(query)}
        for prefix in wanted:
            yield prefix, found.pop(prefix, _EMPTY), parts[prefix]


def write_block(
    connection: Connection, block: Block, *, data_set: str, prefix: int, before: Block
) -> None:
    """Write a block in place of what it was before."""
    table = schema.unit_blocks
    values = {"cohorts": block.cohorts.tobytes()}
    if len(block.names) > len(before.names):
        values["names"] = block.names.tobytes()
    if before is _EMPTY:
        row = {"data_set": data_set, "prefix": prefix, **values}
        connection.execute(insert(table).values(row))
        return
    place = (table.c.data_set == data_set) & (table.c.prefix == prefix)
    connection.execute(update(table).where(place).values(values))
