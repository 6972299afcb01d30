"""Reservations: what one run may still draw and what it has drawn. Pure transitions.

```
reserve ──> open ──spend──> open ──settle──> settled
              │  └─extend──> open              │
              └────────release──> released ────┴──extend──> open
```

An open reservation commits all that it may still draw; a closed one commits what it has
drawn. `planned` is the whole run, `spare` one block more per noisy stage: steps that a
killed run has to draw again are new releases.

The units of a run are known to the store by keyed names only (`UnitSet`).
"""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dptune.accounting.store.allowances import Cost
from dptune.errors import ConfigError, PrivacyError
from dptune.privacy import Purpose


class ReservationStatus(StrEnum):
    """Where a reservation is in its life."""

    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one run holds of a data set's budget.

    Args:
        id: unique in the store.
        data_set: whose budget it is.
        run_key: names the computation; a resumed run finds its reservation by it.
        recipe: for the reader.
        purpose, sweep: training, or a trial of the named sweep.
        unit_set: digest of the units that the run reads.
        num_units: how many they are.
        planned: cost of the whole run.
        spare: cost of the blocks that may be drawn twice.
        spent: cost of what was drawn, or may have been.
        found_open: whoever asked for it found it open, and must not give it back: an
            equal run may draw from it, or go on after a kill. Not stored.
    """

    id: str
    data_set: str
    run_key: str
    recipe: str
    purpose: Purpose
    sweep: str
    unit_set: str
    num_units: int
    planned: Cost
    spare: Cost
    spent: Cost = field(default_factory=Cost)
    status: ReservationStatus = ReservationStatus.OPEN
    found_open: bool = field(default=False, compare=False)

    @property
    def is_open(self) -> bool:
        """Whether it may still draw."""
        return self.status is ReservationStatus.OPEN

    @property
    def is_complete(self) -> bool:
        """Whether the whole planned run was drawn."""
        return self.spent.covers(self.planned)

    @property
    def committed(self) -> Cost:
        """What its units must be charged for now."""
        if not self.is_open:
            return self.spent
        return self.spent.at_least(self.planned.plus(self.spare))

    def allows(self, cost: Cost) -> bool:
        """Whether `cost` may be drawn without asking for more."""
        held = self.planned.plus(self.spare)
        return self.is_open and held.covers(self.spent.plus(cost))

    def spend(self: Self, cost: Cost) -> "Reservation":
        """Move a cost from what is held to what is spent."""
        return replace(self, spent=self.spent.plus(cost))

    def extended(self: Self, cost: Cost) -> "Reservation":
        """Hold as much as it takes to draw `cost` next; uses up the spare."""
        return replace(
            self,
            planned=self.planned.at_least(self.spent.plus(cost)),
            spare=Cost(),
            status=ReservationStatus.OPEN,
        )

    def closed(self: Self, status: ReservationStatus) -> "Reservation":
        """Give back what was never drawn."""
        return replace(self, status=status)


KEY_BYTES: Final = 32
NAME: Final = np.dtype("S16")
"""A keyed name: bytes that numpy orders and compares as bytes, all being as long."""
_KEY_SIZES: Final = range(16, 65)
_UNSEEN: Final = re.compile(
    r"\A\s|\s\Z|[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    r"\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Blanks around an id, and what shows nothing in it; joiners change letters' shapes."""

