"""Second opinion: epsilon by quadrature of the dominating pair, no grid of losses.

Let L be the privacy loss of the whole history under P and M(z) = E exp(zL) the product
of the moment generating functions of its steps. For any c > 0,

    delta(e) = E (1 - exp(e - L))+
             = 1/(2 pi i) * integral over z = c + iu of M(z) exp(-ze) / (z (z + 1)) dz,

because the Laplace transform of y -> (1 - exp(-y))+ is 1 / (z (z + 1)). We choose c at
the saddle point, where the integrand is a narrow bump, and integrate along u by Gauss
panels until the rest cannot matter. Each M is a trapezoidal sum over x, which
converges faster than any power for these Gaussian integrands.

It shares nothing with Connect-the-Dots but the pair itself, knows both relations, and
costs milliseconds for hundreds of steps. It is an estimate, not a bound: certificates
come from the pessimistic distribution, and this must not come out larger.

References:
    Alghamdi et al. (2023), saddle-point accountant, arXiv:2208.09595.
    Zhu, Dong, Wang (2022), characteristic functions, arXiv:2106.08567.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import dp_accounting
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import optimize

from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.accounting.pairs import (
    GaussianPair,
    gaussian_pairs,
    log_sum_exp,
    truncation_parts,
)
from dptune.errors import PrivacyError, UnsupportedEventError
from dptune.privacy import NeighboringRelation

_TOLERANCE: Final = 5e-4
_MAX_WORK: Final = 20_000_000
_MAX_NODES: Final = 250_000
_MAX_EPSILON: Final = 500.0
_MIN_NOISE: Final = 0.1
_NEVER: Final = 1e-30
_LARGEST_ORDER: Final = 9.0
_MAX_CORRECTIONS: Final = 8
_LACKS, _LACKS_TOO = 1e-9, 1e-13
"""What a sum may lack, as a share and besides: they agree to less with 40 digits."""
_Weighted = tuple[float, GaussianPair]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


class QuadratureError(PrivacyError):
    """The integral did not settle within its work limit; no opinion is given."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A public mixture of dominating pairs, and how often it ran."""

    pairs: tuple[_Weighted, ...]
    count: int


def quadrature_delta(
    event: DpEvent, *, epsilon: float, relation: NeighboringRelation
) -> float:
    """Compute the delta of an event at an epsilon, the larger of both directions.

    Args:
        event: Gaussian steps, plain, Poisson-sampled or truncated, composed.
        epsilon: at least 0.
        relation: neighboring relation.

    Returns:
        delta in [0, 1], with a relative error of about 5e-4.

    Raises:
        UnsupportedEventError: a mechanism without a Gaussian pair.
        QuadratureError: the integral did not settle (a handful of tiny steps).
    """
    if is_non_private(event):
        return 1.0
    found = 0.0
    for steps in _histories(event, relation):
        found = max(found, _delta(steps, epsilon, negligible=found))
    return found


def quadrature_epsilon(
    event: DpEvent, *, delta: float, relation: NeighboringRelation
) -> float:
    """Find the epsilon at which `quadrature_delta` equals `delta`.

    Returns:
        Infinity for a non-private event, 0 where epsilon 0 already suffices.

    Raises:
        UnsupportedEventError: a mechanism without a Gaussian pair.
        QuadratureError: the integral did not settle, or the noise is too little.
    """
    if is_non_private(event):
        return math.inf
    found = 0.0
    for steps in _histories(event, relation):
        if found == 0.0 or _delta(steps, found, negligible=delta) > delta:
            found = _epsilon(steps, delta, found)
    return found


def log_moments(
    event: DpEvent, powers: NDArray[np.float64], *, relation: NeighboringRelation
) -> list[NDArray[np.float64]]:
    """Bound ln E exp(cL) of an event's loss L for powers c, in each direction.

    Trapezoidal sums, raised by more than what they may lack.

    Args:
        event: as for `quadrature_delta`.
        powers: each above 0, `(powers,)`.
        relation: neighboring relation.

    Returns:
        One or two, `(powers,)`, 0 where nothing is sampled; none where nothing ran.

    Raises:
        UnsupportedEventError: a mechanism without a Gaussian pair.
        QuadratureError: a noise multiplier is below .1.
    """
    found = []
    for steps in _histories(event, relation):
        each = [
            [s.count * (_log_moment(s, c) * (1 + _LACKS) + _LACKS_TOO) for s in steps]
            for c in powers.tolist()
        ]
        found.append(np.array(each).sum(axis=1))
    return found


def _histories(
    event: DpEvent, relation: NeighboringRelation
) -> tuple[tuple[_Step, ...], ...]:
    """Every direction of a history, as its steps."""
    counts = mechanism_counts(event)
    if not counts:
        return ()
    per_direction = zip(
        *(_mixtures(mechanism, relation) for mechanism, _ in counts), strict=True
    )
    return tuple(
        tuple(
            _Step(pairs=pairs, count=count)
            for pairs, (_, count) in zip(mixtures, counts, strict=True)
            if pairs
        )
        for mixtures in per_direction
    )


