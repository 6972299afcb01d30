"""Train a model privately, block by block, so that a kill costs little."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import nn

from dptune.accounting.certificates import Certificate
from dptune.accounting.ledger import PrivacyLedger
from dptune.api.arguments import Arguments
from dptune.api.private import DTYPES, Loss, loss_of, padding_of
from dptune.api.rows import check_kind
from dptune.api.target import (
    Account,
    PrivacyTarget,
    Sizes,
    Spend,
    asked,
    refuse_lost_charges,
)
from dptune.data.collated import Rows
from dptune.dpsgd.checkpoint import steps_taken
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.guard import StepGuard
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.prechecks import as_written, training_mode
from dptune.dpsgd.trainer import StepProgress, TrainingOutcome, train_stage
from dptune.files import alone_in
from dptune.privacy import NeighboringRelation

JOURNAL = "ledger.jsonl"
_CHECKPOINT: Final = "checkpoint"
_TELLS: Final = (
    "Let on_step look at the model and change nothing; what shall change it comes "
    "before the training, or behind it."
)
_OPTIMIZERS: Final[Sequence[Literal["adamw", "sgd"]]] = ("adamw", "sgd")
_SCHEDULES: Final[Sequence[Literal["constant", "linear", "cosine"]]] = (
    "constant",
    "linear",
    "cosine",
)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training leaves beside the weights.

    Args:
        certificate: what it guarantees, all process starts included.
        ledger: what was charged.
        outcome: steps, tokens and losses; private but for the steps.
    """

    certificate: Certificate
    ledger: PrivacyLedger
    outcome: TrainingOutcome


