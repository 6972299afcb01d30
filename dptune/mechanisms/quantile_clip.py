"""Adaptive clipping by a quantile: C moves until a share of units is below it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dptune.dpsgd.moving_clip import StepFigures


@dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """C <- C exp(-rate (b - quantile)), where b is the share of norms at most C.

    A unit counts +1 at or below C and -1 above, which costs half of what 0 and 1 would.
    The divisor of the count is the expected batch size, as that of the gradients is.

    Args:
        quantile: in (0, 1).
        rate: of the geometric update, above 0.

    References:
        Andrew, Thakkar, McMahan, Ramaswamy (2021), algorithm 1,
        https://arxiv.org/abs/1905.03871v5; rate 0.2 and the median there. Percentile
        "AutoClip" (RLDP, section 1) releases the quantile itself, without noise.
    """

    quantile: float = 0.5
    rate: float = 0.2
    name: str = "quantile"
    num_counts: int = 1

    def counts(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """See the class; `(units, 1)`."""
        below = norms <= max_norm
        return torch.where(below, 1.0, -1.0)[:, None].to(norms.dtype)

    def next_norm(self, counts: Sequence[float], figures: StepFigures) -> float:
        """See the class."""
        share = 0.5 + counts[0] / (2 * figures.expected_batch_size)
        share = min(max(share, 0.0), 1.0)
        return figures.max_grad_norm * math.exp(-self.rate * (share - self.quantile))
