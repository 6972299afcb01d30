"""Clip rules: how a gradient is scaled below C, and how C moves from step to step.

| rule | of | does |
|---|---|---|
| `Automatic`, `Psac` | single gradients | scale each of them near C, small ones too |
| `QuantileClip` | C | moves until a fraction of the units is below it |
| `DcSgd` | C | by percentile or least error of a histogram of norms |

The first two take the place of clipping in `dptune.dpsgd.clipping.FlatClip`, the others
are rules of `dptune.dpsgd.adaptive_clipping`, which releases their counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dptune.dpsgd.adaptive_clipping import StepFigures


@dataclass(frozen=True, kw_only=True)
class DcSgd:
    """Dynamic clipping (DC-SGD): C from a noisy histogram of the batch's norms.

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

    References:
        Wei, Li, Gong, Chen (2025), https://arxiv.org/abs/2503.22988. Their bins are
        equal and end at a bound that has to be known; here they grow geometrically
        around the first C, so that no bound on norms is taken from private data.
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


@dataclass(frozen=True)
class Psac:
    """Per-sample adaptive clipping: scale by C / (norm + r / (norm + r)).

    The result has norm below C, since r / (norm + r) > 0. Unlike in automatic clipping,
    the factor of a vanishing gradient is about C, not C / r: it is not blown up.

    Args:
        r: in (0, 1].

    References:
        Xia et al. (2023), https://arxiv.org/abs/2212.00328, equation 5.
    """

    r: float = 0.1
    name: str = "psac"

    def wanted(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """See the class."""
        return max_norm / (norms + self.r / (norms + self.r))


@dataclass(frozen=True)
class Automatic:
    """Automatic clipping: scale by C / (norm + gamma).

    The result has norm C * norm / (norm + gamma) < C, so that the sensitivity is that
    of a clip to C.

    Args:
        gamma: stability constant, above 0, in units of the gradient.

    References:
        Bu, Wang, Zha, Karypis (2023), AUTO-S, https://arxiv.org/abs/2206.07136v3,
        section 4; gamma = 0.01 there.
    """

    gamma: float = 0.01
    name: str = "automatic"

    def wanted(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """See the class."""
        return max_norm / (norms + self.gamma)


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
