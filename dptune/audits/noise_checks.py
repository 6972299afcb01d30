"""Is the noise of the engine that of its plan: its size, in every step, and fresh?

The same batches are released twice: what differs is noise alone. Known generators of
the process start both times alike, so that noise which follows from them cancels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from dptune.audits.sampling_checks import known_randomness
from dptune.audits.step_releases import releases
from dptune.audits.step_report import FALSE_ALARM_RATE, StepCheck
from dptune.dpsgd import step as engine
from dptune.dpsgd.adaptive_clipping import StepFigures
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.randomness import (
    RandomStream,
    StreamIdentity,
    identity_of,
    seed_sequence,
)
from dptune.dpsgd.sampling import sampling_generator

_STEPS: Final = 6
_WHOLE: Final = 4096
_SPREAD: Final = 4096
_STREAMS: Final = 16
_SECRET_BITS: Final = 200


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


def check_noise(model: nn.Module, plan: GradientPlan, feed: Feed) -> list[StepCheck]:
    """Release the same batches twice with secret noise: only the noise differs.

    The difference, taken back through the bands, must be independent and of variance
    2 (noise multiplier * C)^2: in all entries, in every parameter, in every step, empty
    ones too; and no step, parameter or place may know of another. Every unit is a piece
    of its own. Where the clip norm moves by noisy counts, it is held still: gradients
    and counts must have the noise of their shares. Where gradients are transformed,
    steps after the first draw nobody, and noise is looked at in the space that the
    releases so far determine. Of large parameters some entries are taken.
    """
    multipliers = torch.tensor([multiplier_of(plan, step) for step in range(_STEPS)])
    if not (multipliers > 0).all():
        return [StepCheck.failed("noise", "The plan has no noise at all.")]
    still = Still()
    if plan.norm_rule is not None:
        plan = replace(plan, norm_rule=still)
    batch = np.arange(min(2, feed.data.num_units))
    later = batch if plan.transform is None else batch[:0]
    batches = [batch, batch[:0], later, later, batch[:0], later]
    few = max(1, min(feed.physical_batch_size, feed.data.largest_unit))
    single = replace(feed, physical_batch_size=few)
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    chosen, kept = _chosen(sizes)
    both = []
    for _ in range(2):
        with known_randomness():
            both.append(releases(model, plan, single, batches, entries=chosen).cpu())
    multipliers /= math.sqrt(1 - plan.count_share)
    scale = plan.expected_batch_size / (math.sqrt(2) * plan.max_grad_norm)
    standard = (both[0] - both[1]) * (scale / multipliers)[:, None]
    whole = unbanded(standard, plan)
    parts = torch.split(whole, kept, dim=1)
    return [
        variance_check("noise_variance", [whole]),
        variance_check("noise_variance_by_parameter", list(parts)),
        variance_check("noise_variance_by_step", list(whole)),
        rows_apart(whole, detail="largest correlation of the noise of two steps"),
        _parameters_apart(parts),
        _places_apart(parts),
        *_count_checks(still, plan),
    ]


def check_streams(*, device: torch.device) -> StepCheck:
    """Every use of randomness has a secret of its own, in every process start."""

    def noise(*, seed: int | None, attempt: int, rank: int) -> StreamIdentity:
        stream = engine.noise_stream(  # type: ignore[attr-defined]  # what training uses
            device=device, fixed_seed=seed, attempt=attempt, rank=rank
        )
        return getattr(stream, "identity", StreamIdentity("", 0))

    secret = [
        *(noise(seed=None, attempt=0, rank=0) for _ in range(_STREAMS)),
        *(generator_identity(sampling_generator()) for _ in range(_STREAMS)),
    ]
    known = [
        *(
            noise(seed=0, attempt=attempt, rank=rank)
            for attempt in range(2)
            for rank in range(2)
        ),
        *(
            generator_identity(sampling_generator(fixed_seed=0, attempt=attempt))
            for attempt in range(2)
        ),
        *(
            identity_of(seed_sequence(RandomStream.MODEL, seed=0, step=step))
            for step in range(2)
        ),
    ]
    return streams_check(secret, known=known)


def streams_check(
    secret: Sequence[StreamIdentity], *, known: Sequence[StreamIdentity]
) -> StepCheck:
    """Compare the streams of a process, and their entropy where nobody knows it."""
    digests = [stream.digest for stream in (*secret, *known)]
    bits = min((stream.entropy_bits for stream in secret), default=_SECRET_BITS)
    return StepCheck(
        name="streams_apart",
        passed=len(set(digests)) == len(digests) and bits >= _SECRET_BITS,
        detail="noise, sampling and dropout have seeds of their own, fresh in every "
        "process and rank, from the operating system unless one is given",
    )


def generator_identity(generator: np.random.Generator) -> StreamIdentity:
    """Return the identity of a numpy generator's seed."""
    sequence = getattr(generator.bit_generator, "seed_seq", None)
    if not isinstance(sequence, np.random.SeedSequence):
        return StreamIdentity("unknown", 0)
    return identity_of(sequence)


