"""Epsilon so far, read off a ledger: what each stage added, notion by notion."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.assumptions import Assumption
from dptune.accounting.conversion import stated_epsilon
from dptune.accounting.events import merge_events
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.privacy import NeighboringRelation, Notion
from dptune.results import LedgerCurve

USUAL_TERMS: Final = (
    (Notion.RECORD, NeighboringRelation.ADD_OR_REMOVE_ONE),
    (Notion.SELECTIVE, NeighboringRelation.REPLACE_ONE),
)
"""Each notion of a training run under the relation that it is usually stated for."""


def charged_event(entry: LedgerEntry, notion: Notion) -> DpEvent:
    """Return what an entry costs; everything where its noise came from a known seed.

    Who knows the seed subtracts the noise.
    """
    if Assumption.FIXED_SEED_RANDOMNESS in entry.claimed(notion):
        return dp_accounting.NonPrivateDpEvent()
    return entry.event(notion)


def ledger_curves(
    ledger: PrivacyLedger, *, delta: float, points: int = 8
) -> tuple[LedgerCurve, ...]:
    """Compute epsilon so far over the steps that were charged, stage by stage.

    Each point is the epsilon of all entries up to it, composed: epsilons are never
    added. Steps that a killed run drew twice were charged twice, and count twice.

    Args:
        ledger: of one run.
        delta: of every epsilon.
        points: how many of each stage besides its start, at least 1.
    """
    found: list[LedgerCurve] = []
    for notion, relation in USUAL_TERMS:
        spent: list[DpEvent] = []
        steps, last = 0, 0.0
        for stage, entries in _stages(ledger):
            xs, ys = [steps], [last]
            for part in _parts(entries, points):
                spent = [
                    merge_events([*spent, *(charged_event(e, notion) for e in part)])
                ]
                steps += sum(entry.num_steps for entry in part)
                if math.isfinite(last):
                    now = stated_epsilon(spent[0], delta=delta, relation=relation)
                    last = max(last, now)
                xs.append(steps)
                ys.append(last)
            found.append(
                LedgerCurve(
                    stage=stage,
                    notion=notion.value,
                    relation=relation.value,
                    delta=delta,
                    steps=tuple(xs),
                    epsilon=tuple(ys),
                )
            )
    return tuple(found)


def _stages(ledger: PrivacyLedger) -> Iterator[tuple[str, list[LedgerEntry]]]:
    """Group entries that follow each other by their stage."""
    for stage, entries in groupby(ledger.entries, key=lambda entry: entry.stage):
        yield stage, list(entries)


def _parts(
    entries: Sequence[LedgerEntry], points: int
) -> Iterator[Sequence[LedgerEntry]]:
    """Cut entries into at most `points` runs of about equal length."""
    size = math.ceil(len(entries) / points)
    for first in range(0, len(entries), size):
        yield entries[first : first + size]
