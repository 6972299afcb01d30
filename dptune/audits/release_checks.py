"""Was every block of a stage charged as what its plan says of those very steps?

And where users release hidden states: is what crosses the line what was paid?

A few sequences of the stage go through training itself, with a stream that writes down
what it is asked for and what it was given.
"""

import copy
import math
from collections import Counter
from collections.abc import Sequence

import dp_accounting
import numpy as np
import torch
from dp_accounting import DpEvent, GaussianDpEvent
from torch import Tensor

from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.audits.noise_checks import multiplier_of, rows_apart, variance_check
from dptune.audits.sampling_checks import known_randomness
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.randomness import GaussianStream, RandomStream, seed_sequence
from dptune.dpsgd.sampling import SamplingKind
from dptune.local.plan import ForwardPlan
from dptune.local.release import normalize
from dptune.local.split import ServerPart, UserPart
from dptune.local.training import UserSequences, train_forward

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


_ROUNDING = 1e-5
_CLOSE = 1e-3


class _Line:
    """A secret stream that remembers what crossed the line."""

    def __init__(self) -> None:
        self._stream = GaussianStream(seed_sequence(RandomStream.NOISE, seed=None))
        self.clean: list[Tensor] = []
        self.sent: list[Tensor] = []
        self.stddevs: list[float] = []

    def add_to(self, values: Tensor, *, stddev: float) -> None:
        """Add noise, and remember."""
        self.clean.append(values.clone())
        self._stream.add_to(values, stddev=stddev)
        self.stddevs.append(stddev)
        self.sent.append(values.clone())


def check_release_events(plan: ForwardPlan, blocks: Sequence[Block]) -> StepCheck:
    """The ledger must hold every participation of the plan, one after another."""
    claimed = [(e, size) for e, size in blocks if not is_non_private(e)]
    if blocks and not claimed:
        return StepCheck(name="event", passed=True, detail="nothing is claimed")
    paid = [
        float(mechanism.noise_multiplier)
        if isinstance(mechanism, GaussianDpEvent)
        else float("nan")
        for event, _ in claimed
        for mechanism, count in mechanism_counts(event)
        for _ in range(count)
    ]
    return StepCheck(
        name="event",
        passed=paid == list(plan.noise_multipliers),
        measured=float(len(paid)),
        limit=float(plan.num_participations),
        detail="participations that are paid for, each with the noise of its turn",
    )


