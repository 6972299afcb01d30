"""A recipe is data: a list of stages, each a few choices. One YAML file per system.

Stages are frozen pydantic values read from `configs/recipes/`; `StagePlan` is a stage
with its noise filled in, ready to train. Nothing here trains: steps hand the numbers to
`dptune.dpsgd`.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Literal, Self

import numpy as np
from dp_accounting import dp_event as dpe
from pydantic import Field, model_validator

from dptune.accounting.accountants import epsilon
from dptune.accounting.calibration import (
    calibrate_noise_multiplier,
    find_noise_multiplier,
)
from dptune.dpsgd.banding import candidate_bands, choose_banding
from dptune.dpsgd.clipping import THRESHOLD, ScaleRule
from dptune.dpsgd.factorization import INDEPENDENT, Coefficients, band_coefficients
from dptune.dpsgd.grouping import Grouping
from dptune.dpsgd.moving_clip import NormRule
from dptune.dpsgd.plan import CONSTANT, GradientPlan, PlainPlan
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.schedule import noise_runs
from dptune.errors import ConfigError, Problem
from dptune.local.plan import ForwardPlan
from dptune.mechanisms.atdp import rise_and_reset
from dptune.mechanisms.automatic import Automatic
from dptune.mechanisms.dc_sgd import DcSgd
from dptune.mechanisms.ewpba import epoch_shape, sampled_epsilon
from dptune.mechanisms.nominal import OPACUS_ORDERS, renyi_epsilon
from dptune.mechanisms.psac import Psac
from dptune.mechanisms.quantile_clip import QuantileClip
from dptune.privacy import Mode, NeighboringRelation, Notion, PrivacyBudget
from dptune.results import Report
from dptune.settings import (
    ClippingSettings,
    LocalSettings,
    LoraSettings,
    NoiseSettings,
    NominalSettings,
    OptimizerSettings,
    RelativeBatchSettings,
    SamplingSettings,
    Settings,
    TokenWeightSettings,
)


class View(StrEnum):
    """Which form of the text a stage reads."""

    ORIGINAL = "original"
    REDACTED = "redacted"


class StageSettings(Settings):
    """One training stage.

    Args:
        view: the text it reads.
        trains: all weights, or LoRA adapters that are merged at the end.
        epochs: passes over the units, in expectation where sampling is Poisson.
        expected_batch_size, relative_batch: exactly one: units per noisy step, which
            are the public divisor; or how to choose them for the corpus at hand.
        clipping, noise: both or neither; neither means ordinary training.
        sampling: of a noisy stage.
        token_weights: losses of sensitive tokens count more; None weighs all alike.
        nominal: what the paper would claim for the stage, beside the certificate.
        local: noise in the forward pass, in the place of clipping and noise.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    view: View
    trains: Literal["full", "lora"] = "full"
    lora: LoraSettings | None = None
    epochs: float = Field(gt=0, le=1000)
    expected_batch_size: int | None = Field(default=None, ge=1, le=1_000_000)
    relative_batch: RelativeBatchSettings | None = None
    optimizer: OptimizerSettings
    clipping: ClippingSettings | None = None
    noise: NoiseSettings | None = None
    sampling: SamplingSettings = SamplingSettings()
    token_weights: TokenWeightSettings | None = None
    nominal: NominalSettings | None = None
    local: LocalSettings | None = None

    @property
    def private(self: Self) -> bool:
        """Whether the stage clips and adds noise, to gradients or to hidden states."""
        return self.noise is not None or self.local is not None

    def batch_size(self: Self, num_units: int) -> int:
        """Return the expected batch size for a corpus of `num_units` privacy units."""
        if self.relative_batch is None:
            return self.expected_batch_size or 1
        wanted = max(1, round(self.relative_batch.share * num_units))
        return min(wanted, self.relative_batch.at_most)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.expected_batch_size is None) == (self.relative_batch is None):
            raise ValueError(
                "exactly one of expected_batch_size and relative_batch must be set; "
                "set the other to null"
            )
        if (self.clipping is None) != (self.noise is None):
            raise ValueError(
                "clipping and noise must both be set or both be null: noise without a "
                "clip has no sensitivity, a clip without noise has no guarantee"
            )
        if (self.trains == "lora") != (self.lora is not None):
            raise ValueError("lora must be set exactly when trains is 'lora'")
        if self.clipping and self.clipping.kind == "per_lora_pair" and not self.lora:
            raise ValueError("clipping.kind must be per_lora_pair only with lora")
        if self.token_weights is not None and self.view is View.REDACTED:
            raise ValueError(
                "token_weights must be null in a stage that reads the redacted text: "
                "it has no sensitive tokens left"
            )
        if self.local is not None:
            _check_local(self)
        elif self.nominal is not None and self.nominal.formula == "sampled":
            raise ValueError("nominal.formula must be sampled only with local")
        if self.nominal is not None and not self.private:
            raise ValueError("nominal must be null in a stage without noise")
        banded = self.noise is not None and self.noise.correlation != "independent"
        if self.clipping and self.clipping.moving and banded:
            raise ValueError(
                "noise.correlation must be 'independent' where clipping.moving is set"
            )
        cap = self.sampling.max_batch_size
        if cap is not None and self.noise is None:
            raise ValueError("sampling must be poisson in a stage without noise")
        if cap is not None and self.noise and self.noise.correlation == "banded":
            raise ValueError(
                "sampling must be poisson when noise.correlation is 'banded': no "
                "guarantee is known for truncated batches with correlated noise"
            )
        relative = self.relative_batch
        largest = relative.at_most if relative else self.expected_batch_size
        if cap is not None and cap < (largest or 1):
            raise ValueError(
                "sampling.max_batch_size must be at least expected_batch_size, or "
                "relative_batch.at_most"
            )
        return self


