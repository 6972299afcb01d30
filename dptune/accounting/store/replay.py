"""The state of a store from its log alone, by other means than the tables are kept.

Tables change row by row and split cohorts in SQL; here every unit gets its own history,
in memory. `verify` compares the two.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.costs import Cost
from dptune.accounting.store.entries import read_content, reservation_from
from dptune.accounting.store.keys import unpack
from dptune.accounting.store.log import Row
from dptune.accounting.store.reservations import Reservation, ReservationStatus
from dptune.accounting.store.tables import DataSet, data_set_of, grant_of

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
