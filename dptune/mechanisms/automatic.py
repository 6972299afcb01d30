"""Automatic clipping: every gradient is brought near norm C, small ones too."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Automatic:
    """Scale by C / (norm + gamma).

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
