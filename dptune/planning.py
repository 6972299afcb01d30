"""What a run will do and cost: the noise of all its stages, found for one target."""

import math
from collections.abc import Sequence
from typing import Self

from dp_accounting import dp_event as dpe
from pydantic import Field

from dptune.accounting.accountants import epsilon
from dptune.accounting.calibration import (
    calibrate_noise_multiplier,
    find_noise_multiplier,
)
from dptune.accounting.certificates import check_certifiable
from dptune.dpsgd.factorization import Coefficients, candidate_bands, choose_banding
from dptune.errors import ConfigError, Problem
from dptune.mechanisms.ewpba import epoch_shape
from dptune.privacy import (
    Mode,
    NeighboringRelation,
    Notion,
    PrivacyBudget,
    UnitsFrom,
)
from dptune.recipes import Recipe, StageSettings
from dptune.results import Report
from dptune.stages import StagePlan, plan_stage, planned_steps


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
        units_noise_multiplier: of the released number of units; None where it was not
            released. The target covers it, papers' figures do not.
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
    units_noise_multiplier: float | None = Field(default=None, gt=0)

    @property
    def releases(self: Self) -> tuple[float, ...]:
        """Noise multipliers of what is released beside the stages."""
        known = (self.counts_noise_multiplier, self.units_noise_multiplier)
        return tuple(multiplier for multiplier in known if multiplier is not None)

    @property
    def num_units(self: Self) -> int:
        """Privacy units in the training split; a stage may see only some of them."""
        return max(stage.num_units for stage in self.stages)

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
    units_from: UnitsFrom = UnitsFrom.EXACT,
    units_noise_multiplier: float | None = None,
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
        units_from: where `num_units` comes from.
        units_noise_multiplier: of the release of `num_units`, if it was released: the
            target covers that too.

    Raises:
        ConfigError: the numbers contradict one another (all problems at once).
        InfeasibleBudgetError: no noise reaches the target; the message has the best.
    """
    _check_plan(recipe, num_units, notion, target_epsilon, target_delta)
    _check_notion(recipe, notion)
    plans = [
        plan_stage(_in_mode(stage, mode), num_units=num_units, units_from=units_from)
        for stage in recipe.stages
    ]
    known = (counts_noise_multiplier, units_noise_multiplier)
    releases = tuple(multiplier for multiplier in known if multiplier is not None)
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
                _banded(plans, budget, relation), budget, relation, releases
            )
    elif recipe.private:
        given = _spending(plans, releases)
        check_certifiable(given, delta=target_delta, relation=relation)
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
            releases=releases,
        ),
        counts_noise_multiplier=counts_noise_multiplier,
        counts_nominal_epsilon=released,
        units_noise_multiplier=units_noise_multiplier,
        stages=tuple(plan.with_nominal(delta=target_delta) for plan in plans),
    )


def _in_mode(stage: StageSettings, mode: Mode) -> StageSettings:
    """Give a stage the form of its mechanism that the mode asks for."""
    if stage.tiers is None or mode is not Mode.PAPER:
        return stage
    tiers = stage.tiers.model_copy(update={"form": "paper"})
    return stage.model_copy(update={"tiers": tiers})


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
    releases: Sequence[float] = (),
) -> float:
    """Return what noisy stages and releases spend; infinite without a stage."""
    if not any(stage.settings.private for stage in stages):
        return math.inf
    return epsilon(_spending(stages, releases), delta=delta, relation=relation)


def _spending(stages: Sequence[StagePlan], releases: Sequence[float]) -> dpe.DpEvent:
    """Compose what noisy stages and releases spend."""
    noisy = [stage.dp_event() for stage in stages if stage.settings.private]
    return _compose([*noisy, *map(release_event, releases)])


def release_event(noise_multiplier: float) -> dpe.DpEvent:
    """Return the event of releasing counts beside the stages."""
    return dpe.GaussianDpEvent(noise_multiplier=noise_multiplier)


def recalibrated(
    stages: Sequence[StagePlan],
    *,
    budget: PrivacyBudget,
    relation: NeighboringRelation,
    releases: Sequence[float] = (),
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
    return tuple(_calibrated(plans, budget, relation, releases))


def _calibrated(
    plans: list[StagePlan],
    budget: PrivacyBudget,
    relation: NeighboringRelation,
    releases: Sequence[float] = (),
) -> list[StagePlan]:
    """Fill in the multiplier that stages without one of their own share."""
    open_stages = [p for p in plans if _is_open(p)]
    if not open_stages:
        return plans
    fixed = [p.dp_event() for p in plans if p.noise_multiplier]
    fixed += map(release_event, releases)
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
    is_nominal = any(plan.settings.nominal for plan in plans)
    if not is_nominal or counts_noise_multiplier is None:
        return None
    event = release_event(counts_noise_multiplier)
    return epsilon(event, delta=delta, relation=relation)


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
    bare = [s.name for s in recipe.stages if not s.private or s.tiers is not None]
    claims_selective = recipe.notion is Notion.SELECTIVE
    if noisy and bare and claims_selective and notion is Notion.RECORD:
        problems.append(
            Problem(
                path="privacy.notion",
                message=f"must not be record for this recipe: {', '.join(bare)} trains "
                "without noise, in whole or in part, so that no target can be met.",
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
    problems += _batch_problems(recipe, num_units)
    problems += _band_problems(noisy, num_units)
    problems += _action_problems(noisy, num_units)
    if problems:
        raise ConfigError(problems)


def _batch_problems(recipe: Recipe, num_units: int) -> list[Problem]:
    """Report batches that are larger than what a stage trains on."""
    trained = [(stage, stage.trained_units(num_units)) for stage in recipe.stages]
    return [
        Problem(
            path=f"stages.{stage.name}.expected_batch_size",
            message=f"must be at most the number of training units ({units}), got "
            f"expected_batch_size={stage.batch_size(units)}.",
            next_step="Choose a smaller batch or add data.",
        )
        for stage, units in trained
        if stage.batch_size(units) > units
    ]


def _band_problems(noisy: list[StageSettings], num_units: int) -> list[Problem]:
    """Report stages whose noise cannot be banded as they ask."""
    num_open = sum(not (s.noise and s.noise.noise_multiplier) for s in noisy)
    problems = []
    for stage in noisy:
        if stage.noise is None or stage.noise.correlation != "banded":
            continue
        path, bands = f"stages.{stage.name}.noise.num_bands", stage.noise.num_bands
        steps = planned_steps(stage, num_units)
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


def _action_problems(noisy: list[StageSettings], num_units: int) -> list[Problem]:
    """Report stages whose controller would hardly act."""
    problems = []
    for stage in noisy:
        if stage.controller is None:
            continue
        plan = plan_stage(stage, num_units=num_units)
        least, path = stage.controller.min_actions, f"stages.{stage.name}"
        if plan.num_actions >= least:
            continue
        longest = (plan.num_steps - plan.warmup_steps) // least
        shorten = f"Set {path}.controller.interval to at most {longest}, or to null."
        lengthen = (
            f"Raise {path}.epochs, or lower {path}.expected_batch_size or "
            f"{path}.controller.warmup_steps: there are {plan.num_steps} steps."
        )
        problems.append(
            Problem(
                path=f"{path}.controller.interval",
                message=f"must let the controller act at least {least} times after its "
                f"warm-up of {plan.warmup_steps} steps, got {plan.num_actions} actions "
                f"at interval={plan.interval}.",
                next_step=shorten if longest >= 1 else lengthen,
            )
        )
    return problems


def _compose(events: Sequence[dpe.DpEvent]) -> dpe.DpEvent:
    """Compose events; one alone stays itself."""
    return events[0] if len(events) == 1 else dpe.ComposedDpEvent(list(events))
