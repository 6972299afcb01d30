"""Which trainings pay and end here, and by what: what may be said a claim of.

A logger that is told of training by another library sees arguments and state, not who
trains. It asks here, so that no claim of an earlier training is said of a later one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal
from dptune.errors import PrivacyError
from dptune.workflow.charging import PAID


class PayingRun(Protocol):
    """A training that pays before it draws."""

    @property
    def journal(self) -> LedgerJournal:
        """What was paid, by every process start."""
        ...

    def certificate(self, *, steps: int | None = None) -> Certificate:
        """State what is guaranteed after all that was paid until now.

        Args:
            steps: that a training which ends here has taken.
        """
        ...


_PAYING: ContextVar[PayingRun | None] = ContextVar("paying", default=None)
_ISSUED: ContextVar[list[Certificate] | None] = ContextVar("issued", default=None)


def check_payer(journal: LedgerJournal, *, budget: object, has_ended: bool) -> None:
    """Refuse to go on with a budget that did not pay before, or without one that did.

    The budget would count a part of what the model has learnt, or not the rest.

    Args:
        journal: of the training.
        budget: that would pay for what follows; None where none would.
        has_ended: nothing follows: it is asked what it was.

    Raises:
        PrivacyError: it is so.
    """
    has_paid = journal.path.with_name(PAID).exists()
    if not journal.read().entries or (budget is not None) == has_paid:
        return
    if budget is not None:
        raise PrivacyError(
            "budget must be None, or pay from the first block on: those that this "
            "training has drawn were charged to none, so that the data set's budget "
            "would count the others alone. Go on without it, or start with the model "
            "as it was before in another output_dir."
        )
    if not has_ended:
        raise PrivacyError(
            "budget must be given: it has paid for this training until now, and would "
            "not count what follows. Pass the same ScriptBudget."
        )


@contextmanager
def paying(run: PayingRun) -> Iterator[None]:
    """Let loggers know that a private training is under way."""
    token = _PAYING.set(run)
    try:
        yield
    finally:
        _PAYING.reset(token)


def paying_here() -> PayingRun | None:
    """Return the private training that is under way; None where none is."""
    return _PAYING.get()


@contextmanager
def issued_here() -> Iterator[list[Certificate]]:
    """Collect the certificates of all trainings that end inside."""
    found: list[Certificate] = []
    token = _ISSUED.set(found)
    try:
        yield found
    finally:
        _ISSUED.reset(token)


def tell_issued(certificate: Certificate) -> None:
    """Hand the certificate of a training that has ended to whoever collects them."""
    if (told := _ISSUED.get()) is not None:
        told.append(certificate)
