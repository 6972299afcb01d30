"""Does one step of the engine do what its event says? Measured, not read.

The claim of a stage is a handful of numbers: sample rate, noise multiplier, C, divisor.
Everything else (clipping, noise, sampling) is asked of the running engine, on recorded
data, through the very functions that train. A check errs on a sound engine with
probability 1e-6; what each would miss is in `docs/AUDITS.md`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import dp_accounting
import numpy as np
import torch
from dp_accounting import DpEvent
from scipy import stats
from torch import Tensor, nn

from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.audits.step_releases import last_release, releases
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import RecordLoss
from dptune.dpsgd.moving_clip import StepFigures
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import SamplingKind, UnitIndices, sampling_generator

FALSE_ALARM_RATE: Final = 1e-6
_LOUD: Final = 1e4
_ROUNDING: Final = 1e-3
_CELLS: Final = 20_000_000
_MIN_STEPS, _MAX_STEPS = 50, 2_000
_NOISE_STEPS: Final = 6
_FEW_STEPS: Final = 2
_MANY_PARAMETERS: Final = 10_000_000
_COMPANY: Final = 4


@dataclass(frozen=True, kw_only=True)
class LoudLoss:
    """The record loss times a constant, so that every gradient has to be clipped."""

    loss: RecordLoss
    factor: float = _LOUD

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return losses of rows, `(rows,)`."""
        return self.loss(model, batch) * self.factor

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Return what the loss itself would, times the constant."""
        return self.loss.total_nll(losses, batch)


@dataclass(frozen=True)
class Still:
    """A rule that leaves the clip norm where it is and keeps the noisy counts.

    Nobody counts, so that what comes back is noise alone.

    Args:
        seen: noisy counts of every step.
    """

    seen: list[float] = field(default_factory=list, compare=False)
    name: str = "still"
    num_counts: int = 1000

    def counts(self, norms: Tensor, *, max_norm: float) -> Tensor:  # noqa: ARG002 - protocol
        """Return zeros."""
        return norms.new_zeros(len(norms), self.num_counts)

    def next_norm(self, counts: Sequence[float], figures: StepFigures) -> float:
        """Keep the counts, and the clip norm."""
        self.seen.extend(counts)
        return figures.max_grad_norm


def check_sensitivity(
    model: nn.Module, plan: GradientPlan, feed: Feed, *, units: Sequence[int]
) -> StepCheck:
    """Move one unit in and out of a batch: the released sum may move by C at most.

    Where units are parts, it may move by the share of C that the plan gives their kind.

    Both releases have the same noise, which cancels. The units' losses are taken as
    they are and ten thousand times as large, so that a missing clip cannot hide behind
    small gradients. A transform is led away from its start by some steps on the same
    batch, with the same noise; the last step is compared in the space that the releases
    so far determine.

    Args:
        model: on the feed's device.
        plan: the claim; only its numbers are believed.
        feed: recorded data, at least one unit besides those in `units`.
        units: to be moved, one at a time.
    """
    others = [i for i in range(feed.data.num_units) if i not in set(units)]
    batch = np.array(others[:_COMPANY])
    noised = replace(feed.data, unnoised=None)  # its loud rest would drown the move
    worst = 0.0
    for loss in (feed.record_loss, LoudLoss(loss=feed.record_loss)):
        shouted = replace(feed, record_loss=loss, data=noised)
        without = last_release(model, plan, shouted, batch, last=batch)
        for unit in units:
            joined = np.sort(np.append(batch, unit))
            moved = last_release(model, plan, shouted, batch, last=joined) - without
            size = float(torch.linalg.vector_norm(moved.double()))
            worst = max(
                worst, size * plan.expected_batch_size / _share(plan, feed.data, unit)
            )
    limit = plan.max_grad_norm * (1 + _ROUNDING)
    return StepCheck(
        name="sensitivity",
        passed=worst <= limit,
        measured=worst,
        limit=limit,
        detail=f"{len(units)} units moved, as they are and {_LOUD:g} times as loud",
    )


def check_noise(model: nn.Module, plan: GradientPlan, feed: Feed) -> list[StepCheck]:
    """Release the same batch twice with secret noise: only the noise differs.

    The difference, taken back through the bands, must be independent and of variance
    2 (noise multiplier * C)^2: in all entries, in every parameter, and from one step to
    the next. Where the clip norm moves by noisy counts, it is held still: gradients and
    counts must have the noise of their shares. Where gradients are transformed, steps
    after the first draw nobody, so that only noise is left, and it is looked at in the
    space that the releases so far determine.
    """
    still = Still()
    if plan.norm_rule is not None:
        plan = replace(plan, norm_rule=still)
    batch = np.arange(min(2, feed.data.num_units))
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    steps = _NOISE_STEPS if sum(sizes) < _MANY_PARAMETERS else _FEW_STEPS
    later = batch if plan.transform is None else batch[:0]
    first, second = (
        releases(model, plan, feed, [batch, *[later] * (steps - 1)]) for _ in range(2)
    )
    multipliers = torch.tensor([_multiplier(plan, step) for step in range(steps)])
    if not (multipliers > 0).all():
        return [StepCheck.failed("noise", "The plan has no noise at all.")]
    multipliers /= math.sqrt(1 - plan.count_share)
    scale = plan.expected_batch_size / (math.sqrt(2) * plan.max_grad_norm)
    standard = (first - second) * (scale / multipliers.to(first.device))[:, None]
    whole = _unbanded(standard, plan)
    parts = torch.split(whole, sizes, dim=1)
    return [
        _variance_check("noise_variance", [whole]),
        _variance_check("noise_variance_by_parameter", list(parts)),
        _correlation_check(whole),
        *_count_checks(still, plan),
    ]


def check_sampling(plan: GradientPlan, *, num_units: int) -> list[StepCheck]:
    """Draw many steps: who joins must follow the law that was accounted."""
    bands = len(plan.noise_coefficients)
    turns = max(_MIN_STEPS, min(_MAX_STEPS, _CELLS // num_units)) // bands
    steps = max(1, turns) * bands  # every group has as many turns
    sampler, generator = plan.sampler(num_units), sampling_generator()
    drawn = [sampler.sample(generator) for _ in range(steps)]
    checks = [_distinct_check(drawn, num_units)]
    if plan.sampling is SamplingKind.TRUNCATED_POISSON:
        return [*checks, _cap_check(plan, drawn)]
    checks.append(_rate_check(plan, drawn, num_units))
    if plan.sampling is SamplingKind.POISSON:
        checks.append(_spread_check(plan, drawn, num_units))
    else:
        checks.append(_turn_check(plan, drawn, num_units))
    return checks


def check_event(plan: GradientPlan, event: DpEvent, *, num_steps: int) -> StepCheck:
    """Compare an event with the numbers of a plan and the steps that it ran."""
    if plan.steering and not plan.count_share:
        return StepCheck(
            name="event",
            passed=is_non_private(event),
            detail="a controller sees private batches: nothing may be claimed",
        )
    if plan.adaptive is not None:
        return StepCheck(
            name="event",
            passed=event == plan.adaptive.event,
            detail="the adaptive run's own budget",
        )
    if plan.norm_rule is not None and not plan.count_share:
        return StepCheck(
            name="event",
            passed=is_non_private(event),
            detail="counts of norms are released raw: nothing may be claimed",
        )
    if plan.mixed_parts:
        return StepCheck(
            name="event",
            passed=is_non_private(event),
            detail="parts depend on one another: nothing may be claimed",
        )
    counts = [] if is_non_private(event) else mechanism_counts(event)
    needed = math.ceil(num_steps / len(plan.noise_coefficients))
    planned = Counter(
        multiplier
        for step in range(needed)
        for multiplier in _needed(_multiplier(plan, step), plan.part_shares)
    )
    paid: Counter[float] = Counter()
    for mechanism, count in counts:
        paid[_accounted_noise(mechanism, plan)] += count
    same = planned.keys() >= paid.keys()
    return StepCheck(
        name="event",
        passed=same and all(paid[m] >= count for m, count in planned.items()),
        measured=float(paid.total()),
        limit=float(planned.total()),
        detail="mechanisms accounted, of the plan's kind"
        if same
        else "the event is not of the plan's sampling and noise",
    )


def _multiplier(plan: GradientPlan, step: int) -> float:
    """The planned noise multiplier of a step, from the plan's fields alone."""
    level = min(step // plan.steps_per_level, len(plan.noise_levels) - 1)
    return plan.noise_multiplier * plan.noise_levels[level]


def _needed(multiplier: float, shares: Sequence[float]) -> tuple[float, ...]:
    """What a step must pay for: of a unit in parts, one mechanism for every kind."""
    if not shares:
        return (multiplier,)
    return tuple(multiplier / math.sqrt(w * sum(shares)) for w in shares)


def _share(plan: GradientPlan, data: UnitDataset, unit: int) -> float:
    """Bound of a unit as a share of C."""
    return 1.0 if data.kinds is None else plan.part_shares[data.kinds[unit]]


def _accounted_noise(mechanism: DpEvent, plan: GradientPlan) -> float:
    """The noise multiplier of an event that has the plan's sampling; NaN otherwise."""
    if isinstance(mechanism, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        numbers = (
            mechanism.dataset_size,
            mechanism.sampling_probability,
            mechanism.truncated_batch_size,
        )
        same = numbers == (plan.num_units, plan.sample_rate, plan.max_batch_size)
        return float(mechanism.noise_multiplier) if same else math.nan
    if (
        plan.sampling is SamplingKind.TRUNCATED_POISSON
        or not isinstance(mechanism, dp_accounting.PoissonSampledDpEvent)
        or not isinstance(mechanism.event, dp_accounting.GaussianDpEvent)
    ):
        return math.nan
    rate = min(1.0, plan.sample_rate * len(plan.noise_coefficients))
    same = math.isclose(mechanism.sampling_probability, rate, rel_tol=1e-9)
    return float(mechanism.event.noise_multiplier) if same else math.nan


def _unbanded(noise: Tensor, plan: GradientPlan) -> Tensor:
    """Undo the correlation: z_t = sum_j c_j y_{t-j}, `(steps, parameters)`."""
    found = torch.zeros_like(noise)
    for lag, coefficient in enumerate(plan.noise_coefficients[: len(noise)]):
        found[lag:] += coefficient * noise[: len(noise) - lag]
    return found


def _variance_check(name: str, parts: list[Tensor]) -> StepCheck:
    """Mean squares of standard noise must be 1, in each part."""
    level = FALSE_ALARM_RATE / (2 * len(parts))
    worst, limit, passed = 1.0, 1.0, True
    furthest = 0.0
    for part in parts:
        num, square = part.numel(), float(part.double().square().mean())
        low = float(stats.chi2.ppf(level, num)) / num
        high = float(stats.chi2.isf(level, num)) / num
        distance = abs(math.log(max(square, 1e-30)))
        if distance >= furthest:
            furthest, worst = distance, square
            limit = low if square < 1 else high
        passed = passed and low <= square <= high
    return StepCheck(
        name=name,
        passed=passed,
        measured=worst,
        limit=limit,
        detail="mean square over its planned value; 1 is as planned, 0 is no noise",
    )


def _count_checks(still: Still, plan: GradientPlan) -> list[StepCheck]:
    """The counts that move the clip norm must have the noise of their share."""
    if plan.norm_rule is None or not plan.count_share:
        return []
    steps = len(still.seen) // still.num_counts
    share = math.sqrt(plan.count_share)
    stddevs = torch.tensor([_multiplier(plan, s % (steps // 2)) for s in range(steps)])
    noise = torch.tensor(still.seen).view(steps, -1) * (share / stddevs)[:, None]
    return [_variance_check("count_noise_variance", [noise])]


def _correlation_check(noise: Tensor) -> StepCheck:
    """Neighboring steps must be uncorrelated once the bands are undone."""
    values = noise.double()
    product = float((values[1:] * values[:-1]).mean())
    limit = float(stats.norm.isf(FALSE_ALARM_RATE / 2)) / math.sqrt(values[1:].numel())
    return StepCheck(
        name="noise_independence",
        passed=abs(product) <= limit,
        measured=product,
        limit=limit,
        detail="correlation of the noise of one step with that of the next",
    )


def _distinct_check(drawn: list[UnitIndices], num_units: int) -> StepCheck:
    """A unit joins a step once or not at all."""
    twice = sum(len(d) - len(np.unique(d)) for d in drawn)
    outside = sum(int(((d < 0) | (d >= num_units)).sum()) for d in drawn)
    return StepCheck(
        name="sampling_without_repeats",
        passed=twice + outside == 0,
        measured=float(twice + outside),
        limit=0.0,
        detail=f"units drawn twice into one of {len(drawn)} steps",
    )


def _rate_check(
    plan: GradientPlan, drawn: list[UnitIndices], num_units: int
) -> StepCheck:
    """The share of units that join must be the accounted rate: a sum of coins."""
    bands = len(plan.noise_coefficients)
    law = stats.binom(
        num_units * len(drawn) // bands, min(1.0, plan.sample_rate * bands)
    )
    joined = sum(map(len, drawn))
    low, high = law.ppf(FALSE_ALARM_RATE / 2), law.isf(FALSE_ALARM_RATE / 2)
    return StepCheck(
        name="sampling_rate",
        passed=bool(low <= joined <= high),
        measured=joined / (num_units * len(drawn)),
        limit=plan.sample_rate,
        detail=f"share of units that join, over {len(drawn)} steps",
    )


def _spread_check(
    plan: GradientPlan, drawn: list[UnitIndices], num_units: int
) -> StepCheck:
    """Batch sizes must scatter as independent coins do."""
    rate = plan.sample_rate
    variance = num_units * rate * (1 - rate)
    if variance == 0.0:
        return StepCheck(
            name="sampling_spread", passed=True, detail="every unit joins every step"
        )
    sizes = np.array([len(d) for d in drawn], np.float64)
    dispersion = float(((sizes - num_units * rate) ** 2).mean() / variance)
    # a mean of squares with the binomial's fourth moment, as a gamma law
    squares = (2.0 + (1 - 6 * rate * (1 - rate)) / variance) / len(drawn)
    law = stats.gamma(1 / squares, scale=squares)
    tail = FALSE_ALARM_RATE / 2
    low, high = float(law.ppf(tail)), float(law.isf(tail))
    return StepCheck(
        name="sampling_spread",
        passed=low <= dispersion <= high,
        measured=dispersion,
        limit=low if dispersion < 1 else high,
        detail="variance of batch sizes over the binomial's; 0 is a fixed size",
    )


def _cap_check(plan: GradientPlan, drawn: list[UnitIndices]) -> StepCheck:
    """No batch may be above the public cap."""
    largest = max(map(len, drawn))
    cap = plan.max_batch_size or 0
    return StepCheck(
        name="sampling_cap",
        passed=largest <= cap,
        measured=float(largest),
        limit=float(cap),
        detail="largest batch",
    )


def _turn_check(
    plan: GradientPlan, drawn: list[UnitIndices], num_units: int
) -> StepCheck:
    """A unit must join at most once in any `bands` consecutive steps."""
    bands = len(plan.noise_coefficients)
    last = np.full(num_units, -bands)
    early = 0
    for step, indices in enumerate(drawn):
        early += int((step - last[indices] < bands).sum())
        last[indices] = step
    return StepCheck(
        name="sampling_in_turn",
        passed=early == 0,
        measured=float(early),
        limit=0.0,
        detail=f"units that join twice within {bands} steps",
    )


def loudest_units(data: UnitDataset, *, num: int) -> list[int]:
    """Return units with most tokens: public choice of probes, largest gradients.

    Args:
        data: whole units or parts.
        num: units, of every kind where they are parts.
    """
    sizes = np.array([sum(len(data.sequences[i]) for i in rows) for rows in data.units])
    order = np.argsort(sizes)[::-1]
    if data.kinds is None:
        return [int(i) for i in order[:num]]
    kinds = data.kinds[order]
    return [int(i) for k in np.unique(kinds) for i in order[kinds == k][:num]]
