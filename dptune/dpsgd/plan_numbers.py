"""The numbers of a plan: none is out of range, and all have an event together."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dptune.accounting.adaptive import AdaptiveTerms
from dptune.dpsgd.adaptive_clipping import NormRule
from dptune.dpsgd.clipping import THRESHOLD, ScaleRule, check_max_grad_norm
from dptune.dpsgd.factorization import INDEPENDENT, Coefficients, is_normalized
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.schedule import ConstantNoise, NoiseSchedule, SteppedNoise
from dptune.dpsgd.transform import GradientTransform
from dptune.errors import ConfigError, Problem

CONSTANT: Final[tuple[float, ...]] = (1.0,)
"""The noise levels of a schedule that has one."""


@dataclass(frozen=True, kw_only=True)
class PlanNumbers:
    """What a `GradientPlan` is made of.

    Args:
        noise_multiplier: at least 0 and finite.
        sample_rate: in (0, 1]: chance that a unit joins a step.
        max_grad_norm: C.
        expected_batch_size: public, above 0: `sample_rate` times the published number
            of units. It only scales the result.
        sampling: who joins a step.
        max_batch_size: public cap, for truncated sampling and only then.
        num_units: public bound of the number of units, for truncated sampling and only
            then.
        noise_coefficients: c of C, of norm 1; several need cyclic sampling.
        grouping: parameters that are clipped by themselves, each group to an equal
            share of C; it changes neither sensitivity nor event.
        scale_rule: what a gradient is scaled by, within C; changes neither either.
        noise_levels: public multiples of `noise_multiplier`, each above 0, one after
            the other; the last one stays.
        steps_per_level: steps of each level.
        norm_rule: moves C from step to step, from `max_grad_norm` on, by noisy counts;
            see `MovingClip`, whose guarantee leaves the event as it is.
        count_share: f in [0, 1) of the budget that counts get, with a `norm_rule` or
            `steering` and only then; 0 releases them as they are, and nothing is
            private.
        transform: space to clip and to add noise in, chosen by earlier releases; see
            `dptune.dpsgd.transform`, whose guarantee leaves the event as it is. C is
            then the bound in that space.
        part_shares: bounds of the parts that a unit is sampled and clipped in, as
            shares of C; none where it is clipped as a whole.
        mixed_parts: the gradient of a part depends on what others hold, or so does what
            joins without noise: then nothing is private.
        adaptive: terms that a controller chooses the noise of every step within;
            `noise_multiplier` is then for the reader alone.
        steering: the controller names the clip norm of every group too, see
            `SteeredClip`, whose guarantee leaves the event as it is; `max_grad_norm`
            is then where it starts.

    Raises:
        ConfigError: values are out of range or contradict each other; all at once.
    """

    noise_multiplier: float
    sample_rate: float
    max_grad_norm: float
    expected_batch_size: float
    sampling: SamplingKind = SamplingKind.POISSON
    max_batch_size: int | None = None
    num_units: int | None = None
    noise_coefficients: Coefficients = INDEPENDENT
    grouping: Grouping = Grouping.FLAT
    scale_rule: ScaleRule = THRESHOLD
    noise_levels: tuple[float, ...] = CONSTANT
    steps_per_level: int = 1
    norm_rule: NormRule | None = None
    count_share: float = 0.0
    transform: GradientTransform | None = None
    part_shares: tuple[float, ...] = ()
    mixed_parts: bool = False
    adaptive: AdaptiveTerms | None = None
    steering: bool = False

    def __post_init__(self) -> None:
        """Check every number, and that they fit together."""
        check_max_grad_norm(self.max_grad_norm)
        problems = [*_out_of_range(self), *_contradictions(self)]
        if problems:
            raise ConfigError(problems)

    @property
    def num_bands(self) -> int:
        """Number b of steps over which noise is correlated; 1 is independent noise."""
        return len(self.noise_coefficients)

    def noise_schedule(self) -> NoiseSchedule:
        """Return the multiplier of every step."""
        if self.noise_levels == CONSTANT:
            return ConstantNoise(self.noise_multiplier)
        return SteppedNoise(
            tuple(level * self.noise_multiplier for level in self.noise_levels),
            steps_per_value=self.steps_per_level,
        )


def _out_of_range(plan: PlanNumbers) -> Iterator[Problem]:
    """Find numbers that no plan can have."""
    checks = {
        "noise_multiplier": (0 <= plan.noise_multiplier < math.inf, "in [0, inf)"),
        "sample_rate": (0 < plan.sample_rate <= 1, "in (0, 1]"),
        "expected_batch_size": (0 < plan.expected_batch_size < math.inf, "in (0, inf)"),
        "max_batch_size": (
            plan.max_batch_size is None or plan.max_batch_size >= 1,
            ">= 1",
        ),
        "num_units": (plan.num_units is None or plan.num_units >= 1, ">= 1"),
        "noise_coefficients": (
            is_normalized(plan.noise_coefficients),
            "of norm 1 and begin above 0",
        ),
        "noise_levels": (
            bool(plan.noise_levels)
            and all(0 < level < math.inf for level in plan.noise_levels),
            "one or more numbers in (0, inf)",
        ),
        "steps_per_level": (plan.steps_per_level >= 1, ">= 1"),
        "count_share": (0 <= plan.count_share < 1, "in [0, 1)"),
        "part_shares": (
            all(0 < share <= 1 for share in plan.part_shares),
            "numbers in (0, 1]",
        ),
    }
    for name, (valid, constraint) in checks.items():
        if not valid:
            yield Problem(
                path=name, message=f"must be {constraint}, got {getattr(plan, name)}."
            )


def _contradictions(plan: PlanNumbers) -> Iterator[Problem]:
    """Find numbers that have no event together."""
    truncated = plan.sampling is SamplingKind.TRUNCATED_POISSON
    for name in ("max_batch_size", "num_units"):
        if (getattr(plan, name) is not None) != truncated:
            yield Problem(
                path=name,
                message="must be set exactly when sampling is truncated_poisson, got "
                f"{getattr(plan, name)} with {plan.sampling}.",
            )
    if plan.norm_rule is None and not plan.steering and plan.count_share:
        yield Problem(
            path="count_share",
            message=f"must be 0 without a norm_rule, got {plan.count_share}.",
        )
    if plan.steering:
        yield from _steering_contradictions(plan)
    if plan.norm_rule is not None and (plan.num_bands > 1 or plan.adaptive is not None):
        yield Problem(
            path="norm_rule",
            message="must be null with banded noise or a noise controller.",
        )
    if plan.transform is not None:
        yield from _transform_contradictions(plan)
    yield from _part_contradictions(plan)
    if plan.adaptive is not None:
        yield from _adaptive_contradictions(plan, plan.adaptive)
    if plan.num_bands == 1:
        return
    if plan.sampling is not SamplingKind.CYCLIC_POISSON:
        yield Problem(
            path="sampling",
            message=f"must be cyclic_poisson for banded noise, got {plan.sampling}.",
            next_step="A unit may join once in any num_bands steps, else it sees less "
            "noise than was accounted for.",
        )
    if plan.num_bands * plan.sample_rate > 1 + 1e-9:
        yield Problem(
            path="noise_coefficients",
            message="must be at most 1 / sample_rate many, got "
            f"{plan.num_bands} with sample_rate={plan.sample_rate:g}.",
        )
    if not isinstance(plan.noise_schedule(), ConstantNoise):
        yield Problem(
            path="noise_coefficients",
            message="must be (1.0,) unless the noise multiplier is constant.",
            next_step="Use independent noise with a schedule or controller.",
        )


def _steering_contradictions(plan: PlanNumbers) -> Iterator[Problem]:
    """Find what a controller cannot steer the clip norms of."""
    needs = {
        "adaptive": plan.adaptive is not None,
        "norm_rule": plan.norm_rule is None,
        "scale_rule": plan.scale_rule == THRESHOLD,
        "part_shares": not plan.part_shares and not plan.mixed_parts,
    }
    for name, is_met in needs.items():
        if not is_met:
            yield Problem(
                path=name,
                message="must be adaptive terms, no norm_rule, the threshold rule and "
                "whole units where a controller steers clip norms.",
            )


def _transform_contradictions(plan: PlanNumbers) -> Iterator[Problem]:
    """Find what has no meaning in a space that moves from step to step."""
    fits = {
        "noise_coefficients": plan.num_bands == 1,
        "grouping": plan.grouping is Grouping.FLAT,
        "norm_rule": plan.norm_rule is None,
        "adaptive": plan.adaptive is None,
    }
    for name, fitting in fits.items():
        if not fitting:
            yield Problem(
                path=name,
                message="must be left as it is where gradients are transformed: noise "
                "of two steps, or bounds of two groups, would be of different spaces.",
            )


def _part_contradictions(plan: PlanNumbers) -> Iterator[Problem]:
    """Find what does not go with units in parts."""
    if plan.part_shares and (
        plan.sampling is not SamplingKind.POISSON
        or plan.num_bands > 1
        or plan.norm_rule is not None
        or plan.transform is not None
        or plan.adaptive is not None
    ):
        yield Problem(
            path="part_shares",
            message="must come with poisson sampling, independent noise and a clip "
            "norm that stays, without a controller.",
        )
    if plan.mixed_parts and not plan.part_shares:
        yield Problem(path="mixed_parts", message="must be false without part_shares.")


def _adaptive_contradictions(
    plan: PlanNumbers, terms: AdaptiveTerms
) -> Iterator[Problem]:
    """Find terms that speak of other steps than the plan's."""
    if plan.sampling is not SamplingKind.POISSON or plan.num_bands > 1:
        yield Problem(
            path="adaptive",
            message="must come with poisson sampling and independent noise, got "
            f"{plan.sampling} and num_bands={plan.num_bands}.",
        )
    if terms.sample_rates != {plan.sample_rate}:
        yield Problem(
            path="adaptive",
            message=f"must be of sample_rate={plan.sample_rate:g} alone, got "
            f"{sorted(terms.sample_rates)}.",
        )
    if not isinstance(plan.noise_schedule(), ConstantNoise):
        yield Problem(
            path="noise_levels",
            message="must be (1.0,) where a controller chooses the noise.",
        )
