"""How the units of a step reach the model, and what a step adds up about them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.distributed import ALONE, Ranks
from dptune.dpsgd.loss import RecordLoss
from dptune.dpsgd.sampling import UnitIndices

_LARGE: Final = 50_000_000  # weights
_PASS_COST: Final = 256
"""Tokens of padding that take a processor as long as the frame of one more pass."""


@dataclass(frozen=True, kw_only=True)
class StepTotals:
    """Sums over one logical batch. All private.

    Args:
        num_tokens: tokens that went through the model, padding and fillers excluded.
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

    def over(self, ranks: Ranks) -> "StepTotals":
        """Add up the figures of all ranks."""
        num_tokens, nll, weight = ranks.total(self.num_tokens, self.nll, self.weight)
        return StepTotals(num_tokens=int(num_tokens), nll=nll, weight=weight)

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
        fixed_shapes: fill every piece up to one shape; None leaves it to
            `for_private_stage`.
        max_tokens: time steps of that shape, public. None takes the longest sequence of
            the data, which is then public too: whoever owns it pads all others.
        ranks: this process among those that share a logical batch.
        in_step: give every rank as many pieces, since their passes meet.
    """

    data: UnitDataset
    record_loss: RecordLoss
    physical_batch_size: int
    pad_token_id: int
    device: torch.device
    autocast: bool
    fixed_shapes: bool | None = None
    max_tokens: int | None = None
    ranks: Ranks = ALONE
    in_step: bool = False

    def for_private_stage(self, model: nn.Module) -> "Feed":
        """Fix the shape of batches where it would tell the length of a unit.

        Kernels round by the shape of a batch, so that the length of one unit moves the
        gradients of all others: in bfloat16 by percents, whatever the model, and in
        float32 by more than the self-check allows in models of many layers. With
        `fixed_shapes` None those are taken to be the ones from 50 million weights. It
        takes a public length, and rows that are alone have no others.
        """
        fixed = self.fixed_shapes
        if fixed is None and self.max_tokens is not None and not self.rows_are_alone:
            fixed = sum(value.numel() for value in model.parameters()) >= _LARGE
        return replace(self, fixed_shapes=bool(fixed) or self.autocast)

    def batches(self, indices: UnitIndices) -> Iterator[PhysicalBatch]:
        """Cut this rank's share of a logical batch into pieces on the device."""
        pieces: Iterable[PhysicalBatch] = self.data.physical_batches(
            self._share(indices),
            physical_batch_size=self.physical_batch_size,
            pad_token_id=self.pad_token_id,
            pass_cost=self._pass_cost,
        )
        if self.in_step:
            pieces = list(pieces)
            missing = self.ranks.greatest(len(pieces)) - len(pieces)
            pieces += [self._filler()] * missing
        for piece in pieces:
            yield self.shaped(piece).to(self.device)

    @property
    def _pass_cost(self) -> float:
        """Say what a pass costs in padding where shapes may change and ranks not meet.

        On an accelerator a pass over few rows takes as long as one over many.
        """
        is_free = not (self.fixed_shapes or self.in_step)
        return _PASS_COST if is_free and self.device.type == "cpu" else math.inf

    def _share(self, indices: UnitIndices) -> UnitIndices:
        """Deal units out to ranks by length, so that all have as much to do."""
        if self.ranks.is_alone:
            return indices
        lengths = self.data.lengths_of(indices).reduced(np.add)
        order = np.argsort(lengths, kind="stable")
        return indices[order][self.ranks.rank :: self.ranks.size]

    def _filler(self) -> PhysicalBatch:
        """Return a piece without a unit: its one row of padding adds nothing."""
        row = torch.full((1, 2), self.pad_token_id)
        return PhysicalBatch(
            input_ids=row,
            attention_mask=torch.ones_like(row),
            loss_weights=torch.zeros(1, 2),
            rows_of_unit=torch.zeros(1, 1, dtype=torch.long),
            labels=None if self.data.labels is None else torch.zeros(1).long(),
            num_real_units=0,
            kinds=None if self.data.kinds is None else torch.zeros(1).long(),
        )

    @property
    def rows_are_alone(self) -> bool:
        """Whether every pass has one row, on a model that is whole."""
        return self.physical_batch_size == 1 and not self.in_step

    @property
    def longest(self) -> int:
        """Time steps that a piece can have, and has where shapes are fixed."""
        return self.max_tokens or self.data.longest_sequence

    def shaped(self, piece: PhysicalBatch) -> PhysicalBatch:
        """Fill a piece up if shapes must not change."""
        if not self.fixed_shapes:
            return piece
        return piece.filled(
            num_rows=self.physical_batch_size,
            num_tokens=self.longest,
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
        if batch.num_real_units == 0:
            return StepTotals()
        nll, weight = self.record_loss.total_nll(losses.detach(), batch)
        real = batch.attention_mask[: batch.num_real_rows]
        return StepTotals(num_tokens=int(real.sum()), nll=nll, weight=weight)
