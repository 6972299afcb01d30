"""The budget store: grant, reserve, spend, settle, release.

**Formal guarantee.** For every data set with a grant, and every privacy unit of it:
what all runs have drawn on the unit, composed, stays within the grant's (epsilon,
delta) under its notion and relation, as far as every draw was spent here before. It
holds for runs at once, killed at any moment, on changing sets of units: the check and
the write are one transaction of the store's only writer.

Composed means: as if all runs had been fixed before the first. What runs whose rates,
noise or steps were *chosen* for what earlier ones released spend together may be more,
since a bound on what was spent so far is no filter (see `dptune.accounting.adaptive`).
It is not where all runs that one may choose from have the same mechanisms, as many of
them, or are Gaussians without sampling, whose 1 / s^2 add up whatever is chosen.
Under an `adaptive` grant it holds whatever is chosen: see `dptune.accounting.filters`.

Figures are conditional on the ledger's assumptions; `docs/BUDGET.md` names them.

References:
    Rogers, Roth, Ullman, Vadhan (2016), arXiv:1605.08294 (filters). Smith, Thakurta
    (2022), arXiv:2210.17520 (Gaussians, chosen adaptively).
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine

from dptune.accounting.store import cohorts, entries, log, tables
from dptune.accounting.store.allowances import (
    Claim,
    Cost,
    Grant,
    History,
    check,
    claims,
    total,
)
from dptune.accounting.store.cohorts import Touched
from dptune.accounting.store.database import (
    connecting,
    exists,
    open_engine,
    prepare,
    reading,
    refuse_lost,
    writing,
)
from dptune.accounting.store.log import Head
from dptune.accounting.store.reservations import (
    Reservation,
    ReservationStatus,
    UnitSet,
    refuse_other_forms,
    refuse_unseen,
)
from dptune.accounting.store.tables import DataSet, IdKind
from dptune.errors import BudgetExceededError, ConfigError
from dptune.privacy import PrivacyUnit, Purpose
from dptune.rounding import written_at_most


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a run asks for before it starts.

    Args:
        units: what it will read, before deduplication and canaries.
        privacy_unit, id_kind: what a unit is and is known by.
        run_key: names the computation; the same again continues its reservation.
        recipe: for the reader.
        planned: cost of the whole run, from its plan.
        spare: cost of the blocks that a killed run may have to draw again.
        purpose, sweep: training, or a trial of the named sweep.
        required: refuse a data set that has no grant.
    """

    units: UnitSet
    privacy_unit: PrivacyUnit
    id_kind: IdKind
    run_key: str
    recipe: str
    planned: Cost
    spare: Cost = field(default_factory=Cost)
    purpose: Purpose = Purpose.TRAINING
    sweep: str = ""
    required: bool = False

    def __post_init__(self) -> None:
        """Refuse what no reservation can be made of."""
        if not len(self.units):
            raise ConfigError("units must hold at least one unit, got none.")
        if (self.purpose is Purpose.TUNING) != bool(self.sweep):
            raise ConfigError(
                "sweep must be named exactly when purpose is tuning, got "
                f"purpose={self.purpose} and sweep={self.sweep!r}."
            )

    @property
    def data_set(self) -> DataSet:
        """What all runs on the data set must agree on."""
        return DataSet(
            name=self.units.data_set,
            privacy_unit=self.privacy_unit,
            id_kind=self.id_kind,
            key_check=self.units.key_check,
        )

    def reservation(self) -> Reservation:
        """Fill in a fresh reservation."""
        return Reservation(
            id=uuid.uuid4().hex,
            data_set=self.units.data_set,
            run_key=self.run_key,
            recipe=self.recipe,
            purpose=self.purpose,
            sweep=self.sweep,
            unit_set=self.units.digest,
            num_units=len(self.units),
            planned=self.planned,
            spare=self.spare,
        )


@contextmanager
def _kept(engine: Engine) -> Iterator[Engine]:
    """Close the connections of a database that turns out to be of no use."""
    try:
        yield engine
    except BaseException:
        engine.dispose()
        raise


