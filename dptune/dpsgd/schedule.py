"""How the noise multiplier moves with the step.

A *fixed* schedule is a pure function of the step, chosen before training: the event of
a run follows from it alone. An *adaptive* schedule looks at released values while it
runs. It implements the same protocol, and inside `noise_multiplier` it must first *ask*
the ledger for the multiplier it wants: the ledger grants it, or raises
`BudgetExceededError`, and only then may the value be returned. A schedule that looks at
anything private is no schedule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import dp_accounting


class NoiseSchedule(Protocol):
    """Gives the noise multiplier of each step."""

    def noise_multiplier(self, step: int) -> float:
        """Return noise stddev / C of `step`, counted from 0."""
        ...


@dataclass(frozen=True)
class ConstantNoise:
    """The same multiplier at every step.

    Args:
        value: noise stddev / C, at least 0.
    """

    value: float

    def noise_multiplier(self, step: int) -> float:  # noqa: ARG002 - same at every step
        """Return the constant."""
        return self.value


@dataclass(frozen=True)
class SteppedNoise:
    """A list of multipliers, each for as many steps; the last one for all that follow.

    Args:
        values: noise stddev / C, each at least 0; at least one.
        steps_per_value: at least 1.
    """

    values: tuple[float, ...]
    steps_per_value: int

    def noise_multiplier(self, step: int) -> float:
        """Return the value of the step."""
        return self.values[min(step // self.steps_per_value, len(self.values) - 1)]


def noise_runs(
    schedule: NoiseSchedule, *, num_steps: int, first_step: int = 0
) -> tuple[tuple[float, int], ...]:
    """Return the multipliers of consecutive steps, and for how many each is used."""
    steps = range(first_step, first_step + num_steps)
    multipliers = (schedule.noise_multiplier(step) for step in steps)
    return tuple((value, len(list(run))) for value, run in groupby(multipliers))


def schedule_event(
    schedule: NoiseSchedule,
    *,
    step_event: Callable[[float], dp_accounting.DpEvent],
    first_step: int,
    num_steps: int,
) -> dp_accounting.DpEvent:
    """Describe `num_steps` noisy steps of a fixed schedule.

    Runs of equal multipliers become one self-composed event.

    | case | event |
    |---|---|
    | `num_steps` 0 | `NoOpDpEvent` |
    | a multiplier of 0 | `NonPrivateDpEvent`: epsilon is infinite |

    Args:
        schedule: multiplier of each step.
        step_event: one step with a given multiplier.
        first_step: first step to describe.
        num_steps: how many steps, at least 0.
    """
    events = [
        dp_accounting.SelfComposedDpEvent(step_event(multiplier), count)
        if multiplier > 0
        else dp_accounting.NonPrivateDpEvent()
        for multiplier, count in noise_runs(
            schedule, first_step=first_step, num_steps=num_steps
        )
    ]
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)
