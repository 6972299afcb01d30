"""What a comparison found: one result for each cell, and what tables make of them.

A single training is a comparison of one cell, the quickstart one of two.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Self

from pydantic import Field, model_validator

from dptune.accounting.certificates import Certificate
from dptune.gates.decision import GateDecision
from dptune.reports.card.statements import PrivacyCard, exposure_means
from dptune.reports.formatting import number
from dptune.results import (
    ExposureReport,
    Interval,
    MembershipReport,
    Report,
    SamplesReport,
    StageReport,
    TracePoint,
    UtilityReport,
)
from dptune.statistics import paired_bootstrap_upper


class StageUsage(Report):
    """What one stage took.

    Args:
        peak_memory_bytes: above what the process held before; None where the platform
            does not tell, or the stage was trained by an earlier version.
    """

    stage: str
    num_steps: int
    seconds: float
    peak_memory_bytes: int | None = None


class CellResult(Report):
    """What one training of a comparison came to.

    Args:
        label, target_epsilon, seed: which cell it is.
        recipe: name of the recipe.
        notion, relation: what its budget speaks of.
        failure: why there is no result; empty where there is one.
        version: as registered; empty where the model is not.
        decision: what the gate said or, of a model that is not registered, would say;
            None in results from before it was kept.
        card: claims, and the outcome of the gate.
        nominal_interval: the papers' figure at both ends of the missing rate's
            interval, where a stage of the recipe counts on that rate.
        stages: in the order of training.
        trace: measurements on the way.
        samples: completions to look at; None in results from before.
    """

    label: str
    recipe: str
    target_epsilon: float | None
    seed: int
    notion: str = ""
    relation: str = ""
    failure: str = ""
    version: str = ""
    utility: UtilityReport | None = None
    exposure: ExposureReport | None = None
    membership: MembershipReport | None = None
    decision: GateDecision | None = None
    card: PrivacyCard | None = None
    nominal_interval: Interval | None = None
    stages: tuple[StageUsage, ...] = ()
    trace: tuple[TracePoint, ...] = ()
    samples: SamplesReport | None = None

    @property
    def title(self: Self) -> str:
        """Recipe and budget."""
        return _title(self.label, self.target_epsilon)

    @property
    def name(self: Self) -> str:
        """Recipe, budget and seed."""
        return f"{self.title}, seed {self.seed}"

    @property
    def seconds(self: Self) -> float | None:
        """Time in training steps."""
        return sum(s.seconds for s in self.stages) if self.stages else None

    @property
    def peak_memory_bytes(self: Self) -> int | None:
        """Most memory of any stage, if all were measured."""
        peaks = [s.peak_memory_bytes for s in self.stages]
        known = [p for p in peaks if p is not None]
        return max(known) if known and len(known) == len(peaks) else None

    @property
    def measured(self: Self) -> ExposureReport | None:
        """Exposure, where there was something to measure."""
        found = self.exposure
        return None if found is None or found.not_measurable else found

    @property
    def outcome(self: Self) -> str:
        """What the gate said; empty where nobody asked."""
        if self.decision is not None:
            return self.decision.outcome.value
        return self.card.gate.outcome.value if self.card and self.card.gate else ""

    @property
    def claims(self: Self) -> tuple[Certificate, ...]:
        """All claims on the card."""
        return self.card.certificates if self.card else ()

    @property
    def certificate(self: Self) -> Certificate | None:
        """The claim that the budget speaks of."""
        wanted = (self.notion, self.relation)
        return next((c for c in self.claims if (c.notion, c.relation) == wanted), None)

    @property
    def nominal_epsilon(self: Self) -> float | None:
        """What the papers' formulas say."""
        found = [c.nominal_epsilon for c in self.claims]
        return max((e for e in found if e is not None), default=None)

    def with_stages(self: Self, reports: Iterable[StageReport]) -> Self:
        """Return it with what its stages took, and what was measured on the way.

        Args:
            reports: of its stages, in the order of training.
        """
        stages = tuple(reports)
        usage = tuple(
            StageUsage(
                stage=report.stage,
                num_steps=report.num_steps,
                seconds=report.seconds,
                peak_memory_bytes=report.peak_memory_bytes,
            )
            for report in stages
        )
        trace = tuple(point for report in stages for point in report.trace)
        return self.model_copy(update={"stages": usage, "trace": trace})


