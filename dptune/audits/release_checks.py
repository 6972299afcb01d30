"""Stages whose users release hidden states: is what crosses the line what was paid?

A few sequences of the stage go through training itself, with a stream that writes down
what it is asked for and what it was given.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from dp_accounting import GaussianDpEvent
from torch import Tensor

from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.audits.event_checks import Block
from dptune.audits.noise_checks import variance_check
from dptune.audits.sampling_checks import known_randomness
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.randomness import GaussianStream, RandomStream, seed_sequence
from dptune.local.plan import ForwardPlan
from dptune.local.release import normalize
from dptune.local.split import ServerPart, UserPart
from dptune.local.training import UserSequences, train_forward

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
        (a - b - (c - d)).flatten() / (stddev * 2**0.5)
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
        variance_check("noise_variance", [torch.cat(noise)])
        if noise
        else StepCheck.failed("noise_variance", "Nothing was noised."),
    ]


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
