"""Reservations: what one run may still draw and what it has drawn. Pure transitions.

```
reserve ──> open ──spend──> open ──settle──> settled
              │  └─extend──> open              │
              └────────release──> released ────┴──extend──> open
```

An open reservation commits all that it may still draw; a closed one commits what it has
drawn. `planned` is the whole run, `spare` one block more per noisy stage: steps that a
killed run has to draw again are new releases.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from dptune.accounting.store.costs import Cost
from dptune.accounting.store.purposes import Purpose


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
