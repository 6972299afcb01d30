"""What to show of a store: budgets, tuning, history, the whole log."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, select

from dptune.accounting.progress import USUAL_TERMS
from dptune.accounting.store import cohorts, log, schema, tables
from dptune.accounting.store.allowances import Cost, Grant, History, Terms, worst
from dptune.accounting.store.database import connecting, reading
from dptune.accounting.store.entries import read_content
from dptune.accounting.store.log import Head
from dptune.accounting.store.reservations import Reservation
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError
from dptune.jsons import parse_json
from dptune.privacy import PrivacyUnit, Purpose
from dptune.results import BudgetLine, BudgetReport

EXPORT_VERSION: Final = 1


def budgets(
    store: BudgetStore, *, delta: float, only: str | None = None
) -> list[BudgetReport]:
    """Report every data set, or one.

    Args:
        store: where to look.
        delta: of notions that nothing was granted for.
        only: name of a data set.
    """
    with connecting(store.engine) as connection, reading(connection):
        names = [only] if only is not None else tables.data_set_names(connection)
        return [_budget(connection, name, delta=delta) for name in names]


def history(store: BudgetStore, *, data_set: str | None = None) -> list[Reservation]:
    """List reservations in the order in which they were made."""
    with connecting(store.engine) as connection, reading(connection):
        return tables.read_reservations(connection, data_set=data_set)


def unit_of(store: BudgetStore, data_set: str) -> PrivacyUnit | None:
    """Return what a data set is charged for; None if nothing ever was."""
    with connecting(store.engine) as connection, reading(connection):
        known = tables.read_data_set(connection, data_set)
    return known.privacy_unit if known else None


def key_checks(store: BudgetStore) -> dict[str, str]:
    """Return what tells the key of each data set that was charged; see `UnitSet`."""
    with connecting(store.engine) as connection, reading(connection):
        found = [
            tables.read_data_set(connection, name)
            for name in tables.data_set_names(connection)
        ]
    return {known.name: known.key_check for known in found if known}


def first_plan(store: BudgetStore, reservation: str) -> Cost | None:
    """Return what a run was reserved for at first; None if it never was.

    What a killed run draws twice is asked for later.
    """
    content = schema.log.c.content
    query = (
        select(content)
        .where(content.contains(f'"reservation":"{reservation}"', autoescape=True))
        .order_by(schema.log.c.sequence)
    )
    with connecting(store.engine) as connection, reading(connection):
        found = [read_content(text) for text in connection.execute(query).scalars()]
    made = [c for c in found if c["kind"] == "reserve"]
    return Cost.from_json(made[0]["planned"]) if made else None


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that holds budget, and when the store last heard of it.

    Args:
        reservation: open.
        heard_at: time of its last entry in the log, by the writer's clock.
    """

    reservation: Reservation
    heard_at: datetime


def open_runs(store: BudgetStore) -> list[OpenRun]:
    """List runs that hold budget; one that is silent for long was perhaps killed."""
    with connecting(store.engine) as connection, reading(connection):
        return [
            OpenRun(reservation=held, heard_at=_heard_at(connection, held.id))
            for held in tables.read_reservations(connection)
            if held.is_open
        ]


def _heard_at(connection: Connection, identifier: str) -> datetime:
    """Find the last entry of a reservation."""
    content = schema.log.c.content
    query = (
        select(content)
        .where(content.contains(f'"reservation":"{identifier}"', autoescape=True))
        .order_by(schema.log.c.sequence.desc())
        .limit(1)
    )
    found = read_content(connection.execute(query).scalar_one())
    return datetime.fromisoformat(found["at"])


def export(store: BudgetStore) -> dict[str, Any]:
    """Write the log as plain data, with its head. Holds keyed names' digests only."""
    with connecting(store.engine) as connection, reading(connection):
        head = log.read_head(connection)
        entries = [
            {"sequence": r.sequence, "hash": r.hash, **read_content(r.content)}
            for r in log.read_rows(connection)
        ]
    return {
        "version": EXPORT_VERSION,
        "head": {"sequence": head.sequence, "hash": head.hash},
        "entries": entries,
    }


def exported_head(text: str) -> Head:
    """Read the head from what `export` wrote.

    Raises:
        ArtifactError: it is no export.
    """
    try:
        head = parse_json(text)["head"]
        return Head(sequence=int(head["sequence"]), hash=str(head["hash"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        raise ArtifactError(
            "the file must be what `budget export` wrote, got something else."
        ) from None


def _budget(connection: Connection, name: str, *, delta: float) -> BudgetReport:
    """Report one data set."""
    known = tables.read_data_set(connection, name)
    runs = tables.read_reservations(connection, data_set=name)
    sizes = cohorts.cohort_sizes(connection, name)
    covering = cohorts.histories(connection, list(sizes))
    grants = tables.read_grants(connection, name)
    head = log.read_head(connection)

    def compose(costs: dict[str, Cost]) -> list[History]:
        return [
            History.of(
                (costs[r] for r in covering[c] if r in costs), num_units=sizes[c]
            )
            for c in sizes
        ]

    spent = compose({r.id: r.spent for r in runs})
    committed = compose({r.id: r.committed for r in runs})
    tuning = compose({r.id: r.spent for r in runs if r.purpose is Purpose.TUNING})
    trials = Counter(r.sweep for r in runs if r.purpose is Purpose.TUNING)
    return BudgetReport(
        data_set=name,
        privacy_unit=known.privacy_unit.value if known else "",
        num_units=sum(sizes.values()),
        num_cohorts=len(sizes),
        num_runs=len(runs),
        num_open=sum(r.is_open for r in runs),
        sweeps=dict(sorted(trials.items())),
        lines=tuple(
            _line(terms, allowance, spent, committed, tuning)
            for terms, allowance in _lines(grants, delta=delta)
        ),
        head_sequence=head.sequence,
        head_hash=head.hash,
    )


def _lines(
    grants: Sequence[Grant], *, delta: float
) -> list[tuple[Terms, float | None]]:
    """List what was granted, then the usual notions that were not."""
    granted = {(g.notion, g.relation) for g in grants}
    rest = (
        Terms(notion=notion, relation=relation, delta=delta)
        for notion, relation in USUAL_TERMS
        if (notion, relation) not in granted
    )
    return [*((grant, grant.epsilon) for grant in grants), *((t, None) for t in rest)]


def _line(
    terms: Terms,
    allowance: float | None,
    spent: Iterable[History],
    committed: Iterable[History],
    tuning: Iterable[History],
) -> BudgetLine:
    """Compute one line."""
    first, second, third = (
        worst(histories, terms) for histories in (spent, committed, tuning)
    )
    return BudgetLine(
        notion=terms.notion.value,
        relation=terms.relation.value,
        delta=terms.delta,
        adaptive=terms.adaptive,
        allowance=allowance,
        spent=first.epsilon,
        committed=second.epsilon,
        tuning=third.epsilon,
        worst_cohort_units=second.num_units,
    )
