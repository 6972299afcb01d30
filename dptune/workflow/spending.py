"""Add up every charge of a project folder, per corpus."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from dptune.accounting.accountants import epsilon
from dptune.accounting.journal import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.privacy import NeighboringRelation, Notion

_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What all stages ever trained on one corpus spent, composed."""

    corpus: str
    num_stages: int
    num_steps: int
    record_epsilon: float
    selective_epsilon: float
    delta: float


def spending(runs: Path, *, delta: float = _DELTA) -> list[Spending]:
    """Read every stage's journal and compose them per corpus.

    Finished, killed and repeated stages all count: whatever was charged was released or
    might have been.

    Args:
        runs: folder of all stages.
        delta: of every epsilon.
    """
    ledgers: dict[str, list[PrivacyLedger]] = defaultdict(list)
    for file in sorted(runs.glob("*/ledger.jsonl")):
        ledger = LedgerJournal(file).read()
        if ledger.entries:
            ledgers[ledger.entries[0].data_fingerprint].append(ledger)
    return [_compose(corpus, parts, delta) for corpus, parts in ledgers.items()]


def _compose(corpus: str, parts: list[PrivacyLedger], delta: float) -> Spending:
    """Compose the ledgers of one corpus."""
    whole = PrivacyLedger()
    for part in parts:
        whole = whole.extend(part)
    return Spending(
        corpus=corpus,
        num_stages=len(parts),
        num_steps=sum(e.num_steps for e in whole.entries if e.noise_multiplier),
        record_epsilon=epsilon(
            whole.event(Notion.RECORD),
            delta=delta,
            relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        ),
        selective_epsilon=epsilon(
            whole.event(Notion.SELECTIVE),
            delta=delta,
            relation=NeighboringRelation.REPLACE_ONE,
        ),
        delta=delta,
    )
