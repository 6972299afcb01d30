"""One step's gradients, private and plain: what the optimizer finds in `grad`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from dptune.dpsgd.adaptive_clipping import ClipController, MovingClip, SteeredClip
from dptune.dpsgd.clipping import ClipPolicy
from dptune.dpsgd.dataset import PhysicalBatch
from dptune.dpsgd.distributed import (
    GradientSums,
    Ranks,
    ReplicatedSums,
    add_up_gradients,
)
from dptune.dpsgd.feed import Feed, StepTotals
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.large_units import LargeUnit
from dptune.dpsgd.memory import Memory
from dptune.dpsgd.noise import MAX_NOISE_BYTES, noise_stream
from dptune.dpsgd.parameters import group_parameters, trainable_parameters
from dptune.dpsgd.parts import bounds_of, check_parts, public_batch
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.randomness import GaussianStream
from dptune.dpsgd.sampling import UnitIndices
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.dpsgd.sharding import ShardedSums, is_sharded
from dptune.dpsgd.tape import Tape
from dptune.dpsgd.transform import TransformedSums, TransformState
from dptune.dpsgd.witness import UNWATCHED, StepWitness
from dptune.errors import ConfigError


class GradientSource(Protocol):
    """Fills `grad` of every trainable parameter for one step."""

    @property
    def max_grad_norm(self) -> float | None:
        """C of the next step, where it moves with what is released."""
        ...

    @property
    def transform_state(self) -> TransformState:
        """What a transform has learned from what was released; nothing without one."""
        ...

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:
        """Compute the gradients of the units in `indices`; figures are private.

        Where there are several ranks, `indices` and the figures are those of all.
        """
        ...


class PrivateGradients:
    """Clipped sum, then noise, then a public divisor.

    **Privacy**: `grad` holds released values when `compute` returns. It is cleared
    before, so that an error on the way leaves nothing half-done behind.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        engine: PerUnitGradients,
        plan: GradientPlan,
        feed: Feed,
        sums: GradientSums,
        stream: GaussianStream,
        max_noise_bytes: int,
        granted: AdaptiveNoise | None,
        moving: MovingClip | None,
        steered: SteeredClip | None,
        witness: StepWitness,
    ) -> None:
        self._model = model
        self._engine = engine
        self._witness = witness
        self._plan = plan
        self._feed = feed
        self._moving = moving
        self._steered = steered
        self._clip = self._clip_now()
        self._sums = sums
        self._unit: LargeUnit | None = None
        self._memory = Memory(model, feed)
        self._noise = plan.noise(
            stream,
            sums=sums.owned,
            max_bytes=max_noise_bytes,
            granted=granted,
            moving=moving,
            steered=steered,
        )

    @property
    def max_grad_norm(self) -> float | None:
        """C of the next step where it moves; a released value."""
        return self._moving.max_grad_norm if self._moving else None

    @property
    def transform_state(self) -> TransformState:
        """What the transform knows after the last release; nothing without one."""
        return self._sums.state if isinstance(self._sums, TransformedSums) else {}

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:
        """Sum clipped gradients over all pieces and ranks, then release."""
        self._sums.clear()
        self._unit = None
        totals = StepTotals()
        if self._steered is not None:
            self._clip = self._steered.open(step)
        with self._memory.watching():
            for batch in self._feed.batches(indices):
                totals = totals + self._add(batch)
        self._sums.combine()
        self._witness.summed(self._sums.owned)
        self._plan.release(self._sums.owned, step=step, noise=self._noise)
        self._witness.released(self._sums.owned)
        self._sums.hand_out()
        if isinstance(self._sums, TransformedSums):
            of_sum = self._plan.noise_stddev(step=step)
            self._sums.follow(noise_stddev=of_sum / self._plan.expected_batch_size)
        if self._moving is not None:
            gradients, counts = self._plan.noise_shares(step)
            self._moving.release(gradient_multiplier=gradients, stddev=counts)
            self._clip = self._clip_now()
            self._witness.moved(self._moving.released, max_grad_norm=self.max_grad_norm)
        if self._steered is not None:
            self._steered.close(loss=totals.loss)
            self._witness.moved(self._steered.released, max_grad_norm=None)
        return totals.over(self._feed.ranks)

    def _add(self, batch: PhysicalBatch) -> StepTotals:
        """Add one piece's clipped gradients to the sums."""
        with self._engine.record(batch.rows_of_unit) as tape:
            losses = self._feed.losses(self._model, batch)
            clip = partial(self._factors, batch, losses.detach())
            if batch.is_part:
                self._add_part(tape, losses, batch)
            elif isinstance(self._sums, TransformedSums):
                tape.run(losses.sum())
                self._sums.add(tape, clip)
            else:
                tape.backward(losses.sum(), clip, self._sums.lent)
        return self._feed.totals(losses, batch)

    def _add_part(self, tape: Tape, losses: Tensor, batch: PhysicalBatch) -> None:
        """Add a piece of a unit to the rest of it; after the last one, clip it."""
        unit = self._unit or LargeUnit(self._engine)
        unit.add(tape, losses, batch)
        self._unit = unit if batch.continues else None
        if not batch.continues:
            rows = torch.zeros(1, 1, dtype=torch.long)
            kinds = None if batch.kinds is None else batch.kinds[:1]
            one = replace(batch, rows_of_unit=rows, kinds=kinds)
            unit.clip(partial(self._factors, one, unit.loss), self._sums.lent)

    def _factors(self, batch: PhysicalBatch, losses: Tensor, norms: Tensor) -> Tensor:
        """Clip real units; units that only fill the batch add nothing."""
        if self._steered is not None:
            real = slice(batch.num_real_units)
            own = _of_units(losses, batch.rows_of_unit[real])
            self._witness.counted(self._steered.count(norms[:, real], own))
        if self._moving is not None:
            seen = norms[:, : batch.num_real_units]
            self._witness.counted(self._moving.count(seen))
        if self._plan.part_shares:
            norms = norms / bounds_of(batch, self._plan.part_shares).to(norms.device)
        factors = self._clip.factors(norms)
        if batch.num_real_units < len(batch.rows_of_unit):
            factors = factors.clone()
            factors[:, batch.num_real_units :] = 0
        num_real = batch.num_real_units
        self._witness.clipped(norms[:, :num_real], factors[:, :num_real])
        return factors

    def _clip_now(self) -> ClipPolicy:
        """Return the clip of the next step; where it is steered, until that opens."""
        num_groups = 1 if self._steered is not None else self._engine.num_groups
        return self._plan.clip_policy(
            num_groups=num_groups, max_grad_norm=self.max_grad_norm
        )


