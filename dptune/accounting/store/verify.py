"""Verify a store: the chain, the tables, and every epsilon by another accountant.

| checked | against | names |
|---|---|---|
| every entry | its hash, the entry before it, the heads | the first bad entry |
| unit sets | their digests | the entry that made the first bad one |
| tables | the state that follows from the log | the first row that differs |
| every figure on which a run was let in, and what is committed now | RDP under
  add-or-remove (never smaller than PLD), quadrature (never larger) | the entry |
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from sqlalchemy import Connection, select

from dptune.accounting.accountants import Accountant, epsilon
from dptune.accounting.filters import filtered_epsilon
from dptune.accounting.quadrature import QuadratureError
from dptune.accounting.store import cohorts, log, schema, tables
from dptune.accounting.store.allowances import (
    Grant,
    History,
    largest,
    tally_event,
    worst,
)
from dptune.accounting.store.blocks import Block, count_numbers, stored_blocks
from dptune.accounting.store.database import connecting, reading
from dptune.accounting.store.log import Head
from dptune.accounting.store.replay import ReplayError, State, Units, replay
from dptune.accounting.store.reservations import NAME, Names, is_sorted
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError, UnsupportedEventError
from dptune.privacy import NeighboringRelation

_AGREEMENT = 2e-3
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a store.

    Args:
        entry: number of the bad entry of the log; None for a bad row of a table.
        message: what is wrong, without names of units.
    """

    entry: int | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a verification found.

    Args:
        findings: empty for a store that is as it was written.
        num_entries: entries that were read.
        num_figures: epsilons that were computed again.
        num_units: units whose history was compared.
        head: end of the log.
    """

    findings: tuple[Finding, ...]
    num_entries: int
    num_figures: int
    num_units: int
    head: Head

    @property
    def success(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


@dataclass(kw_only=True)
class _Figures:
    """Computes every claim again while the log is replayed."""

    findings: list[Finding] = field(default_factory=list)
    count: int = 0

    def observe(self, state: State, content: dict[str, Any], sequence: int) -> None:
        """Check the claims of one entry on the state right after it."""
        if not content.get("claims"):
            return
        made = state.reservations[content["reservation"]]
        histories = state.composed(made.data_set, only=made)
        for claim in content["claims"]:
            grant = tables.grant_of(claim)
            problem = _disagreement(float(claim["after"]), grant, histories)
            self.count += 1
            if problem:
                self.findings.append(Finding(entry=sequence, message=problem))


def verify(store: BudgetStore, *, heads: Sequence[Head] = ()) -> Verification:
    """Check everything that can be checked without the source of the data.

    Args:
        store: to be checked; nothing is changed.
        heads: ends of the log that were kept elsewhere (`budget export`). Without one,
            who rewrites the whole database is not noticed.
    """
    with connecting(store.engine) as connection, reading(connection):
        rows = list(log.read_rows(connection))
        end = log.read_head(connection)
        broken = log.first_break(rows, [end, *heads])
        if broken is not None:
            message = f"entry {broken.sequence} {broken.reason}"
            found = Finding(entry=broken.sequence, message=message)
            return _result([found], rows=len(rows), head=end)
        return _verify_state(connection, rows, end)


def _verify_state(
    connection: Connection, rows: list[log.Row], end: Head
) -> Verification:
    """Replay a log whose chain holds, and compare."""
    figures = _Figures()
    read = partial(_read_names, connection)
    try:
        state = replay(rows, read, observe=figures.observe)
    except ReplayError as error:
        message = f"entry {error.sequence} {_reason(error)}"
        found = Finding(entry=error.sequence, message=message)
        return _result([found], rows=len(rows), head=end)
    findings = [*figures.findings, *_compare(connection, state)]
    findings += _current_figures(state, figures)
    return Verification(
        findings=tuple(findings),
        num_entries=len(rows),
        num_figures=figures.count,
        num_units=sum(len(units.names) for units in state.units.values()),
        head=end,
    )


def _reason(error: ReplayError) -> str:
    """Say why an entry could not be followed."""
    if isinstance(error.__cause__, ArtifactError):
        return str(error.__cause__)
    return "does not follow from the entries before it"


def _read_names(connection: Connection, digest: str) -> Names:
    """Read a unit set and check its digest."""
    query = select(schema.unit_sets.c.names).where(schema.unit_sets.c.digest == digest)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        raise ArtifactError("names a set of units that was deleted")
    if hashlib.sha256(found).hexdigest() != digest:
        raise ArtifactError("names a set of units that was edited")
    names = np.frombuffer(found, NAME)
    if not is_sorted(names):
        raise ArtifactError("names a set of units that is none: it has no order")
    return names


def _compare(connection: Connection, state: State) -> list[Finding]:
    """Compare every table with what follows from the log."""
    rows = connection.execute(select(schema.data_sets)).mappings()
    data_sets = {row["name"]: tables.data_set_of(row) for row in rows}
    stored: list[tuple[str, dict[Any, Any], dict[Any, Any]]] = [
        (
            "grants",
            {
                (g.data_set, g.notion, g.relation): g
                for g in tables.read_grants(connection)
            },
            state.grants,
        ),
        ("data_sets", data_sets, state.data_sets),
        (
            "reservations",
            {r.id: r for r in tables.read_reservations(connection)},
            state.reservations,
        ),
    ]
    findings = []
    for name, table, expected in stored:
        wrong = sorted(
            str(key)
            for key in {*table, *expected}
            if table.get(key) != expected.get(key)
        )
        if wrong:
            findings.append(_row(name, f"row {wrong[0]}", len(wrong)))
    return findings + _compare_units(connection, state)


def _compare_units(connection: Connection, state: State) -> list[Finding]:
    """Compare each unit's cohort with its own history, block by block."""
    numbers = connection.execute(select(schema.cohorts.c.id, schema.cohorts.c.size))
    sizes = dict(numbers.tuples().all())
    known = cohorts.histories(connection, list(sizes))
    missing = {
        (name, prefix): part
        for name, units in state.units.items()
        for prefix, part in enumerate(units.by_prefix())
        if len(part.names)
    }
    counted, wrong = Counter[int](), []
    for place, row in stored_blocks(connection):
        expected = missing.pop(place, None)
        try:
            block = Block.read(*row)
        except ArtifactError:
            wrong.append(place)
            continue
        counted.update(count_numbers(block.cohorts))
        if expected is None or not _agree(block, expected, known, state):
            wrong.append(place)
    wrong += missing
    findings = []
    if wrong:
        name, prefix = min(wrong)
        findings.append(_row("unit_blocks", f"row {name!r}, {prefix}", len(wrong)))
    bad = sorted(c for c in {*counted, *sizes} if counted[c] != sizes.get(c))
    if bad:
        findings.append(_row("cohorts", f"row {bad[0]}", len(bad)))
    return findings


