"""Progress of training, apart from the rest: other steps need not import the engine."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch
from dp_accounting import DpEvent

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.events import merge_events
from dptune.accounting.ledger import LedgerEntry
from dptune.accounting.progress import EpsilonCurve, epsilon_curve
from dptune.dpsgd.plan import is_adaptive
from dptune.dpsgd.trainer import StepProgress
from dptune.planning import RunPlan
from dptune.privacy import Notion
from dptune.reports.formatting import epsilon
from dptune.stages import StagePlan
from steps._progress import SECONDS_BETWEEN_LINES, Advance, progress, say


class TrainingProgress:
    """Progress of training: step, epoch, tokens per second, epsilon so far, time left.

    Args:
        title: what is trained.
        plan: the stage, for epochs and, where it is private, for epsilon so far.
        run: the run it belongs to, for delta and relation.
        journal: of the stage: what was drawn and lost with a killed process counts.
        record: takes figures and the step now and then, for a tracker.
    """

    def __init__(
        self,
        title: str,
        *,
        plan: StagePlan | None = None,
        run: RunPlan | None = None,
        journal: Path | None = None,
        record: Callable[[Mapping[str, float], int], None] | None = None,
    ) -> None:
        self._title = title
        self._record = record
        self._recorded_at = -math.inf
        self._plan = plan
        self._run = run
        self._journal = journal
        self._kept = 0
        self._curve: EpsilonCurve | None = None
        self._stack = ExitStack()
        self._advance: Advance | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_details: object) -> None:
        self._stack.close()

    def __call__(self, progress_now: StepProgress) -> None:
        """Show one more step; the display begins with the first one."""
        if self._advance is None:
            self._begin(progress_now)
            self._advance = self._stack.enter_context(
                progress(self._title, progress_now.num_steps)
            )
        self._advance(progress_now.step, self._note(progress_now))
        self._record_now_and_then(progress_now)

    def _begin(self, first: StepProgress) -> None:
        """Compute epsilon over the steps to come, behind all that was charged."""
        if self._plan is None or self._run is None:
            return
        before: Sequence[LedgerEntry] = ()
        if self._journal is not None and self._plan.settings.local is None:
            # The last entry pays for the block that has begun. Releases of text are
            # kept: whoever is killed draws none of them again.
            before = LedgerJournal(self._journal).read().entries[:-1]
            self._kept = first.step - 1
        self._curve = _epsilon_so_far(self._plan, self._run, self._kept, before)
        lost = sum(entry.num_steps for entry in before) - self._kept
        if self._curve is not None and lost > 0:
            say(
                f"{lost} steps that were cut off are paid for again: {self._title} "
                f"ends at ε {epsilon(self._curve.epsilons[-1])}. A gate that allows no "
                "more than was planned refuses the version"
            )

    def _epsilon_at(self, step: int) -> float | None:
        """Bound what the stage has spent when a step is done; None if nobody knows."""
        if self._curve is None or self._plan is None:
            return None
        return self._curve.at(math.ceil((step - self._kept) / self._plan.num_bands))

    def _record_now_and_then(self, now: StepProgress) -> None:
        """Hand figures to the tracker; what depends on the draw is marked internal."""
        moment = time.monotonic()
        is_due = moment - self._recorded_at >= SECONDS_BETWEEN_LINES
        if self._record is None or not (is_due or now.step == now.num_steps):
            return
        self._recorded_at = moment
        figures = {"internal/tokens_per_second": now.tokens_per_second}
        if (spent := self._epsilon_at(now.step)) is not None:
            figures["progress/epsilon"] = spent
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
        if (spent := self._epsilon_at(now.step)) is not None:
            parts.append(f"stage ε ≤ {epsilon(spent)}")
        return " · ".join(parts)


def _epsilon_so_far(
    plan: StagePlan, run: RunPlan, kept: int, before: Sequence[LedgerEntry]
) -> EpsilonCurve | None:
    """Precompute epsilon over the turns to come, `num_bands` steps each.

    Args:
        plan: the stage.
        run: for delta and relation.
        kept: steps that earlier processes left a checkpoint of.
        before: what they were charged, also for steps that were lost.
    """
    if not plan.settings.private or is_adaptive(plan.training_plan()):
        return None  # an adaptive stage is charged whole, before its first step
    events = plan.turn_events()
    done, turns = (math.ceil(n / plan.num_bands) for n in (kept, plan.num_steps))
    notion = Notion.RECORD if plan.settings.tiers is None else Notion.SELECTIVE
    return epsilon_curve(
        events if isinstance(events, DpEvent) else events[done:],
        turns - done,
        run.target_delta,
        run.relation,
        prior=merge_events(entry.event(notion) for entry in before),
    )
