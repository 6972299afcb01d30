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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from dptune.accounting.store.allowances import Cost
from dptune.errors import ArtifactError, ConfigError
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
NAME_DIGITS: Final = 32
_KEY_SIZES: Final = range(16, 65)


@dataclass(frozen=True, kw_only=True)
class UnitSet:
    """The privacy units of one run, by their keyed names.

    Args:
        data_set: the population that ids speak of; equal ids of two data sets get
            names that cannot be linked without the key.
        names: sorted, each once; `NAME_DIGITS` hexadecimal digits.
        key_check: tells two keys apart and nothing else; a store refuses another key,
            under which every unit would look new.
    """

    data_set: str
    names: tuple[str, ...] = field(repr=False)
    key_check: str

    @classmethod
    def of(cls, unit_ids: Iterable[str], *, key: bytes, data_set: str) -> Self:
        """Name units by HMAC-SHA256 of their stable source ids.

        **Privacy**: without the key the names reveal neither ids nor whether a guessed
        id is among them. Order, repetition, texts and file formats do not matter.

        Args:
            unit_ids: stable ids of the source, before deduplication and canaries.
            key: secret of 16 to 64 bytes, the same for every run of a store.
            data_set: name of the data set.

        Raises:
            ConfigError: the key is too short or too long.

        References:
            RFC 2104 (1997), HMAC; truncated to 128 bits as its section 5 allows.
        """
        _check_key(key)
        names = {_name(key, f"unit\x1f{data_set}\x1f{unit}") for unit in unit_ids}
        return cls(
            data_set=data_set,
            names=tuple(sorted(names)),
            key_check=_name(key, f"check\x1f{data_set}"),
        )

    def __len__(self) -> int:
        """Count the units."""
        return len(self.names)

    @property
    def packed(self) -> bytes:
        """All names, one behind the other."""
        return bytes.fromhex("".join(self.names))

    @property
    def digest(self) -> str:
        """SHA-256 of the packed names: equal sets have equal digests."""
        return hashlib.sha256(self.packed).hexdigest()


def unpack(packed: bytes) -> list[str]:
    """Read the names that `UnitSet.packed` wrote.

    Raises:
        ArtifactError: the bytes are no whole number of names.
    """
    if len(packed) * 2 % NAME_DIGITS:
        raise ArtifactError("unit set must hold whole names. Restore the store.")
    text = packed.hex()
    return [text[i : i + NAME_DIGITS] for i in range(0, len(text), NAME_DIGITS)]


def _check_key(key: bytes) -> None:
    """Refuse a key that is no secret."""
    if len(key) not in _KEY_SIZES:
        raise ConfigError(
            f"unit key must be 16 to 64 bytes, got {len(key)} bytes. "
            "Make one with secrets.token_bytes(32) and keep it for the data set."
        )


def _name(key: bytes, message: str) -> str:
    """Hash one message."""
    return hmac.digest(key, message.encode(), "sha256").hex()[:NAME_DIGITS]