class ComparisonReport(Report):
    """All cells of a comparison, finished or failed.

    Args:
        baseline: label that time and memory are relative to.
        reference: label that the others are paired with.
        total_epsilon: of all cells together, under the base's notion; None where it is
            infinite, as with a cell that trains on the original without noise.
        private_epsilon: of the cells with noise together; None where it is infinite.
    """

    name: str
    title: str
    intro: str = ""
    baseline: str | None = None
    reference: str | None = None
    cells: tuple[CellResult, ...] = Field(min_length=1)
    total_epsilon: float | None = None
    private_epsilon: float | None = None

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        places = [(c.label, c.target_epsilon, c.seed) for c in self.cells]
        if len(set(places)) < len(places):
            raise ValueError("cells must differ in label, budget or seed")
        return self

    @property
    def finished(self: Self) -> tuple[CellResult, ...]:
        """Cells with a result."""
        return tuple(cell for cell in self.cells if not cell.failure)

    def without_samples(self: Self) -> Self:
        """Leave completions out, for places that hold no text."""
        cells = (cell.model_copy(update={"samples": None}) for cell in self.cells)
        return self.model_copy(update={"cells": tuple(cells)})

    @property
    def failed(self: Self) -> tuple[CellResult, ...]:
        """Cells without."""
        return tuple(cell for cell in self.cells if cell.failure)


class Spread(Report):
    """Mean over seeds.

    Args:
        std: sample standard deviation (n - 1); None for a single seed.
    """

    mean: float
    std: float | None
    count: int


class ComparisonRow(Report):
    """One recipe at one budget, over its seeds. None is what was not measured.

    Args:
        accuracy: of a classifier.
        next_token_accuracy: of a language model.
        exposure, held_out_exposure, base_exposure: mean bits of planted canaries, of
            controls, and of the planted ones under the base model.
        exposure_p_value: of planted canaries against chance; the smallest among the
            seeds, times their number (Bonferroni).
        membership, blind: true positives of the strongest attack, and of one that never
            asks the model, at `low_fpr`; their areas under the curve beside them.
        certificate: that with the largest epsilon among the seeds.
        claims: of every kind the one with the largest epsilon among the seeds.
        nominal_epsilon: the largest among the seeds.
        cells: the seeds that were finished.
        relative_time, relative_memory: to the baseline.
    """

    label: str
    recipe: str
    target_epsilon: float | None
    num_failed: int = 0
    perplexity: Spread | None = None
    accuracy: Spread | None = None
    next_token_accuracy: Spread | None = None
    exposure: Spread | None = None
    held_out_exposure: Spread | None = None
    base_exposure: Spread | None = None
    exposure_p_value: float | None = None
    membership: Spread | None = None
    membership_auc: Spread | None = None
    blind: Spread | None = None
    blind_auc: Spread | None = None
    low_fpr: float | None = None
    certificate: Certificate | None = None
    claims: tuple[Certificate, ...] = ()
    nominal_epsilon: float | None = None
    nominal_interval: Interval | None = None
    cells: tuple[CellResult, ...] = ()
    outcomes: tuple[str, ...] = ()
    seconds: Spread | None = None
    relative_time: float | None = None
    relative_memory: float | None = None

    @property
    def title(self: Self) -> str:
        """Recipe and budget."""
        return _title(self.label, self.target_epsilon)

    @property
    def utility(self: Self) -> Spread | None:
        """What the recipe is good for."""
        return self.accuracy or self.perplexity


class PairedRow(Report):
    """One recipe beside the reference at one budget, on the same records and seeds.

    Args:
        change: nats per token more than the reference (a negative one is better), for
            each shared seed; of a classifier, nats per record.
        interval: of the mean change, from records resampled in pairs; says nothing of
            the spread over seeds.
        beyond_spread: whether the means lie further apart than both standard deviations
            together; None with fewer than two seeds.
    """

    label: str
    reference: str
    target_epsilon: float
    change: Spread
    interval: Interval
    beyond_spread: bool | None


def finite(value: float) -> float | None:
    """Return None for what has no end."""
    return value if math.isfinite(value) else None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and sample standard deviation of what was measured.

    A NaN stays NaN.

    >>> spread([1.0, None, 3.0])
    Spread(schema_version=1, mean=2.0, std=1.4142135623730951, count=2)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(math.isfinite, known)):
        return Spread(mean=math.fsum(known) / len(known), std=None, count=len(known))
    std = stdev(known) if len(known) > 1 else None
    return Spread(mean=fmean(known), std=std, count=len(known))


def comparison_rows(report: ComparisonReport) -> tuple[ComparisonRow, ...]:
    """Return a row for every recipe and budget, in the order of the cells."""
    base = [c for c in report.finished if c.label == report.baseline]
    time = spread(c.seconds for c in base)
    memory = spread(c.peak_memory_bytes for c in base)
    return tuple(
        _row(cells, base_time=time, base_memory=memory)
        for cells in _groups(report.cells).values()
    )


def paired_rows(report: ComparisonReport) -> tuple[PairedRow, ...]:
    """Pair every recipe with the reference, at each budget that both have.

    A budget of another claim is another budget, whatever its figure.
    """
    groups = _groups(report.finished)
    rows = []
    for (label, budget), cells in groups.items():
        others = groups.get((str(report.reference), budget), [])
        if label == report.reference or budget is None or not others:
            continue
        row = _paired(cells, others, budget)
        rows += [row] if row else []
    return tuple(rows)


def _title(label: str, budget: float | None) -> str:
    """Name recipe and budget."""
    return label if budget is None else f"{label}, ε {number(budget)}"


