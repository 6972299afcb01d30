"""Which trainings pay and end here: what loggers and steps may say a claim of.

A logger that is told of training by another library sees arguments and state, not who
trains. It asks here, so that no claim of an earlier training is said of a later one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal


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