def _agree(
    block: Block, units: Units, known: Mapping[int, frozenset[str]], state: State
) -> bool:
    """Whether a block has these units, each in a cohort of its history."""
    if not np.array_equal(block.names, units.names):
        return False
    pairs = np.unique(block.cohorts.astype(np.int64) << 32 | units.histories)
    return all(
        known.get(pair >> 32) == frozenset(state.histories[pair & 0xFFFF_FFFF])
        for pair in pairs.tolist()
    )


def _row(table: str, row: str, count: int) -> Finding:
    """Report a table that is not what the log says."""
    return Finding(
        entry=None,
        message=f"table {table}: {row} is not what the log says ({count} in all)",
    )


def _current_figures(state: State, figures: _Figures) -> list[Finding]:
    """Check what every grant's worst cohort has committed now."""
    findings = []
    for grant in state.grants.values():
        histories = state.composed(grant.data_set)
        mine = worst(histories, grant)
        figures.count += 1
        problem = _disagreement(mine.epsilon, grant, histories)
        if problem:
            findings.append(Finding(entry=None, message=f"now: {problem}"))
    return findings


def _disagreement(
    claimed: float, grant: Grant, histories: Iterable[History]
) -> str | None:
    """Compare a figure with what other accountants say of the raw events.

    The figure must be at least the quadrature of the worst history, and at most RDP of
    some history; where neither knows the events, at least PLD itself again.
    """
    lower, upper = 0.0, 0.0
    for tally in largest(histories, grant.notion):
        low, high = _bounds(tally_event(dict(tally)), grant)
        lower, upper = max(lower, low), max(upper, high)
    slack = _AGREEMENT * lower + _NEGLIGIBLE if math.isfinite(lower) else 0.0
    if claimed < lower - slack:
        return f"{grant.label} claims epsilon {claimed:.6g}, which is below {lower:.6g}"
    if claimed > upper * (1 + _AGREEMENT) + _NEGLIGIBLE:
        return f"{grant.label} claims epsilon {claimed:.6g}, which is above {upper:.6g}"
    return None


def _bounds(event: DpEvent, grant: Grant) -> tuple[float, float]:
    """Bound an event's epsilon from below and from above, without PLD if possible.

    What a filter takes has one definition, and is computed once more; it is never less
    than what is fixed in advance.
    """
    terms = {"delta": grant.delta, "relation": grant.relation}
    try:
        low = epsilon(event, accountant=Accountant.QUADRATURE, **terms)  # type: ignore[arg-type]
    except (UnsupportedEventError, QuadratureError):
        low = epsilon(event, **terms)  # type: ignore[arg-type]
    if grant.adaptive:
        spent = filtered_epsilon(event, **terms)  # type: ignore[arg-type]
        return max(low, spent), spent
    if grant.relation is not NeighboringRelation.ADD_OR_REMOVE_ONE:
        return low, math.inf
    try:
        return low, epsilon(event, accountant=Accountant.RDP, **terms)  # type: ignore[arg-type]
    except UnsupportedEventError:
        return low, math.inf


def _result(findings: list[Finding], *, rows: int, head: Head) -> Verification:
    """Report a log that could not be followed to its end."""
    return Verification(
        findings=tuple(findings),
        num_entries=rows,
        num_figures=0,
        num_units=0,
        head=head,
    )
