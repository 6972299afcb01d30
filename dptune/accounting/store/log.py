"""The log: everything that ever happened in a store, append-only and hash-chained.

Each entry holds the hash of the one before it; the head of the chain is kept in a row
of its own, and elsewhere if somebody exports it. Who edits, deletes or reorders an
entry breaks the chain at a place that `first_break` names. Who can write all of the
database can also forge a whole new chain: only a head that was kept elsewhere tells.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, insert, select, update

from dptune.accounting.store import schema

GENESIS: Final = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Head:
    """The end of a log: how many entries, and the hash of the last."""

    sequence: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry as it is stored; `sequence` counts from 1."""

    sequence: int
    previous: str
    hash: str
    content: str

    @property
    def true_hash(self) -> str:
        """The hash that the stored content should have."""
        return entry_hash(self.sequence, self.previous, self.content)


@dataclass(frozen=True, kw_only=True)
class Break:
    """The first place where a log is not what was written."""

    sequence: int
    reason: str


def append(connection: Connection, content: dict[str, Any]) -> Head:
    """Write one entry behind the last, in the open write transaction."""
    last = read_head(connection)
    stamped = {**content, "at": datetime.now(tz=UTC).isoformat(timespec="seconds")}
    written = canonical(stamped)
    sequence = last.sequence + 1
    digest = entry_hash(sequence, last.hash, written)
    connection.execute(
        insert(schema.log).values(
            sequence=sequence, previous=last.hash, hash=digest, content=written
        )
    )
    values = {"sequence": sequence, "hash": digest}
    statement = insert if last.sequence == 0 else update
    connection.execute(statement(schema.head).values(id=1, **values))
    return Head(sequence=sequence, hash=digest)


def read_head(connection: Connection) -> Head:
    """Read where the log ends, as its head row says."""
    row = connection.execute(select(schema.head)).mappings().one_or_none()
    return Head() if row is None else Head(sequence=row["sequence"], hash=row["hash"])


def read_rows(connection: Connection) -> Iterator[Row]:
    """Read all entries in order, unchecked."""
    query = select(schema.log).order_by(schema.log.c.sequence)
    for row in connection.execute(query).mappings():
        yield Row(**row)


def first_break(rows: Iterable[Row], heads: Iterable[Head]) -> Break | None:
    """Find the first entry that was edited, deleted, moved or cut off.

    Args:
        rows: all entries in the order of their numbers.
        heads: of the head row, and any that were kept elsewhere.
    """
    ends = {head.sequence: head.hash for head in heads if head.sequence}
    last = Head()
    for row in rows:
        found = _row_break(row, last, ends)
        if found is not None:
            return found
        last = Head(sequence=row.sequence, hash=row.hash)
    if last.sequence < max(ends, default=0):
        return Break(sequence=last.sequence + 1, reason="was cut off the end")
    if last.sequence and not ends:
        return Break(sequence=last.sequence, reason="has no head that confirms it")
    return None


def _row_break(row: Row, last: Head, ends: Mapping[int, str]) -> Break | None:
    """Compare one entry with the one before it and with the heads."""
    if row.sequence != last.sequence + 1:
        return Break(sequence=last.sequence + 1, reason="is missing")
    if row.hash != row.true_hash:
        return Break(sequence=row.sequence, reason="was edited or moved")
    if row.previous != last.hash:
        return Break(
            sequence=max(last.sequence, 1),
            reason="was edited and hashed anew: the next entry knew it otherwise",
        )
    if ends.get(row.sequence, row.hash) != row.hash:
        return Break(sequence=row.sequence, reason="is not what the head knew")
    return None


def entry_hash(sequence: int, previous: str, content: str) -> str:
    """Hash one entry together with its place."""
    return hashlib.sha256(
        canonical({"content": content, "previous": previous, "sequence": sequence})
        .encode()
    ).hexdigest()  # fmt: skip


def canonical(value: object) -> str:
    """Write JSON in the one form that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
