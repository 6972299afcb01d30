"""Dynamic clipping by a histogram of norms (DC-SGD): by percentile, or by least error.

References:
    Wei, Li, Gong, Chen (2025), https://arxiv.org/abs/2503.22988. Their bins are equal
    and end at a bound that has to be known; here they grow geometrically around the
    first C, so that no bound on norms is taken from private data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dptune.dpsgd.moving_clip import StepFigures


@dataclass(frozen=True, kw_only=True)
class DcSgd:
    """C from a noisy histogram of the batch's norms.

    A unit counts 1 in the bin of its norm: norm 1. Under replacement counts move by
    sqrt(2), which is within the 2 that is charged.

    Args:
        initial: first C; bins are fixed around it.
        choice: `percentile` takes the bin in which the share `percentile` of all units
            lies; `error` takes the C that minimises noise plus clipping error,
            (C s)^2 d / B^2 + mean of max(norm - C, 0)^2.
        percentile: in (0, 1).
        num_bins: at least 2.
        span: bins lie between initial / span and initial * span.
    """

    initial: float
    choice: Literal["percentile", "error"]
    percentile: float = 0.5
    num_bins: int = 24
    span: float = 64.0
    name: str = "dc_sgd"

    @property
    def num_counts(self) -> int:
        """Bins."""
        return self.num_bins

    @property
    def edges(self) -> NDArray[np.float64]:
        """Upper edges of the bins, rising; the last bin also holds what is beyond."""
        return self.initial * np.geomspace(1 / self.span, self.span, self.num_bins)

    def counts(self, norms: Tensor, *, max_norm: float) -> Tensor:  # noqa: ARG002 - bins are fixed
        """Return one row per unit with a single 1."""
        edges = torch.as_tensor(self.edges[:-1], dtype=norms.dtype, device=norms.device)
        bins = torch.bucketize(torch.nan_to_num(norms), edges)
        return torch.nn.functional.one_hot(bins, self.num_bins).to(norms.dtype)

    def next_norm(self, counts: Sequence[float], figures: StepFigures) -> float:
        """See the class; C stays where the noise leaves no unit in the histogram."""
        weights = np.maximum(np.asarray(counts), 0.0)
        total = weights.sum()
        if total <= 0:
            return figures.max_grad_norm
        shares = weights / total
        if self.choice == "percentile":
            place = int(np.searchsorted(np.cumsum(shares), self.percentile))
            return float(self.edges[min(place, self.num_bins - 1)])
        return self._least_error(shares, figures)

    def _least_error(self, shares: NDArray[np.float64], figures: StepFigures) -> float:
        """Try every edge as C."""
        edges = self.edges
        middles = np.sqrt(edges * np.concatenate((edges[:1] / 2, edges[:-1])))
        beyond = np.maximum(middles[None, :] - edges[:, None], 0.0)
        clipping = (shares[None, :] * beyond**2).sum(1)
        noise = figures.gradient_multiplier * edges / figures.expected_batch_size
        error = noise**2 * figures.num_parameters + clipping
        return float(edges[int(np.argmin(error))])