def check_releases(
    user: UserPart, server: ServerPart, few: UserSequences, *, plan: ForwardPlan
) -> list[StepCheck]:
    """Train on a few sequences, and look at what crosses the line.

    Args:
        user: the user's part.
        server: the server's; its weights are used up.
        few: sequences of the stage.
        plan: the claim; of as many sequences as there are in all.
    """
    short = ForwardPlan(
        noise_multipliers=plan.noise_multipliers,
        max_norm=plan.max_norm,
        num_users=len(few),
        batch_size=max(1, len(few) // 2),
    )
    lines, received, charged = [], list[Tensor](), list[int]()
    before = [value.clone() for value in user.state_dict().values()]
    whole = copy.deepcopy(server.state_dict())
    handle = server.register_forward_pre_hook(
        lambda _, args: received.append(args[0].detach().clone())
    )
    try:
        for _ in range(2):
            server.load_state_dict(whole)
            lines.append(_Line())
            charged.clear()
            with known_randomness():
                _train(user, server, few, plan=short, line=lines[-1], charged=charged)
    finally:
        handle.remove()
    after = list(user.state_dict().values())
    return [
        *_crossing(lines, received, charged, few, plan=short),
        _once(lines[0], user, few, plan=short),
        _stays(before, after),
    ]


def _train(
    user: UserPart,
    server: ServerPart,
    few: UserSequences,
    *,
    plan: ForwardPlan,
    line: _Line,
    charged: list[int],
) -> None:
    """Train as the stage does; a charge after the noise is written down as -1."""
    done = [0]

    def charge(participation: int) -> None:
        charged.append(participation if len(line.sent) == done[0] else -1)

    def note(_: int) -> None:
        done[0] = len(line.sent)

    train_forward(
        user,
        server,
        few,
        plan=plan,
        optimizer=torch.optim.SGD(server.parameters(), lr=0.0),
        charge=charge,
        stream=line,
        order=np.random.default_rng(0),
        on_participation=note,
    )


def _crossing(
    lines: Sequence[_Line],
    received: Sequence[Tensor],
    charged: Sequence[int],
    few: UserSequences,
    *,
    plan: ForwardPlan,
) -> list[StepCheck]:
    """Norms, noise, number of releases, and what the server was given."""
    first, second = lines
    turns = [rows for _ in range(plan.num_participations) for rows in _sizes(few, plan)]
    planned = [
        plan.noise_stddev(step=participation)
        for participation in range(plan.num_participations)
        for _ in _sizes(few, plan)
    ]
    whole = (
        all(len(line.clean) == len(turns) for line in lines)
        and [len(v) for v in first.clean] == turns
    )
    norms = [float(v.flatten(1).norm(dim=1).max()) for v in first.clean]
    asked = whole and np.allclose(first.stddevs, planned, rtol=_ROUNDING, atol=0.0)
    sent = [*first.sent, *second.sent]
    seen = len(sent) == len(received) and all(map(torch.equal, sent, received))
    noise = [
        (a - b - (c - d)).flatten(1) / (stddev * 2**0.5)
        for a, b, c, d, stddev in zip(
            first.sent, second.sent, first.clean, second.clean, planned, strict=False
        )
    ]
    once = list(charged) == list(range(plan.num_participations))
    return [
        _verdict(
            "release_norm",
            max(norms, default=np.inf) <= plan.max_norm * (1 + _ROUNDING),
            "what is released has norm C at most, noise aside",
        ),
        _verdict(
            "releases_as_planned",
            bool(asked) and once,
            "every sequence is released once in each participation, after its charge, "
            "whole, and with the noise of its turn",
        ),
        _verdict(
            "server_sees_releases",
            seen,
            "the server is given what was noised, and nothing else",
        ),
        *_noise_checks(noise),
    ]


def _noise_checks(noise: Sequence[Tensor]) -> list[StepCheck]:
    """Standard noise of each release, `(sequences, entries)`: its size, and fresh."""
    if not noise or len({rows.shape[1] for rows in noise}) > 1:
        return [StepCheck.failed("noise_variance", "Releases have no noise alike.")]
    rows, shortest = torch.cat(list(noise)), min(map(len, noise))
    whole = torch.stack([release[:shortest].flatten() for release in noise])
    sequences = rows_apart(
        rows, detail="largest correlation of the noise of two sequences", num_looks=2
    )
    releases = rows_apart(
        whole, detail="largest correlation of the noise of two releases", num_looks=2
    )
    apart = releases if sequences.passed else sequences
    return [variance_check("noise_variance", [rows]), apart]


def _sizes(few: UserSequences, plan: ForwardPlan) -> list[int]:
    """Sequences of each batch of a participation."""
    starts = range(0, len(few), plan.batch_size)
    return [min(plan.batch_size, len(few) - start) for start in starts]


def _once(
    line: _Line, user: UserPart, few: UserSequences, *, plan: ForwardPlan
) -> StepCheck:
    """Add up every participation: each sequence must be in it, padding and all."""
    wanted = normalize(user(few.tokens, few.mask), max_norm=plan.max_norm).sum(0)
    turns = len(_sizes(few, plan))
    sums = [
        torch.cat(line.clean[start : start + turns]).sum(0)
        for start in range(0, len(line.clean), turns)
    ]
    same = all(
        found.shape == wanted.shape
        and float((found - wanted).norm()) <= _CLOSE * plan.max_norm
        for found in sums
    )
    return _verdict(
        "released_once", same, "every participation has every sequence once, padded"
    )


def _stays(before: Sequence[Tensor], after: Sequence[Tensor]) -> StepCheck:
    """The user's part is fixed in advance."""
    same = len(before) == len(after) and all(map(torch.equal, before, after))
    return _verdict("user_part_stays", same, "the user's layers learn nothing")


def _verdict(name: str, passed: bool, detail: str) -> StepCheck:  # noqa: FBT001 - it is the verdict
    """A check without a figure."""
    return StepCheck(name=name, passed=bool(passed), detail=detail)
