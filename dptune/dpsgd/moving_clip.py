"""A clip norm that follows the gradients, by counts that are released under the noise.

**Formal guarantee.** With z the noise multiplier of a step and f the share of its
budget that counts get, a step releases at once

    sum of clip_C(gradient) + N(0, (C z / sqrt(1 - f))^2 I)
    sum of counts           + N(0, (z / sqrt(f))^2 I),

where C follows from earlier releases alone and a unit's counts have norm at most 1.
Divided by its noise, what one unit adds has squared norm at most (1 - f) / z^2 +
f / z^2 = 1 / z^2: together they are one Gaussian mechanism of multiplier z, sampled as
the step is, and under replacement one of z / 2. So the event of a stage is what it is
without the counts. With f = 0 counts are released as they are: that is no private
mechanism, and the event says so.

References:
    Andrew, Thakkar, McMahan, Ramaswamy (2021), theorem 1,
    https://arxiv.org/abs/1905.03871v5: how a sum and a count share one multiplier.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dptune.dpsgd.clipping import SMALLEST_MAX_GRAD_NORM
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.gaussian import GaussianStream
from dptune.dpsgd.noise import add_gaussian_noise

_LARGEST_FACTOR = 1e6


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Public figures of the step whose counts were released.

    Args:
        max_grad_norm: C of the step.
        expected_batch_size: public number of units that a step draws on average.
        gradient_multiplier: noise stddev of the gradients / C.
        num_parameters: entries of the gradient.
    """

    max_grad_norm: float
    expected_batch_size: float
    gradient_multiplier: float
    num_parameters: int


class NormRule(Protocol):
    """Counts norms, and moves C by the noisy counts: a frozen dataclass."""

    @property
    def name(self) -> str:
        """Tells rules apart in fingerprints."""
        ...

    @property
    def num_counts(self) -> int:
        """Length of a unit's counts."""
        ...

    def counts(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """Return counts of norm at most 1 for each unit, `(units, num_counts)`.

        Args:
            norms: of whole gradients, `(units,)`; what is returned for one that is not
                finite does not matter.
            max_norm: C.
        """
        ...

    def next_norm(self, counts: Sequence[float], figures: StepFigures) -> float:
        """Return the next C from noisy counts and public figures."""
        ...


class MovingClip:
    """C of a run, from step to step.

    Args:
        rule: counts and moves.
        initial: C of the first step of this process.
        num_parameters: entries of the gradient.
        expected_batch_size: public.
        ranks: the first one adds the noise and decides for all.
        stream: secret; of the first rank where there are several.
        device: of the norms.
    """

    def __init__(
        self,
        rule: NormRule,
        *,
        initial: float,
        num_parameters: int,
        expected_batch_size: float,
        ranks: Ranks,
        stream: GaussianStream,
        device: torch.device,
    ) -> None:
        self._rule = rule
        self._num_parameters = num_parameters
        self._expected_batch_size = expected_batch_size
        self._ranks = ranks
        self._stream = stream
        self._counts = torch.zeros(rule.num_counts, device=device)
        self._smallest = max(SMALLEST_MAX_GRAD_NORM, initial / _LARGEST_FACTOR)
        self._largest = initial * _LARGEST_FACTOR
        self.max_grad_norm = initial

    def count(self, norms: Tensor) -> Tensor:
        """Add the counts of some units; private until they are released.

        Args:
            norms: `(groups, units)`, of real units alone.

        Returns:
            What was added, `(units, num_counts)`.
        """
        whole = torch.linalg.vector_norm(norms, dim=0)
        rows = self._rule.counts(whole, max_norm=self.max_grad_norm)
        size = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        bounded: Tensor = rows / size.clamp(min=1.0)
        usable = torch.isfinite(whole) & torch.isfinite(bounded).all(1)
        bounded = bounded.masked_fill(~usable[:, None], 0)
        self._counts += bounded.sum(0)
        return bounded

    def release(self, *, gradient_multiplier: float, stddev: float) -> None:
        """Add the noise to the step's counts, move C, and start counting anew.

        Args:
            gradient_multiplier: z / sqrt(1 - f).
            stddev: z / sqrt(f); 0 releases counts as they are.
        """
        totals = self._ranks.total(*self._counts.tolist())
        figures = StepFigures(
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self._expected_batch_size,
            gradient_multiplier=gradient_multiplier,
            num_parameters=self._num_parameters,
        )

        def move() -> float:
            noisy = self._counts.new_tensor(totals)
            add_gaussian_noise(
                {"counts": noisy}, noise_stddev=stddev, stream=self._stream
            )
            wanted = self._rule.next_norm(noisy.tolist(), figures)
            return min(max(wanted, self._smallest), self._largest)

        self.max_grad_norm = self._ranks.once(move)
        self._counts.zero_()


def shares(noise_multiplier: float, share: float) -> tuple[float, float]:
    """Split a multiplier: gradient noise / C, and the noise of counts.

    Args:
        noise_multiplier: z, at least 0.
        share: f in [0, 1).

    Returns:
        z / sqrt(1 - f) and z / sqrt(f); the second is 0 where f is 0.
    """
    counts = noise_multiplier / math.sqrt(share) if share else 0.0
    return noise_multiplier / math.sqrt(1 - share), counts