class PlainGradients:
    """The mean gradient, by ordinary backpropagation."""

    max_grad_norm: float | None = None
    transform_state: TransformState = {}  # noqa: RUF012 - nothing is ever put in

    def __init__(self, *, model: nn.Module, plan: PlainPlan, feed: Feed) -> None:
        self._model = model
        self._feed = feed
        self._divisor = plan.expected_batch_size
        self._parameters = trainable_parameters(model)

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:  # noqa: ARG002 - protocol
        """Accumulate over all pieces."""
        for parameter in self._parameters.values():
            parameter.grad = None
        totals = StepTotals()
        for batch in self._feed.batches(indices):
            losses = self._feed.losses(self._model, batch)
            (losses.sum() / self._divisor).backward()  # type: ignore[no-untyped-call]
            totals = totals + self._feed.totals(losses, batch)
        if not is_sharded(self._parameters):  # else FSDP has added up on the way
            add_up_gradients(self._parameters, ranks=self._feed.ranks)
        return totals.over(self._feed.ranks)

    def compute_public(self, step: int) -> StepTotals:
        """Compute the gradient of the batch that is public at this step."""
        batch = public_batch(
            step,
            num_units=self._feed.data.num_units,
            batch_size=round(self._divisor),
        )
        return self.compute(batch, step=step)


class WithUnnoised:
    """A noisy mean gradient, and beside it the mean of what needs no noise."""

    max_grad_norm: float | None = None
    transform_state: TransformState = {}  # noqa: RUF012 - nothing is ever put in

    def __init__(
        self, *, private: PrivateGradients, plain: PlainGradients, model: nn.Module
    ) -> None:
        self._private = private
        self._plain = plain
        self._parameters = trainable_parameters(model)

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:
        """Compute both and add the second to the release of the first."""
        totals = self._plain.compute_public(step)
        clear = {n: p.grad for n, p in self._parameters.items() if p.grad is not None}
        totals = totals + self._private.compute(indices, step=step)
        for name, grad in clear.items():
            noisy = self._parameters[name].grad
            if noisy is not None:
                noisy.add_(grad)
        return totals


