"""Verify a store: the chain, the tables, and every epsilon by another accountant.

| checked | against | names |
|---|---|---|
| every entry | its hash, the entry before it, the heads | the first bad entry |
| unit sets | their digests | the entry that made the first bad one |
| tables | the state that follows from the log | the first row that differs |
| every figure on which a run was let in, and what is committed now | RDP under
  add-or-remove (never smaller than PLD), quadrature (never larger) | the entry |

The state is made from the log by other means than the tables are kept: these change row
by row and split cohorts in SQL; here every unit gets its own history, in memory.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dp_accounting import DpEvent
from sqlalchemy import Connection, select

from dptune.accounting.accountants import Accountant, epsilon
from dptune.accounting.quadrature import QuadratureError
from dptune.accounting.store import cohorts, log, schema, tables
from dptune.accounting.store.allowances import (
    Cost,
    Grant,
    History,
    largest,
    tally_event,
    worst,
)
from dptune.accounting.store.database import connecting, reading
from dptune.accounting.store.entries import read_content, reservation_from
from dptune.accounting.store.log import Head, Row
from dptune.accounting.store.reservations import Reservation, ReservationStatus, unpack
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.tables import DataSet, data_set_of, grant_of
from dptune.errors import ArtifactError, UnsupportedEventError
from dptune.privacy import NeighboringRelation

HistoryKey = tuple[str, ...]
Observer = Callable[["State", dict[str, Any], int], None]


@dataclass(kw_only=True)
class State:
    """What follows from the entries so far.

    Args:
        data_sets, grants, reservations: as the tables of these names.
        units: for each unit, the reservations that read it, in order.
    """

    data_sets: dict[str, DataSet] = field(default_factory=dict)
    grants: dict[tuple[str, str, str], Grant] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    units: dict[str, HistoryKey] = field(default_factory=dict, repr=False)

    def histories(self, names: Iterable[str]) -> Counter[HistoryKey]:
        """Count the histories of some units."""
        return Counter(self.units[name] for name in names)

    def cost(self, history: HistoryKey) -> Cost:
        """Compose what a history commits."""
        cost = Cost()
        for identifier in history:
            cost = cost.plus(self.reservations[identifier].committed)
        return cost


class ReplayError(Exception):
    """An entry that cannot follow from those before it."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"entry {sequence}")
        self.sequence = sequence


def replay(
    rows: Iterable[Row],
    names_of: Callable[[str], bytes],
    *,
    observe: Observer | None = None,
) -> State:
    """Build the state from checked entries.

    Args:
        rows: entries in order, whose chain holds.
        names_of: packed names of a unit set by its digest.
        observe: called after each entry with the state, its content and number.

    Raises:
        ReplayError: an entry makes no sense where it stands.
    """
    state = State()
    for row in rows:
        try:
            content = read_content(row.content)
            _APPLY[content["kind"]](state, content, names_of)
        except Exception as error:  # forged content may be anything
            raise ReplayError(row.sequence) from error
        if observe is not None:
            observe(state, content, row.sequence)
    return state


Names = Callable[[str], bytes]


def _data_set(state: State, content: dict[str, Any], _: Names) -> None:
    """A data set was read for the first time."""
    found = data_set_of(content)
    state.data_sets[found.name] = found


def _grant(state: State, content: dict[str, Any], _: Names) -> None:
    """A grant replaces an earlier one."""
    found = grant_of(content)
    state.grants[found.data_set, found.notion, found.relation] = found


def _reserve(state: State, content: dict[str, Any], names_of: Names) -> None:
    """Every unit's history grows by the reservation."""
    made = reservation_from(content)
    if made.id in state.reservations:
        raise ValueError
    state.reservations[made.id] = made
    longer: dict[HistoryKey, HistoryKey] = {}
    for name in unpack(names_of(made.unit_set)):
        old = state.units.get(name, ())
        state.units[name] = longer.setdefault(old, (*old, made.id))


def _extend(state: State, content: dict[str, Any], _: Names) -> None:
    """A reservation holds more, or again."""
    held = state.reservations[content["reservation"]]
    state.reservations[held.id] = replace(
        held,
        planned=Cost.from_json(content["planned"]),
        spare=Cost.from_json(content["spare"]),
        status=ReservationStatus.OPEN,
    )


