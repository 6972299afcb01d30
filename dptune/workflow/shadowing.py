"""Train shadow models for membership attacks, by the engine of every other stage."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import nn

from dptune.config import ShadowSettings
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import PlainPlan
from dptune.dpsgd.trainer import train_stage
from dptune.errors import DataError
from dptune.models.loading import LoadedModel

FEWEST_RECORDS = 40


@dataclass(frozen=True, kw_only=True)
class Shadows:
    """What shadows are trained from, and on what. Private.

    Every shadow is the base model trained without protection on a random half of
    `training`, and lives only while it is asked for a loss: none is stored.

    Args:
        base: before fine-tuning.
        training: token ids of held-out records that no attack is tried on.
        population: of further ones, which no shadow sees.
        settings: how many, and how they are trained.
        max_tokens: longest sequence.
        device: where to run.
    """

    base: LoadedModel
    training: Sequence[list[int]]
    population: Sequence[list[int]]
    settings: ShadowSettings
    max_tokens: int
    device: str

    @classmethod
    def of(
        cls: type[Self],
        base: LoadedModel,
        pool: Sequence[list[int]],
        *,
        settings: ShadowSettings,
        max_tokens: int,
        device: str,
    ) -> Self:
        """Split held-out records that no attack is tried on: a quarter trains nobody.

        Raises:
            DataError: there are fewer than `FEWEST_RECORDS` of them.
        """
        usable = [sequence for sequence in pool if len(sequence) >= 2]
        if len(usable) < FEWEST_RECORDS:
            raise DataError(
                f"shadow models need at least {FEWEST_RECORDS} held-out records that "
                f"no attack is tried on, got {len(usable)}. Lower attack.num_members, "
                "hold more records out, or leave attack.shadows out."
            )
        count = len(usable) // 4
        return cls(
            base=base,
            training=usable[count:],
            population=usable[:count],
            settings=settings,
            max_tokens=max_tokens,
            device=device,
        )

    @property
    def num_records(self: Self) -> int:
        """Records that each shadow is trained on."""
        return len(self.training) // 2

    def models(
        self: Self, on_progress: Callable[[int, int], None] = lambda *_: None
    ) -> Iterator[nn.Module]:
        """Train one shadow after the other."""
        for number in range(self.settings.num_models):
            yield self._train(number)
            on_progress(number + 1, self.settings.num_models)

    def _train(self: Self, number: int) -> nn.Module:
        """Train a copy of the base on its own half."""
        generator = np.random.default_rng(number)
        chosen = generator.permutation(len(self.training))[: self.num_records]
        sequences = [self.training[int(i)] for i in chosen]
        data = UnitDataset.from_columns(
            sequences,
            [[0.0, *[1.0] * (len(s) - 1)] for s in sequences],
            [str(i) for i in range(len(sequences))],
            max_sequences_per_unit=1,
        )
        model: nn.Module = copy.deepcopy(self.base.model)
        model.to(self.device)
        settings = self.settings
        size = min(settings.batch_size, len(sequences))
        steps = max(1, math.ceil(settings.epochs * len(sequences) / size))
        train_stage(
            model,
            data,
            plan=PlainPlan(batch_size=size),
            num_steps=steps,
            optimizer=OptimizerSettings(
                name="adamw", learning_rate=settings.learning_rate
            ),
            physical_batch_size=size,
            pad_token_id=int(self.base.tokenizer.pad_token_id or 0),
            loss_normalizer=float(self.max_tokens),
            checkpoint_dir=None,
            block_size=steps,
            charge=lambda *_: None,
            seed=number,
            device=self.device,
        )
        return model
