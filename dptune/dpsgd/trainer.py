"""The training loop of one stage, with and without privacy.

Order of things, which the claim rests on:

1. the model and its gradient rules are checked on made-up data;
2. this process start claims a number that no other start has had;
3. a block of steps is charged, and only then is noise drawn for it;
4. at the end of the block a checkpoint is written. A run killed inside a block starts
   again at its beginning, charges it again and draws fresh noise. What correlates steps
   (groups of units, past noise) is never stored: it starts anew with the process.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from dptune.dpsgd.checkpoint import (
    CurvePoint,
    TrainingState,
    claim_attempt,
    load_checkpoint,
    save_checkpoint,
)
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.fingerprint import run_fingerprint
from dptune.dpsgd.gradients import trainable_parameters
from dptune.dpsgd.loss import CausalLoss, RecordLoss
from dptune.dpsgd.noise import MAX_NOISE_BYTES
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.sampling import UnitIndices, sampling_generator
from dptune.dpsgd.selfcheck import check_model
from dptune.dpsgd.step import Feed, GradientSource, gradient_source
from dptune.errors import ConfigError, ModelError, PrivacyError, Problem

Charge = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """How far a run is. `tokens` and `loss` are private.

    Args:
        step: steps done, from 1.
        num_steps: steps of the stage.
        tokens: tokens seen so far, over all attempts that left a checkpoint.
        seconds: time spent so far, likewise.
        tokens_per_second: of this step.
        loss: mean loss per token of this step; NaN if nobody was drawn.
    """

    step: int
    num_steps: int
    tokens: int
    seconds: float
    tokens_per_second: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """What a stage did. `num_tokens` and `curve` are private.

    Args:
        num_steps: steps of the stage.
        num_tokens: tokens seen.
        seconds: time spent.
        resumed_from_step: steps that a checkpoint spared; None for a fresh run.
        curve: (steps done, mean loss per token).
    """

    num_steps: int
    num_tokens: int
    seconds: float
    resumed_from_step: int | None
    curve: tuple[CurvePoint, ...] = field(repr=False)


def train_stage(
    model: nn.Module,
    data: UnitDataset,
    *,
    plan: GradientPlan | PlainPlan,
    num_steps: int,
    optimizer: OptimizerSettings,
    physical_batch_size: int,
    pad_token_id: int,
    loss_normalizer: float,
    checkpoint_dir: Path | None,
    block_size: int,
    charge: Charge,
    on_step: Callable[[StepProgress], None] | None = None,
    seed: int | None = None,
    device: str = "cpu",
    dtype: Literal["float32", "bfloat16"] = "float32",
    record_loss: RecordLoss | None = None,
    run_digest: str = "",
    gradient_checkpointing: bool = False,
    fixed_shapes: bool = False,
    max_noise_bytes: int = MAX_NOISE_BYTES,
) -> TrainingOutcome:
    """Train a causal language model in place for one stage.

    **Formal guarantee**: under a `GradientPlan` without a seed, the sequence of weights
    after each step is the output on `data` of one `plan.dp_event(k)` per attempt, with
    k the number of steps whose noise that attempt drew; and `charge` has returned for
    each of them before, in blocks whose events add up to no less (see `GradientPlan`).
    `physical_batch_size` moves the result by rounding only (without dropout).

    | case | what happens |
    |---|---|
    | nobody is drawn | the step is noise only |
    | a unit has a NaN or infinite gradient | it contributes zero |
    | `charge` raises | nothing of that block is drawn; the error passes through |
    | checkpoint at `num_steps` | its weights are loaded; nothing is drawn or charged |

    **Privacy**: the weights may be released; `StepProgress` and `TrainingOutcome` hold
    private figures.

    Args:
        model: parameters with `requires_grad` are trained; moved to `device`.
        data: sequences by privacy unit.
        plan: private or plain.
        num_steps: optimizer steps, at least 1.
        optimizer: settings; sees released gradients only.
        physical_batch_size: rows in memory at once; at least the largest unit.
        pad_token_id: fills the padding.
        loss_normalizer: see `CausalLoss`.
        checkpoint_dir: where to keep the last block boundary; None keeps nothing.
        block_size: steps between checkpoints and charges, at least 1; rounded up to a
            multiple of the plan's bands.
        charge: called with (first step, number of steps) of a block before its noise.
        on_step: called after every step.
        seed: known randomness: for tests, and for plain runs that must repeat exactly.
        device: torch device.
        dtype: precision of forward and backward; norms and sums stay float32.
        record_loss: instead of `CausalLoss(loss_normalizer=loss_normalizer)`.
        gradient_checkpointing: compute activations again in the backward pass. A
            private step then takes two of them: slower, for the memory of one layer.
        fixed_shapes: fill every piece up to `physical_batch_size` rows of the longest
            sequence, with rows that add nothing.
        run_digest: ties checkpoints to more than plan, settings, data and model shape.
        max_noise_bytes: memory that past banded noise may take.

    Raises:
        ConfigError: a number is out of range.
        ModelError: the model cannot be trained privately.
        ArtifactError: the checkpoint is damaged or belongs to another run.
        PrivacyError: torch is set to matrix products below float32.
    """
    _check_numbers(num_steps, block_size, physical_batch_size, data)
    loss = record_loss or CausalLoss(loss_normalizer=loss_normalizer)
    state = TrainingState(
        step=0,
        attempt=0,
        digest=run_fingerprint(
            model,
            data,
            plan=plan,
            optimizer=optimizer,
            settings=(num_steps, pad_token_id, repr(loss), seed, dtype, run_digest),
        ),
    )
    model.to(device)
    run = _Run(
        model=model,
        plan=plan,
        settings=optimizer,
        num_steps=num_steps,
        seed=seed,
        feed=Feed(
            data=data,
            record_loss=loss,
            physical_batch_size=physical_batch_size,
            pad_token_id=pad_token_id,
            device=torch.device(device),
            autocast=dtype == "bfloat16",
            fixed_shapes=fixed_shapes,
        ),
        on_step=on_step or _ignore,
        max_noise_bytes=max_noise_bytes,
    )
    with _checkpointing(model) if gradient_checkpointing else nullcontext():
        return run.train(
            state,
            checkpoint_dir,
            block_size=plan.whole_block(block_size),
            charge=charge,
        )


class _Run:
    """One process's share of a stage."""

    def __init__(
        self,
        *,
        model: nn.Module,
        plan: GradientPlan | PlainPlan,
        settings: OptimizerSettings,
        num_steps: int,
        seed: int | None,
        feed: Feed,
        on_step: Callable[[StepProgress], None],
        max_noise_bytes: int,
    ) -> None:
        self._model = model
        self._plan = plan
        self._settings = settings
        self._num_steps = num_steps
        self._seed = seed
        self._feed = feed
        self._on_step = on_step
        self._max_noise_bytes = max_noise_bytes
        self._parameters = trainable_parameters(model)
        self._optimizer = settings.build(self._parameters.values())
        self._curve: list[CurvePoint] = []

    def train(
        self,
        state: TrainingState,
        checkpoint_dir: Path | None,
        *,
        block_size: int,
        charge: Charge,
    ) -> TrainingOutcome:
        """Resume if possible, then run block by block."""
        resumed_from = None
        if checkpoint_dir is not None:
            resumed = load_checkpoint(
                checkpoint_dir,
                digest=state.digest,
                parameters=self._parameters,
                optimizer=self._optimizer,
            )
            resumed_from = None if resumed is None else resumed.step
            state = resumed or state
            self._curve.extend(state.curve)
        if state.step < self._num_steps:
            with _training_mode(self._model):
                state = self._train_on(state, checkpoint_dir, block_size, charge)
        return TrainingOutcome(
            num_steps=self._num_steps,
            num_tokens=state.num_tokens,
            seconds=state.seconds,
            resumed_from_step=resumed_from,
            curve=state.curve,
        )

    def _train_on(
        self,
        state: TrainingState,
        checkpoint_dir: Path | None,
        block_size: int,
        charge: Charge,
    ) -> TrainingState:
        """Run the blocks that are left, each charged before it is drawn."""
        if isinstance(self._plan, GradientPlan):
            self._check_private()
        if checkpoint_dir is not None:
            state = replace(state, attempt=claim_attempt(checkpoint_dir))
        generator = self._sampling_generator(state.attempt)
        sampler = self._plan.sampler(self._feed.data.num_units)
        if isinstance(self._plan, PlainPlan):
            for _ in range(state.step):  # a plain run goes on where it stopped
                sampler.sample(generator)
        with gradient_source(
            self._model,
            plan=self._plan,
            feed=self._feed,
            seed=self._seed,
            attempt=state.attempt,
            max_noise_bytes=self._max_noise_bytes,
        ) as source:
            while state.step < self._num_steps:
                size = min(block_size, self._num_steps - state.step)
                charge(state.step, size)
                for _ in range(size):
                    state = self._step(state, source, sampler.sample(generator))
                state = replace(state, curve=tuple(self._curve))
                if checkpoint_dir is not None:
                    save_checkpoint(
                        checkpoint_dir, state, self._parameters, self._optimizer
                    )
        return state

    def _step(
        self, state: TrainingState, source: GradientSource, indices: UnitIndices
    ) -> TrainingState:
        """Compute gradients, let the optimizer act, report."""
        started = time.perf_counter()
        randomness = seed_sequence(
            RandomStream.MODEL,
            seed=self._seed,
            attempt=self._attempt(state.attempt),
            step=state.step,
        )
        with scoped_randomness(randomness, device=self._feed.device):
            totals = source.compute(indices, step=state.step)
        rate = self._settings.learning_rate_at(state.step, num_steps=self._num_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        seconds = time.perf_counter() - started
        state = replace(
            state,
            step=state.step + 1,
            num_tokens=state.num_tokens + totals.num_tokens,
            seconds=state.seconds + seconds,
        )
        self._curve.append((state.step, totals.loss))
        self._on_step(
            StepProgress(
                step=state.step,
                num_steps=self._num_steps,
                tokens=state.num_tokens,
                seconds=state.seconds,
                tokens_per_second=totals.num_tokens / seconds,
                loss=totals.loss,
            )
        )
        return state

    def _attempt(self, attempt: int) -> int:
        """Number that a seed is mixed with: a plain run repeats itself on purpose."""
        return attempt if isinstance(self._plan, GradientPlan) else 0

    def _sampling_generator(self, attempt: int) -> np.random.Generator:
        """Fresh randomness for sampling, bound to this process start."""
        return sampling_generator(fixed_seed=self._seed, attempt=self._attempt(attempt))

    def _check_private(self) -> None:
        """Check precision, rules and loss before anything is charged."""
        precision = torch.get_float32_matmul_precision()
        if precision != "highest":
            raise PrivacyError(
                "matrix products must be computed in full float32 for norms to bound "
                f"gradients, got precision {precision!r}. Call "
                'torch.set_float32_matmul_precision("highest").'
            )
        model: Any = self._model
        randomness = seed_sequence(RandomStream.MODEL, seed=self._seed)
        with scoped_randomness(randomness, device=self._feed.device):
            check_model(
                self._model,
                self._feed.record_loss,
                num_tokens=model.config.vocab_size,
                pad_token_id=self._feed.pad_token_id,
                num_classes=getattr(model.config, "num_labels", 1),
                device=self._feed.device,
            )


def _check_numbers(
    num_steps: int, block_size: int, physical_batch_size: int, data: UnitDataset
) -> None:
    """Check what no other part checks; report all at once."""
    least = {
        "num_steps": (num_steps, 1, ""),
        "block_size": (block_size, 1, ""),
        "physical_batch_size": (
            physical_batch_size,
            max(1, data.largest_unit),
            "Raise it to the largest unit, or lower max_sequences_per_unit.",
        ),
        "num_units": (data.num_units, 1, "Check that the training split is not empty."),
    }
    problems = [
        Problem(
            path=name, message=f"must be at least {low}, got {got}.", next_step=next_
        )
        for name, (got, low, next_) in least.items()
        if got < low
    ]
    if problems:
        raise ConfigError(problems)


@contextmanager
def _training_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout on, and back to what it was."""
    was_training = model.training
    model.train()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _checkpointing(model: nn.Module) -> Iterator[None]:
    """Switch gradient checkpointing on, and off again.

    Raises:
        ModelError: the model cannot do it.
    """
    fields: Any = model
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"{type(model).__name__} must support gradient checkpointing. Turn "
            "gradient_checkpointing off and lower physical_batch_size."
        )
    fields.activation_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        fields.activation_checkpointing_disable()


def _ignore(_: StepProgress) -> None:
    """Report to nobody."""