class BudgetStore:
    """A store in an SQL database; safe to use from many processes at once.

    Args:
        engine: of a database whose tables are up to date; see `open`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> url = f"sqlite:///{folder.name}/budget.db"
    >>> BudgetStore.find(url) is None  # looking makes nothing
    True
    >>> with BudgetStore.open(url) as store:
    ...     store.head().sequence
    0
    >>> folder.cleanup()
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a store, creating its tables if need be.

        Raises:
            ConfigError, DependencyError, ArtifactError: as `open_engine` and `prepare`.
        """
        with _kept(open_engine(url)) as engine:
            refuse_lost(engine)
            prepare(engine)
            return cls(engine)

    @classmethod
    def find(cls, url: str) -> Self | None:
        """Open a store if there is one; creates nothing, not even a file."""
        with _kept(open_engine(url)) as engine:
            refuse_lost(engine)
            if exists(engine):
                prepare(engine)
                return cls(engine)
        engine.dispose()
        return None

    def __enter__(self) -> Self:
        """Use the store for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close its connections."""
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        """The database."""
        return self._engine

    def grant(self, grant: Grant, *, reason: str = "") -> Head:
        """Set what a data set may spend, in place of an earlier grant.

        A smaller grant than what is spent takes nothing back: it refuses what comes.

        Raises:
            BudgetExceededError: open runs hold more, and would draw it.
        """
        with connecting(self._engine) as connection, writing(connection):
            _refuse_less_than_held(connection, grant)
            tables.write_grant(connection, grant)
            return log.append(connection, entries.grant_entry(grant, reason=reason))

    def data_sets(self) -> list[str]:
        """Name every data set that was read or granted anything."""
        with connecting(self._engine) as connection, reading(connection):
            return tables.data_set_names(connection)

    def known(self, units: UnitSet) -> NDArray[np.bool_] | None:
        """Tell of each unit whether a run was charged for it; None of new data sets."""
        with connecting(self._engine) as connection, reading(connection):
            if tables.read_data_set(connection, units.data_set) is None:
                return None
            return cohorts.are_known(connection, units)

    def preview(self, request: Request, *, again: bool = False) -> list[Claim]:
        """Compute what a run would bring each grant to; writes nothing that stays.

        Raises:
            BudgetExceededError: `reserve` would refuse it.
            PrivacyError: the run names known units in another way.
        """
        with connecting(self._engine) as connection, reading(connection):
            if self._earlier(connection, request, again=again) is not None:
                return []
            return self._examine(connection, request)[1]

    def preview_all(
        self, requests: Sequence[Request], *, again: bool = False
    ) -> list[Claim]:
        """Compute what several runs would bring each grant to together.

        Args:
            requests: of runs on the same units; those that were reserved before ask
                for nothing.
            again: as in `reserve`.

        Raises:
            BudgetExceededError: the last of them would be refused.
        """
        with connecting(self._engine) as connection, reading(connection):
            new = [
                request
                for request in requests
                if self._earlier(connection, request, again=again) is None
            ]
        if not new:
            return []
        whole = replace(
            new[0],
            run_key=uuid.uuid4().hex,
            planned=total([request.planned for request in new]),
            spare=total([request.spare for request in new]),
        )
        return self.preview(whole)

    def reserve(self, request: Request, *, again: bool = False) -> Reservation:
        """Hold a whole run's cost, or find the reservation of the run it resumes.

        **Formal guarantee**: when this returns, no other run can be granted what this
        one holds; when it raises, nothing was changed. Costly parts are done once
        before the write lock is taken and hit a cache when they are done under it.

        | earlier reservation of the same `run_key`, units and plan | answer |
        |---|---|
        | none | a new one |
        | open | that one, `found_open` |
        | closed, all of the plan drawn | that one: a finished run spends nothing |
        | closed before the end | that one, open again if the rest still fits |
        | any, with `again` | a new one; an open one is released |

        Raises:
            BudgetExceededError: a grant would be exceeded, or none is there and one
                is required; names what is left, what was asked, and the worst cohort.
            PrivacyError: the run names known units in another way.
        """
        with connecting(self._engine) as connection:
            with reading(connection):  # warms the accountant's cache, refuses early
                earlier = self._earlier(connection, request, again=again)
                if earlier is None:
                    self._examine(connection, request)
            with writing(connection):
                if again:
                    name = request.units.data_set
                    self._release_open(connection, name, request.run_key)
                earlier = self._earlier(connection, request, again=again)
                if earlier is not None:
                    return self._take_up(connection, earlier)
                return self._enter(connection, request)

    def ensure(self, reservation: str, cost: Cost) -> None:
        """Hold what a run is about to draw block by block, where it is not held.

        A run that draws again what was drawn before is refused before the first of it,
        and not where the grant ends in the middle.

        Raises:
            BudgetExceededError: it does not fit any more.
            ArtifactError: as `spend`.
        """
        with connecting(self._engine) as connection, writing(connection):
            held = tables.read_reservation(connection, reservation)
            if not held.allows(cost):
                self._extend(connection, held.extended(cost))

    def spend(
        self, reservation: str, cost: Cost, *, stage: str, num_steps: int
    ) -> Head:
        """Charge a block before its noise is drawn.

        **Formal guarantee**: when this returns, the block is on durable storage and
        within every grant. When it raises, or the process dies in it, nothing may be
        drawn; the block may or may not be charged.

        Args:
            reservation: id of the run's reservation.
            cost: of the block; more than is held asks for more first.
            stage: for the reader.
            num_steps: for the reader.

        Raises:
            BudgetExceededError: the block is not held and does not fit any more.
            ArtifactError: no such reservation, or the store does not answer.
        """
        with connecting(self._engine) as connection, writing(connection):
            held = tables.read_reservation(connection, reservation)
            if not held.allows(cost):
                held = self._extend(connection, held.extended(cost))
            tables.write_reservation(connection, held.spend(cost))
            entry = entries.spend_entry(held.id, cost, stage=stage, num_steps=num_steps)
            return log.append(connection, entry)

    def release_run(self, data_set: str, run_key: str) -> None:
        """Release whatever a failed run still holds."""
        with connecting(self._engine) as connection, writing(connection):
            self._release_open(connection, data_set, run_key)

    def settle(self, reservation: str) -> Head:
        """Close the reservation of a finished run; what it never drew is free again."""
        return self._close(reservation, ReservationStatus.SETTLED)

    def release(self, reservation: str) -> Head:
        """Close the reservation of a failed run; what it has drawn stays spent."""
        return self._close(reservation, ReservationStatus.RELEASED)

    def head(self) -> Head:
        """Read where the log ends."""
        with connecting(self._engine) as connection, reading(connection):
            return log.read_head(connection)

    def _close(self, identifier: str, status: ReservationStatus) -> Head:
        """Close a reservation once."""
        with connecting(self._engine) as connection, writing(connection):
            held = tables.read_reservation(connection, identifier)
            if not held.is_open:
                return log.read_head(connection)
            return self._write_closed(connection, held, status)

    def _write_closed(
        self, connection: Connection, held: Reservation, status: ReservationStatus
    ) -> Head:
        """Enter that a reservation is closed."""
        tables.write_reservation(connection, held.closed(status))
        return log.append(connection, entries.close_entry(held.id, status))

    def _earlier(
        self, connection: Connection, request: Request, *, again: bool
    ) -> Reservation | None:
        """Find the reservation that the run resumes or repeats.

        One that was made for another plan is none: it pays for other noise.

        Raises:
            PrivacyError: the run names known units in another way.
        """
        known = tables.read_data_set(connection, request.units.data_set)
        if known is not None:
            tables.require_same(known, request.data_set)
        found = tables.read_reservations(
            connection, data_set=request.units.data_set, run_key=request.run_key
        )
        same = [
            r
            for r in found
            if r.unit_set == request.units.digest and r.planned.covers(request.planned)
        ]
        return same[-1] if same and not again else None

    def _take_up(self, connection: Connection, earlier: Reservation) -> Reservation:
        """Continue an earlier reservation."""
        if earlier.is_open or earlier.is_complete:
            return replace(earlier, found_open=earlier.is_open)
        reopened = replace(earlier, status=ReservationStatus.OPEN)
        return self._extend(connection, reopened)

    def _release_open(
        self, connection: Connection, data_set: str, run_key: str
    ) -> None:
        """Release what an abandoned attempt at a run still holds."""
        for held in tables.read_reservations(
            connection, data_set=data_set, run_key=run_key
        ):
            if held.is_open:
                self._write_closed(connection, held, ReservationStatus.RELEASED)

    def _examine(
        self, connection: Connection, request: Request
    ) -> tuple[Touched, list[Claim]]:
        """Find the run's cohorts, and refuse if one of them would have too much."""
        asked = request.data_set
        _refuse_other_ids(connection, request.units)
        touched = cohorts.touched_by(connection, request.units)
        grants = tables.read_grants(connection, asked.name)
        if request.required and not grants:
            raise BudgetExceededError(
                f"data set {asked.name!r} must have a budget (budget.required is "
                "true), got none. Run `dptune budget grant "
                f"{asked.name} --epsilon ... --delta ...` first."
            )
        held = request.planned.plus(request.spare)
        before = _histories(connection, touched) if grants else []
        after = [replace(h, cost=h.cost.plus(held)) for h in before]
        found = claims(grants, before=before, after=after)
        check(found, alone=held.tallies)
        return touched, found

    def _enter(self, connection: Connection, request: Request) -> Reservation:
        """Enter a new reservation into log, tables and histories."""
        touched, found = self._examine(connection, request)
        if tables.read_data_set(connection, request.data_set.name) is None:
            tables.write_data_set(connection, request.data_set)
            log.append(connection, entries.data_set_entry(request.data_set))
        made = request.reservation()
        if not cohorts.is_known(connection, made.unit_set):
            cohorts.keep_names(connection, request.units)
        end = log.append(connection, entries.reserve_entry(made, found))
        tables.add_reservation(connection, made, sequence=end.sequence)
        cohorts.cover(connection, touched, units=request.units, reservation=made.id)
        return made

    def _extend(self, connection: Connection, wanted: Reservation) -> Reservation:
        """Hold more for a run, if it fits."""
        grants = tables.read_grants(connection, wanted.data_set)
        touched = _covered(connection, wanted)
        before = _histories(connection, touched) if grants else []
        after = _histories(connection, touched, instead=wanted) if grants else []
        found = claims(grants, before=before, after=after)
        check(found, alone=wanted.committed.tallies)
        tables.write_reservation(connection, wanted)
        log.append(connection, entries.extend_entry(wanted, found))
        return wanted


