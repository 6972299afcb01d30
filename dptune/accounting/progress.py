"""Epsilon so far: before training for a progress bar, afterwards read off a ledger."""

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.accountants import epsilon
from dptune.accounting.assumptions import Assumption
from dptune.accounting.events import merge_events
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation, Notion
from dptune.results import LedgerCurve


@dataclass(frozen=True, kw_only=True)
class EpsilonCurve:
    """Epsilon after some of the steps of a run, never falling.

    Args:
        steps: numbers of steps, rising, from 0 to the last.
        epsilons: epsilon after as many steps, at `delta` under `relation`.
        delta: of every epsilon.
        relation: of every epsilon.
    """

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    relation: NeighboringRelation

    def at(self, step: int) -> float:
        """Bound epsilon after `step` steps: exact at the points, rounded up between.

        Raises:
            ConfigError: `step` is negative or beyond the last point.
        """
        if not 0 <= step <= self.steps[-1]:
            raise ConfigError(f"step must be in [0, {self.steps[-1]}], got {step}.")
        return self.epsilons[bisect.bisect_left(self.steps, step)]


def epsilon_curve(
    per_step: DpEvent | Sequence[DpEvent],
    steps: int,
    delta: float,
    relation: NeighboringRelation,
    *,
    points: int = 20,
    prior: DpEvent | None = None,
) -> EpsilonCurve:
    """Compute epsilon after some of the steps, so that a lookup is free later.

    Points lie closer at the start, where epsilon grows fastest. Between two points the
    later one is reported: epsilon never falls with steps, so it is an upper bound.

    Args:
        per_step: event of one step, or one event for each step.
        steps: planned noisy updates, at least 0.
        delta: in (0, 1).
        relation: neighboring relation.
        points: how many points besides step 0, at least 1.
        prior: what was spent before the first step.

    Raises:
        ConfigError: delta is out of range, or there is not an event for each step.
    """
    if not isinstance(per_step, DpEvent) and len(per_step) != steps:
        raise ConfigError(
            f"per_step must hold one event for each step, got {len(per_step)} events "
            f"for steps={steps}."
        )
    chosen = _choose(steps, points)
    spent = prior if prior is not None else dp_accounting.NoOpDpEvent()
    epsilons: list[float] = []
    for count in chosen:
        event = merge_events([spent, _first(per_step, count)])
        value = epsilon(event, delta=delta, relation=relation)
        epsilons.append(max([value, *epsilons[-1:]]))
    return EpsilonCurve(
        steps=tuple(chosen),
        epsilons=tuple(epsilons),
        delta=delta,
        relation=NeighboringRelation(relation),
    )


def _choose(steps: int, points: int) -> list[int]:
    """Pick step counts with evenly spaced square roots, 0 and the last included."""
    if steps < 0 or points < 1:
        raise ConfigError(
            f"steps must be at least 0 and points at least 1, got steps={steps}, "
            f"points={points}."
        )
    return sorted({math.ceil(steps * (k / points) ** 2) for k in range(points + 1)})


def _first(per_step: DpEvent | Sequence[DpEvent], count: int) -> DpEvent:
    """Event of the first `count` steps."""
    if count == 0:
        return dp_accounting.NoOpDpEvent()
    if isinstance(per_step, DpEvent):
        return dp_accounting.SelfComposedDpEvent(event=per_step, count=count)
    return merge_events(per_step[:count])


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
        in_turn = groupby(ledger.entries, key=lambda entry: entry.stage)
        for stage, entries in ((name, list(group)) for name, group in in_turn):
            xs, ys = [steps], [last]
            for part in _parts(entries, points):
                spent = [
                    merge_events([*spent, *(charged_event(e, notion) for e in part)])
                ]
                steps += sum(entry.num_steps for entry in part)
                if math.isfinite(last):
                    now = epsilon(spent[0], delta=delta, relation=relation)
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


def _parts(
    entries: Sequence[LedgerEntry], points: int
) -> Iterator[Sequence[LedgerEntry]]:
    """Cut entries into at most `points` runs of about equal length."""
    size = math.ceil(len(entries) / points)
    for first in range(0, len(entries), size):
        yield entries[first : first + size]
