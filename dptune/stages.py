"""A stage with its noise filled in: every number that its claim depends on."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np
from dp_accounting import dp_event as dpe
from pydantic import Field

from dptune.accounting.adaptive import AdaptiveTerms, OpenTerms
from dptune.dpsgd.adaptive_clipping import NormRule
from dptune.dpsgd.clipping import THRESHOLD, ScaleRule
from dptune.dpsgd.factorization import INDEPENDENT, Coefficients, band_coefficients
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.plan_numbers import CONSTANT
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.schedule import noise_runs
from dptune.dpsgd.transform import GradientTransform
from dptune.errors import ConfigError
from dptune.local.plan import ForwardPlan
from dptune.mechanisms.atdp import rise_and_reset
from dptune.mechanisms.clip_rules import Automatic, DcSgd, Psac, QuantileClip
from dptune.mechanisms.ewpba import sampled_epsilon
from dptune.mechanisms.nominal import OPACUS_ORDERS, Steps, gdp_epsilon, renyi_epsilon
from dptune.mechanisms.rldp import deck, deck_terms, num_actions
from dptune.mechanisms.sa_adp import PROTECTED, summed_noise, tier_shares
from dptune.mechanisms.transforms import AdaClip, GeoClip
from dptune.privacy import UnitsFrom
from dptune.recipes import StageSettings
from dptune.results import Report
from dptune.settings import (
    ClippingSettings,
)

_WARMUP = 50


class StagePlan(Report):
    """A stage with every number that the claim depends on.

    Args:
        num_units: privacy units that it trains on, taken as public.
        units_from: where that number comes from. Unless it is `exact`, no number of a
            plan follows from the exact count.
        sample_rate: chance in (0, 1] that a unit joins a noisy step.
        num_steps: noisy updates, or ordinary ones.
        noise_multiplier: noise stddev / max_grad_norm; None without noise.
        noise_coefficients: bands of the noise, of norm 1; one is independent noise.
        noise_levels: multiples of `noise_multiplier`, an epoch each.
        nominal_epsilon: what the paper would print for the stage; None if the recipe
            does not say how.
    """

    settings: StageSettings
    num_units: int = Field(ge=1)
    units_from: UnitsFrom = UnitsFrom.EXACT
    num_steps: int = Field(ge=1)
    sample_rate: float = Field(gt=0, le=1)
    noise_multiplier: float | None = Field(default=None, gt=0)
    noise_coefficients: Coefficients = INDEPENDENT
    noise_levels: tuple[float, ...] = CONSTANT
    nominal_epsilon: float | None = None

    @property
    def expected_batch_size(self: Self) -> int:
        """Units per step, the public divisor."""
        return self.settings.batch_size(self.num_units)

    @property
    def num_bands(self: Self) -> int:
        """Steps over which the noise is correlated; 1 is independent noise."""
        return len(self.noise_coefficients)

    @property
    def warmup_steps(self: Self) -> int:
        """Steps before a controller acts; 0 without one."""
        return self._pace()[0]

    @property
    def interval(self: Self) -> int:
        """Steps between two actions of a controller; 0 without one."""
        return self._pace()[1]

    @property
    def num_actions(self: Self) -> int:
        """How often a controller acts; 0 without one."""
        if self.settings.controller is None:
            return 0
        return num_actions(
            self.num_steps, warmup=self.warmup_steps, interval=self.interval
        )

    def _pace(self: Self) -> tuple[int, int]:
        """Return warm-up and interval of the controller."""
        control = self.settings.controller
        if control is None:
            return 0, 0
        warmup = control.warmup_steps
        if warmup is None:
            warmup = min(_WARMUP, self.num_steps // 10)
        most = max(1, (self.num_steps - warmup) // control.min_actions)
        return warmup, control.interval or min(control.longest_interval, most)

    @property
    def sampling(self: Self) -> SamplingKind:
        """Who joins a noisy step, as the noise and the settings ask for it."""
        if self.num_bands > 1:
            return SamplingKind.CYCLIC_POISSON
        return SamplingKind(self.settings.sampling.kind)

    def forward_plan(self: Self, noise_multiplier: float) -> ForwardPlan:
        """Return the plan of a stage with forward noise at some noise.

        A step of such a stage is a participation: one release of every sequence.
        """
        if self.settings.local is None:
            raise ConfigError(f"stage {self.settings.name} has no forward noise.")
        levels = self.noise_levels
        if levels == CONSTANT:
            levels = CONSTANT * self.num_steps
        return ForwardPlan(
            noise_multipliers=tuple(level * noise_multiplier for level in levels),
            max_norm=self.settings.local.max_norm,
            num_users=self.num_units,
            batch_size=self.expected_batch_size,
        )

    def training_plan(self: Self) -> GradientPlan | PlainPlan:
        """Return the object that owns the claim of a stage that trains on gradients."""
        if self.settings.clipping is None:
            return PlainPlan(batch_size=self.expected_batch_size)
        return self.with_noise(self.noise_multiplier or 0.0)

    def with_noise(self: Self, noise_multiplier: float) -> GradientPlan:
        """Return the gradient plan of a private stage at some noise."""
        if self.settings.clipping is None:
            raise ConfigError(f"stage {self.settings.name} has no clipping.")
        cap = self.settings.sampling.max_batch_size
        moving, control = self.settings.clipping.moving, self.settings.controller
        share, tiers = moving.count_share if moving else 0.0, self.settings.tiers
        shares: tuple[float, ...] = ()
        if tiers is not None and tiers.form == "sound":
            shares = tier_shares(tiers.noise_ratio)
        elif tiers is not None:
            shares = (1.0,) * len(PROTECTED)
            noise_multiplier = summed_noise(noise_multiplier, tiers.noise_ratio)
        return GradientPlan(
            noise_multiplier=noise_multiplier,
            sample_rate=self.sample_rate,
            max_grad_norm=self.settings.clipping.max_grad_norm,
            expected_batch_size=self.sample_rate * self.num_units,
            sampling=self.sampling,
            max_batch_size=cap,
            num_units=None if cap is None else self.num_units,
            noise_coefficients=self.noise_coefficients,
            grouping=Grouping(self.settings.clipping.kind),
            scale_rule=_scale_rule(self.settings.clipping),
            norm_rule=_norm_rule(self.settings.clipping),
            count_share=control.count_share if control else share,
            transform=_transform(self.settings.clipping),
            noise_levels=self.noise_levels,
            steps_per_level=math.ceil(self.num_steps / len(self.noise_levels)),
            part_shares=shares,
            mixed_parts=tiers is not None and tiers.form == "paper",
            adaptive=self._adaptive(noise_multiplier),
            steering=control is not None,
        )

    def _adaptive(self: Self, noise_multiplier: float) -> AdaptiveTerms | None:
        """Return the terms that a controller asks within, if there is one."""
        control = self.settings.controller
        if control is None:
            return None
        if not control.count_share or not noise_multiplier:
            return OpenTerms(sample_rate=self.sample_rate)
        return deck_terms(self._deck(noise_multiplier), sample_rate=self.sample_rate)

    def _deck(self: Self, noise_multiplier: float) -> Steps:
        """Return the multipliers that a controller has to play, and how many of each.

        In a raw run it is as if sigma_0 were kept, which is how the paper calibrates.
        """
        control = self.settings.controller
        if control is None or not control.count_share:
            return ((noise_multiplier, self.num_steps),)
        return deck(
            noise_multiplier, num_steps=self.num_steps, spread=control.noise_range
        )

    def event_at(self: Self, noise_multiplier: float) -> dpe.DpEvent:
        """Return the event of the whole stage at some noise."""
        if self.settings.local is not None:
            return self.forward_plan(noise_multiplier).dp_event(self.num_steps)
        return self.with_noise(noise_multiplier).dp_event(self.num_steps)

    def dp_event(self: Self) -> dpe.DpEvent:
        """Return the event of the whole stage, of a local one for the local notion."""
        if self.settings.local is not None:
            return self.event_at(self.noise_multiplier or 0.0)
        return self.training_plan().dp_event(self.num_steps)

    def turn_events(self: Self) -> dpe.DpEvent | list[dpe.DpEvent]:
        """Describe each turn, of `num_bands` steps; one event if all are alike."""
        if self.settings.local is not None:
            forward = self.forward_plan(self.noise_multiplier or 0.0)
            return [
                forward.dp_event(1, first_step=step) for step in range(self.num_steps)
            ]
        plan = self.with_noise(self.noise_multiplier or 0.0)
        if self.noise_levels == CONSTANT:
            return plan.dp_event(self.num_bands)
        return [plan.dp_event(1, first_step=step) for step in range(self.num_steps)]

    def noise_runs(
        self: Self, first_step: int, num_steps: int
    ) -> tuple[tuple[float, int], ...]:
        """Return the multipliers of some steps, and for how many each is used.

        A stage without noise has one run of multiplier 0.
        """
        if self.settings.local is not None:
            sigmas = self.forward_plan(self.noise_multiplier or 0.0).noise_multipliers
            return tuple((s, 1) for s in sigmas[first_step : first_step + num_steps])
        plan = self.training_plan()
        if isinstance(plan, PlainPlan):
            return ((0.0, num_steps),)
        schedule = plan.noise_schedule()
        return noise_runs(schedule, first_step=first_step, num_steps=num_steps)

    def with_least_noise(self: Self) -> Self:
        """Return the stage as if all its steps had the least noise of any of them."""
        if not self.noise_multiplier:
            return self
        least = min(self.noise_levels) * self.noise_multiplier
        changes = {"noise_multiplier": least, "noise_levels": CONSTANT}
        return self.model_copy(update=changes)

    def sampled_cost(self: Self, *, delta: float) -> Callable[[Sequence[float]], float]:
        """Return EW-FT's figure for a multiplier per epoch."""
        steps = self.num_units // self.expected_batch_size * self.num_steps
        return partial(
            sampled_epsilon,
            sample_rate=self.sample_rate,
            num_steps=steps,
            delta=delta,
        )

    def with_nominal(self: Self, *, delta: float) -> Self:
        """Add what the stage's paper would print, if the recipe says how."""
        nominal = self.settings.nominal
        if nominal is None or not self.settings.private:
            return self
        if self.settings.local is not None:
            forward = self.forward_plan(self.noise_multiplier or 0.0)
            figure = self.sampled_cost(delta=delta)(forward.noise_multipliers)
            return self.model_copy(update={"nominal_epsilon": figure})
        runs = self.noise_runs(0, self.num_steps)
        if self.settings.controller is not None:
            runs = tuple(self._deck(self.noise_multiplier or 0.0))
        if self.settings.tiers is not None:  # the least noise of any protected token
            runs = ((self.noise_multiplier or 0.0, self.num_steps),)
        if nominal.formula == "gdp":
            figure = gdp_epsilon(runs, sample_rate=self.sample_rate, delta=delta)
            return self.model_copy(update={"nominal_epsilon": figure})
        epsilon = renyi_epsilon(
            runs,
            sample_rate=self.sample_rate * nominal.rate_factor,
            delta=delta,
            orders=OPACUS_ORDERS if nominal.order is None else (nominal.order,),
        )
        return self.model_copy(update={"nominal_epsilon": epsilon})


