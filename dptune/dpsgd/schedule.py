"""How the noise multiplier moves with the step.

A *fixed* schedule is a pure function of the step, chosen before training: the event of
a run follows from it alone.

An *adaptive* run has a controller that looks at what was released and *wishes*. It
never sets noise: `AdaptiveNoise` asks the run's budget for the wish, keeps the grant on
durable storage, and hands it out once, to the noise of that step. A controller that
skips the ask leaves its step without a multiplier, and nothing is drawn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import dp_accounting
from torch import Tensor

from dptune.accounting.adaptive import AdaptiveTerms, AskedBudget
from dptune.errors import BudgetExceededError, PrivacyError


class NoiseSchedule(Protocol):
    """Gives the noise multiplier of each step: the same whenever it is called."""

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

    >>> noise = SteppedNoise((2.0, 1.0), steps_per_value=10)
    >>> [noise.noise_multiplier(step) for step in (0, 9, 10, 99)]
    [2.0, 2.0, 1.0, 1.0]
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


class Controller(Protocol):
    """Chooses the noise of an adaptive run, one wish at a time.

    It may look at what `observe` is given, at public data, and at coins of its own that
    do not depend on the data. Nothing else: the guarantee of every budget rests on it.
    Figures of `StepProgress` are private.
    """

    def wish(self, step: int) -> float:
        """Return the noise stddev / C that `step` should have."""
        ...

    def observe(self, released: Mapping[str, Tensor], *, step: int) -> None:
        """Look at the noisy mean gradients of `step`, after their release."""
        ...


def _alone(grant: Callable[[], float]) -> float:
    """Grant for this process, the only one."""
    return grant()


class AdaptiveNoise:
    """Stands between a controller and the noise.

    **Formal guarantee**: `take` returns only what the budget granted for that step, on
    durable storage, and returns it once. So noise is never drawn for more than
    `terms.event`, over all process starts, whatever the controller does.

    | case | result |
    |---|---|
    | the budget is used up | `ask` returns False: the stage ends there |
    | a step was not asked for, or is taken twice | `PrivacyError`, nothing is drawn |
    | a process was killed after the grant | the grant is used up; the step asks again |
    | several ranks | the first one opens and asks, all take the same grant |

    Args:
        controller: wishes.
        terms: of the whole run.
        sample_rate: of every step.
    """

    def __init__(
        self, controller: Controller, terms: AdaptiveTerms, *, sample_rate: float
    ) -> None:
        self._controller = controller
        self._terms = terms
        self._sample_rate = sample_rate
        self._budget: AskedBudget | None = None
        self._granted: dict[int, float] = {}

    @property
    def terms(self) -> AdaptiveTerms:
        """What was fixed before training."""
        return self._terms

    def open(self, path: Path | None, charge: Callable[[], None]) -> None:
        """Go on with what earlier starts left, or charge the whole event now.

        Args:
            path: of the grants; None for a run that never resumes.
            charge: charges `terms.event`; when it raises, nothing may be asked.
        """
        budget = AskedBudget(self._terms, path=path)
        if not budget.is_charged:
            charge()
            budget.confirm_charge()
        self._budget = budget

    def ask(
        self, step: int, *, once: Callable[[Callable[[], float]], float] = _alone
    ) -> bool:
        """Let the controller wish for a step; says whether anything was granted.

        Args:
            step: which nobody has asked for since this process started.
            once: lets the first of several ranks ask, and tells the others.
        """
        granted = once(lambda: self._grant(step))
        self._granted = {step: granted} if granted else {}
        return bool(granted)

    def of_step(self, step: int) -> float:
        """Return what was granted for `step` and was not taken yet; 0 for nothing."""
        return self._granted.get(step, 0.0)

    def take(self, step: int) -> float:
        """Return the multiplier that was granted for `step`, once.

        Raises:
            PrivacyError: nothing was granted for it, or it was taken.
        """
        if step not in self._granted:
            raise PrivacyError(
                f"the noise of step {step} must be granted before it is drawn, and is "
                "good for one draw. Ask for it first."
            )
        return self._granted.pop(step)

    def _grant(self, step: int) -> float:
        """Ask the budget; 0 if nothing fits any more."""
        if self._budget is None:
            raise PrivacyError("an adaptive budget must be opened before it is asked.")
        wish = self._controller.wish(step)
        try:
            return self._budget.ask(wish, sample_rate=self._sample_rate)
        except BudgetExceededError:
            return 0.0