def train(
    model: nn.Module,
    data: Rows,
    *,
    target_epsilon: float,
    target_delta: float,
    num_steps: int,
    expected_batch_size: int,
    max_grad_norm: float,
    max_tokens: int,
    pad_token_id: int | None = None,
    folder: str | Path,
    learning_rate: float,
    optimizer: Literal["adamw", "sgd"] = "adamw",
    schedule: Literal["constant", "linear", "cosine"] = "linear",
    loss: Loss | None = None,
    owners: Sequence[str | int] | None = None,
    max_rows_per_unit: int = 1,
    public_units: int | None = None,
    relation: NeighboringRelation | str = NeighboringRelation.ADD_OR_REMOVE_ONE,
    physical_batch_size: int = 8,
    block_size: int = 50,
    device: str = "cpu",
    dtype: Literal["float32", "bfloat16"] = "float32",
    gradient_checkpointing: bool = False,
    on_step: Callable[[StepProgress], None] | None = None,
    spend: Spend | None = None,
    seed: int | None = None,
) -> Trained:
    """Train a model in place, privately; the same call goes on where one was cut off.

    The engine, its checks and its accounting are those of the command. Its runs also
    detect, redact, attack and decide: for those write a configuration.

    **Formal guarantee**: that of `make_private`. A process that is killed costs at most
    one block more, which the certificate counts: every block is in the journal before
    its noise is drawn, and a checkpoint behind it.

    Args:
        model: parameters with `requires_grad` are trained, in float32.
        data: see `make_private`.
        target_epsilon: of the whole training, above 0.
        target_delta: in (0, 1 / number of units).
        num_steps: at least 1.
        expected_batch_size: units per step, the public divisor.
        max_grad_norm: C, L2 bound on one unit's gradient.
        max_tokens: public length that no row exceeds; the losses' public normalizer.
        pad_token_id: see `make_private`.
        folder: of this training alone: journal and last checkpoint. A finished one is
            answered from it, and costs nothing; one process trains in it at a time.
        learning_rate: peak, above 0.
        optimizer: `adamw` or `sgd`.
        schedule: course of the learning rate; `linear` and `cosine` end at 0.
        loss: see `make_private`.
        owners: see `make_private`.
        max_rows_per_unit: see `make_private`.
        public_units: see `make_private`.
        relation: which data sets are neighbors.
        physical_batch_size: rows in memory at once.
        block_size: steps between checkpoints and charges.
        device: of torch.
        dtype: of forward and backward; norms and sums stay float32.
        gradient_checkpointing: compute activations again: slower, for less memory.
        on_step: called after every step; what it is told is private. It may look at
            the model, and must leave it as it is.
        spend: see `make_private`.
        seed: known randomness, for tests: nothing is claimed then.

    Raises:
        ConfigError, DataError, ModelError, PrivacyError, InfeasibleBudgetError: see
            `make_private`.
        ArtifactError: the folder belongs to another training, or was damaged.

    >>> import tempfile
    >>> from dptune.testing import tiny_model
    >>> rows = [{"input_ids": [1, 2, 3, number]} for number in range(40)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = train(
    ...         tiny_model(),
    ...         rows,
    ...         target_epsilon=8.0,
    ...         target_delta=1e-3,
    ...         num_steps=3,
    ...         expected_batch_size=8,
    ...         max_grad_norm=1.0,
    ...         max_tokens=4,
    ...         pad_token_id=0,
    ...         folder=folder,
    ...         learning_rate=1e-3,
    ...     )
    >>> done.outcome.num_steps, done.certificate.epsilon <= 8.0
    (3, True)
    """
    given = Arguments()
    home = given.place("folder", folder, what="folder")
    target, sizes = asked(
        given,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        num_steps=num_steps,
        expected_batch_size=expected_batch_size,
        max_grad_norm=max_grad_norm,
        relation=relation,
        public_units=public_units,
        owned=owners is not None,
        max_tokens=max_tokens,
        pad_token_id=padding_of(model, pad_token_id),
        max_rows_per_unit=max_rows_per_unit,
        physical_batch_size=physical_batch_size,
        block_size=block_size,
        seed=seed,
    )
    settings = OptimizerSettings(
        name=given.choice("optimizer", optimizer, _OPTIMIZERS),
        learning_rate=given.number("learning_rate", learning_rate, above=0),
        schedule=given.choice("schedule", schedule, _SCHEDULES),
    )
    precision = given.choice("dtype", dtype, DTYPES)
    given.kind("model", model, nn.Module)
    given.kind("gradient_checkpointing", gradient_checkpointing, bool)
    given.functions(loss=loss, on_step=on_step, spend=spend)
    _check_device(given, device)
    with given.also():
        check_kind(data, owners)
    given.check()
    units = sizes.units(data, owners, model=model, own_loss=loss is not None)
    with ExitStack() as held:
        Ranks.current().once(lambda: held.enter_context(alone_in(home, name="folder")))
        account = _account(home, units, target, sizes, model=model, spend=spend)
        held.enter_context(as_written(torch.device(device)))
        outcome = train_stage(
            model,
            units,
            plan=account.plan,
            num_steps=target.num_steps,
            optimizer=settings,
            physical_batch_size=sizes.physical_batch_size,
            pad_token_id=sizes.pad_token_id,
            loss_normalizer=float(sizes.max_tokens),
            checkpoint_dir=home / _CHECKPOINT,
            block_size=sizes.block_size,
            charge=account.charge,
            on_step=on_step and _telling(on_step, model),
            seed=sizes.seed,
            device=device,
            dtype=precision,
            record_loss=loss_of(loss, units, account, max_tokens=sizes.max_tokens),
            gradient_checkpointing=gradient_checkpointing,
            max_tokens=sizes.max_tokens,
        )
        account.learning.note_weights()
        claim, ledger = account.certificate(), account.journal.read()
        return Trained(certificate=claim, ledger=ledger, outcome=outcome)


def _account(
    home: Path,
    units: UnitDataset,
    target: PrivacyTarget,
    sizes: Sizes,
    *,
    model: nn.Module,
    spend: Spend | None,
) -> Account:
    """Open the journal of a folder, which must know the charge of every step in it."""
    account, before = Account.opened(
        home / JOURNAL, units, target, sizes, model=model, spend=spend, stage="train"
    )
    taken = steps_taken(home / _CHECKPOINT)
    refuse_lost_charges(account, before, taken)
    if taken:
        account.learning.note()  # the checkpoint's weights come into the model
    return account


def _telling(
    on_step: Callable[[StepProgress], None], model: nn.Module
) -> Callable[[StepProgress], None]:
    """Tell a script of a step, and refuse that it moves the model meanwhile."""
    guard = StepGuard(model, way_out=_TELLS)

    def tell(progress: StepProgress) -> None:
        with training_mode(model), guard.left_alone():
            on_step(progress)

    return tell


def _check_device(given: Arguments, device: object) -> None:
    """Note that torch has no such device here."""
    try:
        torch.empty(0, device=device)  # type: ignore[call-overload]
    except (RuntimeError, AssertionError, TypeError, ValueError):
        shown = ascii(device)[:60] if isinstance(device, str) else type(device).__name__
        given.refuse("device", f"must be a device that torch has here, got {shown}.")
