"""What entries of the log say: one function per kind, and how to read them back."""

import json
from collections.abc import Sequence
from typing import Any, Final

from dptune.accounting.store.allowances import Claim, Cost, Grant
from dptune.accounting.store.log import Head
from dptune.accounting.store.reservations import Reservation, ReservationStatus
from dptune.accounting.store.tables import DataSet
from dptune.privacy import Purpose

VERSION: Final = 1


def data_set_entry(data_set: DataSet) -> dict[str, Any]:
    """A data set is read for the first time."""
    return _entry(
        "data_set",
        name=data_set.name,
        privacy_unit=data_set.privacy_unit.value,
        id_kind=data_set.id_kind.value,
        key_check=data_set.key_check,
    )


def grant_entry(grant: Grant, *, reason: str) -> dict[str, Any]:
    """A data set may spend this much from now on."""
    return _entry("grant", **_grant(grant), reason=reason)


def reserve_entry(reservation: Reservation, found: list[Claim]) -> dict[str, Any]:
    """A run holds part of the budget."""
    return _entry(
        "reserve",
        reservation=reservation.id,
        data_set=reservation.data_set,
        run_key=reservation.run_key,
        recipe=reservation.recipe,
        purpose=reservation.purpose.value,
        sweep=reservation.sweep,
        unit_set=reservation.unit_set,
        num_units=reservation.num_units,
        planned=reservation.planned.to_json(),
        spare=reservation.spare.to_json(),
        claims=[_claim(c) for c in found],
    )


def extend_entry(reservation: Reservation, found: list[Claim]) -> dict[str, Any]:
    """A run holds more than before, or holds it again."""
    return _entry(
        "extend",
        reservation=reservation.id,
        planned=reservation.planned.to_json(),
        spare=reservation.spare.to_json(),
        claims=[_claim(c) for c in found],
    )


def spend_entry(
    reservation: str, cost: Cost, *, stage: str, num_steps: int
) -> dict[str, Any]:
    """A block of noise is about to be drawn."""
    return _entry(
        "spend",
        reservation=reservation,
        cost=cost.to_json(),
        stage=stage,
        num_steps=num_steps,
    )


def close_entry(reservation: str, status: ReservationStatus) -> dict[str, Any]:
    """A run gives back what it never drew."""
    return _entry("close", reservation=reservation, status=status.value)


def attempt_entry(
    data_set: str, *, kind: str, subject: str, about: str
) -> dict[str, Any]:
    """Somebody looks at what a model made of private records."""
    return _entry(
        "attempt", data_set=data_set, attempt=str(kind), subject=subject, about=about
    )


def loss_entry(charges: int, heads: Sequence[Head], *, reason: str) -> dict[str, Any]:
    """Somebody knows that earlier entries are gone."""
    known = [{"sequence": head.sequence, "hash": head.hash} for head in heads]
    return _entry("loss", charges=charges, heads=known, reason=reason)


def reservation_from(content: dict[str, Any]) -> Reservation:
    """Read the reservation that a `reserve` entry made."""
    return Reservation(
        id=content["reservation"],
        data_set=content["data_set"],
        run_key=content["run_key"],
        recipe=content["recipe"],
        purpose=Purpose(content["purpose"]),
        sweep=content["sweep"],
        unit_set=content["unit_set"],
        num_units=content["num_units"],
        planned=Cost.from_json(content["planned"]),
        spare=Cost.from_json(content["spare"]),
    )


def read_content(text: str) -> dict[str, Any]:
    """Parse the content of an entry."""
    content: dict[str, Any] = json.loads(text)
    return content


def _entry(kind: str, **fields: object) -> dict[str, Any]:
    """Stamp kind and version on an entry."""
    return {"kind": kind, "version": VERSION, **fields}


def _grant(grant: Grant) -> dict[str, Any]:
    """Write a grant as plain data."""
    return {
        "data_set": grant.data_set,
        "notion": grant.notion.value,
        "relation": grant.relation.value,
        "epsilon": grant.epsilon,
        "delta": grant.delta,
        **({"adaptive": True} if grant.adaptive else {}),  # as before there were any
    }


def _claim(claim: Claim) -> dict[str, Any]:
    """Write a claim as plain data; one that holds is finite, as its grant is."""
    return {
        **_grant(claim.grant),
        "before": claim.before,
        "after": claim.after,
        "num_units": claim.num_units,
    }