def plan_stage(
    stage: StageSettings,
    *,
    num_units: int,
    units_from: UnitsFrom = UnitsFrom.EXACT,
) -> StagePlan:
    """Derive rate and steps of a stage from the batch size and the epochs.

    Its noise is still open unless the settings give it, and so are its bands.

    Args:
        stage: its settings.
        num_units: privacy units of the training split; the stage may see fewer.
        units_from: where that number comes from.
    """
    num_units = stage.trained_units(num_units)
    num_steps = planned_steps(stage, num_units)
    if stage.local is not None:
        num_steps = round(stage.epochs)
    bands = stage.noise.num_bands if stage.noise else None
    return StagePlan(
        settings=stage,
        num_units=num_units,
        units_from=units_from,
        num_steps=num_steps,
        sample_rate=min(1.0, stage.batch_size(num_units) / num_units),
        noise_multiplier=stage.noise.noise_multiplier if stage.noise else None,
        noise_coefficients=band_coefficients(num_bands=bands or 1, num_steps=num_steps),
        noise_levels=_noise_levels(stage, num_steps=num_steps),
    )


def _scale_rule(clipping: ClippingSettings) -> ScaleRule:
    """Return the rule by name, with the paper's constant unless another is set."""
    given = (clipping.regularizer,) if clipping.regularizer is not None else ()
    match clipping.rule:
        case "threshold":
            return THRESHOLD
        case "automatic":
            return Automatic(*given)
        case "psac":
            return Psac(*given)


