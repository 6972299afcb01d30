"""Progress of training, apart from the rest: other steps need not import the engine."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

import torch

from dptune.accounting.progress import EpsilonCurve, epsilon_curve
from dptune.dpsgd.plan import is_adaptive
from dptune.dpsgd.trainer import StepProgress
from dptune.planning import RunPlan
from dptune.reports.formatting import epsilon
from dptune.stages import StagePlan
from steps._progress import SECONDS_BETWEEN_LINES, Advance, progress


class TrainingProgress:
    """Progress of training: step, epoch, tokens per second, epsilon so far, time left.

    Args:
        title: what is trained.
        plan: the stage, for epochs and, where it is private, for epsilon so far.
        run: the run it belongs to, for delta and relation.
        record: takes figures and the step now and then, for a tracker.
    """

    def __init__(
        self,
        title: str,
        *,
        plan: StagePlan | None = None,
        run: RunPlan | None = None,
        record: Callable[[Mapping[str, float], int], None] | None = None,
    ) -> None:
        self._title = title
        self._record = record
        self._recorded_at = -math.inf
        self._plan = plan
        self._curve = _epsilon_so_far(plan, run) if plan and run else None
        self._stack = ExitStack()
        self._advance: Advance | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_details: object) -> None:
        self._stack.close()

    def __call__(self, progress_now: StepProgress) -> None:
        """Show one more step; the display begins with the first one."""
        if self._advance is None:
            self._advance = self._stack.enter_context(
                progress(self._title, progress_now.num_steps)
            )
        self._advance(progress_now.step, self._note(progress_now))
        self._record_now_and_then(progress_now)

    def _record_now_and_then(self, now: StepProgress) -> None:
        """Hand figures to the tracker; what depends on the draw is marked internal."""
        moment = time.monotonic()
        is_due = moment - self._recorded_at >= SECONDS_BETWEEN_LINES
        if self._record is None or not (is_due or now.step == now.num_steps):
            return
        self._recorded_at = moment
        figures = {"internal/tokens_per_second": now.tokens_per_second}
        if self._curve is not None and self._plan is not None:
            turns = math.ceil(now.step / self._plan.num_bands)
            figures["progress/epsilon"] = self._curve.at(turns)
        if torch.cuda.is_available():
            figures["internal/gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
        self._record(figures, now.step)

    def _note(self, now: StepProgress) -> str:
        """Epoch, speed, and what has been spent."""
        parts = [f"{now.tokens_per_second:,.0f} tokens/s"]
        if self._plan is not None:
            local = self._plan.settings.local is not None
            done = now.step * (1.0 if local else self._plan.sample_rate)
            parts.insert(0, f"epoch {done:.1f}/{self._plan.settings.epochs:g}")
        if self._curve is not None and self._plan is not None:
            turns = math.ceil(now.step / self._plan.num_bands)
            parts.append(f"stage ε ≤ {epsilon(self._curve.at(turns))}")
        return " · ".join(parts)


def _epsilon_so_far(plan: StagePlan, run: RunPlan) -> EpsilonCurve | None:
    """Precompute epsilon over the turns, `num_bands` steps each, of a private stage."""
    if not plan.settings.private or is_adaptive(plan.training_plan()):
        return None  # an adaptive stage is charged whole, before its first step
    turns = math.ceil(plan.num_steps / plan.num_bands)
    return epsilon_curve(plan.turn_events(), turns, run.target_delta, run.relation)
