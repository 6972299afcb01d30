"""Clip policies: norms of per-unit gradients in, factors out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dptune.dpsgd.rounding import rounded_up
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation

# Squares of smaller gradients would vanish in float32, and their norms with them.
SMALLEST_MAX_GRAD_NORM = 1e-12
# What a rule wants of a tiny norm must not carry a factor of a gradient to infinity.
_LARGEST_FACTOR = 2.0**40


class ClipPolicy(Protocol):
    """Bounds what one unit can add to the sum of gradients."""

    def factors(self, norms: Tensor) -> Tensor:
        """Map norms `(groups, units)` to factors of that shape; 0 for inf and NaN."""
        ...

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """L2 distance by which sums over two neighboring data sets can differ."""
        ...


class ScaleRule(Protocol):
    """Chooses the factor of a gradient from its norm and C: a frozen dataclass.

    It need not respect C: the clip that asks it lowers what would exceed the bound.
    """

    @property
    def name(self) -> str:
        """Tells rules apart in fingerprints."""
        ...

    def wanted(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """Return factors of the shape of `norms`; any value where a norm is not finite.

        Args:
            norms: float32, at least 0; may be infinite or NaN.
            max_norm: C, or a group's share of it.
        """
        ...


@dataclass(frozen=True)
class Threshold:
    """min(1, C / norm): small gradients stay as they are (Abadi et al. 2016)."""

    name: str = "threshold"

    def wanted(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """Return the largest factors up to 1 that keep to the bound."""
        return (max_norm / norms).clamp(max=1.0)


THRESHOLD = Threshold()


class FlatClip:
    """Scale each unit's whole gradient to norm at most C.

    The factor is what a rule wants, min(1, C / norm) unless told otherwise, where norm
    is the L2 norm over all groups together.

    **Formal guarantee**: `norm * factor <= max_grad_norm` in float32 arithmetic, not
    only in exact arithmetic, for the norm that was handed in.

    | norm | factor |
    |---|---|
    | 0 | 1 |
    | at most C | 1 by `Threshold` |
    | infinite or NaN | 0: the unit contributes nothing |

    **Privacy**: norms and factors are private.

    Args:
        max_grad_norm: C, at least 1e-12 and finite; the unit is that of the gradient.
        rule: wants a factor; what exceeds the bound is lowered to it.

    Raises:
        ConfigError: C is out of range.

    References:
        Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133v2. The factor
        is written there as 1 / max(1, norm / C).

    >>> factors = FlatClip(1.0).factors(torch.tensor([[0.5, 4.0, float("nan")]]))
    >>> factors.flatten().tolist()
    [1.0, 0.25, 0.0]
    """

    def __init__(self, max_grad_norm: float, *, rule: ScaleRule = THRESHOLD) -> None:
        self._max_grad_norm = check_max_grad_norm(max_grad_norm)
        self._bound = _float32_at_most(max_grad_norm)
        self._rule = rule

    def factors(self, norms: Tensor) -> Tensor:
        """Return one factor per unit, the same for every group."""
        norm = norms[0]
        if len(norms) > 1:
            norm = rounded_up(torch.linalg.vector_norm(norms.double(), dim=0))
        return _factors(norm, self._bound, self._rule).expand_as(norms)

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Return C when a unit is added or removed, 2C when one is replaced."""
        return sum_sensitivity(self._max_grad_norm, relation=relation)


