"""Spaces to clip in that follow past noisy gradients: by coordinate, or by axes.

| transform | measures |
|---|---|
| `AdaClip` | each coordinate in units of its standard deviation |
| `GeoClip` | along the leading axes of the covariance |

Both choose the transform that adds least noise in all while the transformed gradient
keeps a mean square of at most 1. The first covariance is C^2 / d times the identity,
with d coordinates, and transformed gradients are measured in units of C: so the first
step is plain DP-SGD with clip C, and a ceiling of 10 is ten times the first variance.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dptune.dpsgd.transform import TransformState


@dataclass(frozen=True, kw_only=True)
class GeoClip:
    """Geometry-aware clipping: clip along the axes of past noisy gradients.

    w = M (g - a), with a, U and Lambda from noisy gradients alone. After a release g~,

        a <- beta_1 a + (1 - beta_1) g~
        Sigma <- alpha Sigma + (1 - alpha) (g~ - a) (g~ - a)^T, cut to rank k + 1 first.

    | symbol | here | meaning |
    |---|---|---|
    | a | `mean` | centre: running mean of noisy gradients |
    | U, Lambda | `basis`, `eigenvalues` | leading k axes of the covariance, its sizes |
    | - | `rest` | one eigenvalue for all other directions |

    The best M is (sum of sqrt(lambda_i))^-1/2 Lambda^-1/4 U^T. A full covariance is out
    of reach beyond some thousand parameters, so this is the source's streaming form of
    rank k, with two differences:

    * **Directions outside U stay.** The source projects on U and drops the rest. Then
      every release lies in the span of U and of a, and U never learns another
      direction, but for the first two steps of the authors' program, which use
      gradients without any noise: nothing can be certified of that. Here all other
      directions share one eigenvalue, to which goes what U does not keep, so that the
      trace is that of the full covariance.
    * M is written as the symmetric U ... U^T: neither norms nor Gaussian noise see a
      rotation.

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


@dataclass(frozen=True, kw_only=True)
class AdaClip:
    """Coordinate-wise adaptive clipping: w = (g - m) / b, from noisy gradients alone.

    After a release g~ of noise sigma, coordinate by coordinate,

        m <- beta_1 m + (1 - beta_1) g~
        v  = min(max((g~ - m)^2 - (b sigma)^2, h1), h2)
        s^2 <- beta_2 s^2 + (1 - beta_2) v,

    with m the running mean of noisy gradients and s the standard deviation of each
    coordinate. The b that adds least noise, sum of b_i^2, is sqrt(s_i) sqrt(sum of
    s_j). The paper clips to norm 1 from s = 1 on.

    **Formal guarantee**: that of `dptune.dpsgd.transform`: both estimates are functions
    of releases, so that the event is that of DP-SGD.

    Args:
        initial_norm: C of the plan; gradients of this norm fill the bound at first.
        mean_decay: beta_1 in [0, 1).
        variance_decay: beta_2 in [0, 1).
        floor: h1, in units of the first variance, C^2 / d.
        ceiling: h2, likewise.

    References:
        Pichapati, Suresh, Yu, Reddi, Kumar (2019), the algorithm AdaCliP and the
        optimal transformation before it, https://arxiv.org/abs/1908.07643.
    """

    initial_norm: float
    mean_decay: float = 0.99
    variance_decay: float = 0.9
    floor: float = 1e-12
    ceiling: float = 10.0
    name: str = "adaclip"

    def start(self, num_parameters: int) -> TransformState:
        """Return m = 0 and s = 1: the identity."""
        return {
            "mean": torch.zeros(num_parameters),
            "variance": torch.ones(num_parameters),
        }

    def forward(self, gradients: Tensor, state: TransformState) -> Tensor:
        """See the class; `(units, parameters)`."""
        return (gradients - state["mean"]).div_(_scale(state))

    def back(self, mean: Tensor, state: TransformState) -> Tensor:
        """Return b w + m."""
        return _scale(state) * mean + state["mean"]

    def follow(
        self, released: Tensor, state: TransformState, *, noise_stddev: float
    ) -> TransformState:
        """See the class."""
        unit = self.initial_norm / math.sqrt(len(released))
        mean = torch.lerp(released, state["mean"], self.mean_decay)
        noise = _scale(state) * noise_stddev
        found = ((released - mean).square() - noise.square()) / unit**2
        found = found.clamp(self.floor, self.ceiling)
        variance = torch.lerp(found, state["variance"], self.variance_decay)
        return {"mean": mean, "variance": variance}


def _scale(state: TransformState) -> Tensor:
    """Return b = sqrt(s_i) sqrt(sum of s_j) in units of C, in which it begins at 1."""
    spread = state["variance"].sqrt()
    return (spread * spread.mean()).sqrt()
