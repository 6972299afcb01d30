"""Per-sample adaptive clipping (PSAC): near C, but not for the smallest gradients."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Psac:
    """Scale by C / (norm + r / (norm + r)).

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