@contextmanager
def gradient_source(
    model: nn.Module,
    *,
    plan: GradientPlan | PlainPlan,
    feed: Feed,
    seed: int | None,
    attempt: int,
    max_noise_bytes: int = MAX_NOISE_BYTES,
    granted: AdaptiveNoise | None = None,
    max_grad_norm: float | None = None,
    steering: ClipController | None = None,
    transform_state: TransformState | None = None,
    witness: StepWitness = UNWATCHED,
) -> Iterator[GradientSource]:
    """Open the source that a plan calls for; on leaving, the model is clean again.

    Args:
        model: on the feed's device.
        plan: private or plain.
        feed: data and loss; of a private plan see `Feed.for_private_stage`.
        seed: None for secret noise.
        attempt: number of this process start.
        max_noise_bytes: memory that past noise may take.
        granted: what an adaptive plan takes its multipliers from.
        max_grad_norm: where a moving C was left; None starts with the plan's.
        steering: names the clip norms of a plan that says so.
        transform_state: where a transform was left; nothing starts it anew.
        witness: looks on.

    Raises:
        ConfigError: the plan's banded noise does not fit, or weights are sharded
            where something joins without noise.
        PrivacyError: the data are in parts that the plan does not speak of.
    """
    check_parts(feed.data, () if isinstance(plan, PlainPlan) else plan.part_shares)
    try:
        if isinstance(plan, PlainPlan):
            yield PlainGradients(model=model, plan=plan, feed=feed)
        else:
            feed = feed.for_private_stage(model)
            groups = group_parameters(trainable_parameters(model), plan.grouping)
            stream = noise_stream(
                device=feed.device,
                fixed_seed=seed,
                attempt=attempt,
                rank=feed.ranks.rank,
            )
            witness.opened(stream)
            with PerUnitGradients(
                model,
                parameter_groups=groups.__getitem__,
                alone=feed.rows_are_alone,
            ) as engine:
                private = PrivateGradients(
                    model=model,
                    engine=engine,
                    plan=plan,
                    feed=feed,
                    sums=_sums_of(plan, engine, feed.ranks, state=transform_state),
                    stream=stream,
                    max_noise_bytes=max_noise_bytes,
                    granted=granted,
                    moving=_moving_clip(
                        plan,
                        engine,
                        feed,
                        stream=stream,
                        initial=max_grad_norm or plan.max_grad_norm,
                    ),
                    steered=None
                    if steering is None
                    else _steered_clip(
                        steering, plan, engine, feed, groups=groups, stream=stream
                    ),
                    witness=witness,
                )
                yield _with_unnoised(private, model, plan=plan, feed=feed)
    finally:
        for parameter in model.parameters():
            parameter.grad = None


def _with_unnoised(
    private: PrivateGradients, model: nn.Module, *, plan: GradientPlan, feed: Feed
) -> GradientSource:
    """Let what needs no noise join, where the data have such a part."""
    unnoised = feed.data.unnoised
    if unnoised is None:
        return private
    if is_sharded(trainable_parameters(model)):
        raise ConfigError(
            "performance.sharding must be none where a part of the text joins without "
            "noise."
        )
    size = max(1, min(round(plan.expected_batch_size), unnoised.num_units))
    plain = PlainGradients(
        model=model, plan=PlainPlan(batch_size=size), feed=replace(feed, data=unnoised)
    )
    return WithUnnoised(private=private, plain=plain, model=model)


def _moving_clip(
    plan: GradientPlan,
    engine: PerUnitGradients,
    feed: Feed,
    *,
    stream: GaussianStream,
    initial: float,
) -> MovingClip | None:
    """Return the clip norm of a plan that moves it."""
    if plan.norm_rule is None:
        return None
    return MovingClip(
        plan.norm_rule,
        initial=initial,
        num_parameters=sum(p.numel() for p in engine.parameters.values()),
        expected_batch_size=plan.expected_batch_size,
        ranks=feed.ranks,
        stream=stream,
        device=feed.device,
    )


def _steered_clip(
    controller: ClipController,
    plan: GradientPlan,
    engine: PerUnitGradients,
    feed: Feed,
    *,
    groups: Mapping[str, int],
    stream: GaussianStream,
) -> SteeredClip:
    """Return the clip norms that a controller steers."""
    sizes = [0] * engine.num_groups
    for name, parameter in engine.parameters.items():
        sizes[groups[name]] += parameter.numel()
    return SteeredClip(
        controller,
        group_of=groups,
        sizes=sizes,
        share=plan.count_share,
        expected_batch_size=plan.expected_batch_size,
        stream=stream,
        device=feed.device,
    )


def _of_units(losses: Tensor, rows_of_unit: Tensor) -> Tensor:
    """Sum losses of rows to those of units, `(units,)`; -1 is no row."""
    return torch.cat((losses.float(), losses.new_zeros(1).float()))[rows_of_unit].sum(1)


def _sums_of(
    plan: GradientPlan,
    engine: PerUnitGradients,
    ranks: Ranks,
    *,
    state: TransformState | None,
) -> GradientSums:
    """Choose where sums are owned: where their weights are, or in a space of theirs."""
    if plan.transform is not None:
        return TransformedSums(plan.transform, engine.parameters, state=state)
    if is_sharded(engine.parameters):
        return ShardedSums(engine.parameters, ranks=ranks)
    return ReplicatedSums(engine.parameters, ranks=ranks)
