"""A few steps of training, run again by the trainer itself, beside the recorder.

Whom a step draws is written in advance, so that empty steps and steps of one unit are
among them. C is a thousandth of the plan's: every unit has to be clipped, and noise
that is scaled to anything but the clip of its own step is too small or too large.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np
from torch import nn

from dptune.audits.recorder import StepRecorder
from dptune.audits.step_releases import HeldClip
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import Sampler, UnitIndices
from dptune.dpsgd.trainer import train_stage

_TIGHT: Final = 1e-3
_SAMPLING: Final = "sampling"


class _Script:
    """Draws what is written.

    Args:
        batches: one for each step; they begin anew at the end.
    """

    def __init__(self, batches: Sequence[UnitIndices]) -> None:
        self._batches, self._step = batches, 0

    def sample(self, generator: np.random.Generator) -> UnitIndices:  # noqa: ARG002 - of the protocol
        """Return the units of the next step."""
        self._step += 1
        return self._batches[(self._step - 1) % len(self._batches)]


def rehearse(
    model: nn.Module,
    plan: GradientPlan,
    feed: Feed,
    *,
    units: Sequence[int],
    num_steps: int,
    optimizer: OptimizerSettings,
    gradient_checkpointing: bool = False,
) -> list[StepCheck]:
    """Train for some steps, and return what the recorder saw.

    Args:
        model: on the feed's device; its weights are used up.
        plan: the claim.
        feed: recorded data and loss.
        units: to draw.
        num_steps: at least 1.
        optimizer: of the stage.
        gradient_checkpointing: as in the stage.
    """
    held = HeldClip(model, plan) if plan.steering else None
    tight = replace(
        plan,
        max_grad_norm=plan.max_grad_norm * _TIGHT,
        adaptive=held.terms if held else None,
    )
    script = _scripted(tight, _batches(units))
    recorder = StepRecorder(
        script,
        settings=optimizer,
        num_steps=num_steps,
        num_units=feed.data.num_units,
        adds_unnoised=feed.data.unnoised is not None,
    )
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if feed.autocast else "float32"
    train_stage(
        model,
        feed.data,
        plan=script,
        num_steps=num_steps,
        optimizer=optimizer,
        physical_batch_size=max(
            1, min(feed.physical_batch_size, feed.data.largest_unit)
        ),
        pad_token_id=feed.pad_token_id,
        loss_normalizer=1.0,
        checkpoint_dir=None,
        block_size=1,
        charge=lambda first_step, num_steps: None,  # noqa: ARG005 - nothing is spent
        device=str(feed.device),
        dtype=dtype,
        max_tokens=feed.longest,
        record_loss=feed.record_loss,
        gradient_checkpointing=gradient_checkpointing,
        controller=HeldClip(model, tight) if held else None,
        witness=recorder,
    )
    return [
        check.model_copy(update={"name": f"again_{check.name}"})
        for check in recorder.segment().checks
        if not check.name.startswith(_SAMPLING)
    ]


def _batches(units: Sequence[int]) -> list[UnitIndices]:
    """Two units, nobody, one, nobody twice in a row, all of them."""
    drawn = (units[:2], (), units[-1:], (), (), units)
    return [np.array(sorted(batch), np.int64) for batch in drawn]


def _scripted(plan: GradientPlan, batches: Sequence[UnitIndices]) -> GradientPlan:
    """Return a plan whose draws are written; everything else is the plan's own."""

    class Scripted(GradientPlan):
        def sampler(self, num_units: int) -> Sampler:  # noqa: ARG002 - of the plan
            return _Script(batches)

    return Scripted(**vars(plan))
