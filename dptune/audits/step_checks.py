"""Does one step of the engine do what its event says? Measured, not read.

The claim of a stage is a handful of numbers: sample rate, noise multiplier, C, divisor.
Everything else (clipping, noise, sampling) is asked of the running engine, on recorded
data, through the very functions that train. A check errs on a sound engine with
probability 1e-6; what each would miss is in `docs/AUDITS.md`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dptune.audits.step_releases import last_release
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import RecordLoss
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import UnitIndices

_LOUD: Final = 1e4
_SOFT: Final = 1e-2
_ROUNDING: Final = 1e-3
_FINE: Final = 1e-4
_COARSE: Final = 0.1
_COMPANY: Final = 4


@dataclass(frozen=True, kw_only=True)
class LoudLoss:
    """The record loss times a constant, so that every gradient has to be clipped."""

    loss: RecordLoss
    factor: float = _LOUD

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return losses of rows, `(rows,)`."""
        return self.loss(model, batch) * self.factor

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Return what the loss itself would, times the constant."""
        return self.loss.total_nll(losses, batch)


def check_sensitivity(
    model: nn.Module, plan: GradientPlan, feed: Feed, *, units: Sequence[int]
) -> list[StepCheck]:
    """Move units in and out of batches: the released sum may move by C at most.

    Where units are parts, it may move by the share of C that the plan gives their kind.
    And releases must add up: what units release together, in one piece and each in a
    piece of its own, is what they release alone. So the divisor is nobody's number, no
    piece is treated like no other, and no unit reaches another. A unit alone must also
    fill its bound, in the space that it is clipped in.

    All releases have the same noise, which cancels. The units' losses are taken as they
    are and ten thousand times as large, so that a missing clip cannot hide behind small
    gradients; and a hundredth, so that no clip hides what scales them. A transform is
    led away from its start by some steps on the same batch, with the same noise; the
    last step is compared in the space that the releases so far determine.

    Args:
        model: on the feed's device.
        plan: the claim; only its numbers are believed.
        feed: recorded data, at least one unit besides those in `units`.
        units: to be moved, one at a time.
    """
    others = [i for i in range(feed.data.num_units) if i not in set(units)]
    batch = np.array(others[:_COMPANY], np.int64)
    noised = replace(feed.data, unnoised=None)  # its loud rest would drown the move
    loud = LoudLoss(loss=feed.record_loss)
    quiet = replace(feed, data=noised)
    whole = replace(quiet, record_loss=loud)
    few = max(1, min(feed.physical_batch_size, noised.largest_unit))
    pieces = replace(whole, physical_batch_size=few)

    def sums(feed: Feed, *units: int) -> Tensor:
        last: UnitIndices = np.array(sorted(units), np.int64)
        sent = last_release(model, plan, feed, batch, last=last)
        return sent.double() * plan.expected_batch_size

    shares = [_share(plan, feed.data, unit) for unit in units]
    nobody, company = sums(whole), sums(whole, *batch)
    alone = [sums(whole, unit) - nobody for unit in units]
    moves = [
        alone,
        [sums(whole, unit, *batch) - company for unit in units],
        [sums(quiet, unit) - nobody for unit in units],
    ]
    worst = max(
        _size(moved) / share
        for row in moves
        for moved, share in zip(row, shares, strict=True)
    )
    together = nobody + torch.stack(alone).sum(0)
    apart = max(_size(sums(f, *units) - together) for f in (pieces, whole))
    soft = replace(quiet, record_loss=LoudLoss(loss=feed.record_loss, factor=_SOFT))
    unclipped = torch.stack([sums(soft, unit) - nobody for unit in units])
    scaled = _size(sums(soft, *units) - nobody - unclipped.sum(0))
    doubt = _doubt(plan, num_entries=len(nobody))
    limit = math.hypot(plan.max_grad_norm * (1 + _ROUNDING), doubt)
    coarse = _COARSE if feed.autocast else _ROUNDING
    tolerance = plan.max_grad_norm * coarse
    least = plan.max_grad_norm * _SOFT * coarse
    return [
        StepCheck(
            name="sensitivity",
            passed=worst <= limit,
            detail=f"units moved, as they are and {_LOUD:g} times as loud: the sum may "
            "move by C",
        ),
        *_fills(plan, shares, alone, is_coarse=feed.autocast),
        StepCheck(
            name="sums_add_up",
            passed=apart <= (tolerance + doubt) * len(units)
            and scaled <= _COARSE * _size(unclipped) + least + doubt * len(units),
            detail="what units release in one piece, and in several of one batch, "
            "beside what they release alone",
        ),
    ]


def _fills(
    plan: GradientPlan,
    shares: Sequence[float],
    alone: Sequence[Tensor],
    *,
    is_coarse: bool,
) -> list[StepCheck]:
    """A loud unit has norm C, or none at all: neither more nor less.

    Norms of another space, or of fewer digits, are too small or too large by chance.
    Clipped in groups, a unit may have nothing in some.
    """
    if plan.grouping is not Grouping.FLAT or plan.steering:
        return []
    doubt = _doubt(plan, num_entries=len(alone[0])) / plan.max_grad_norm
    low = 1 - (_COARSE if is_coarse else _ROUNDING)
    high = math.hypot(1 + (_ROUNDING if is_coarse else _FINE), doubt)
    sizes = [
        _size(moved) / (plan.max_grad_norm * share)
        for moved, share in zip(alone, shares, strict=True)
    ]
    return [
        StepCheck(
            name="clipped_to_c",
            passed=all(size <= doubt or low <= size <= high for size in sizes),
            detail="loud units alone have norm C in the space of the noise",
        )
    ]


def _doubt(plan: GradientPlan, *, num_entries: int) -> float:
    """Norm of what float32 rounds off where noise is added, with room."""
    size = plan.noise_multiplier * plan.max_grad_norm * math.sqrt(num_entries)
    return 4 * 2**-24 * size


def probe_units(data: UnitDataset) -> list[int]:
    """Return units to move: the longest two, the one of most rows, and the shortest.

    Of every kind, where units are parts; all but one where there are few.
    """
    sizes = unit_lengths(data)
    rows = data.units.lengths
    kinds = np.zeros(len(rows), np.int64) if data.kinds is None else data.kinds
    found: list[int] = []
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        order = own[np.argsort(-sizes[own], kind="stable")]
        found += [*order[:2], own[rows[own].argmax()], order[-1]]
    distinct = list(dict.fromkeys(map(int, found)))
    return distinct[: max(1, data.num_units - 1)]


def unit_lengths(data: UnitDataset) -> NDArray[np.int64]:
    """Count the tokens of every unit."""
    return data.lengths_of(np.arange(data.num_units)).reduced(np.add)


def _share(plan: GradientPlan, data: UnitDataset, unit: int) -> float:
    """Bound of a unit as a share of C."""
    return 1.0 if data.kinds is None else plan.part_shares[data.kinds[unit]]


def _size(vector: Tensor) -> float:
    """Norm; infinite where something is not a number."""
    size = float(torch.linalg.vector_norm(vector))
    return size if np.isfinite(size) else float("inf")
