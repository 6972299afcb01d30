"""The plan: one frozen object that owns the privacy claim of a stage.

Sampler, clip, noise, divisor and event are all derived from the same numbers here and
nowhere else, so that none can disagree with another. Everything in a plan is public.

A plan has one of two forms:

* **gradient** (`GradientPlan`): units are sampled, gradients clipped to C and noised
  before the optimizer sees them. Everything after that is post-processing.
* **forward** (local mechanisms, in `dptune.local`): each sequence's hidden state is
  clipped and noised in the forward pass, and the server that trains sees only that. Its
  `sample_rate` is 1 for accounting, since the server sees every participation.

References:
    Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133v2; Poisson
    sampling and a fixed divisor as in Ponomareva et al. (2023), section 4.3,
    https://arxiv.org/abs/2303.00654v3. Truncated batches: Ganesh (2025),
    https://arxiv.org/abs/2508.15089. Banded noise: Choquette-Choo et al. (2023),
    https://arxiv.org/abs/2306.08153; groups there are fixed, here secret and drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import dp_accounting
import torch
from torch import Tensor

from dptune.dpsgd.adaptive_clipping import MovingClip, SteeredClip, shares
from dptune.dpsgd.clipping import (
    ClipPolicy,
    FlatClip,
    GroupClip,
    sum_sensitivity,
)
from dptune.dpsgd.noise import (
    MAX_NOISE_BYTES,
    BandedNoise,
    GroupedNoise,
    IndependentNoise,
    NoiseMechanism,
)
from dptune.dpsgd.parts import part_multipliers
from dptune.dpsgd.plan_numbers import PlanNumbers
from dptune.dpsgd.randomness import GaussianStream
from dptune.dpsgd.sampling import (
    CyclicPoissonSampler,
    PoissonSampler,
    Sampler,
    SamplingKind,
    ShuffledSampler,
    TruncatedPoissonSampler,
    rate_in_turn,
)
from dptune.dpsgd.schedule import (
    AdaptiveNoise,
    schedule_event,
)
from dptune.errors import ConfigError, PrivacyError
from dptune.privacy import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class GradientPlan(PlanNumbers):
    """DP-SGD: sampled units, flat clipping, Gaussian noise, a public divisor.

    Each step releases (sum over drawn units of clip_C(gradient) + y_t) /
    expected_batch_size, where the noise y = C^-1 z comes from independent z_t ~ N(0,
    (noise_multiplier * C)^2 I) and C is the identity unless there are several bands.

    **Formal guarantee**: `num_steps` consecutive steps of `train_stage` under this plan
    are dominated by `dp_event(num_steps)`, for data sets that differ in one unit, if
    record losses depend on their own row alone. With q the sample rate:

    | sampling | bands b | event of k steps |
    |---|---|---|
    | Poisson | 1 | k Gaussians, Poisson-sampled with q |
    | truncated Poisson | 1 | k `TruncatedSubsampledGaussianDpEvent` |
    | cyclic Poisson | any | ceil(k / b) Gaussians, Poisson-sampled with b q |
    | Poisson, with `adaptive` terms | 1 | theirs, whatever k > 0: charged once |
    | Poisson, in parts | 1 | see `dptune.dpsgd.parts` |

    Cyclic Poisson: condition on all groups, which do not depend on whether a unit is
    there. A unit of group g joins only steps t with t mod b = g, at most ceil(k / b) of
    them, by coins of chance b q; what it adds at each is one Gaussian mechanism of
    multiplier `noise_multiplier` (see `BandedNoise`), or of half of it if the unit is
    replaced, for its replacement has its group and coins. As the bound is the same for
    all groups, it holds on average over them.

    *Blocks and resumed runs.* A process runs steps s, s + 1, ... with groups and noise
    of its own, and charges blocks of `whole_block` steps, a multiple of b, before they
    are drawn; only the block that ends the stage may be shorter. So blocks of k_1, k_2,
    ... steps have paid for ceil(k_1 / b) + ceil(k_2 / b) + ... >= ceil((k_1 + k_2 +
    ...) / b) mechanisms: enough for the whole segment, wherever it is killed, and
    exactly what one charge for an undisturbed stage would be. A resumed process starts
    at a checkpoint, which is a function of what was released, with new groups and no
    past noise: by adaptive composition it costs what its own blocks pay.

    | case | meaning |
    |---|---|
    | `noise_multiplier` 0 | no privacy: the event is `NonPrivateDpEvent` |
    | `sample_rate` 1 | every unit in every step |
    | nobody drawn | the step is noise only |
    | a unit with a NaN gradient | contributes zero |
    | a schedule that is not constant | refused with several bands: C z would mix them |

    Args: see `PlanNumbers`.

    Raises:
        ConfigError: values are out of range or contradict each other; all at once.

    >>> plan = GradientPlan(
    ...     noise_multiplier=1.0,
    ...     sample_rate=0.01,
    ...     max_grad_norm=0.5,
    ...     expected_batch_size=20,
    ... )
    >>> plan.noise_stddev()
    0.5
    >>> plan.dp_event(100).count
    100
    >>> from dptune.accounting.accountants import epsilon
    >>> relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    >>> round(epsilon(plan.dp_event(100), delta=1e-5, relation=relation), 2)
    0.72
    """

    @property
    def claims_something(self) -> bool:
        """Whether nothing is released raw beside the noise; it may still have none."""
        is_moved = self.norm_rule is not None or self.steering
        return not self.mixed_parts and (not is_moved or self.count_share > 0)

    def num_mechanisms(self, num_steps: int) -> int:
        """Return how often one unit can join `num_steps` steps: what they cost."""
        return math.ceil(num_steps / self.num_bands)

    def whole_block(self, block_size: int) -> int:
        """Round a block up to what is paid without loss: a multiple of the bands."""
        return self.num_mechanisms(block_size) * self.num_bands

    def sampler(self, num_units: int) -> Sampler:
        """Return the sampler that `dp_event` describes; one for each process start.

        Raises:
            ConfigError: truncated sampling was accounted for fewer units.
        """
        if self.sampling is SamplingKind.CYCLIC_POISSON:
            return CyclicPoissonSampler(
                num_units=num_units,
                sample_rate=self.sample_rate,
                num_groups=self.num_bands,
            )
        if self.max_batch_size is None or self.num_units is None:
            return PoissonSampler(num_units=num_units, sample_rate=self.sample_rate)
        return TruncatedPoissonSampler(
            num_units=num_units,
            sample_rate=self.sample_rate,
            max_batch_size=self.max_batch_size,
            num_places=self.num_units,
        )

    def clip_policy(
        self, *, num_groups: int = 1, max_grad_norm: float | None = None
    ) -> ClipPolicy:
        """Return the clip whose sensitivity the noise is scaled to.

        Args:
            num_groups: groups that `grouping` makes of the trained parameters.
            max_grad_norm: C of the step, where it moves.
        """
        bound = self.max_grad_norm if max_grad_norm is None else max_grad_norm
        if num_groups == 1:
            return FlatClip(bound, rule=self.scale_rule)
        return GroupClip(bound, num_groups=num_groups, rule=self.scale_rule)

    def noise_shares(self, step: int) -> tuple[float, float]:
        """Return the gradients' noise stddev / C, and the counts' noise stddev."""
        multiplier = self.noise_schedule().noise_multiplier(step)
        return shares(multiplier, self.count_share)

    def noise_stddev(
        self, *, step: int = 0, max_grad_norm: float | None = None
    ) -> float:
        """Return the stddev of z: noise_multiplier * C, more where counts are noised.

        Args:
            step: from 0.
            max_grad_norm: C of the step, where it moves.
        """
        bound = self.max_grad_norm if max_grad_norm is None else max_grad_norm
        return self.noise_shares(step)[0] * bound

    def noise(
        self,
        stream: GaussianStream,
        *,
        sums: Mapping[str, Tensor],
        max_bytes: int = MAX_NOISE_BYTES,
        granted: AdaptiveNoise | None = None,
        moving: MovingClip | None = None,
        steered: SteeredClip | None = None,
    ) -> NoiseMechanism:
        """Return the noise of a process that starts now; it keeps its own past.

        Args:
            stream: secret; see `noise_stream`.
            sums: of the shapes that will be released.
            max_bytes: memory that past noise may take.
            granted: what an adaptive plan takes its multipliers from, and only it.
            moving: knows C of the step, with a `norm_rule` and only then.
            steered: knows the norms of the step, with `steering` and only then.

        Raises:
            ConfigError: past noise does not fit.
            PrivacyError: `moving`, `steered` or `granted` is missing, or of other terms
                than were charged.
        """
        if self.adaptive is not None or granted is not None:
            return self._granted_noise(stream, granted, steered)
        if (moving is None) != (self.norm_rule is None):
            raise PrivacyError(
                "noise must be scaled to the clip norm of its step. Pass the moving "
                "clip of the plan's norm_rule."
            )
        if self.num_bands == 1:
            return IndependentNoise(
                noise_stddev=lambda step: self.noise_stddev(
                    step=step, max_grad_norm=moving.max_grad_norm if moving else None
                ),
                stream=stream,
            )
        return BandedNoise(
            coefficients=self.noise_coefficients,
            noise_stddev=self.noise_stddev(),
            stream=stream,
            sums=sums,
            max_bytes=max_bytes,
        )

    def _granted_noise(
        self,
        stream: GaussianStream,
        granted: AdaptiveNoise | None,
        steered: SteeredClip | None,
    ) -> NoiseMechanism:
        """Return noise that draws what was granted, nothing else."""
        if granted is None or granted.terms != self.adaptive:
            raise PrivacyError(
                "an adaptive plan, and no other, must draw the noise that a budget of "
                "its own terms grants. Open the budget with plan.adaptive."
            )
        if self.steering != (steered is not None):
            raise PrivacyError(
                "noise must be scaled to the clip norms of its step. Pass the steered "
                "clip exactly where the plan says steering."
            )
        if steered is not None:
            return GroupedNoise(
                noise_stddevs=lambda step: steered.draw(granted.take(step)),
                stream=stream,
            )
        return IndependentNoise(
            noise_stddev=lambda step: granted.take(step) * self.max_grad_norm,
            stream=stream,
        )

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Return C, or 2C where a unit is replaced."""
        return sum_sensitivity(self.max_grad_norm, relation=relation)

    def dp_event(self, num_steps: int, *, first_step: int = 0) -> dp_accounting.DpEvent:
        """Describe `num_steps` consecutive steps; see the table of the class."""
        if not self.claims_something and num_steps:
            return dp_accounting.NonPrivateDpEvent()
        if self.adaptive is not None:
            return self.adaptive.event if num_steps else dp_accounting.NoOpDpEvent()
        return schedule_event(
            self.noise_schedule(),
            step_event=self._step if self.part_shares else self._mechanism,
            first_step=first_step,
            num_steps=self.num_mechanisms(num_steps),
        )

    def part_event(
        self, kind: int, num_steps: int, *, first_step: int = 0
    ) -> dp_accounting.DpEvent:
        """Describe steps for neighbors that differ in one part alone, of this kind."""
        share = self.part_shares[kind]
        if self.mixed_parts and num_steps:
            return dp_accounting.NonPrivateDpEvent()
        return schedule_event(
            self.noise_schedule(),
            step_event=lambda multiplier: self._mechanism(multiplier / share),
            first_step=first_step,
            num_steps=num_steps,
        )

    def release(
        self, sums: Mapping[str, Tensor], *, step: int, noise: NoiseMechanism
    ) -> None:
        """Turn clipped sums into the noisy mean that the optimizer may see, in place.

        **Privacy**: `sums` is private before and released after.

        Args:
            sums: clipped sum of every trainable parameter; zeros if nobody was drawn.
            step: number of the step, from 0.
            noise: of this plan and this process, see `noise`.
        """
        noise.add(sums, step=step)
        if sums:  # one rank owns all of them
            torch._foreach_div_(list(sums.values()), self.expected_batch_size)

    def _step(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """Describe one step of a unit in parts, each with a coin of its own."""
        multipliers = part_multipliers(noise_multiplier, self.part_shares)
        return dp_accounting.ComposedDpEvent([self._mechanism(m) for m in multipliers])

    def _mechanism(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """Describe one chance of a unit to join."""
        if self.max_batch_size is not None and self.num_units is not None:
            return dp_accounting.TruncatedSubsampledGaussianDpEvent(
                dataset_size=self.num_units,
                sampling_probability=self.sample_rate,
                truncated_batch_size=self.max_batch_size,
                noise_multiplier=noise_multiplier,
            )
        return dp_accounting.PoissonSampledDpEvent(
            rate_in_turn(self.sample_rate, num_groups=self.num_bands),
            dp_accounting.GaussianDpEvent(noise_multiplier),
        )


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

    def whole_block(self, block_size: int) -> int:
        """Return the block as it is."""
        return block_size

    def sampler(self, num_units: int) -> Sampler:
        """Return shuffled batches."""
        return ShuffledSampler(num_units=num_units, batch_size=self.batch_size)

    def dp_event(self, num_steps: int) -> dp_accounting.DpEvent:
        """Return an event of infinite epsilon, or none for no steps."""
        if num_steps == 0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.NonPrivateDpEvent()


def is_adaptive(plan: GradientPlan | PlainPlan) -> bool:
    """Whether a controller chooses the noise of every step."""
    return isinstance(plan, GradientPlan) and plan.adaptive is not None
