"""Train shadow models for membership attacks, by the engine of every other stage."""

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Self, cast

from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from dptune.config import AttackSettings, PerformanceSettings, ShadowSettings
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.loss import ClassificationLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import PlainPlan
from dptune.dpsgd.trainer import StepProgress, train_stage
from dptune.models.loading import LoadedModel
from dptune.models.lora import add_lora
from dptune.workflow.device import pick_device

LARGEST_WHOLE = 50_000_000
"""Parameters up to which shadows train the whole model; above, adapters."""

_RANK = 16
_ADAPTER_RATE = 1e-3
_LARGEST_RATE = 3e-3
_RATE_TIMES_WIDTH = 0.2
_TIMED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class ShadowTraining:
    """How shadows are trained: the base, without protection.

    Every shadow lives only while it is attacked: none is stored.

    Args:
        base: before fine-tuning.
        settings: how many, and how they are trained.
        max_tokens: longest sequence.
        physical_batch_size: sequences in memory at once.
        device: where to run.
        say: called with what all shadows will take, once some steps were timed.
    """

    base: LoadedModel
    settings: ShadowSettings
    max_tokens: int
    physical_batch_size: int
    device: str
    say: Callable[[str], None] = lambda _: None

    def train(
        self: Self,
        number: int,
        sequences: Sequence[Sequence[int]],
        labels: Sequence[int] | None = None,
        *,
        until: float = -math.inf,
    ) -> nn.Module:
        """Train a copy of the base until it knows its records as well as the model.

        Args:
            number: of the shadow, from 0; seeds its order.
            sequences: token ids of its records. Private.
            labels: their classes, for a classifier. Private.
            until: mean loss over a pass at which training ends before its last step.
        """
        data = UnitDataset.from_columns(
            sequences,
            [[0.0, *[1.0] * (len(s) - 1)] for s in sequences],
            [str(i) for i in range(len(sequences))],
            max_sequences_per_unit=1,
            labels=labels,
        )
        model = self._copy()
        settings = self.settings
        steps = settings.num_steps(2 * len(sequences))
        size = min(settings.batch_size, len(sequences))
        losses: deque[float] = deque(maxlen=math.ceil(len(sequences) / size))

        def look(now: StepProgress) -> None:
            losses.append(now.loss)
            if number == 0 and now.step == min(_TIMED_STEPS, now.num_steps):
                self._say_cost(now)
            if len(losses) == losses.maxlen and fmean(losses) <= until:
                raise _EnoughError

        with suppress(_EnoughError):
            train_stage(
                model,
                data,
                plan=PlainPlan(batch_size=size),
                num_steps=steps,
                optimizer=OptimizerSettings(
                    name="adamw",
                    learning_rate=settings.learning_rate or self._learning_rate(model),
                ),
                physical_batch_size=min(size, self.physical_batch_size),
                pad_token_id=int(self.base.tokenizer.pad_token_id or 0),
                loss_normalizer=float(self.max_tokens),
                checkpoint_dir=None,
                block_size=steps,
                charge=lambda *_: None,
                on_step=look,
                seed=number,
                device=self.device,
                record_loss=None if labels is None else ClassificationLoss(),
            )
        return model

    def _copy(self: Self) -> nn.Module:
        """Copy the base, with adapters if it is large."""
        model: nn.Module = copy.deepcopy(self.base.model)
        if self.base.model.num_parameters() > LARGEST_WHOLE:
            whole = cast("PreTrainedModel", model)
            model = add_lora(whole, rank=_RANK, alpha=_RANK)
        model.to(self.device)
        return model

    def _learning_rate(self: Self, model: nn.Module) -> float:
        """Return a rate for AdamW that falls with the width of what is trained.

        References:
            Yang et al. (2022), "Tensor programs V", table 3: 1 / width for Adam.
        """
        if isinstance(model, PeftModel):
            return _ADAPTER_RATE
        width: int = self.base.model.config.hidden_size
        return min(_LARGEST_RATE, _RATE_TIMES_WIDTH / width)

    def _say_cost(self: Self, now: StepProgress) -> None:
        """Say what all shadows will take."""
        count = self.settings.num_models
        total = count * now.num_steps * now.seconds / now.step
        self.say(
            f"{count} shadow models of at most {now.num_steps} steps take about "
            f"{total:.0f} s at most"
        )


class _EnoughError(Exception):
    """Ends a shadow's training; its weights stay as they are."""


def shadow_training(
    base: LoadedModel,
    attacks: AttackSettings,
    *,
    max_tokens: int,
    performance: PerformanceSettings,
    say: Callable[[str], None],
) -> ShadowTraining | None:
    """Return how shadows are trained; None where they are not wanted."""
    if attacks.shadows is None:
        return None
    return ShadowTraining(
        base=base,
        settings=attacks.shadows,
        max_tokens=max_tokens,
        physical_batch_size=performance.physical_batch_size,
        device=pick_device(performance.device),
        say=say,
    )
