"""What speaks against a budget store that was deleted, exchanged or set back.

Registered versions know where the store's log ended when they were paid for, and
journals hold charges: a store that knows neither is not the one that they were paid
from, whatever it says was spent.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from dptune.accounting.store.attempts import continues, losses
from dptune.accounting.store.log import Head
from dptune.accounting.store.store import BudgetStore
from dptune.workflow.attempts import lost_store, missing_from
from infra.workspace import current_workspace
from steps import _tracking

_NUMBER = re.compile("[0-9]{1,18}")


@contextmanager
def budget_store() -> Iterator[BudgetStore | None]:
    """Open the project's budget store, if there is one."""
    store = BudgetStore.find(current_workspace().budget_url)
    with store or nullcontext():
        yield store


def lost_heads() -> dict[str, Head]:
    """Return what the budget store should hold of registered versions and does not.

    What was admitted to be lost is left out.
    """
    _tracking.connect()
    found = {}
    for name, text in _tracking.heads_paid().items():
        sequence, _, digest = text.partition(":")
        number = int(sequence) if _NUMBER.fullmatch(sequence) else 0  # is in no log
        found[name] = Head(sequence=number, hash=digest)
    with budget_store() as store:
        if store is None:
            return found
        admitted = {head for loss in losses(store) for head in loss.heads}
        return {
            name: head
            for name, head in found.items()
            if head not in admitted and not continues(store, head)
        }


def what_is_lost() -> list[str]:
    """Say what the budget store does not hold of what was spent; nothing if all."""
    with budget_store() as store:
        problem = missing_from(store, runs=current_workspace().runs)
    found = [problem] if problem else []
    if lost := lost_heads():
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        names = f"{', '.join(list(lost)[:3])}{more}"
        found.append(f"what paid for {names} is not in the budget store")
    return found


def refuse_lost_store() -> None:
    """Refuse to train where the budget store is not the one that was spent from.

    Raises:
        ArtifactError: names what it does not hold.
    """
    if problems := what_is_lost():
        raise lost_store("; ".join(problems))
