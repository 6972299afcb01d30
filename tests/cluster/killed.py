"""What is known of a run whose training pod was killed, and what would be wrong."""

from dataclasses import dataclass
from pathlib import Path

from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import export, history

from .witness import Draws, read_draws

STAGE = "private_finetune"
UNPROTECTED = "no_dp"  # reserves, and draws nothing


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Steps of the private stage, as four books have them.

    Args:
        planned: by the plan.
        block: charged and stored together.
        journal: charged to the ledger.
        store: charged to the budget store, by the number of the reservation.
        draws: witnessed.
    """

    planned: int
    block: int
    journal: int
    store: tuple[int, ...]
    draws: Draws

    @property
    def kills(self) -> int:
        """Pods that were started again."""
        return len(self.draws.counts) - 1

    def faults(self) -> set[str]:
        """Name what must not be."""
        found = {
            "several reservations": len(self.store) > 1,
            "under-count": min(self.journal, sum(self.store)) < sum(self.draws.counts),
            "over-count": max(self.journal, sum(self.store))
            > self.planned + self.block * self.kills,
            "books disagree": self.journal != sum(self.store),
            "noise drawn twice": self.draws.reused,
            "unfinished": sum(self.draws.counts) < self.planned,
        }
        return {name for name, is_so in found.items() if is_so}


def gather(
    *, url: str, data_set: str, ledger: PrivacyLedger, witness: Path, **plan: int
) -> Evidence:
    """Read all books of a run.

    Args:
        url: of the budget store.
        data_set: of this run, and of one without protection at most.
        ledger: that the stage returned.
        witness: folder of its pods' draws.
        plan: `planned` and `block`.
    """
    store = BudgetStore.open(url)
    entries = export(store)["entries"]
    runs = history(store, data_set=data_set)
    made = [r.id for r in runs if r.recipe != UNPROTECTED]
    store.engine.dispose()
    spent = {
        identifier: sum(
            entry["num_steps"]
            for entry in entries
            if entry.get("reservation") == identifier and entry.get("stage") == STAGE
        )
        for identifier in made
    }
    return Evidence(
        journal=sum(e.num_steps for e in ledger.entries if e.stage == STAGE),
        store=tuple(spent.values()),
        draws=read_draws(witness),
        **plan,
    )
