"""The journal: a ledger on disk that a crash cannot shorten.

**Spend before you draw.** `charge` returns only when the entry is on durable storage;
the caller draws its noise after that. A killed run can have charged for noise that it
never drew, never the other way round. `dptune.accounting.chain` says how it is stored,
and what is noticed.
"""

from pathlib import Path

from pydantic import ValidationError

from dptune.accounting.chain import Chain
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.errors import ArtifactError


class LedgerJournal:
    """An append-only file of ledger entries.

    Args:
        path: of the file; it and its folder are made by the first charge.
    """

    def __init__(self, path: Path) -> None:
        self._chain = Chain(path)

    @property
    def path(self) -> Path:
        """Where the journal lies."""
        return self._chain.path

    def charge(self, entry: LedgerEntry) -> None:
        """Write one entry to durable storage, before its noise is drawn.

        **Formal guarantee**: when this returns, every later `read`, also after a kill
        or a power cut, has the entry. When it raises, or the process is killed in it,
        no noise may be drawn; the entry may or may not be counted.

        Raises:
            ArtifactError: the journal was tampered with.
            OSError: the disk is full or gone.
        """
        self._chain.append(entry.model_dump(mode="json"))

    def read(self) -> PrivacyLedger:
        """Read all entries and check the chain.

        Raises:
            ArtifactError: a line was edited, moved or deleted; names the first bad one.
        """
        found = enumerate(self._chain.read(), start=1)
        return PrivacyLedger(entries=tuple(self._entry(n, data) for n, data in found))

    def _entry(self, number: int, data: object) -> LedgerEntry:
        """Read one line."""
        try:
            return LedgerEntry.model_validate(data)
        except ValidationError:
            raise ArtifactError(
                f"line {number} of {self.path.name} must be an entry that this version "
                "knows. Upgrade dptune to read it."
            ) from None
