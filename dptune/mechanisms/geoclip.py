"""Geometry-aware clipping (GeoClip): clip along the axes of past noisy gradients.

| symbol | here | meaning |
|---|---|---|
| a | `mean` | centre: running mean of noisy gradients |
| U, Lambda | `basis`, `eigenvalues` | leading k axes of the covariance, and its sizes |
| - | `rest` | one eigenvalue for all other directions |
| beta_1, alpha | `mean_decay`, `covariance_decay` | how slowly both move |
| h1, h2 | `floor`, `ceiling` | bounds of eigenvalues in the transform |

The M that adds least noise in all, trace (M^T M)^-1, while the transformed gradient
keeps a mean square of at most 1, is (sum of sqrt(lambda_i))^-1/2 Lambda^-1/4 U^T. A
full covariance is out of reach beyond some thousand parameters, so this is the source's
streaming form of rank k, with two differences:

* **Directions outside U stay.** The source projects on U and drops the rest. Then every
  release lies in the span of U and of a, and U never learns another direction, but for
  the first two steps of the authors' program, which use gradients without any noise:
  nothing can be certified of that. Here all other directions share one eigenvalue, to
  which goes what U does not keep, so that the trace is that of the full covariance.
* **Units**: as in `dptune.mechanisms.adaclip`, the first covariance is C^2 / d times
  the identity, and the first step plain DP-SGD with clip C. M is written as its
  symmetric twin U ... U^T: neither norms nor Gaussian noise see a rotation.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dptune.dpsgd.transform import TransformState


@dataclass(frozen=True, kw_only=True)
class GeoClip:
    """w = M (g - a), with a, U and Lambda from noisy gradients alone.

    After a release g~,

        a <- beta_1 a + (1 - beta_1) g~
        Sigma <- alpha Sigma + (1 - alpha) (g~ - a) (g~ - a)^T, cut to rank k + 1 first.

    **Formal guarantee**: that of `dptune.dpsgd.transform`: all is a function of
    releases, so that the event is that of DP-SGD.

    Args:
        initial_norm: C of the plan; gradients of this norm fill the bound at first.
        rank: k, axes that are kept; memory for as many copies of the parameters.
        mean_decay: beta_1 in [0, 1).
        covariance_decay: alpha in [0, 1).
        floor: h1, in units of the first variance, C^2 / d.
        ceiling: h2, likewise.

    References:
        Gilani, Tasnim, Sankar, Kosut (2025), GeoClip with streaming rank-k PCA,
        https://arxiv.org/abs/2506.06549; constants of the authors' `geoclip_rank_k.py`,
        https://github.com/atefeh-gilani/GeoClip, commit b337a7f.
    """

    initial_norm: float
    rank: int
    mean_decay: float = 0.9
    covariance_decay: float = 0.98
    floor: float = 1e-8
    ceiling: float = 10.0
    name: str = "geoclip"

    def start(self, num_parameters: int) -> TransformState:
        """Return a = 0 and Sigma = 1: the identity, whatever the axes."""
        rank = min(self.rank, num_parameters)
        return {
            "mean": torch.zeros(num_parameters),
            "basis": torch.eye(num_parameters, rank),
            "eigenvalues": torch.ones(rank),
            "rest": torch.ones(1),
        }

    def forward(self, gradients: Tensor, state: TransformState) -> Tensor:
        """See the class; `(units, parameters)`."""
        axes, rest = self._scales(state)
        return _along(gradients - state["mean"], state["basis"], 1 / axes, 1 / rest)

    def back(self, mean: Tensor, state: TransformState) -> Tensor:
        """Return M^-1 w + a."""
        axes, rest = self._scales(state)
        return _along(mean[None], state["basis"], axes, rest)[0] + state["mean"]

    def follow(
        self,
        released: Tensor,
        state: TransformState,
        *,
        noise_stddev: float,  # noqa: ARG002 - the source leaves noise in
    ) -> TransformState:
        """See the class."""
        unit, decay = (
            self.initial_norm / math.sqrt(len(released)),
            self.covariance_decay,
        )
        mean = torch.lerp(released, state["mean"], self.mean_decay)
        axes = state["basis"] * (decay * state["eigenvalues"]).sqrt()
        newest = (released - mean) * (math.sqrt(1 - decay) / unit)
        left, sizes, _ = torch.linalg.svd(
            torch.cat([axes, newest[:, None]], dim=1), full_matrices=False
        )
        rank = len(state["eigenvalues"])
        others = max(1, len(released) - rank)
        return {
            "mean": mean,
            "basis": left[:, :rank].contiguous(),
            "eigenvalues": sizes[:rank].square(),
            "rest": decay * state["rest"] + sizes[rank:].square().sum() / others,
        }

    def _scales(self, state: TransformState) -> tuple[Tensor, Tensor]:
        """Return what w is multiplied by on its way back: on each axis, elsewhere."""
        axes = state["eigenvalues"].clamp(self.floor, self.ceiling).sqrt()
        rest = state["rest"].clamp(self.floor, self.ceiling).sqrt()
        num = len(state["mean"])
        average = (axes.sum() + (num - len(axes)) * rest) / num
        return (axes * average).sqrt(), (rest * average).sqrt()


def _along(rows: Tensor, basis: Tensor, axes: Tensor, rest: Tensor) -> Tensor:
    """Scale rows by `axes` along the columns of `basis`, by `rest` across them."""
    return rows * rest + ((rows @ basis) * (axes - rest)) @ basis.t()