def _spend(state: State, content: dict[str, Any], _: Names) -> None:
    """A block was charged."""
    held = state.reservations[content["reservation"]]
    state.reservations[held.id] = held.spend(Cost.from_json(content["cost"]))


def _close(state: State, content: dict[str, Any], _: Names) -> None:
    """A reservation gave back the rest."""
    held = state.reservations[content["reservation"]]
    state.reservations[held.id] = held.closed(ReservationStatus(content["status"]))


def _noted(_: State, __: dict[str, Any], ___: Names) -> None:
    """An attempt or a loss costs nothing."""


_APPLY: Mapping[str, Callable[[State, dict[str, Any], Names], None]] = {
    "data_set": _data_set,
    "grant": _grant,
    "reserve": _reserve,
    "extend": _extend,
    "spend": _spend,
    "close": _close,
    "attempt": _noted,
    "loss": _noted,
}


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

    names: dict[str, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    count: int = 0

    def observe(self, state: State, content: dict[str, Any], sequence: int) -> None:
        """Check the claims of one entry on the state right after it."""
        if not content.get("claims"):
            return
        made = state.reservations[content["reservation"]]
        found = state.histories(self.names[made.unit_set])
        histories = [
            History(cost=state.cost(key), num_units=n) for key, n in found.items()
        ]
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

    def names_of(digest: str) -> bytes:
        packed = _packed(connection, digest)
        figures.names[digest] = unpack(packed)
        return packed

    try:
        state = replay(rows, names_of, observe=figures.observe)
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
        num_units=len(state.units),
        head=end,
    )


def _reason(error: ReplayError) -> str:
    """Say why an entry could not be followed."""
    if isinstance(error.__cause__, ArtifactError):
        return str(error.__cause__)
    return "does not follow from the entries before it"


def _packed(connection: Connection, digest: str) -> bytes:
    """Read a unit set and check its digest."""
    query = select(schema.unit_sets.c.names).where(schema.unit_sets.c.digest == digest)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        raise ArtifactError("names a set of units that was deleted")
    packed = bytes(found)
    if hashlib.sha256(packed).hexdigest() != digest:
        raise ArtifactError("names a set of units that was edited")
    return packed


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
    """Compare each unit's cohort with its own history."""
    numbers = connection.execute(select(schema.cohorts.c.id, schema.cohorts.c.size))
    sizes = dict(numbers.tuples().all())
    known = cohorts.histories(connection, list(sizes))
    expected = {key: frozenset(key) for key in set(state.units.values())}
    counted: dict[int, int] = dict.fromkeys(sizes, 0)
    wrong = seen = 0
    for name, cohort in connection.execute(select(schema.units)).tuples():
        seen += 1
        counted[cohort] = counted.get(cohort, 0) + 1
        key = state.units.get(name)
        wrong += key is None or known.get(cohort) != expected[key]
    findings = []
    if wrong or seen != len(state.units):
        findings.append(_row("units", "a unit", wrong + abs(seen - len(state.units))))
    bad = sorted(c for c in counted if counted[c] != sizes.get(c))
    if bad:
        findings.append(_row("cohorts", f"row {bad[0]}", len(bad)))
    return findings


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
        histories = _histories_of(state, grant.data_set)
        mine = worst(
            histories, notion=grant.notion, delta=grant.delta, relation=grant.relation
        )
        figures.count += 1
        problem = _disagreement(mine.epsilon, grant, histories)
        if problem:
            findings.append(Finding(entry=None, message=f"now: {problem}"))
    return findings


def _histories_of(state: State, data_set: str) -> list[History]:
    """Every history of a data set's units, with its cost."""
    found = state.histories(state.units)
    return [
        History(cost=state.cost(key), num_units=count)
        for key, count in found.items()
        if state.reservations[key[0]].data_set == data_set
    ]


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
    """Bound an event's epsilon from below and from above, without PLD if possible."""
    terms = {"delta": grant.delta, "relation": grant.relation}
    try:
        low = epsilon(event, accountant=Accountant.QUADRATURE, **terms)  # type: ignore[arg-type]
    except (UnsupportedEventError, QuadratureError):
        low = epsilon(event, **terms)  # type: ignore[arg-type]
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