def _check_local(stage: StageSettings) -> None:
    """Refuse what a stage with forward noise cannot have.

    Raises:
        ValueError: with one fault.
    """
    if stage.noise is not None or stage.trains == "lora" or stage.token_weights:
        raise ValueError(
            "clipping, noise, lora and token_weights must be null beside local: the "
            "noise is in the forward pass, and all of the server's part is trained"
        )
    if stage.view is not View.ORIGINAL or stage.optimizer.schedule != "constant":
        raise ValueError(
            "view must be original and optimizer.schedule constant beside local"
        )
    if stage.epochs != round(stage.epochs):
        raise ValueError(
            "epochs must be a whole number beside local: every sequence takes part "
            "once in each"
        )
    if stage.nominal is not None and stage.nominal.formula != "sampled":
        raise ValueError("nominal.formula must be sampled beside local")


class Recipe(Settings):
    """A system: its stages, in order, and the notion its papers claim."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    title: str
    reference: str = ""
    notion: Notion | None = None
    stages: tuple[StageSettings, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError("stage names must be unique within a recipe")
        return self

    @property
    def private(self: Self) -> bool:
        """Whether any stage adds noise."""
        return any(stage.private for stage in self.stages)

    @property
    def uses_redacted_view(self: Self) -> bool:
        """Whether any stage reads the redacted text."""
        return any(stage.view is View.REDACTED for stage in self.stages)


class StagePlan(Report):
    """A stage with every number that the claim depends on.

    Args:
        num_units: privacy units in the training split, taken as public.
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
        moving = self.settings.clipping.moving
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
            count_share=moving.count_share if moving else 0.0,
            noise_levels=self.noise_levels,
            steps_per_level=math.ceil(self.num_steps / len(self.noise_levels)),
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
        epsilon = renyi_epsilon(
            self.noise_runs(0, self.num_steps),
            sample_rate=self.sample_rate * nominal.rate_factor,
            delta=delta,
            orders=OPACUS_ORDERS if nominal.order is None else (nominal.order,),
        )
        return self.model_copy(update={"nominal_epsilon": epsilon})


class RunPlan(Report):
    """What a run will do and cost, known before any training.

    Args:
        mode: what the target was calibrated to.
        target_epsilon: what was asked; None where noise was given or there is none.
        epsilon: what all noisy stages together will spend, under `relation`, with the
            release of counts if there is one.
        counts_noise_multiplier: of the released counts of entity types; None where
            none are released.
        counts_nominal_epsilon: what that release costs alone, to be added to the
            figures of the stages' papers; None where there is neither.
    """

    recipe: str
    notion: Notion
    relation: NeighboringRelation
    target_epsilon: float | None
    target_delta: float
    mode: Mode = Mode.SOUND
    epsilon: float
    stages: tuple[StagePlan, ...]
    counts_noise_multiplier: float | None = Field(default=None, gt=0)
    counts_nominal_epsilon: float | None = None

    @property
    def nominal_epsilon(self: Self) -> float | None:
        """The papers' figures and that of the release, added as papers do."""
        parts = [stage.nominal_epsilon for stage in self.stages]
        known = [p for p in (*parts, self.counts_nominal_epsilon) if p is not None]
        return sum(known) if known else None