class GroupClip:
    """Scale each group of a unit's gradient to norm at most C / sqrt(G).

    **Formal guarantee**: in float32 arithmetic no group exceeds its share, so that the
    whole gradient, whose squared norm is the sum of the groups', does not exceed C. Its
    sensitivity is that of `FlatClip`, and so is its accounting: one Gaussian mechanism
    for the whole vector, never one for each group.

    Cases are those of `FlatClip`, group by group; a unit with a gradient that is not
    finite contributes nothing at all, see `Tape.norms`.

    **Privacy**: norms and factors are private.

    Args:
        max_grad_norm: C, bound on the whole gradient.
        num_groups: G, at least 1.
        rule: as in `FlatClip`, asked for every group.

    Raises:
        ConfigError: C is out of range.

    References:
        McMahan et al. (2018), section 3.2, https://arxiv.org/abs/1710.06963v3.
    """

    def __init__(
        self, max_grad_norm: float, *, num_groups: int, rule: ScaleRule = THRESHOLD
    ) -> None:
        self._max_grad_norm = check_max_grad_norm(max_grad_norm)
        share = np.nextafter(max_grad_norm / math.sqrt(num_groups), 0.0)
        self._bound = _float32_at_most(check_max_grad_norm(float(share)))
        self._rule = rule

    def factors(self, norms: Tensor) -> Tensor:
        """Return a factor for every group and unit."""
        return _factors(norms, self._bound, self._rule)

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Return C when a unit is added or removed, 2C when one is replaced."""
        return sum_sensitivity(self._max_grad_norm, relation=relation)


class BoundedGroups:
    """Scale each group of a unit's gradient to a norm of its own.

    **Formal guarantee**: in float32 arithmetic group i does not exceed `norms[i]`.
    Cases are those of `FlatClip`, group by group.

    Args:
        norms: C_i, of every group.

    Raises:
        ConfigError: a norm is out of range.
    """

    def __init__(self, norms: Sequence[float]) -> None:
        self._norms = tuple(norms)
        self._bounds = [_float32_at_most(check_max_grad_norm(norm)) for norm in norms]

    def factors(self, norms: Tensor) -> Tensor:
        """Return a factor for every group and unit."""
        rows = zip(norms, self._bounds, strict=True)
        return torch.stack([_factors(row, bound, THRESHOLD) for row, bound in rows])

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Return the root of the sum of C_i^2, or twice that."""
        return sum_sensitivity(math.hypot(*self._norms), relation=relation)


def sum_sensitivity(max_grad_norm: float, *, relation: NeighboringRelation) -> float:
    """Return how far a sum of vectors of norm at most C moves between neighbors.

    >>> [sum_sensitivity(0.5, relation=relation) for relation in NeighboringRelation]
    [0.5, 1.0]
    """
    match relation:
        case NeighboringRelation.ADD_OR_REMOVE_ONE:
            return max_grad_norm
        case NeighboringRelation.REPLACE_ONE:
            return 2 * max_grad_norm


def check_max_grad_norm(max_grad_norm: float) -> float:
    """Return C, or refuse one that float32 cannot enforce."""
    largest = float(np.finfo(np.float32).max)
    if not SMALLEST_MAX_GRAD_NORM <= max_grad_norm <= largest:
        raise ConfigError(
            f"max_grad_norm must be in [{SMALLEST_MAX_GRAD_NORM}, {largest:.4g}], got "
            f"max_grad_norm={max_grad_norm}. Common choices are 0.1 to 10."
        )
    return max_grad_norm


def _factors(norms: Tensor, bound: float, rule: ScaleRule) -> Tensor:
    """Return the factors that a rule wants, where norm * factor <= bound in float32."""
    limit = torch.as_tensor(bound, dtype=torch.float32, device=norms.device)
    largest = limit / norms
    smaller = torch.nextafter(largest, torch.zeros_like(largest))
    largest = torch.where(norms * largest > limit, smaller, largest)
    factors = rule.wanted(norms, max_norm=bound)
    factors = torch.where(norms * factors > limit, largest, factors)
    factors = factors.clamp(max=_LARGEST_FACTOR)
    factors = torch.where(norms > 0, factors, torch.ones_like(factors))
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def _float32_at_most(value: float) -> float:
    """Largest float32 that is not above `value`."""
    rounded = np.float32(value)
    if float(rounded) > value:
        rounded = np.nextafter(rounded, np.float32(0))
    return float(rounded)