def _groups(
    cells: Sequence[CellResult],
) -> dict[tuple[str, float | None], list[CellResult]]:
    """Collect the seeds of each recipe and budget: recipe by recipe, then by budget."""
    labels = list(dict.fromkeys(c.label for c in cells))
    found: dict[tuple[str, float | None], list[CellResult]] = {}
    for cell in sorted(
        cells, key=lambda c: (labels.index(c.label), c.target_epsilon or 0.0)
    ):
        found.setdefault((cell.label, cell.target_epsilon), []).append(cell)
    return found


def _row(
    cells: Sequence[CellResult], *, base_time: Spread | None, base_memory: Spread | None
) -> ComparisonRow:
    """Sum the seeds of one recipe and budget up."""
    done = [cell for cell in cells if not cell.failure]
    utilities = [c.utility for c in done if c.utility]
    classifies = any(u.accuracy is not None for u in utilities)
    exposures = [exposure_means(c.measured) for c in done if c.measured]
    strongest = [c.membership.strongest() for c in done if c.membership]
    blind = [c.membership.blind for c in done if c.membership]
    claims: dict[str, Certificate] = {}
    for claim in (claim for cell in done for claim in cell.claims):
        worst = claims.setdefault(claim.label, claim)
        claims[claim.label] = max(worst, claim, key=lambda c: c.epsilon)
    own = [c.certificate for c in done if c.certificate]
    p_values = [m.p_value for m in exposures if m.p_value is not None]
    nominal = [c.nominal_epsilon for c in done if c.nominal_epsilon is not None]
    seconds = spread(c.seconds for c in done)
    memory = spread(c.peak_memory_bytes for c in done)
    intervals = (c.nominal_interval for c in done if c.nominal_interval)
    return ComparisonRow(
        label=cells[0].label,
        recipe=cells[0].recipe,
        target_epsilon=cells[0].target_epsilon,
        num_failed=len(cells) - len(done),
        perplexity=None if classifies else spread(u.perplexity for u in utilities),
        accuracy=spread(u.accuracy for u in utilities),
        next_token_accuracy=spread(u.token_accuracy for u in utilities),
        exposure=spread(m.planted for m in exposures),
        held_out_exposure=spread(m.held_out for m in exposures),
        base_exposure=spread(m.base for m in exposures),
        exposure_p_value=min(1.0, len(p_values) * min(p_values)) if p_values else None,
        membership=spread(s.tpr_at_low_fpr for s in strongest),
        membership_auc=spread(s.auc for s in strongest),
        blind=spread(s.tpr_at_low_fpr for s in blind),
        blind_auc=spread(s.auc for s in blind),
        low_fpr=strongest[0].low_fpr if strongest else None,
        certificate=max(own, key=lambda c: c.epsilon, default=None),
        claims=tuple(claims.values()),
        nominal_epsilon=max(nominal, default=None),
        nominal_interval=next(intervals, None),
        cells=tuple(done),
        outcomes=tuple(c.outcome for c in done if c.outcome),
        seconds=seconds,
        relative_time=_ratio(seconds, base_time),
        relative_memory=_ratio(memory, base_memory),
    )


def _ratio(value: Spread | None, base: Spread | None) -> float | None:
    """Divide means, where both were measured."""
    return value.mean / base.mean if value and base and base.mean > 0 else None


def _paired(
    cells: Sequence[CellResult], others: Sequence[CellResult], budget: float
) -> PairedRow | None:
    """Compare two recipes on the seeds and records that they share."""
    mine = {c.seed: c.utility for c in cells if c.utility}
    theirs = {c.seed: c.utility for c in others if c.utility}
    if (cells[0].notion, cells[0].relation) != (others[0].notion, others[0].relation):
        return None
    shared = [
        (mine[seed], theirs[seed])
        for seed in sorted(mine.keys() & theirs.keys())
        if mine[seed].record_tokens == theirs[seed].record_tokens
    ]
    change = spread(a.nll_per_token - b.nll_per_token for a, b in shared)
    if change is None:
        return None
    sides = list(zip(*shared, strict=True))
    tokens, units = shared[0][0].record_tokens, shared[0][0].record_units
    a, b = (  # each record's loss, averaged over seeds
        [fmean(one) for one in zip(*(u.record_nll for u in side), strict=True)]
        for side in sides
    )
    spreads = [spread(u.nll_per_token for u in side) for side in sides]
    known = [s.std for s in spreads if s and s.std is not None]
    return PairedRow(
        label=cells[0].label,
        reference=others[0].label,
        target_epsilon=budget,
        change=change,
        interval=Interval(
            low=-paired_bootstrap_upper(a, b, tokens, units=units, confidence=0.975),
            high=paired_bootstrap_upper(b, a, tokens, units=units, confidence=0.975),
            confidence=0.95,
        ),
        beyond_spread=abs(change.mean) > sum(known) if len(known) == 2 else None,
    )
