"""How the noise multiplier moves with the step.

A *fixed* schedule is a pure function of the step, chosen before training: the event of
a run follows from it alone. An *adaptive* schedule looks at released values while it
runs. It implements the same protocol, and inside `noise_multiplier` it must first *ask*
the ledger for the multiplier it wants: the ledger grants it, or raises
`BudgetExceededError`, and only then may the value be returned. A schedule that looks at
anything private is no schedule.
"""

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


def schedule_event(
    schedule: NoiseSchedule, *, sample_rate: float, first_step: int, num_steps: int
) -> dp_accounting.DpEvent:
    """Describe `num_steps` Poisson-sampled Gaussian steps of a fixed schedule.

    Runs of equal multipliers become one self-composed event.

    | case | event |
    |---|---|
    | `num_steps` 0 | `NoOpDpEvent` |
    | a multiplier of 0 | `NonPrivateDpEvent`: epsilon is infinite |

    Args:
        schedule: multiplier of each step.
        sample_rate: chance that a unit joins a step, in (0, 1].
        first_step: first step to describe.
        num_steps: how many steps, at least 0.
    """
    steps = range(first_step, first_step + num_steps)
    multipliers = (schedule.noise_multiplier(step) for step in steps)
    events = [
        _run_event(multiplier, sample_rate=sample_rate, num_steps=len(list(run)))
        for multiplier, run in groupby(multipliers)
    ]
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def _run_event(
    multiplier: float, *, sample_rate: float, num_steps: int
) -> dp_accounting.DpEvent:
    """Describe a run of steps with one multiplier."""
    if multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    step = dp_accounting.PoissonSampledDpEvent(sample_rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(step, num_steps)