def plan_run(
    recipe: Recipe,
    *,
    num_units: int,
    notion: Notion,
    relation: NeighboringRelation,
    target_epsilon: float | None,
    target_delta: float,
    mode: Mode = Mode.SOUND,
    counts_noise_multiplier: float | None = None,
) -> RunPlan:
    """Fill in every stage's noise so that all noisy stages together meet the target.

    Stages that give a `noise_multiplier` of their own keep it; the others share one
    multiplier, found by root-finding on the composed event.

    Args:
        recipe: the stages.
        num_units: privacy units that will be trained on.
        notion: what the target speaks of, kept for the reader.
        relation: neighbors under which `target_epsilon` must hold.
        target_epsilon: in (0, inf), or None when every noisy stage gives its noise.
        target_delta: in (0, 1 / num_units).
        mode: `paper` calibrates to the sum of what the stages' papers would print, and
            of what a release of counts costs alone, of which the papers do not speak.
        counts_noise_multiplier: of a release of counts that the target must cover too.

    Raises:
        ConfigError: the numbers contradict one another (all problems at once).
        InfeasibleBudgetError: no noise reaches the target; the message has the best.
    """
    _check_plan(recipe, num_units, notion, target_epsilon, target_delta)
    _check_notion(recipe, notion)
    plans = [plan_stage(stage, num_units=num_units) for stage in recipe.stages]
    released = _nominal_release(
        plans, counts_noise_multiplier, delta=target_delta, relation=relation
    )
    plans = [
        _epoch_weighted(plan, target_epsilon=target_epsilon, delta=target_delta)
        for plan in plans
    ]
    if target_epsilon is not None:
        budget = PrivacyBudget(target_epsilon=target_epsilon, target_delta=target_delta)
        if mode is Mode.PAPER:
            plans = _calibrated_as_papers_do(plans, budget, released or 0.0)
        else:
            plans = _calibrated(
                _banded(plans, budget, relation),
                budget,
                relation,
                counts_noise_multiplier,
            )
    return RunPlan(
        recipe=recipe.name,
        notion=notion,
        relation=relation,
        target_epsilon=target_epsilon if recipe.private else None,
        target_delta=target_delta,
        mode=mode,
        epsilon=spent_epsilon(
            plans,
            delta=target_delta,
            relation=relation,
            counts_noise_multiplier=counts_noise_multiplier,
        ),
        counts_noise_multiplier=counts_noise_multiplier,
        counts_nominal_epsilon=released,
        stages=tuple(plan.with_nominal(delta=target_delta) for plan in plans),
    )


def plan_stage(stage: StageSettings, *, num_units: int) -> StagePlan:
    """Derive rate and steps of a stage from the batch size and the epochs.

    Its noise is still open unless the settings give it, and so are its bands.
    """
    num_steps = _num_steps(stage, num_units)
    if stage.local is not None:
        num_steps = round(stage.epochs)
    bands = stage.noise.num_bands if stage.noise else None
    return StagePlan(
        settings=stage,
        num_units=num_units,
        num_steps=num_steps,
        sample_rate=min(1.0, stage.batch_size(num_units) / num_units),
        noise_multiplier=stage.noise.noise_multiplier if stage.noise else None,
        noise_coefficients=band_coefficients(num_bands=bands or 1, num_steps=num_steps),
        noise_levels=_noise_levels(stage, num_steps=num_steps),
    )


def _epoch_weighted(
    plan: StagePlan, *, target_epsilon: float | None, delta: float
) -> StagePlan:
    """Give a local stage EWPBA's shape, which one scalar then scales."""
    local = plan.settings.local
    if local is None or local.step_distance is None or target_epsilon is None:
        return plan
    levels = epoch_shape(
        plan.sampled_cost(delta=delta),
        target_epsilon=target_epsilon,
        num_epochs=plan.num_steps,
        step_distance=local.step_distance,
    )
    return plan.model_copy(update={"noise_levels": levels})


def _check_notion(recipe: Recipe, notion: Notion) -> None:
    """Refuse to call the cost of a forward mechanism by the name of another notion."""
    if notion is Notion.LOCAL or all(s.local is None for s in recipe.stages):
        return
    raise ConfigError(
        [
            Problem(
                path="privacy.notion",
                message=f"must be local for recipe {recipe.name}, got {notion}: labels "
                "are sent in the clear, so that a record has no guarantee.",
                next_step="Set privacy.notion to local, privacy.relation to "
                "replace_one, and gate to classifier_local.",
            )
        ]
    )


def spent_epsilon(
    stages: Sequence[StagePlan],
    *,
    delta: float,
    relation: NeighboringRelation,
    counts_noise_multiplier: float | None = None,
) -> float:
    """Return what noisy stages and released counts spend; infinite without a stage."""
    noisy = [stage.dp_event() for stage in stages if stage.settings.private]
    if not noisy:
        return math.inf
    events = [*noisy, *release_events(counts_noise_multiplier)]
    return epsilon(_compose(events), delta=delta, relation=relation)


