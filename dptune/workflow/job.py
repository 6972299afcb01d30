"""What a process needs to know to train one stage, or its share of one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, cast

import torch
from transformers import PreTrainedModel

from dptune.audits.recorder import StepRecorder
from dptune.audits.step_checks import unit_lengths
from dptune.config import PerformanceSettings
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss, RecordLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.schedule import Controller
from dptune.dpsgd.steps import Charge
from dptune.dpsgd.trainer import (
    StepProgress,
    TrainingOutcome,
    train_stage,
)
from dptune.dpsgd.witness import UNWATCHED, StepWitness
from dptune.errors import PrivacyError
from dptune.files import locked
from dptune.models.build import add_lora
from dptune.models.frozen import freeze_base
from dptune.models.loading import LoadedModel, load_saved
from dptune.models.source import Base
from dptune.models.tokens import add_mask_token
from dptune.recipes import View
from dptune.settings import Settings
from dptune.stages import StagePlan


class TrainingJob(Settings):
    """Everything but the data that decides what a stage computes, and how fast.

    Args:
        model: directory of the model that it starts from.
        plan: the stage with its noise.
        max_tokens: longest sequence, the public normalizer of the loss.
        seed: fixes all randomness; None takes it from the operating system.
        checkpoint_dir: where blocks are stored, and where a run goes on from.
        performance: memory and speed.
        base: how weights are held that a stage does not train.
    """

    model: Path
    plan: StagePlan
    max_tokens: int
    seed: int | None
    checkpoint_dir: Path
    performance: PerformanceSettings
    base: Base = Base()

    @property
    def journal(self) -> Path:
        """Where the stage is charged."""
        return self.checkpoint_dir.with_name("ledger.jsonl")

    def alone(self) -> "TrainingJob":
        """Return the same job for one process that holds the whole model."""
        one = self.performance.model_copy(
            update={"num_processes": 1, "nodes": 1, "sharding": "none"}
        )
        return self.model_copy(update={"performance": one})


_MOMENT: Final = 5
"""Seconds."""


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Keep others from training a stage in the same folder until this process ends.

    Two would both pay, and overwrite each other's checkpoints. Ranks that a killed run
    has left behind need a moment to notice.

    Raises:
        PrivacyError: another one trains it; nothing was charged.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(home / "training.lock", patience=_MOMENT))
        except BlockingIOError:
            raise PrivacyError(
                "a stage must be trained by one run at a time, but another one is at "
                "it. Wait for its end, or set `repetition`."
            ) from None
        yield


def load_start(job: TrainingJob) -> tuple[LoadedModel, int | None]:
    """Load the model that a job trains, the same in every process.

    Returns:
        The model, with adapters where the stage trains such; and the id of the token
        that is no target, if there is one.
    """
    return prepare_start(load_saved(job.model, dtype=start_dtype(job)), job)


def start_dtype(job: TrainingJob) -> torch.dtype | None:
    """Return the type that a job loads its model in; None is that of the files."""
    is_stored = _keeps_base(job) and job.base.dtype == "stored"
    return None if is_stored else torch.float32


def _keeps_base(job: TrainingJob) -> bool:
    """Whether weights beside adapters need not be float32."""
    return job.plan.settings.lora is not None and job.performance.sharding == "none"


def prepare_start(
    loaded: LoadedModel, job: TrainingJob
) -> tuple[LoadedModel, int | None]:
    """Give a model the tokens and adapters of a job; see `load_start`."""
    settings = job.plan.settings
    ignored = None
    hides = settings.tiers is not None and settings.tiers.form == "sound"
    if settings.view is View.REDACTED or settings.mask_token or hides:
        ignored = add_mask_token(loaded.model, loaded.tokenizer)
    if settings.lora is None:
        return loaded, ignored
    adapted = add_lora(
        loaded.model,
        rank=settings.lora.rank,
        alpha=settings.lora.alpha,
        target_modules=settings.lora.target_modules or None,
        last_layers=settings.lora.last_layers,
        use_rslora=settings.lora.use_rslora,
    )
    freeze_base(adapted, bits=job.base.quantization if _keeps_base(job) else None)
    model = cast("PreTrainedModel", adapted)
    return LoadedModel(model=model, tokenizer=loaded.tokenizer), ignored


def stored_dtype(loaded: LoadedModel, base: Base) -> torch.dtype:
    """Return the type of the model that adapters are merged into."""
    held = loaded.model.config.dtype
    if base.merged == "stored" and isinstance(held, torch.dtype):
        return held
    return torch.float32


def run_job(
    job: TrainingJob,
    loaded: LoadedModel,
    data: UnitDataset,
    *,
    device: str,
    charge: Charge,
    on_step: Callable[[StepProgress], None] | None = None,
    controller: Controller | None = None,
    ranks_per_node: int | None = None,
) -> TrainingOutcome:
    """Hand the numbers of a job to the trainer; see `train_stage`."""
    plan, performance = job.plan, job.performance
    return train_stage(
        loaded.model,
        data,
        plan=plan.training_plan(),
        num_steps=plan.num_steps,
        optimizer=optimizer_of(plan),
        physical_batch_size=performance.physical_batch_size,
        pad_token_id=int(loaded.tokenizer.pad_token_id),
        loss_normalizer=float(job.max_tokens),
        checkpoint_dir=job.checkpoint_dir,
        block_size=performance.block_size,
        charge=charge,
        on_step=on_step,
        seed=job.seed,
        device=device,
        dtype=performance.dtype,
        gradient_checkpointing=performance.gradient_checkpointing,
        fixed_shapes=performance.fixed_shapes,
        max_tokens=job.max_tokens,
        sharding=performance.sharding,
        ranks_per_node=ranks_per_node,
        controller=controller,
        record_loss=record_loss_of(plan, data, max_tokens=job.max_tokens),
        witness=_recorder(job, data),
    )


def record_loss_of(
    plan: StagePlan, data: UnitDataset, *, max_tokens: int
) -> RecordLoss:
    """Return the loss of a stage; a class is one target."""
    if data.labels is not None:
        return ClassificationLoss()
    is_public = plan.settings.loss.normalizer == "public"
    return CausalLoss(loss_normalizer=float(max_tokens) if is_public else None)


def optimizer_of(plan: StagePlan) -> OptimizerSettings:
    """Return the optimizer of a stage."""
    optimizer = plan.settings.optimizer
    return OptimizerSettings(
        name=optimizer.name,
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        momentum=optimizer.momentum,
        warmup_steps=round(optimizer.warmup_share * plan.num_steps),
        schedule=optimizer.schedule,
    )


def record_file(checkpoint_dir: Path) -> Path:
    """Where verdicts of a run on its own steps are kept."""
    return checkpoint_dir / "record.json"


def _recorder(job: TrainingJob, data: UnitDataset) -> StepWitness:
    """Look on at a stage that claims something."""
    plan = job.plan.training_plan()
    if not isinstance(plan, GradientPlan) or not plan.claims_something:
        return UNWATCHED
    return StepRecorder(
        plan,
        settings=optimizer_of(job.plan),
        num_steps=job.plan.num_steps,
        num_units=data.num_units,
        lengths=unit_lengths(data),
        is_secret=job.seed is None,
        counts_units=Ranks.current().is_alone,
        adds_unnoised=data.unnoised is not None,
        file=record_file(job.checkpoint_dir),
    )
