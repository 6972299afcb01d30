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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from dptune.dpsgd.adaptive_clipping import ClipController
from dptune.dpsgd.checkpoint import (
    CurvePoint,
    TrainingState,
    claim_attempt,
    load_checkpoint,
    run_fingerprint,
    save_checkpoint,
)
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss, RecordLoss
from dptune.dpsgd.noise import MAX_NOISE_BYTES
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import trainable_parameters
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.prechecks import (
    check_controller,
    check_numbers,
    check_private,
    check_shapes,
    modes_of,
    training_mode,
)
from dptune.dpsgd.sampling import UnitIndices
from dptune.dpsgd.schedule import AdaptiveNoise, Controller
from dptune.dpsgd.sharding import Sharding, is_sharded, shard_model
from dptune.dpsgd.step import GradientSource, gradient_source
from dptune.dpsgd.steps import Charge, ChargedSteps
from dptune.dpsgd.transform import check_transform
from dptune.dpsgd.witness import UNWATCHED, StepWitness


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
        num_steps: steps that ran: those of the stage, unless an adaptive budget ended.
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
    fixed_shapes: bool | None = None,
    max_tokens: int | None = None,
    max_noise_bytes: int = MAX_NOISE_BYTES,
    sharding: Sharding = "none",
    ranks_per_node: int | None = None,
    controller: Controller | None = None,
    witness: StepWitness = UNWATCHED,
) -> TrainingOutcome:
    """Train a language model in place for one stage.

    Where `torch.distributed` is initialised, every rank must call this with the same
    arguments but its own `device`; together they are one run (see
    `dptune.dpsgd.distributed`). The number of ranks moves the result by rounding only
    (without dropout), and may be another when a run is resumed.

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
    | an adaptive plan | charged once, for all steps and all process starts |
    | an adaptive budget that is used up | the stage ends after the last whole step |
    | checkpoint at `num_steps` | its weights are loaded; nothing is drawn or charged |
    | several ranks | one draw, one charge, and noise once for each entry of the sum |

    **Privacy**: the weights may be released; `StepProgress` and `TrainingOutcome` hold
    private figures.

    Args:
        model: parameters with `requires_grad` are trained; moved to `device`.
        data: sequences by privacy unit.
        plan: private or plain.
        num_steps: optimizer steps, at least 1.
        optimizer: settings; sees released gradients only.
        physical_batch_size: rows in memory at once; larger units take several passes.
        pad_token_id: fills the padding.
        loss_normalizer: see `CausalLoss`.
        checkpoint_dir: where to keep the last block boundary; None keeps nothing.
        block_size: steps between checkpoints and charges, at least 1; rounded up to a
            multiple of the plan's bands.
        charge: called with (first step, number of steps) of a block before its noise;
            on the first rank only.
        on_step: called after every step; on the first rank only.
        seed: known randomness: for tests, and for plain runs that must repeat exactly.
        device: torch device.
        dtype: precision of forward and backward; norms and sums stay float32.
        record_loss: instead of `CausalLoss(loss_normalizer=loss_normalizer)`.
        gradient_checkpointing: compute activations again in the backward pass. A
            private step then takes two of them: slower, for the memory of one layer.
        fixed_shapes: fill every piece up to `physical_batch_size` rows of `max_tokens`,
            with rows that add nothing. A private stage in bfloat16 always does, and
            with None that of a large model; see `Feed.for_private_stage`.
        max_tokens: public length that no sequence exceeds. None takes the longest
            sequence of the data, which is then taken as public; a private stage in
            bfloat16 needs a number.
        run_digest: ties checkpoints to more than plan, settings, data and model shape.
        max_noise_bytes: memory that past banded noise may take.
        sharding: `fsdp` spreads weights and optimizer over the ranks, for models that
            fit on no single one; `hsdp` over those of a node, and copies them to the
            others. The model stays sharded: read the weights by calling this in one
            process, with the same `checkpoint_dir`.
        ranks_per_node: how many run on this node, for `hsdp`; see `shard_model`.
        controller: wishes for the noise of every step; an adaptive plan needs one. One
            that steers clip norms is stored with every checkpoint and goes on from it.
        witness: looks on where a private stage trains, on the first rank.

    Raises:
        ConfigError: a number is out of range, or ranks differ in what they would do.
        ModelError: the model cannot be trained privately.
        ArtifactError: the checkpoint is damaged or belongs to another run.
        PrivacyError: torch is set to matrix products below float32.
    """
    transforms = isinstance(plan, GradientPlan) and plan.transform is not None
    is_whole = transforms or sharding != "none"
    sizes = num_steps, block_size, physical_batch_size
    check_numbers(*sizes, data, max_tokens=max_tokens, needs_whole_units=is_whole)
    check_controller(plan, controller, sharding=sharding)
    check_shapes(plan, dtype=dtype, max_tokens=max_tokens)
    loss = record_loss or CausalLoss(loss_normalizer=loss_normalizer)
    settings = num_steps, pad_token_id, repr(loss), seed, dtype, run_digest
    digest = run_fingerprint(
        model, data, plan=plan, optimizer=optimizer, settings=settings
    )
    state = TrainingState(step=0, attempt=0, digest=digest)
    ranks = Ranks.current()
    if transforms:
        check_transform(
            model,
            physical_batch_size=physical_batch_size,
            streams=gradient_checkpointing,
            num_processes=ranks.size,
        )
    block_size = plan.whole_block(block_size)
    passes = (block_size, sharding, gradient_checkpointing, checkpoint_dir is None)
    ranks.check_same(f"{state.digest} {passes}")
    ranks.equalise(trainable_parameters(model))
    feed = Feed(
        data=data,
        record_loss=loss,
        physical_batch_size=physical_batch_size,
        pad_token_id=pad_token_id,
        device=torch.device(device),
        autocast=dtype == "bfloat16",
        fixed_shapes=fixed_shapes,
        max_tokens=max_tokens,
        ranks=ranks,
        in_step=sharding != "none",
    )
    with modes_of(model, feed, recomputes=gradient_checkpointing):
        _place(
            model,
            feed,
            plan=plan,
            seed=seed,
            sharding=sharding,
            ranks_per_node=ranks_per_node,
        )
        run = _Run(
            model=model,
            plan=plan,
            settings=optimizer,
            num_steps=num_steps,
            seed=seed,
            feed=feed,
            on_step=on_step or (lambda _: None),
            max_noise_bytes=max_noise_bytes,
            controller=controller,
            witness=witness if ranks.is_first else UNWATCHED,
        )
        return run.train(state, checkpoint_dir, block_size=block_size, charge=charge)


