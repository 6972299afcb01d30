"""One step's gradients, private and plain: what the optimizer finds in `grad`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.gaussian import GaussianStream
from dptune.dpsgd.gradients import PerUnitGradients, trainable_parameters
from dptune.dpsgd.grouping import group_parameters
from dptune.dpsgd.loss import RecordLoss
from dptune.dpsgd.noise import MAX_NOISE_BYTES, noise_stream
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.sampling import UnitIndices


@dataclass(frozen=True, kw_only=True)
class StepTotals:
    """Sums over one logical batch. All private.

    Args:
        num_tokens: tokens that went through the model, padding excluded.
        nll: weighted token losses, those that are not finite excluded.
        weight: weights of their targets.
    """

    num_tokens: int = field(default=0, repr=False)
    nll: float = field(default=0.0, repr=False)
    weight: float = field(default=0.0, repr=False)

    def __add__(self, other: "StepTotals") -> "StepTotals":
        """Add up two physical batches."""
        return StepTotals(
            num_tokens=self.num_tokens + other.num_tokens,
            nll=self.nll + other.nll,
            weight=self.weight + other.weight,
        )

    @property
    def loss(self) -> float:
        """Mean loss per token; NaN if there was none."""
        return self.nll / self.weight if self.weight > 0 else float("nan")


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Brings the units of a step through the model, piece by piece.

    Args:
        data: sequences by unit.
        record_loss: losses of single rows.
        physical_batch_size: rows per piece.
        pad_token_id: fills the padding.
        device: where the model is.
        autocast: compute in bfloat16.
        fixed_shapes: fill every piece up to one shape.
    """

    data: UnitDataset
    record_loss: RecordLoss
    physical_batch_size: int
    pad_token_id: int
    device: torch.device
    autocast: bool
    fixed_shapes: bool = False

    def batches(self, indices: UnitIndices) -> Iterator[PhysicalBatch]:
        """Cut a logical batch into pieces on the device."""
        pieces = self.data.physical_batches(
            indices,
            physical_batch_size=self.physical_batch_size,
            pad_token_id=self.pad_token_id,
        )
        for piece in pieces:
            yield self._shaped(piece).to(self.device)

    def _shaped(self, piece: PhysicalBatch) -> PhysicalBatch:
        """Fill a piece up if shapes must not change."""
        if not self.fixed_shapes:
            return piece
        return piece.filled(
            num_rows=self.physical_batch_size,
            num_tokens=self.data.longest_sequence,
            pad_token_id=self.pad_token_id,
        )

    def losses(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return losses of the rows, `(rows,)`."""
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.autocast
        ):
            return self.record_loss(model, batch)

    def totals(self, losses: Tensor, batch: PhysicalBatch) -> StepTotals:
        """Return figures of one piece."""
        nll, weight = self.record_loss.total_nll(losses.detach(), batch)
        return StepTotals(
            num_tokens=int(batch.attention_mask.sum()), nll=nll, weight=weight
        )


class GradientSource(Protocol):
    """Fills `grad` of every trainable parameter for one step."""

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:
        """Compute the gradients of the units in `indices`; figures are private."""
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
        stream: GaussianStream,
        max_noise_bytes: int,
    ) -> None:
        self._model = model
        self._engine = engine
        self._plan = plan
        self._feed = feed
        self._clip = plan.clip_policy(num_groups=engine.num_groups)
        self._sums = engine.zeros()
        self._noise = plan.noise(stream, sums=self._sums, max_bytes=max_noise_bytes)

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:
        """Sum clipped gradients over all pieces, then release."""
        parameters = self._engine.parameters
        for name, parameter in parameters.items():
            parameter.grad = None
            self._sums[name].zero_()
        totals = StepTotals()
        for batch in self._feed.batches(indices):
            totals = totals + self._add(batch)
        self._plan.release(self._sums, step=step, noise=self._noise)
        for name, parameter in parameters.items():
            parameter.grad = self._sums[name]
        return totals

    def _add(self, batch: PhysicalBatch) -> StepTotals:
        """Add one piece's clipped gradients to the sums."""
        with self._engine.record(batch.rows_of_unit) as tape:
            losses = self._feed.losses(self._model, batch)
            tape.backward(losses.sum(), partial(self._factors, batch), self._sums)
        return self._feed.totals(losses, batch)

    def _factors(self, batch: PhysicalBatch, norms: Tensor) -> Tensor:
        """Clip real units; units that only fill the batch add nothing."""
        factors = self._clip.factors(norms)
        if batch.num_real_units < len(batch.rows_of_unit):
            factors = factors.clone()
            factors[:, batch.num_real_units :] = 0
        return factors


class PlainGradients:
    """The mean gradient, by ordinary backpropagation."""

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
) -> Iterator[GradientSource]:
    """Open the source that a plan calls for; on leaving, the model is clean again.

    Args:
        model: on the feed's device.
        plan: private or plain.
        feed: data and loss.
        seed: None for secret noise.
        attempt: number of this process start.
        max_noise_bytes: memory that past noise may take.

    Raises:
        ConfigError: the plan's banded noise does not fit.
    """
    try:
        if isinstance(plan, PlainPlan):
            yield PlainGradients(model=model, plan=plan, feed=feed)
        else:
            groups = group_parameters(trainable_parameters(model), plan.grouping)
            with PerUnitGradients(model, parameter_groups=groups.__getitem__) as engine:
                yield PrivateGradients(
                    model=model,
                    engine=engine,
                    plan=plan,
                    feed=feed,
                    stream=noise_stream(
                        device=feed.device, fixed_seed=seed, attempt=attempt
                    ),
                    max_noise_bytes=max_noise_bytes,
                )
    finally:
        for parameter in model.parameters():
            parameter.grad = None
