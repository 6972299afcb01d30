"""Train shadow models for membership attacks, by the engine of every other stage."""

import copy
import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Self, cast

import torch
from datasets import Dataset
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from dptune.attacks.canaries import CanarySet
from dptune.attacks.classification import (
    LabelledSequences,
    classification_membership,
    classification_utility,
)
from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.roc import RocSettings
from dptune.attacks.settings import AttackSettings, ShadowSettings
from dptune.attacks.shadow_models import Course, Opponent
from dptune.config import PerformanceSettings
from dptune.conversation import scored
from dptune.data.records import Corpus
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.loss import ClassificationLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import PlainPlan
from dptune.dpsgd.trainer import StepProgress, train_stage
from dptune.models.build import add_lora
from dptune.models.encode import class_numbers, encode_classes
from dptune.models.frozen import hold_exactly, shared_copy
from dptune.models.loading import LoadedModel
from dptune.models.source import ModelBundle
from dptune.precision import restore_rounded
from dptune.results import ExposureReport, MembershipReport, UtilityReport
from dptune.workflow.device import pick_device
from dptune.workflow.members import HELD_OUT, TrainedRows, members_and_others

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
        base: before fine-tuning, in the type that it is stored in.
        settings: how many, and how they are trained.
        max_tokens: longest sequence.
        physical_batch_size: sequences in memory at once.
        device: where to run.
        say: called with what all shadows will take, once some steps were timed.
        tell: told how many steps of each shadow are done.
    """

    base: LoadedModel
    settings: ShadowSettings
    max_tokens: int
    physical_batch_size: int
    device: str
    say: Callable[[str], None] = lambda _: None
    tell: Tell = unwatched

    def train(
        self: Self,
        number: int,
        sequences: Sequence[Sequence[int]],
        labels: Sequence[int] | None = None,
        *,
        until: float = -math.inf,
    ) -> tuple[nn.Module, Course]:
        """Train a copy of the base until it knows its records as well as the model.

        Args:
            number: of the shadow, from 0; seeds its order.
            sequences: token ids of its records. Private.
            labels: their classes, for a classifier. Private.
            until: mean loss over a pass at which training ends before its last step.

        Returns:
            The shadow, and how far its training went.
        """
        data = UnitDataset.from_columns(
            sequences,
            [list(map(float, scored(s))) for s in sequences],
            [str(i) for i in range(len(sequences))],
            max_sequences_per_unit=1,
            labels=labels,
        )
        model = self._copy()
        settings = self.settings
        steps = settings.num_steps(2 * len(sequences))
        size = min(settings.batch_size, len(sequences))
        losses: deque[float] = deque(maxlen=math.ceil(len(sequences) / size))
        means: list[float] = []

        def look(now: StepProgress) -> None:
            losses.append(now.loss)
            of_all = f"shadow model {number + 1} of {settings.num_models}"
            self.tell(f"training {of_all}", now.step, now.num_steps)
            if number == 0 and now.step == min(_TIMED_STEPS, now.num_steps):
                self._say_cost(now)
            if len(losses) == losses.maxlen:
                means.append(fmean(losses))
                if means[-1] <= until:
                    raise _EnoughError

        finished = False
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
            finished = True
        return model, Course(losses=tuple(means), finished=finished)

    def _copy(self: Self) -> nn.Module:
        """Copy the base in float32, or put adapters over its memory if it is large."""
        base = self.base.model
        if base.num_parameters() <= LARGEST_WHOLE:
            whole = copy.deepcopy(base)
            restore_rounded(whole)
            return nn.Module.to(whole, self.device, torch.float32)
        nn.Module.to(base, self.device)

        def adapted() -> nn.Module:
            shared = cast("PreTrainedModel", shared_copy(base))
            return add_lora(shared, rank=_RANK, alpha=_RANK)

        return nn.Module.to(hold_exactly(adapted), self.device)

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
    tell: Tell = unwatched,
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
        tell=tell,
    )


def opponent_of(
    base: ModelBundle,
    tokens: Sequence[Sequence[int]],
    texts: Sequence[str],
    labels: Sequence[int] = (),
    **settings: Hashable,
) -> Opponent:
    """Return what models of one base are compared with: one for equal arguments.

    A comparison of recipes attacks many models of one base on the same records. What
    attacks found of the base stays in this process's memory, and is never stored.

    Args:
        base: before fine-tuning.
        tokens: of all attacked records, members first.
        texts: of the same.
        labels: of the same, for a classifier.
        settings: all else that base losses and shadows depend on.
    """
    records = hashlib.sha256(repr(labels).encode())
    for sequence, text in zip(tokens, texts, strict=True):
        row = list(map(int, sequence)), list(map(bool, scored(sequence))), text
        records.update(repr(row).encode(errors="surrogatepass"))
    return _opponent(base.digest, records.digest(), tuple(sorted(settings.items())))


@lru_cache(maxsize=4)
def _opponent(*_: Hashable) -> Opponent:
    return Opponent()


NO_EXPOSURE = (
    "A classifier writes no text, so that no secret can be ranked among its "
    "candidates: exposure is not measurable, and membership is the only attack."
)


def unmeasurable_exposure(
    model: ModelBundle, base: ModelBundle, canaries: CanarySet
) -> ExposureReport:
    """Return a report without canaries that says why it has none."""
    return ExposureReport(
        model_digest=model.digest,
        base_model_digest=base.digest,
        canary_set_digest=canaries.digest,
        space_size=canaries.spec.space_size,
        scoring="sum",
        setting=canaries.spec.setting,
        exact=True,
        canaries=(),
        base_canaries=(),
        planted_found=0,
        planted_expected=canaries.num_expected,
        num_token_forwards=0,
        not_measurable=NO_EXPOSURE,
    )


def attack_membership(
    model: tuple[ModelBundle, LoadedModel],
    base: tuple[ModelBundle, LoadedModel],
    corpus: Corpus,
    canaries: CanarySet,
    *,
    max_tokens: int,
    max_sequences_per_unit: int,
    attacks: AttackSettings,
    speed: PerformanceSettings,
    say: Callable[[str], None] = lambda _: None,
    tell: Tell = unwatched,
) -> MembershipReport:
    """Tell records that were trained on from held-out ones by class losses.

    Raises:
        DataError: there are no held-out records to compare with.
    """
    trained = TrainedRows(
        loaded=model[1],
        max_tokens=max_tokens,
        max_sequences_per_unit=max_sequences_per_unit,
    )
    groups = [
        labelled(rows, model[1], max_tokens=max_tokens)
        for rows in members_and_others(
            corpus, canaries, trained=trained, count=attacks.num_members
        )
    ]
    shadows = shadow_training(
        base[1],
        attacks,
        max_tokens=max_tokens,
        performance=speed,
        say=say,
        tell=tell,
    )
    return classification_membership(
        *groups,
        opponent=opponent_of(
            base[0],
            [tokens for group in groups for tokens in group.tokens],
            [text for group in groups for text in group.texts],
            [label for group in groups for label in group.labels],
            max_tokens=max_tokens,
            attacks=attacks,
            performance=speed,
        ),
        model=model[1].model,
        base_model=base[1].model,
        model_digest=model[0].digest,
        base_model_digest=base[0].digest,
        batch_size=speed.evaluation_batch_size,
        device=pick_device(speed.device),
        settings=RocSettings(num_resamples=attacks.num_bootstrap),
        train_shadow=shadows.train if shadows else None,
        num_shadows=shadows.settings.num_models if shadows else 0,
        tell=tell,
    )


def measure_accuracy(
    model: tuple[ModelBundle, LoadedModel],
    base: LoadedModel,
    corpus: Corpus,
    *,
    max_tokens: int,
    speed: PerformanceSettings,
) -> UtilityReport:
    """Measure accuracy on the held-out split, beside the base and a constant answer."""
    training = class_numbers(corpus.split("train"), class_names=model[1].class_names)
    return classification_utility(
        labelled(corpus.split(HELD_OUT), model[1], max_tokens=max_tokens),
        model=model[1].model,
        base_model=base.model,
        model_digest=model[0].digest,
        corpus_fingerprint=corpus.fingerprint,
        split=HELD_OUT,
        majority_class=Counter(training).most_common(1)[0][0],
        units=corpus.split(HELD_OUT)["unit_id"][:],
        batch_size=speed.evaluation_batch_size,
        device=pick_device(speed.device),
    )


def labelled(
    rows: Dataset, loaded: LoadedModel, *, max_tokens: int
) -> LabelledSequences:
    """Encode records as training does."""
    encoded = encode_classes(
        rows, loaded.tokenizer, max_tokens=max_tokens, class_names=loaded.class_names
    )
    return LabelledSequences(
        tokens=list(encoded["input_ids"]),
        labels=list(encoded["labels"]),
        texts=list(rows["text"]),
    )
