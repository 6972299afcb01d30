"""What a planned run costs, and what other choices would cost, before it trains.

Every figure is asked of a `StagePlan`, the object that would train, so that cyclic and
truncated sampling, banded noise and other noisy stages are in it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dptune.accounting.assumptions import weakens
from dptune.accounting.certificates import Certificate
from dptune.accounting.ledger import PrivacyLedger
from dptune.dpsgd.factorization import (
    INDEPENDENT,
    band_coefficients,
    prefix_sum_error,
    step_error,
)
from dptune.errors import InfeasibleBudgetError
from dptune.planning import RunPlan, recalibrated, spent_epsilon
from dptune.privacy import NeighboringRelation, Notion, PrivacyBudget
from dptune.reports.formatting import count, percent
from dptune.results import (
    AuditPower,
    BatchChoice,
    Calibration,
    EpsilonGrid,
    NoiseCost,
    Promise,
    StageCost,
    TargetChoice,
    WhatIf,
)
from dptune.stages import StagePlan, plan_stage

_TARGETS: Final = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
_NOISE_FACTORS: Final = (0.5, 0.75, 1.0, 1.5, 2.0)
_NEARLY_BEST: Final = 0.9
_ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE: Final = NeighboringRelation.REPLACE_ONE

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _Varied:
    """A plan and the place of the one stage that is varied."""

    plan: RunPlan
    place: int

    @property
    def stage(self) -> StagePlan:
        """The stage as planned."""
        return self.plan.stages[self.place]

    def stages(self, other: StagePlan) -> tuple[StagePlan, ...]:
        """Put another stage into its place."""
        before, after = self.plan.stages[: self.place], self.plan.stages[self.place :]
        return (*before, other, *after[1:])

    def epsilon(self, other: StagePlan) -> float:
        """Return what the run would spend with another stage in its place."""
        return spent_epsilon(
            self.stages(other),
            delta=self.plan.target_delta,
            relation=self.plan.relation,
            releases=self.plan.releases,
        )

    def needed(
        self, other: StagePlan, *, target: float, relation: NeighboringRelation
    ) -> NoiseCost | None:
        """Return the noise that a target asks of a stage; None if none is enough."""
        budget = PrivacyBudget(
            target_epsilon=target, target_delta=self.plan.target_delta
        )
        try:
            found = recalibrated(
                self.stages(other),
                budget=budget,
                relation=relation,
                releases=self.plan.releases,
            )
        except InfeasibleBudgetError:
            return None
        return noise_cost(found[self.place])


def calibration(
    plan: RunPlan,
    *,
    config: str,
    ledger: PrivacyLedger,
    power: AuditPower | None = None,
    on_progress: Progress = lambda _: None,
) -> Calibration:
    """Describe a plan, what it promises under each relation, and its neighbours.

    Everything is computed from public numbers; nothing is spent.

    Args:
        plan: with its noise filled in.
        config: name of the configuration.
        ledger: that the run leaves if all goes as planned.
        power: of the planned audit.
        on_progress: told what is computed next.
    """
    return Calibration(
        config=config,
        recipe=plan.recipe,
        notion=plan.notion,
        relation=plan.relation,
        target_epsilon=plan.target_epsilon,
        target_delta=plan.target_delta,
        epsilon=plan.epsilon,
        num_units=plan.num_units,
        units_from=plan.stages[0].units_from,
        stages=tuple(_stage_cost(stage) for stage in plan.stages),
        promises=promises(plan, ledger),
        what_if=what_if(plan, on_progress=on_progress),
        power=power,
    )


def noise_cost(stage: StagePlan) -> NoiseCost | None:
    """Return the noise of a stage in the mean of its steps; None where it has none.

    Noise on hidden states is not in a mean of gradients.
    """
    if not stage.noise_multiplier or stage.settings.local is not None:
        return None
    bands, steps = stage.noise_coefficients, stage.num_steps
    per_unit = stage.noise_multiplier / stage.expected_batch_size
    alone = prefix_sum_error(INDEPENDENT, num_steps=steps)
    run_noise = per_unit * prefix_sum_error(bands, num_steps=steps) / alone
    return NoiseCost(
        noise_multiplier=stage.noise_multiplier,
        num_bands=stage.num_bands,
        step_noise=per_unit * step_error(bands, num_steps=steps),
        run_noise=run_noise,
        signal_to_noise=math.sqrt(steps) / run_noise,
    )


def promises(plan: RunPlan, ledger: PrivacyLedger) -> tuple[Promise, ...]:
    """Return what the whole run would promise, under both relations and notions.

    Read off the certificates of the planned ledger, so that a promise has the status
    that the claim will have. Forward noise leaves labels in the clear: no record
    promise, but a local one.

    Args:
        plan: of the run.
        ledger: that it leaves if all goes as planned.
    """
    kinds = [(Notion.RECORD, _ADD), (Notion.RECORD, _REPLACE)]
    if any(stage.settings.local is not None for stage in plan.stages):
        kinds = [(Notion.LOCAL, _REPLACE)]
    kinds.append((Notion.SELECTIVE, _REPLACE))
    return tuple(
        _promise(plan, ledger.certificate(notion, delta=plan.target_delta, relation=r))
        for notion, r in kinds
    )


def what_if(plan: RunPlan, *, on_progress: Progress = lambda _: None) -> WhatIf | None:
    """Vary targets, batch size, epochs and noise of the noisy stage with most steps.

    None without such a stage, and for forward noise, whose cost no batch changes.
    """
    noisy = [i for i, stage in enumerate(plan.stages) if stage.settings.private]
    local = any(stage.settings.local is not None for stage in plan.stages)
    if not noisy or local:
        return None
    place = max(noisy, key=lambda i: plan.stages[i].num_steps)
    varied = _Varied(plan=plan, place=place)
    on_progress("noise for other targets")
    targets = _targets(varied)
    on_progress("noise for other batch sizes")
    batches = _batches(varied)
    on_progress("epsilon for other batch sizes, epochs and noise")
    return WhatIf(
        stage=varied.stage.settings.name,
        targets=targets,
        batches=batches,
        by_batch=_by_batch(varied),
        by_noise=_by_noise(varied),
        hint=_hint(batches),
    )


def changed(
    stage: StagePlan, *, batch_size: int | None = None, epochs: float | None = None
) -> StagePlan:
    """Plan a stage again with another batch size or other epochs, at the same noise.

    A cap keeps its ratio to the batch. Bands stay as far as groups fill a batch and the
    run is that long.
    """
    size = batch_size or stage.expected_batch_size
    cap = stage.settings.sampling.max_batch_size
    if cap is not None:
        cap = math.ceil(cap * size / stage.expected_batch_size)
    sampling = stage.settings.sampling.model_copy(update={"max_batch_size": cap})
    noise = stage.settings.noise
    if noise is not None:  # the number of bands may not fit
        noise = noise.model_copy(update={"num_bands": None})
    settings = stage.settings.model_copy(
        update={
            "expected_batch_size": size,
            "relative_batch": None,
            "epochs": epochs or stage.settings.epochs,
            "sampling": sampling,
            "noise": noise,
        }
    )
    made = plan_stage(settings, num_units=stage.num_units, units_from=stage.units_from)
    fit = min(stage.num_bands, stage.num_units // size, made.num_steps)
    return made.model_copy(
        update={
            "settings": settings.model_copy(update={"noise": stage.settings.noise}),
            "noise_multiplier": stage.noise_multiplier,
            "noise_coefficients": band_coefficients(
                num_bands=max(1, fit), num_steps=made.num_steps
            ),
        }
    )


def _stage_cost(stage: StagePlan) -> StageCost:
    """Return the facts of one stage."""
    settings = stage.settings
    return StageCost(
        stage=settings.name,
        view=settings.view.value,
        sampling=stage.sampling.value if settings.noise else "shuffled",
        epochs=settings.epochs,
        num_steps=stage.num_steps,
        expected_batch_size=stage.expected_batch_size,
        max_batch_size=settings.sampling.max_batch_size,
        sample_rate=stage.sample_rate,
        max_grad_norm=settings.clipping.max_grad_norm if settings.clipping else None,
        noise=noise_cost(stage),
    )


def _promise(plan: RunPlan, certificate: Certificate) -> Promise:
    """Return one promise; without any noisy stage the noisy part costs nothing."""
    noisy = None
    if any(stage.settings.private for stage in plan.stages):
        noisy = spent_epsilon(
            plan.stages,
            delta=plan.target_delta,
            relation=certificate.relation,
            releases=plan.releases,
        )
    kind = (certificate.notion, certificate.relation)
    return Promise(
        notion=certificate.notion,
        relation=certificate.relation,
        noisy_epsilon=noisy,
        epsilon=certificate.epsilon,
        status=certificate.status,
        assumptions=tuple(
            a.value for a in certificate.assumptions if weakens(a, *kind)
        ),
        is_target=kind == (plan.notion, plan.relation),
    )


def _targets(varied: _Varied) -> tuple[TargetChoice, ...]:
    """Ask every target of the planned stage, under both relations."""
    planned = varied.plan.target_epsilon
    return tuple(
        TargetChoice(
            target_epsilon=target,
            is_planned=target == planned,
            add_or_remove=varied.needed(varied.stage, target=target, relation=_ADD),
            replace=varied.needed(varied.stage, target=target, relation=_REPLACE),
        )
        for target in sorted({*_TARGETS, *((planned,) if planned else ())})
    )


def _batches(varied: _Varied) -> tuple[BatchChoice, ...]:
    """Ask the planned target of other batch sizes; none where the noise is given."""
    target, relation = varied.plan.target_epsilon, varied.plan.relation
    if target is None:
        return ()
    return tuple(
        BatchChoice(
            expected_batch_size=size,
            num_steps=other.num_steps,
            is_planned=size == varied.stage.expected_batch_size,
            noise=varied.needed(other, target=target, relation=relation),
        )
        for size in _batch_sizes(varied.stage)
        for other in (changed(varied.stage, batch_size=size),)
    )


def _by_batch(varied: _Varied) -> EpsilonGrid:
    """Tabulate epsilon over batch sizes and epochs, at the planned noise."""
    sizes = _batch_sizes(varied.stage)
    rows = [
        [changed(varied.stage, batch_size=size, epochs=e) for e in _epochs(varied)]
        for size in sizes
    ]
    planned = sizes.index(varied.stage.expected_batch_size)
    return _grid(varied, values=sizes, rows=rows, planned=planned)


def _by_noise(varied: _Varied) -> EpsilonGrid:
    """Tabulate epsilon over noise multipliers and epochs, at the planned batch."""
    base = varied.stage.noise_multiplier or 0.0
    noises = [base * factor for factor in _NOISE_FACTORS]
    columns = [changed(varied.stage, epochs=e) for e in _epochs(varied)]
    rows = [
        [c.model_copy(update={"noise_multiplier": noise}) for c in columns]
        for noise in noises
    ]
    return _grid(varied, values=noises, rows=rows, planned=noises.index(base))


def _grid(
    varied: _Varied,
    *,
    values: Sequence[float],
    rows: Sequence[Sequence[StagePlan]],
    planned: int,
) -> EpsilonGrid:
    """Ask every stage for its epsilon."""
    epochs = _epochs(varied)
    return EpsilonGrid(
        rows=tuple(float(value) for value in values),
        epochs=epochs,
        num_steps=tuple(tuple(s.num_steps for s in row) for row in rows),
        epsilon=tuple(tuple(varied.epsilon(s) for s in row) for row in rows),
        planned=(planned, epochs.index(varied.stage.settings.epochs)),
    )


def _batch_sizes(stage: StagePlan) -> tuple[int, ...]:
    """Return the planned batch size and others around it, up to all units."""
    size = stage.expected_batch_size
    near = {min(stage.num_units, max(1, round(size * f))) for f in _FACTORS}
    return tuple(sorted(near))


def _epochs(varied: _Varied) -> tuple[float, ...]:
    """Return the planned epochs and others around them."""
    return tuple(varied.stage.settings.epochs * factor for factor in _FACTORS)


def _hint(batches: Sequence[BatchChoice]) -> str:
    """Say which batch is large enough: the smallest that is nearly the best."""
    ratios = {
        b.expected_batch_size: b.noise.signal_to_noise for b in batches if b.noise
    }
    planned = next((b.expected_batch_size for b in batches if b.is_planned), None)
    if planned not in ratios:
        return ""
    best = max(ratios.values())
    enough = min(s for s, ratio in ratios.items() if ratio >= _NEARLY_BEST * best)
    if enough > planned:
        gain = percent(ratios[enough] / ratios[planned] - 1, digits=2)
        return (
            f"A batch of {count(enough)} instead of {count(planned)} would raise the "
            f"signal-to-noise of the run by {gain}, at the same epsilon, the same "
            "epochs and the same work. It takes fewer steps: raise the learning rate "
            "or the epochs."
        )
    part = percent(ratios[planned] / best, digits=2)
    text = (
        f"The planned batch of {count(planned)} has {part} of the best "
        "signal-to-noise in the table."
    )
    if enough < planned:
        text += (
            f" A batch of {count(enough)} has nearly as much, in more and noisier "
            "steps, which ask for a smaller learning rate."
        )
    return text