def _mixtures(
    event: DpEvent, relation: NeighboringRelation
) -> tuple[tuple[_Weighted, ...], ...]:
    """Mixture of pairs of one mechanism, for each direction of the relation."""
    sample_rate, noise_multiplier, cut = _read(event)
    directions = 1 if relation is NeighboringRelation.REPLACE_ONE else 2
    if noise_multiplier < _MIN_NOISE:
        raise QuadratureError(f"noise_multiplier must be at least {_MIN_NOISE}.")
    if sample_rate == 0.0:
        return ((),) * directions
    whole = gaussian_pairs(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, relation=relation
    )
    weight = 1.0 - sum(share for share, _ in cut)
    return tuple(((weight, pair), *cut) for pair in whole)


def _read(event: DpEvent) -> tuple[float, float, tuple[_Weighted, ...]]:
    """Sample rate, noise multiplier and the cut part of one mechanism."""
    if isinstance(event, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        return event.sampling_probability, event.noise_multiplier, _cut(event)
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        _, noise_multiplier, _ = _read(event.event)
        return event.sampling_probability, noise_multiplier, ()
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return 1.0, event.noise_multiplier, ()
    raise UnsupportedEventError(
        f"quadrature must be given Gaussian mechanisms, got {type(event).__name__}. "
        "Use the PLD accountant."
    )


def _cut(event: DpEvent) -> tuple[_Weighted, ...]:
    """Pair of a truncated batch, with the chance of it."""
    binds, rate = truncation_parts(event)
    if binds < _NEVER:
        return ()
    pair = GaussianPair(
        direction="replace",
        sample_rate=rate,
        noise_multiplier=event.noise_multiplier / 2,
    )
    return ((binds, pair),)


def _epsilon(steps: tuple[_Step, ...], delta: float, low: float) -> float:
    """Solve for epsilon in one direction, knowing that it is not below `low`.

    The leading term of the saddle point is cheap and off by a factor that hardly moves
    with epsilon: it gives two points, from which the secant rule takes over.
    """

    def excess(epsilon: float) -> float:
        exact = _delta(steps, epsilon, negligible=delta)
        return math.log(max(exact, 1e-300)) - math.log(delta)

    def leading(aim: float) -> float:
        return _solve(lambda e: _leading_term(steps, e), aim, low)

    before = leading(math.log(delta))
    at_before = excess(before)
    here = leading(_leading_term(steps, before) - at_before)
    for _ in range(_MAX_CORRECTIONS):
        if abs(here - before) <= 1e-4 * here + 1e-8:
            return here
        at_here = excess(here)
        slope = (at_here - at_before) / (here - before)
        step = at_here / slope if slope < 0 else 0.0
        before, at_before, here = here, at_here, max(here - step, low)
    raise QuadratureError("the quadrature did not settle for so few steps.")


def _solve(falling: Callable[[float], float], target: float, low: float) -> float:
    """Find where a falling function of epsilon meets a target."""
    if falling(low) <= target:
        return low
    width = 1e-3
    while falling(low + width) > target:
        width *= 2
        if width > _MAX_EPSILON:
            raise QuadratureError(f"epsilon must be below {_MAX_EPSILON:g}.")
    start = low if width == 1e-3 else low + width / 2
    return float(
        optimize.brentq(
            lambda e: falling(e) - target, start, low + width, xtol=1e-10, rtol=1e-6
        )
    )


def _leading_term(steps: tuple[_Step, ...], epsilon: float) -> float:
    """First term of ln delta: the integrand as a Gaussian bump at the saddle point."""
    c = _saddle_point(steps, epsilon)
    peak = sum(step.count * _log_moment(step, c) for step in steps)
    width = math.sqrt(_spread(steps, c) ** 2 + 1 / c**2 + 1 / (c + 1) ** 2)
    height = peak - c * epsilon - math.log(c) - math.log1p(c)
    return height - math.log(width) - 0.5 * math.log(2 * math.pi)


def _delta(
    steps: tuple[_Step, ...], epsilon: float, *, negligible: float = 0.0
) -> float:
    """Compute the integral for one direction, to a small part of `negligible`."""
    if not steps or epsilon >= _largest_loss(steps):
        return 0.0
    c = _saddle_point(steps, epsilon)
    peak = sum(step.count * _log_moment(step, c) for step in steps)
    height = math.exp(min(peak - c * epsilon, 700.0))
    rest = _contour(steps, epsilon, c, negligible=negligible / max(height, 1e-300))
    return float(np.clip(height * rest, 0.0, 1.0))


def _largest_loss(steps: tuple[_Step, ...]) -> float:
    """Loss that can never be exceeded: finite when a unit is added to samples."""
    total = 0.0
    for step in steps:
        for _, pair in step.pairs:
            if pair.direction != "add" or pair.sample_rate == 1.0:
                return math.inf
        total += step.count * max(-math.log1p(-p.sample_rate) for _, p in step.pairs)
    return total


def _saddle_point(steps: tuple[_Step, ...], epsilon: float) -> float:
    """Find the c > 0 at which the integrand on the real line is least."""

    def height(log_c: float) -> float:
        c = math.exp(log_c)
        moments = sum(step.count * _log_moment(step, c) for step in steps)
        return moments - c * epsilon - log_c - math.log1p(c)

    noises = [pair.noise_multiplier for step in steps for _, pair in step.pairs]
    last = max(_LARGEST_ORDER, math.log(_MAX_NODES * min(noises, default=1.0) / 40))
    found = optimize.minimize_scalar(
        height, bounds=(-5.0, last), method="bounded", options={"xatol": 1e-5}
    )
    if (
        noises and found.x > last - 0.01
    ):  # beyond it, where the integrand has no bump of its own
        raise QuadratureError("the losses are too small for the quadrature.")
    return math.exp(float(found.x))


def _contour(
    steps: tuple[_Step, ...], epsilon: float, c: float, *, negligible: float
) -> float:
    """Integrate along the vertical line through c, relative to its peak."""
    panel = 2.0 / _spread(steps, c)
    total, start, work, size = 0.0, 0.0, 0, 1.0
    while True:
        u = start + panel * (_NODES + 1) / 2  # (16,)
        log_ratio = np.zeros(len(u), dtype=np.complex128)
        for step in steps:
            ratio, used = _moment_ratio(step, c, u)
            work += used
            with np.errstate(divide="ignore"):
                log_ratio += step.count * np.log(ratio)
        z = c + 1j * u
        values = np.exp(log_ratio - 1j * u * epsilon) / (z * (z + 1))
        total += panel / 2 * float(np.sum(_WEIGHTS * values.real))
        start += panel
        size = max(float(np.exp(log_ratio.real).max()), 0.7 * size)
        if size / start <= _TOLERANCE * max(abs(total), negligible):
            return total / math.pi
        if work > _MAX_WORK:
            raise QuadratureError("the quadrature did not settle for so few steps.")


def _spread(steps: tuple[_Step, ...], c: float) -> float:
    """Standard deviation of the tilted loss, which sets the width of the bump."""
    h = 1e-2 * c

    def moments(at: float) -> float:
        return sum(step.count * _log_moment(step, at) for step in steps)

    curvature = (moments(c + h) - 2 * moments(c) + moments(c - h)) / h**2
    return math.sqrt(max(curvature, 1e-16))


def _log_moment(step: _Step, c: float) -> float:
    """Compute ln M(c) of one use of a step for real c."""
    if len(step.pairs) == 1 and step.pairs[0][0] == 1.0:
        return log_moment_of_pair(step.pairs[0][1], c)
    moments = np.array([log_moment_of_pair(pair, c) for _, pair in step.pairs])
    weights = np.array([weight for weight, _ in step.pairs])
    return float(log_sum_exp(moments, weights))


@functools.lru_cache(maxsize=4096)
def log_moment_of_pair(pair: GaussianPair, c: float) -> float:
    """Compute ln E exp(cL) of one pair under P by the trapezoidal rule.

    Over c it is the Renyi divergence of order c + 1.
    """
    spacing = pair.noise_multiplier / 16
    log_weights, _ = _tilted(pair, c, spacing)
    return float(log_sum_exp(log_weights))


def _moment_ratio(
    step: _Step, c: float, u: NDArray[np.float64]
) -> tuple[NDArray[np.complex128], int]:
    """Compute M(c + iu) / M(c) of one use of a step, and what it cost."""
    total = np.zeros(len(u), dtype=np.complex128)
    base, work = _log_moment(step, c), 0
    for weight, pair in step.pairs:
        variance = pair.noise_multiplier**2
        spacing = min(pair.noise_multiplier / 16, 0.7 * variance / float(u[-1]))
        log_weights, losses = _tilted(pair, c, spacing)
        keep = log_weights > log_weights.max() - 38
        weights = weight * np.exp(log_weights[keep] - base)
        total += np.exp(1j * np.outer(u, losses[keep])) @ weights
        work += len(u) * int(keep.sum()) + 3 * len(losses)
    return total, work


def _tilted(
    pair: GaussianPair, c: float, spacing: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log weights of P exp(cL) and the losses, on nodes that hold its mass."""
    s = pair.noise_multiplier
    first, last = -12 * s - 1.0, _reach(pair, c) + 12 * s + spacing
    if last - first > _MAX_NODES * spacing:
        raise QuadratureError("the quadrature did not settle for so few steps.")
    x = np.arange(first, last, spacing)
    log_p = pair.log_p(x)
    losses = log_p - pair.log_q(x)
    log_density = log_p - math.log(s) - 0.5 * math.log(2 * math.pi)
    return log_density + c * losses + math.log(spacing), losses


def _reach(pair: GaussianPair, c: float) -> float:
    """Largest x to which tilting by c can move the mass of P."""
    if pair.direction == "remove":
        return 1 + c
    if pair.direction == "replace":
        return 1 + 2 * c
    q = pair.sample_rate
    if q == 1.0:
        return c
    saturation = pair.noise_multiplier**2 * (math.log(q / (1 - q)) + 3.0)
    return min(c, max(0.0, saturation))