def _place(
    model: nn.Module,
    feed: Feed,
    *,
    plan: GradientPlan | PlainPlan,
    seed: int | None,
    sharding: Sharding,
    ranks_per_node: int | None,
) -> None:
    """Bring the model, or this rank's part of it, to the device."""
    if sharding == "none":
        model.to(feed.device)
        return
    if isinstance(plan, GradientPlan):  # check while the model is in one piece
        feed.ranks.once(
            partial(check_private, model, feed, grouping=plan.grouping, seed=seed)
        )
    shard_model(
        model,
        ranks=feed.ranks,
        device=feed.device,
        sharding=sharding,
        ranks_per_node=ranks_per_node,
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
        controller: Controller | None,
        witness: StepWitness,
    ) -> None:
        self._controller = controller
        self._witness = witness
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
                ranks=self._feed.ranks,
            )
            resumed_from = None if resumed is None else resumed.step
            state = resumed or state
            self._curve.extend(state.curve)
            steering = self._steering()
            if resumed is not None and steering is not None:
                steering.restore(resumed.controller)
        if state.step < self._num_steps:
            with training_mode(self._model):
                state = self._train_on(state, checkpoint_dir, block_size, charge)
        return TrainingOutcome(
            num_steps=state.step,
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
        ranks = self._feed.ranks
        plan = self._plan
        is_whole = not is_sharded(self._parameters)  # else it was checked before
        if isinstance(plan, GradientPlan) and is_whole:
            check_private(
                self._model, self._feed, grouping=plan.grouping, seed=self._seed
            )
        if checkpoint_dir is not None:
            attempt = int(ranks.once(lambda: claim_attempt(checkpoint_dir)))
            state = replace(state, attempt=attempt)
        granted = self._adaptive_noise(checkpoint_dir, charge)
        with gradient_source(
            self._model,
            plan=self._plan,
            feed=self._feed,
            seed=self._seed,
            attempt=state.attempt,
            max_noise_bytes=self._max_noise_bytes,
            granted=granted,
            max_grad_norm=state.max_grad_norm,
            steering=self._steering(),
            transform_state=state.transform,
            witness=self._witness,
        ) as source:
            steps = ChargedSteps(
                plan=plan,
                feed=self._feed,
                source=source,
                first_step=state.step,
                num_steps=self._num_steps,
                block_size=block_size,
                charge=charge,
                seed=self._seed,
                attempt=state.attempt,
                granted=granted,
                witness=self._witness,
            )
            self._witness.started(self._model, self._optimizer, steps.generator, state)
            has_more = True
            while has_more and state.step < self._num_steps:
                indices = steps.draw(state.step)
                has_more = indices is not None
                if indices is not None:
                    state = self._step(state, steps, indices)
                if not has_more or state.step == steps.block_end:
                    state = self._store(state, source, checkpoint_dir)
        return state

    def _store(
        self, state: TrainingState, source: GradientSource, checkpoint_dir: Path | None
    ) -> TrainingState:
        """Keep a block boundary, from which a run that is cut off goes on."""
        steering = self._steering()
        state = replace(
            state,
            curve=tuple(self._curve),
            max_grad_norm=source.max_grad_norm,
            transform=source.transform_state,
            controller=steering.state() if steering else {},
        )
        if checkpoint_dir is not None:
            save_checkpoint(
                checkpoint_dir,
                state,
                self._parameters,
                self._optimizer,
                ranks=self._feed.ranks,
            )
        self._witness.stored(self._model, step=state.step)
        return state

    def _steering(self) -> ClipController | None:
        """Return the controller if it steers clip norms, and so has a state."""
        is_steered = isinstance(self._plan, GradientPlan) and self._plan.steering
        controller = self._controller
        return (
            controller
            if is_steered and isinstance(controller, ClipController)
            else None
        )

    def _adaptive_noise(
        self, checkpoint_dir: Path | None, charge: Charge
    ) -> AdaptiveNoise | None:
        """Charge an adaptive plan unless an earlier start has; go on where it was."""
        plan, controller = self._plan, self._controller
        if controller is None or isinstance(plan, PlainPlan) or plan.adaptive is None:
            return None
        noise = AdaptiveNoise(controller, plan.adaptive, sample_rate=plan.sample_rate)
        path = None if checkpoint_dir is None else checkpoint_dir / "grants.jsonl"
        whole = partial(charge, 0, self._num_steps)
        self._feed.ranks.once(partial(noise.open, path, whole))
        return noise

    def _released(self) -> dict[str, Tensor]:
        """Return the noisy mean gradients of the step that just ran."""
        return {
            name: parameter.grad
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        }

    def _step(
        self, state: TrainingState, steps: ChargedSteps, indices: UnitIndices
    ) -> TrainingState:
        """Compute gradients, let the optimizer act, report."""
        started = time.perf_counter()
        totals = steps.compute(indices, step=state.step)
        if self._controller is not None and self._feed.ranks.is_first:
            self._controller.observe(self._released(), step=state.step)
        rate = self._settings.learning_rate_at(state.step, num_steps=self._num_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._witness.offered(self._parameters)
        self._optimizer.step()
        self._witness.stepped(self._parameters)
        seconds = time.perf_counter() - started
        state = replace(
            state,
            step=state.step + 1,
            num_tokens=state.num_tokens + totals.num_tokens,
            seconds=state.seconds + seconds,
        )
        self._curve.append((state.step, totals.loss))
        progress = StepProgress(
            step=state.step,
            num_steps=self._num_steps,
            tokens=state.num_tokens,
            seconds=state.seconds,
            tokens_per_second=totals.num_tokens / seconds,
            loss=totals.loss,
        )
        if self._feed.ranks.is_first:
            self._on_step(progress)
        return state