def _norm_rule(clipping: ClippingSettings) -> NormRule | None:
    """Return what moves the clip norm, if anything does."""
    if clipping.moving is None:
        return None
    quantile = clipping.moving.quantile
    match clipping.moving.rule:
        case "quantile":
            return QuantileClip(quantile=quantile, rate=clipping.moving.rate)
        case "dc_sgd_percentile":
            return DcSgd(
                initial=clipping.max_grad_norm,
                choice="percentile",
                percentile=quantile,
            )
        case "dc_sgd_error":
            return DcSgd(initial=clipping.max_grad_norm, choice="error")


def _transform(clipping: ClippingSettings) -> GradientTransform | None:
    """Return the space to clip in, if it is not that of the gradients."""
    chosen = clipping.transform
    if chosen is None:
        return None
    if chosen.rule == "adaclip":
        return AdaClip(
            initial_norm=clipping.max_grad_norm,
            mean_decay=chosen.mean_decay,
            variance_decay=chosen.spread_decay,
            floor=chosen.floor,
            ceiling=chosen.ceiling,
        )
    return GeoClip(
        initial_norm=clipping.max_grad_norm,
        rank=chosen.rank or 1,
        mean_decay=chosen.mean_decay,
        covariance_decay=chosen.spread_decay,
        floor=chosen.floor,
        ceiling=chosen.ceiling,
    )


def _noise_levels(stage: StageSettings, *, num_steps: int) -> tuple[float, ...]:
    """Draw the noise of every epoch in advance, from public randomness."""
    schedule = stage.noise.rise_reset if stage.noise else None
    if schedule is None:
        return CONSTANT
    return rise_and_reset(
        min(num_steps, math.ceil(stage.epochs)),
        growth=schedule.growth,
        jitter=schedule.jitter,
        ceiling=schedule.ceiling,
        generator=np.random.default_rng(schedule.public_seed),
    )


def planned_steps(stage: StageSettings, num_units: int) -> int:
    """Return how many batches the epochs are."""
    return max(1, round(stage.epochs * num_units / stage.batch_size(num_units)))
