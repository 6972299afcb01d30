"""Read and write single rows: data sets, grants, reservations."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from dptune.accounting.store import log, schema
from dptune.accounting.store.allowances import Cost, Grant
from dptune.accounting.store.reservations import Reservation, ReservationStatus
from dptune.errors import ArtifactError, PrivacyError
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit, Purpose


class IdKind(StrEnum):
    """What units are known by."""

    SOURCE = "source"
    CONTENT_HASH = "content_hash"
    POSITION = "position"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What all runs on one data set must agree on.

    Args:
        name: whose people these are; runs of one name share a budget.
        privacy_unit: what one neighbor changes.
        id_kind: whether units are known by ids of the source, by their content, or
            by their place, where all runs add up on the first ones.
        key_check: of the key that names the units.
    """

    name: str
    privacy_unit: PrivacyUnit
    id_kind: IdKind
    key_check: str


def require_same(known: DataSet, asked: DataSet) -> None:
    """Refuse a run under which known units would look new.

    Raises:
        PrivacyError: another unit, another kind of id, or another key.
    """
    if known.key_check != asked.key_check:
        raise PrivacyError(
            f"data set {known.name!r} must be read with the key that its units were "
            "named by, got another one: every unit would look new. Restore the key "
            "file that belongs to this store."
        )
    for field in ("privacy_unit", "id_kind"):
        first, now = getattr(known, field), getattr(asked, field)
        if first != now:
            raise PrivacyError(
                f"{field} of data set {known.name!r} must stay {first}, got {now}: "
                "what was spent on the one kind of unit cannot be found on the other. "
                "Keep it, or give the data a budget.data_set of their own if they are "
                "about other people."
            )


def read_data_set(connection: Connection, name: str) -> DataSet | None:
    """Read one data set; None before its first run."""
    query = select(schema.data_sets).where(schema.data_sets.c.name == name)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else data_set_of(row)


def data_set_of(row: Any) -> DataSet:  # noqa: ANN401 - a row or an entry
    """Read a data set from a row of the table or an entry of the log."""
    return DataSet(
        name=row["name"],
        privacy_unit=PrivacyUnit(row["privacy_unit"]),
        id_kind=IdKind(row["id_kind"]),
        key_check=row["key_check"],
    )


def write_data_set(connection: Connection, data_set: DataSet) -> None:
    """Enter a data set."""
    connection.execute(insert(schema.data_sets).values(**asdict(data_set)))


def data_set_names(connection: Connection) -> list[str]:
    """Name every data set that was read or granted anything."""
    read = select(schema.data_sets.c.name)
    granted = select(schema.grants.c.data_set)
    return sorted(connection.execute(read.union(granted)).scalars())


def read_grants(connection: Connection, data_set: str | None = None) -> list[Grant]:
    """Read what one data set, or every one, may spend."""
    query = select(schema.grants)
    if data_set is not None:
        query = query.where(schema.grants.c.data_set == data_set)
    rows = connection.execute(query).mappings()
    found = [grant_of(row) for row in rows]
    return sorted(found, key=lambda g: (g.data_set, g.notion, g.relation))


def grant_of(row: Any) -> Grant:  # noqa: ANN401 - a row or an entry
    """Read a grant from a row of the table or an entry of the log."""
    return Grant(
        data_set=row["data_set"],
        notion=Notion(row["notion"]),
        relation=NeighboringRelation(row["relation"]),
        epsilon=float(row["epsilon"]),
        delta=float(row["delta"]),
        adaptive=bool(row.get("adaptive", False)),
    )


def write_grant(connection: Connection, grant: Grant) -> None:
    """Enter a grant in place of an earlier one."""
    same = {"data_set": grant.data_set, "notion": grant.notion.value}
    same["relation"] = grant.relation.value
    connection.execute(delete(schema.grants).filter_by(**same))
    connection.execute(insert(schema.grants).values(**asdict(grant)))


def read_reservation(connection: Connection, identifier: str) -> Reservation:
    """Read one reservation.

    Raises:
        ArtifactError: there is none of this id.
    """
    query = select(schema.reservations).where(schema.reservations.c.id == identifier)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise ArtifactError(
            f"reservation must be one of this store, got {identifier[:40]!r}. "
            "`dptune budget history` lists them."
        )
    return reservation_of(row)


def read_reservations(
    connection: Connection, *, data_set: str | None = None, run_key: str | None = None
) -> list[Reservation]:
    """Read reservations in the order in which they were made."""
    query = select(schema.reservations).order_by(schema.reservations.c.sequence)
    if data_set is not None:
        query = query.where(schema.reservations.c.data_set == data_set)
    if run_key is not None:
        query = query.where(schema.reservations.c.run_key == run_key)
    return [reservation_of(row) for row in connection.execute(query).mappings()]


def reservation_of(row: Any) -> Reservation:  # noqa: ANN401 - a row of the table
    """Read a reservation from a row of its table."""
    return Reservation(
        id=row["id"],
        data_set=row["data_set"],
        run_key=row["run_key"],
        recipe=row["recipe"],
        purpose=Purpose(row["purpose"]),
        sweep=row["sweep"],
        unit_set=row["unit_set"],
        num_units=row["num_units"],
        planned=Cost.of_text(row["planned"]),
        spare=Cost.of_text(row["spare"]),
        spent=Cost.of_text(row["spent"]),
        status=ReservationStatus(row["status"]),
    )


def add_reservation(
    connection: Connection, reservation: Reservation, *, sequence: int
) -> None:
    """Enter a reservation that the log's entry `sequence` made."""
    values = {**_values(reservation), "sequence": sequence}
    connection.execute(insert(schema.reservations).values(**values))


def write_reservation(connection: Connection, reservation: Reservation) -> None:
    """Write a reservation's new state."""
    connection.execute(
        update(schema.reservations)
        .where(schema.reservations.c.id == reservation.id)
        .values(**_values(reservation))
    )


def _values(reservation: Reservation) -> dict[str, Any]:
    """Lay a reservation out as a row."""
    costs = {
        name: log.canonical(getattr(reservation, name).to_json())
        for name in ("planned", "spare", "spent")
    }
    names = ("id", "data_set", "run_key", "recipe", "sweep", "unit_set", "num_units")
    plain = {name: getattr(reservation, name) for name in names}
    return {
        **plain,
        **costs,
        "purpose": reservation.purpose.value,
        "status": reservation.status.value,
    }