def release_events(counts_noise_multiplier: float | None) -> list[dpe.DpEvent]:
    """Return the event of releasing counts of entity types, if they are released."""
    if counts_noise_multiplier is None:
        return []
    return [dpe.GaussianDpEvent(noise_multiplier=counts_noise_multiplier)]


def recalibrated(
    stages: Sequence[StagePlan],
    *,
    budget: PrivacyBudget,
    relation: NeighboringRelation,
    counts_noise_multiplier: float | None = None,
) -> tuple[StagePlan, ...]:
    """Find the noise of planned stages again, for another target; bands stay.

    Stages whose settings give their noise keep it, unless all do.

    Raises:
        InfeasibleBudgetError: no noise reaches the target; the message has the best.
    """
    noisy = [s for s in stages if s.settings.private]
    given = [s for s in noisy if s.settings.noise and s.settings.noise.noise_multiplier]
    kept = given if len(given) < len(noisy) else []
    plans = [
        s if s in kept else s.model_copy(update={"noise_multiplier": None})
        for s in stages
    ]
    return tuple(_calibrated(plans, budget, relation, counts_noise_multiplier))


def _calibrated(
    plans: list[StagePlan],
    budget: PrivacyBudget,
    relation: NeighboringRelation,
    counts_noise_multiplier: float | None = None,
) -> list[StagePlan]:
    """Fill in the multiplier that stages without one of their own share."""
    open_stages = [p for p in plans if _is_open(p)]
    if not open_stages:
        return plans
    fixed = [p.dp_event() for p in plans if p.noise_multiplier]
    fixed += release_events(counts_noise_multiplier)
    multiplier = calibrate_noise_multiplier(
        lambda z: _compose([p.event_at(z) for p in open_stages]),
        budget=budget,
        relation=relation,
        prior=_compose(fixed) if fixed else None,
    )
    return [
        p.model_copy(update={"noise_multiplier": multiplier}) if p in open_stages else p
        for p in plans
    ]


def _calibrated_as_papers_do(
    plans: list[StagePlan], budget: PrivacyBudget, released: float
) -> list[StagePlan]:
    """Fill in the multiplier at which the papers' own figures add up to the target.

    Args:
        plans: the stages.
        budget: the target.
        released: what a release of counts costs alone; it is part of the target.
    """
    noisy = [p for p in plans if p.settings.private]
    problems = [
        Problem(
            path=f"stages.{p.settings.name}.nominal",
            message="must be set in every noisy stage when privacy.mode is paper.",
            next_step="Say which formula the paper uses, or use mode sound.",
        )
        for p in noisy
        if p.settings.nominal is None
    ]
    if problems:
        raise ConfigError(problems)

    def at(multiplier: float) -> list[StagePlan]:
        noise = {"noise_multiplier": multiplier}
        return [p.model_copy(update=noise) if _is_open(p) else p for p in plans]

    def cost(multiplier: float) -> float:
        made = [p.with_nominal(delta=budget.target_delta) for p in at(multiplier)]
        return released + sum(p.nominal_epsilon or 0.0 for p in made)

    if not any(_is_open(p) for p in plans):
        return plans
    return at(find_noise_multiplier(cost, budget.target_epsilon))


def _nominal_release(
    plans: Sequence[StagePlan],
    counts_noise_multiplier: float | None,
    *,
    delta: float,
    relation: NeighboringRelation,
) -> float | None:
    """Return what a release of counts costs alone, where a stage has a paper's figure.

    No paper has a figure for it, so it is the accountant's.
    """
    if not any(plan.settings.nominal for plan in plans):
        return None
    events = release_events(counts_noise_multiplier)
    return epsilon(_compose(events), delta=delta, relation=relation) if events else None


def _banded(
    plans: list[StagePlan], budget: PrivacyBudget, relation: NeighboringRelation
) -> list[StagePlan]:
    """Choose the bands of the only stage that leaves noise and bands open."""
    open_stages = [index for index, p in enumerate(plans) if _is_open(p)]
    if len(open_stages) != 1:
        return plans
    (index,) = open_stages
    stage = plans[index]
    bands = _bands_to_try(stage)

    def with_bands(coefficients: Coefficients) -> list[StagePlan]:
        banded = stage.model_copy(update={"noise_coefficients": coefficients})
        return [*plans[:index], banded, *plans[index + 1 :]]

    def calibrate(coefficients: Coefficients) -> float:
        made = _calibrated(with_bands(coefficients), budget, relation)
        return made[index].noise_multiplier or 0.0

    if not bands:
        return plans
    chosen = choose_banding(bands, num_steps=stage.num_steps, calibrate=calibrate)
    return with_bands(chosen.coefficients)