def _covered(connection: Connection, made: Reservation) -> Touched:
    """Find the cohorts of a run that was let in."""
    return Touched(cohorts=cohorts.cohorts_of(connection, made.id), num_new=0)


def _refuse_less_than_held(connection: Connection, grant: Grant) -> None:
    """Refuse a grant that units of open runs would exceed by what these may draw."""
    runs = tables.read_reservations(connection, data_set=grant.data_set)
    for held in (run for run in runs if run.is_open):
        histories = _histories(connection, _covered(connection, held))
        (claim,) = claims([grant], before=[], after=histories)
        if claim.after > grant.epsilon:
            raise BudgetExceededError(
                f"data set {grant.data_set!r} must be granted what open runs may still "
                f"draw, epsilon {written_at_most(claim.after, digits=4)}, "
                f"{grant.label}, got {grant.epsilon:g}. Grant more, let them end, or "
                f"release those that shall not (`dptune budget release {held.id}`)."
            )


def _refuse_other_ids(connection: Connection, units: UnitSet) -> None:
    """Refuse units that a look-alike of their id would give a fresh budget."""
    refuse_other_forms(cohorts.count_known(connection, units, units.other_forms))
    known = cohorts.count_known(connection, units, units.unseen)
    refuse_unseen(len(units.unseen) - known)


def _histories(
    connection: Connection, touched: Touched, *, instead: Reservation | None = None
) -> list[History]:
    """Compose what every touched cohort is charged for; `instead` replaces a state."""
    found = cohorts.histories(connection, list(touched.cohorts))
    ids = sorted({r for ids in found.values() for r in ids})
    costs = {i: tables.read_reservation(connection, i).committed for i in ids}
    if instead is not None:
        costs = {**costs, instead.id: instead.committed}
    histories = [
        History.of((costs[r] for r in found[cohort]), num_units=count)
        for cohort, count in touched.cohorts.items()
    ]
    if touched.num_new:
        histories.append(History(cost=Cost(), num_units=touched.num_new))
    return histories
