"""The state of a store as it follows from its log alone, for `verify`.

It is made by other means than the tables are kept: these change row by row and split
cohorts; here every unit gets its own history. Names and histories are flat columns in
memory: ten million units take 200 MB, and as much for each unit set while it is read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptune.accounting.store.allowances import Cost, Grant, History
from dptune.accounting.store.blocks import by_prefix
from dptune.accounting.store.entries import read_content, reservation_from
from dptune.accounting.store.log import Row
from dptune.accounting.store.reservations import (
    NAME,
    Names,
    Reservation,
    ReservationStatus,
    locate,
)
from dptune.accounting.store.tables import DataSet, data_set_of, grant_of

Observer = Callable[["State", dict[str, Any], int], None]
Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Units:
    """Units of one data set, and which history each of them has.

    Args:
        names: sorted, each once.
        histories: places in `State.histories`, one for each name.
    """

    names: Names = field(repr=False)
    histories: NDArray[np.int32] = field(repr=False)

    def joined(self, new: Names) -> "Units":
        """Take in units that were not there; they have no history yet."""
        names = np.sort(np.concatenate([self.names, new]))
        histories = np.zeros(len(names), np.int32)
        histories[np.searchsorted(names, self.names)] = self.histories
        return Units(names=names, histories=histories)

    def by_prefix(self) -> list["Units"]:
        """Split by the first byte of the names."""
        names = by_prefix(self.names)
        parts = np.split(self.histories, np.cumsum([len(part) for part in names[:-1]]))
        return [
            Units(names=some, histories=part)
            for some, part in zip(names, parts, strict=True)
        ]


_NOBODY = Units(names=np.empty(0, NAME), histories=np.empty(0, np.int32))


@dataclass(kw_only=True)
class State:
    """What follows from the entries so far.

    Args:
        names_of: reads the names of a unit set by its digest.
        data_sets, grants, reservations: as the tables of these names.
        units: of each data set.
        histories: reservations that read a unit, in order; nobody's first.
    """

    names_of: Callable[[str], Names] = field(repr=False)
    data_sets: dict[str, DataSet] = field(default_factory=dict)
    grants: dict[tuple[str, str, str], Grant] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    units: dict[str, Units] = field(default_factory=dict, repr=False)
    histories: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    _last: tuple[Names, str, Places] | None = field(
        default=None, init=False, repr=False
    )

    def read(self, made: Reservation) -> None:
        """Let the history of every unit of a reservation grow by it."""
        places = self._places(made)
        known = self.units[made.data_set].histories
        old = np.flatnonzero(np.bincount(known[places]))
        grown = np.zeros(len(self.histories), np.int32)
        grown[old] = np.arange(len(old)) + len(self.histories)
        self.histories += [(*self.histories[number], made.id) for number in old]
        known[places] = grown[known[places]]

    def composed(
        self, data_set: str, *, only: Reservation | None = None
    ) -> list[History]:
        """Compose what units of a data set have committed, or those of one run."""
        numbers = self.units.get(data_set, _NOBODY).histories
        if only is not None:
            numbers = numbers[self._places(only)]
        counts = np.bincount(numbers)
        return [
            History.of(
                (self.reservations[run].committed for run in self.histories[number]),
                num_units=int(counts[number]),
            )
            for number in np.flatnonzero(counts)
        ]

    def _places(self, made: Reservation) -> Places:
        """Find a reservation's units among all, where they join unless they are there.

        Runs of one unit set follow one another, so that the last answer is kept.
        """
        known = self.units.get(made.data_set, _NOBODY)
        if self._last is not None:
            names, unit_set, places = self._last
            if names is known.names and unit_set == made.unit_set:
                return places
        wanted = self.names_of(made.unit_set)
        places, there = locate(known.names, wanted)
        if not there.all():
            known = self.units[made.data_set] = known.joined(wanted[~there])
            places = np.searchsorted(known.names, wanted)
        self._last = known.names, made.unit_set, places
        return places


class ReplayError(Exception):
    """An entry that cannot follow from those before it."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"entry {sequence}")
        self.sequence = sequence


def replay(
    rows: Iterable[Row],
    names_of: Callable[[str], Names],
    *,
    observe: Observer | None = None,
) -> State:
    """Build the state from checked entries.

    Args:
        rows: entries in order, whose chain holds.
        names_of: reads the names of a unit set by its digest.
        observe: called after each entry with the state, its content and number.

    Raises:
        ReplayError: an entry makes no sense where it stands.
    """
    state = State(names_of=names_of)
    for row in rows:
        try:
            content = read_content(row.content)
            _APPLY[content["kind"]](state, content)
        except Exception as error:  # forged content may be anything
            raise ReplayError(row.sequence) from error
        if observe is not None:
            observe(state, content, row.sequence)
    return state


def _data_set(state: State, content: dict[str, Any]) -> None:
    """A data set was read for the first time."""
    found = data_set_of(content)
    state.data_sets[found.name] = found


def _grant(state: State, content: dict[str, Any]) -> None:
    """A grant replaces an earlier one."""
    found = grant_of(content)
    state.grants[found.data_set, found.notion, found.relation] = found


def _reserve(state: State, content: dict[str, Any]) -> None:
    """Every unit's history grows by the reservation."""
    made = reservation_from(content)
    if made.id in state.reservations:
        raise ValueError
    state.reservations[made.id] = made
    state.read(made)


def _extend(state: State, content: dict[str, Any]) -> None:
    """A reservation holds more, or again."""
    held = state.reservations[content["reservation"]]
    state.reservations[held.id] = replace(
        held,
        planned=Cost.from_json(content["planned"]),
        spare=Cost.from_json(content["spare"]),
        status=ReservationStatus.OPEN,
    )


def _spend(state: State, content: dict[str, Any]) -> None:
    """A block was charged."""
    held = state.reservations[content["reservation"]]
    state.reservations[held.id] = held.spend(Cost.from_json(content["cost"]))


def _close(state: State, content: dict[str, Any]) -> None:
    """A reservation gave back the rest."""
    held = state.reservations[content["reservation"]]
    state.reservations[held.id] = held.closed(ReservationStatus(content["status"]))


def _noted(_: State, __: dict[str, Any]) -> None:
    """An attempt or a loss costs nothing."""


_APPLY: Mapping[str, Callable[[State, dict[str, Any]], None]] = {
    "data_set": _data_set,
    "grant": _grant,
    "reserve": _reserve,
    "extend": _extend,
    "spend": _spend,
    "close": _close,
    "attempt": _noted,
    "loss": _noted,
}