Names = NDArray[np.bytes_]


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitSet:
    """The privacy units of one run, by their keyed names.

    Args:
        data_set: the population that ids speak of; equal ids of two data sets get
            names that cannot be linked without the key.
        names: sorted, each once; of type `NAME`.
        key_check: tells two keys apart and nothing else; a store refuses another key,
            under which every unit would look new.
        other_forms: names that the same ids would have in the other forms of Unicode
            (NFC, NFD), which look alike and are other bytes. A store that knows one
            refuses the run: the unit would look new.
        unseen: names of ids with blanks around them or characters that do not show. A
            store that does not know one refuses the run: the next source may come
            without them, whose units would look new.
    """

    data_set: str
    names: Names = field(repr=False)
    key_check: str
    other_forms: Names = field(default_factory=lambda: np.empty(0, NAME), repr=False)
    unseen: Names = field(default_factory=lambda: np.empty(0, NAME), repr=False)

    @classmethod
    def of(cls, unit_ids: Iterable[str], *, key: bytes, data_set: str) -> Self:
        """Name units by HMAC-SHA256 of their stable source ids.

        **Privacy**: without the key the names reveal neither ids nor whether a guessed
        id is among them. Order, repetition, texts and file formats do not matter.

        Args:
            unit_ids: stable ids of the source, before deduplication and canaries; 16
                bytes are held of each.
            key: secret of 16 to 64 bytes, the same for every run of a store.
            data_set: name of the data set.

        Raises:
            ConfigError: the key is too short or too long.
            PrivacyError: an id is there in two forms of Unicode, as two units.

        References:
            RFC 2104 (1997), HMAC; truncated to 128 bits as its section 5 allows.
        """
        if len(key) not in _KEY_SIZES:
            raise ConfigError(
                f"unit key must be 16 to 64 bytes, got {len(key)} bytes. "
                "Make one with secrets.token_bytes(32) and keep it for the data set."
            )
        check = hmac.digest(key, f"check\x1f{data_set}".encode(), "sha256")
        named = _namer(key, data_set)
        packed, others, unseen = bytearray(), bytearray(), bytearray()
        for unit in unit_ids:
            packed += (name := _keyed(named, unit))
            if _UNSEEN.search(unit):
                unseen += name
            for form in () if unit.isascii() else _other_forms(unit):
                others += _keyed(named, form)
        found = cls(
            data_set=data_set,
            names=distinct(np.frombuffer(packed, NAME)),
            key_check=check[: NAME.itemsize].hex(),
            other_forms=distinct(np.frombuffer(others, NAME)),
            unseen=distinct(np.frombuffer(unseen, NAME)),
        )
        refuse_other_forms(int(locate(found.names, found.other_forms)[1].sum()))
        return found

    def __len__(self) -> int:
        """Count the units."""
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names: equal sets have equal digests."""
        return hashlib.sha256(self.names.data).hexdigest()


def keyed_names(unit_ids: Iterable[str], *, key: bytes, data_set: str) -> Names:
    """Name units one by one, in the order of their ids, as `UnitSet.of` does."""
    named = _namer(key, data_set)
    return np.frombuffer(b"".join(_keyed(named, unit) for unit in unit_ids), NAME)


def _namer(key: bytes, data_set: str) -> hmac.HMAC:
    """Begin the names of a data set's units."""
    return hmac.new(key, f"unit\x1f{data_set}\x1f".encode(), "sha256")


def _keyed(named: hmac.HMAC, unit: str) -> bytes:
    """Name a unit."""
    this = named.copy()
    this.update(unit.encode())
    return this.digest()[: NAME.itemsize]


def _other_forms(unit: str) -> list[str]:
    """Write an id in the forms of Unicode that it does not have."""
    forms = (unicodedata.normalize("NFC", unit), unicodedata.normalize("NFD", unit))
    return [form for form in forms if form != unit]


def num_lookalikes(units: Iterable[str]) -> int:
    """Count ids that differ from others by nothing that anybody sees.

    >>> num_lookalikes(["ann", "ann ", "bob", "bob"])
    1
    """
    told = set(units)
    bare = (_UNSEEN.sub("", unit).strip() for unit in told)
    return len(told) - len({unicodedata.normalize("NFC", unit) for unit in bare})


def refuse_other_forms(number: int) -> None:
    """Refuse units that are known in another form of Unicode.

    Raises:
        PrivacyError: there is one.
    """
    if number:
        raise PrivacyError(
            f"ids must keep one form of Unicode, but {number:,} are there, or were "
            "charged before, in another one (NFC and NFD: they look alike): each "
            "would be a unit of its own with a fresh budget. Write all ids in the "
            "form that they were charged in first, or NFC."
        )


def refuse_unseen(number: int) -> None:
    """Refuse units whose ids are told apart by what nobody sees.

    Raises:
        PrivacyError: there is one.
    """
    if number:
        raise PrivacyError(
            f"ids must show all that they hold, but {number:,} that were not charged "
            "before have blanks around them or characters that do not show: written "
            "without those, each would be a unit of its own with a fresh budget. "
            "Take them out of the ids, and leave them out in all later sources."
        )


def distinct(names: Names) -> Names:
    """Sort names and keep each once; many times faster than `np.unique` on bytes."""
    found = np.sort(names)
    first = np.ones(len(found), dtype=bool)
    first[1:] = found[1:] != found[:-1]
    return found[first]


def is_sorted(names: Names) -> bool:
    """Whether names are in order, each once."""
    return bool((names[1:] > names[:-1]).all())


def locate(names: Names, wanted: Names) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Say where names stand or belong among sorted ones, and which are there."""
    places = np.searchsorted(names, wanted)
    known = np.zeros(len(wanted), dtype=bool)
    inside = places < len(names)
    known[inside] = names[places[inside]] == wanted[inside]
    return places, known