def _bands_to_try(stage: StagePlan) -> tuple[int, ...]:
    """Candidates where settings leave the bands open, else nothing."""
    noise, is_cut = stage.settings.noise, stage.settings.sampling.max_batch_size
    if noise is None or is_cut or noise.num_bands is not None:
        return ()
    found = candidate_bands(sample_rate=stage.sample_rate, num_steps=stage.num_steps)
    return {"auto": found, "banded": found[1:], "independent": ()}[noise.correlation]


def _is_open(plan: StagePlan) -> bool:
    """Whether a noisy stage waits for its noise."""
    return plan.settings.private and not plan.noise_multiplier


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


def _num_steps(stage: StageSettings, num_units: int) -> int:
    """Return how many batches the epochs are."""
    return max(1, round(stage.epochs * num_units / stage.batch_size(num_units)))


def _check_plan(
    recipe: Recipe,
    num_units: int,
    notion: Notion,
    target_epsilon: float | None,
    target_delta: float,
) -> None:
    """Report everything that makes the numbers impossible."""
    problems = []
    if not 0 < target_delta < 1 / num_units:
        problems.append(
            Problem(
                path="privacy.target_delta",
                message="must be in (0, 1 / number of privacy units) = (0, "
                f"{1 / num_units:.3g}), got target_delta={target_delta:g}.",
                next_step="At 1 / n a mechanism may publish one whole record.",
            )
        )
    given = [s for s in recipe.stages if s.noise and s.noise.noise_multiplier]
    noisy = [s for s in recipe.stages if s.private]
    bare = [s.name for s in recipe.stages if not s.private]
    claims_selective = recipe.notion is Notion.SELECTIVE
    if noisy and bare and claims_selective and notion is Notion.RECORD:
        problems.append(
            Problem(
                path="privacy.notion",
                message=f"must not be record for this recipe: {', '.join(bare)} trains "
                "without noise, so that no target can be met.",
                next_step="Use selective, or a recipe whose stages are all noisy.",
            )
        )
    if noisy and target_epsilon is None and len(given) < len(noisy):
        problems.append(
            Problem(
                path="privacy.target_epsilon",
                message="must be set, because a noisy stage has no noise_multiplier.",
                next_step="Set a target, or noise.noise_multiplier in every stage.",
            )
        )
    if noisy and target_epsilon is not None and len(given) == len(noisy):
        problems.append(
            Problem(
                path="privacy.target_epsilon",
                message="must be null, because every noisy stage gives its noise.",
                next_step="Keep one of target_epsilon and noise_multiplier.",
            )
        )
    problems += [
        Problem(
            path=f"stages.{stage.name}.expected_batch_size",
            message=f"must be at most the number of training units ({num_units}), got "
            f"expected_batch_size={stage.batch_size(num_units)}.",
            next_step="Choose a smaller batch or add data.",
        )
        for stage in recipe.stages
        if stage.batch_size(num_units) > num_units
    ]
    problems += _band_problems(noisy, num_units)
    if problems:
        raise ConfigError(problems)


def _band_problems(noisy: list[StageSettings], num_units: int) -> list[Problem]:
    """Report stages whose noise cannot be banded as they ask."""
    num_open = sum(not (s.noise and s.noise.noise_multiplier) for s in noisy)
    problems = []
    for stage in noisy:
        if stage.noise is None or stage.noise.correlation != "banded":
            continue
        path, bands = f"stages.{stage.name}.noise.num_bands", stage.noise.num_bands
        steps = _num_steps(stage, num_units)
        most = min(steps, num_units // stage.batch_size(num_units))
        if (bands or 2) > most:
            problems.append(
                Problem(
                    path=path,
                    message=f"must be in [2, {most}], the steps and the batches in an "
                    f"epoch, got num_bands={bands}.",
                    next_step="Choose fewer bands, a smaller batch, or "
                    "correlation: independent.",
                )
            )
        elif bands is None and (stage.noise.noise_multiplier or num_open > 1):
            problems.append(
                Problem(
                    path=path,
                    message="must be set unless the stage is the only one whose noise "
                    "is calibrated.",
                    next_step="Set it, for example to 8.",
                )
            )
    return problems


def _compose(events: Sequence[dpe.DpEvent]) -> dpe.DpEvent:
    """Compose events; one alone stays itself."""
    return events[0] if len(events) == 1 else dpe.ComposedDpEvent(list(events))
