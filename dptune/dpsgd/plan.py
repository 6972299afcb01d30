"""The plan: one frozen object that owns the privacy claim of a stage.

Sampler, clip, noise, divisor and event are all derived from the same numbers here and
nowhere else, so that none can disagree with another. Everything in a plan is public.

A plan has one of two forms:

* **gradient** (`GradientPlan`): units are Poisson-sampled, gradients clipped to C and
  noised before the optimizer sees them. Everything after that is post-processing.
* **forward** (local mechanisms, in `dptune.local`): each sequence's hidden state is
  clipped and noised in the forward pass, and the server that trains sees only that. Its
  `sample_rate` is 1 for accounting, since the server sees every participation.

References:
    Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133v2; Poisson
    sampling and a fixed divisor as in Ponomareva et al. (2023), section 4.3,
    https://arxiv.org/abs/2303.00654v3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import dp_accounting
import torch
from torch import Tensor

from dptune.dpsgd.clipping import (
    ClipPolicy,
    FlatClip,
    check_max_grad_norm,
    sum_sensitivity,
)
from dptune.dpsgd.noise import add_gaussian_noise
from dptune.dpsgd.sampling import PoissonSampler, Sampler, ShuffledSampler
from dptune.dpsgd.schedule import ConstantNoise, NoiseSchedule, schedule_event
from dptune.errors import ConfigError, Problem
from dptune.privacy import NeighboringRelation


class DPPlan(Protocol):
    """What accounting and cards need to know of either form of plan.

    No property depends on the neighboring relation: the relation is chosen when a
    sensitivity or an epsilon is asked for.
    """

    @property
    def noise_multiplier(self) -> float:
        """Noise stddev / C, dimensionless."""
        ...

    @property
    def sample_rate(self) -> float:
        """Chance in (0, 1] that a unit joins a step."""
        ...

    @property
    def max_grad_norm(self) -> float:
        """C: bound on the norm of one unit's contribution."""
        ...

    @property
    def expected_batch_size(self) -> float:
        """Public divisor of the noisy sum."""
        ...

    def dp_event(self, num_steps: int) -> dp_accounting.DpEvent:
        """Describe `num_steps` steps to an accountant."""
        ...

    def noise_stddev(self) -> float:
        """Absolute noise in units of the sum."""
        ...

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """L2 sensitivity of the sum: C or 2C."""
        ...


@dataclass(frozen=True, kw_only=True)
class GradientPlan:
    """DP-SGD: Poisson sampling, flat clipping, constant Gaussian noise.

    Each step releases (sum over drawn units of clip_C(gradient) + N(0,
    (noise_multiplier * C)^2 I)) / expected_batch_size.

    **Formal guarantee**: `num_steps` steps of `train_stage` under this plan are the
    mechanism `dp_event(num_steps)`, for data sets that differ in one unit, if record
    losses depend on their own row alone.

    | case | meaning |
    |---|---|
    | `noise_multiplier` 0 | no privacy: the event is `NonPrivateDpEvent` |
    | `sample_rate` 1 | every unit in every step |
    | nobody drawn | the step is noise only |
    | a unit with a NaN gradient | contributes zero |

    Args:
        noise_multiplier: at least 0 and finite.
        sample_rate: in (0, 1].
        max_grad_norm: C.
        expected_batch_size: public, above 0: `sample_rate` times the published number
            of units. It only scales the result.

    Raises:
        ConfigError: values are out of range; all at once.
    """

    noise_multiplier: float
    sample_rate: float
    max_grad_norm: float
    expected_batch_size: float

    def __post_init__(self) -> None:
        """Check all four numbers."""
        check_max_grad_norm(self.max_grad_norm)
        checks = {
            "noise_multiplier": (0 <= self.noise_multiplier < math.inf, "[0, inf)"),
            "sample_rate": (0 < self.sample_rate <= 1, "(0, 1]"),
            "expected_batch_size": (
                0 < self.expected_batch_size < math.inf,
                "(0, inf)",
            ),
        }
        problems = [
            Problem(path=name, message=f"must be in {span}, got {getattr(self, name)}.")
            for name, (valid, span) in checks.items()
            if not valid
        ]
        if problems:
            raise ConfigError(problems)

    def sampler(self, num_units: int) -> Sampler:
        """Return the sampler that `dp_event` describes."""
        return PoissonSampler(num_units=num_units, sample_rate=self.sample_rate)

    def clip_policy(self) -> ClipPolicy:
        """Return the clip whose sensitivity the noise is scaled to."""
        return FlatClip(self.max_grad_norm)

    def noise_schedule(self) -> NoiseSchedule:
        """Return the multiplier of every step."""
        return ConstantNoise(self.noise_multiplier)

    def noise_stddev(self, *, step: int = 0) -> float:
        """Return noise_multiplier * C."""
        return self.noise_schedule().noise_multiplier(step) * self.max_grad_norm

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Return C, or 2C where a unit is replaced."""
        return sum_sensitivity(self.max_grad_norm, relation=relation)

    def dp_event(self, num_steps: int, *, first_step: int = 0) -> dp_accounting.DpEvent:
        """Describe `num_steps` steps from `first_step`; see `schedule_event`."""
        return schedule_event(
            self.noise_schedule(),
            sample_rate=self.sample_rate,
            first_step=first_step,
            num_steps=num_steps,
        )

    def release(
        self, sums: Mapping[str, Tensor], *, step: int, generator: torch.Generator
    ) -> None:
        """Turn clipped sums into the noisy mean that the optimizer may see, in place.

        **Privacy**: `sums` is private before and released after.

        Args:
            sums: clipped sum of every trainable parameter; zeros if nobody was drawn.
            step: number of the step, from 0.
            generator: secret; see `noise_generator`.
        """
        add_gaussian_noise(
            sums, noise_stddev=self.noise_stddev(step=step), generator=generator
        )
        for value in sums.values():
            value.div_(self.expected_batch_size)


@dataclass(frozen=True, kw_only=True)
class PlainPlan:
    """Training without privacy: shuffled batches, no clip, no noise.

    Args:
        batch_size: units per step, at least 1; also the divisor.

    Raises:
        ConfigError: the batch size is below 1.
    """

    batch_size: int

    def __post_init__(self) -> None:
        """Check the batch size."""
        if self.batch_size < 1:
            raise ConfigError(
                f"batch_size must be at least 1, got batch_size={self.batch_size}."
            )

    @property
    def expected_batch_size(self) -> float:
        """Divisor of the sum of gradients."""
        return float(self.batch_size)

    def sampler(self, num_units: int) -> Sampler:
        """Return shuffled batches."""
        return ShuffledSampler(num_units=num_units, batch_size=self.batch_size)

    def dp_event(self, num_steps: int) -> dp_accounting.DpEvent:
        """Return an event of infinite epsilon, or none for no steps."""
        if num_steps == 0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.NonPrivateDpEvent()
