"""Epsilon so far: a curve computed before training, for a progress bar and a plot."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import merge_events
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation


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
