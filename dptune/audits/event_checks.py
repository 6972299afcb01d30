"""Was every block of a stage charged as what its plan says of those very steps?"""

import math
from collections import Counter
from collections.abc import Sequence

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.audits.noise_checks import multiplier_of
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import SamplingKind

Block = tuple[DpEvent, int]
"""What was charged, and for how many steps."""


def check_blocks(
    plan: GradientPlan,
    blocks: Sequence[Block],
    *,
    num_steps: int,
    kind: int | None = None,
    name: str = "event",
) -> StepCheck:
    """Compare what was charged, block by block, with the numbers of a plan.

    A block begins where the one before it ended, or, after a kill, where it began. Some
    such reading of the ledger must pay for every step up to the last.

    Args:
        plan: the claim; only its numbers are believed.
        blocks: in the order in which they were charged.
        num_steps: steps of the stage.
        kind: of the part that neighbors differ in, where the event is of one part.
        name: of the check.
    """
    claimed = [event for event, _ in blocks if not is_non_private(event)]
    if blocks and not claimed:
        return StepCheck(name=name, passed=True, detail="nothing is claimed")
    if not plan.claims_something:
        return StepCheck.failed(name, "Nothing may be claimed of such a plan.")
    if plan.adaptive is not None:
        return StepCheck(
            name=name,
            passed=bool(blocks) and all(e == plan.adaptive.event for e in claimed),
            detail="the adaptive run's own budget",
        )
    starts, ends = {0}, {0}
    for event, size in blocks:
        paid = {s for s in starts if _pays(plan, event, size, first=s, kind=kind)}
        ends = {start + size for start in paid}
        starts = paid | ends
    return StepCheck(
        name=name,
        passed=max(ends, default=0) >= num_steps,
        measured=float(max(ends, default=0)),
        limit=float(num_steps),
        detail="steps that blocks of the plan's own sampling and noise have paid for",
    )


def _pays(
    plan: GradientPlan, event: DpEvent, size: int, *, first: int, kind: int | None
) -> bool:
    """Whether an event is of the plan's mechanisms, and of one for every step."""
    if is_non_private(event):
        return True
    needed = math.ceil(size / len(plan.noise_coefficients))
    planned = Counter(
        multiplier
        for step in range(first, first + needed)
        for multiplier in _needed(multiplier_of(plan, step), plan.part_shares, kind)
    )
    paid: Counter[float] = Counter()
    for mechanism, count in mechanism_counts(event):
        paid[_accounted_noise(mechanism, plan)] += count
    same = planned.keys() >= paid.keys()
    return same and all(paid[m] >= count for m, count in planned.items())


def _needed(
    multiplier: float, shares: Sequence[float], kind: int | None
) -> tuple[float, ...]:
    """What a step must pay for: of a unit in parts, one mechanism for every kind."""
    if kind is not None:
        return (multiplier / shares[kind],)
    if not shares:
        return (multiplier,)
    return tuple(multiplier / math.sqrt(w * sum(shares)) for w in shares)


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