def multiplier_of(plan: GradientPlan, step: int) -> float:
    """The planned noise multiplier of a step, from the plan's fields alone."""
    level = min(step // plan.steps_per_level, len(plan.noise_levels) - 1)
    return plan.noise_multiplier * plan.noise_levels[level]


def unbanded(noise: Tensor, plan: GradientPlan) -> Tensor:
    """Undo the correlation: z_t = sum_j c_j y_{t-j}, `(steps, entries)`."""
    found = torch.zeros_like(noise)
    for lag, coefficient in enumerate(plan.noise_coefficients[: len(noise)]):
        found[lag:] += coefficient * noise[: len(noise) - lag]
    return found


def variance_check(name: str, parts: Sequence[Tensor]) -> StepCheck:
    """Mean squares of standard noise must be 1, in each part."""
    counts = np.array([part.numel() for part in parts])
    squares = np.array([float(part.double().square().sum()) for part in parts])
    return squares_check(name, squares, counts)


def squares_check(name: str, squares: np.ndarray, counts: np.ndarray) -> StepCheck:
    """Sums of squares of standard noise must be chi-squared, in each part."""
    level = FALSE_ALARM_RATE / (2 * len(counts))
    low, high = stats.chi2.ppf(level, counts), stats.chi2.isf(level, counts)
    mean = squares / counts
    worst = int(np.abs(np.log(np.maximum(mean, 1e-30))).argmax())
    bound = low if mean[worst] < 1 else high
    return StepCheck(
        name=name,
        passed=bool(((low <= squares) & (squares <= high)).all()),
        measured=float(mean[worst]),
        limit=float(bound[worst] / counts[worst]),
        detail="mean square over its planned value; 1 is as planned, 0 is no noise",
    )


def product_limit(counts: np.ndarray | float, *, num_tests: int) -> np.ndarray:
    """Bound a sum of products of independent normal pairs, at the false alarm rate.

    A sum of n products, each of an entry with the one so and so far on, has log E exp(x
    S) <= n x^2 / (2 (1 - 2 |x|)), since the eigenvalues of a path are below 2: it is
    sub-gamma, see Boucheron, Lugosi, Massart (2013), section 2.4.
    """
    tail = math.log(2 * max(1, num_tests) / FALSE_ALARM_RATE)
    return np.sqrt(2 * np.asarray(counts) * tail) + 2 * tail


def _chosen(sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Entries to keep: the first ones of each parameter, and some of the rest."""
    picks, start = [], 0
    for size in sizes:
        own = torch.arange(min(size, _WHOLE))
        if size > _WHOLE:
            apart = -(-(size - _WHOLE) // _SPREAD)
            own = torch.cat([own, torch.arange(_WHOLE, size, apart)])
        picks.append(start + own)
        start += size
    return torch.cat(picks), [len(p) for p in picks]


def rows_apart(noise: Tensor, *, detail: str, num_looks: int = 1) -> StepCheck:
    """No two rows of standard noise, `(rows, entries)`, may be correlated.

    Args:
        noise: independent standard normal, if all is well.
        detail: says what a row is.
        num_looks: checks that share the false alarm rate.
    """
    values = noise.double()
    products = (values @ values.T).numpy()
    pairs = np.triu_indices(len(values), 1)
    limit = product_limit(values.shape[1], num_tests=num_looks * len(pairs[0]))
    worst = float(np.abs(products[pairs]).max(initial=0.0))
    return StepCheck(
        name="noise_independence",
        passed=worst <= limit,
        measured=worst / values.shape[1],
        limit=float(limit) / values.shape[1],
        detail=detail,
    )


def _parameters_apart(parts: Sequence[Tensor]) -> StepCheck:
    """No parameter may have the noise of another, entry by entry."""
    longest = min(256, max(part.shape[1] for part in parts))
    rows = torch.zeros(len(parts), len(parts[0]), longest, dtype=torch.float64)
    for row, part in zip(rows, parts, strict=True):
        row[:, : part.shape[1]] = part[:, :longest]
    flat = rows.flatten(1)
    products = (flat @ flat.T).numpy()
    counts = np.array([min(part.shape[1], longest) for part in parts]) * len(parts[0])
    first, second = np.triu_indices(len(parts), 1)
    shared = np.minimum(counts[first], counts[second])
    limits = product_limit(shared, num_tests=len(first))
    excess = np.abs(products[first, second]) / limits
    return _excess_check(
        "noise_apart_in_parameters",
        excess,
        "correlation of the noise of two parameters, as a share of what chance allows",
    )


def _places_apart(parts: Sequence[Tensor]) -> StepCheck:
    """No entry may have the noise of another of its parameter."""
    found, num = [], sum(min(part.shape[1], _WHOLE) for part in parts)
    for part in parts:
        own = part[:, :_WHOLE].double()
        size = own.shape[1]
        power = torch.fft.rfft(own, n=2 * size).abs().square()
        sums = torch.fft.irfft(power, n=2 * size)[:, 1:size].sum(0).numpy()
        counts = np.arange(size - 1, 0, -1) * len(own)
        found.append(np.abs(sums) / product_limit(counts, num_tests=num))
    return _excess_check(
        "noise_apart_in_places",
        np.concatenate(found),
        "correlation of the noise of two places of a parameter, as a share of what "
        "chance allows",
    )


def _excess_check(name: str, excess: np.ndarray, detail: str) -> StepCheck:
    """Check that nothing is beyond its limit."""
    worst = float(excess.max(initial=0.0))
    return StepCheck(
        name=name, passed=worst <= 1.0, measured=worst, limit=1.0, detail=detail
    )


def _count_checks(still: Still, plan: GradientPlan) -> list[StepCheck]:
    """The counts that move the clip norm must have the noise of their share."""
    if plan.norm_rule is None or not plan.count_share:
        return []
    steps = len(still.seen) // still.num_counts
    share = math.sqrt(plan.count_share)
    stddevs = torch.tensor(
        [multiplier_of(plan, s % (steps // 2)) for s in range(steps)]
    )
    noise = torch.tensor(still.seen).view(steps, -1) * (share / stddevs)[:, None]
    return [variance_check("count_noise_variance", [noise])]
