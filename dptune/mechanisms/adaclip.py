"""Coordinate-wise adaptive clipping (AdaCliP): each coordinate in units of its spread.

| symbol | here | meaning |
|---|---|---|
| a, m | `mean` | centre: running mean of noisy gradients |
| s | square root of `variance` | spread of each coordinate |
| b | `_scale` | what a centred gradient is divided by |
| h1, h2 | `floor`, `ceiling` | bounds of one step's estimate of s^2 |
| sigma | `noise_stddev` | noise of the mean, in the transformed space |

The b that adds least noise in all, sum of b_i^2, while the transformed gradient keeps a
mean square of at most 1, is b_i = sqrt(s_i) sqrt(sum of s_j). The paper clips to norm 1
from s = 1 on. Here gradients are measured in units of C / sqrt(d), with d coordinates,
and transformed ones in units of C: the same mechanism, whose first step is plain DP-SGD
with clip C, so that h2 = 10 means what it means there, ten times the first variance.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dptune.dpsgd.transform import TransformState


@dataclass(frozen=True, kw_only=True)
class AdaClip:
    """w = (g - m) / b, with m and s^2 from noisy gradients alone.

    After a release g~ of noise sigma, coordinate by coordinate,

        m <- beta_1 m + (1 - beta_1) g~
        v  = min(max((g~ - m)^2 - (b sigma)^2, h1), h2)
        s^2 <- beta_2 s^2 + (1 - beta_2) v.

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
