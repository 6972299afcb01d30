"""Banded Toeplitz factorisations: which past noise the noise of a step takes back.

Independent noise z_t piles up in the prefix sums that training follows. Banded noise
y = C^-1 z is correlated so that much of it cancels there. Symbols:

| symbol | meaning |
|---|---|
| n, b | `num_steps`, `num_bands` |
| C | lower-triangular Toeplitz, C[t, t-j] = c_j for 0 <= j < b, else 0 |
| c | `coefficients`, c_0 > 0, of norm 1 |
| A | all ones on and below the diagonal: A x are the prefix sums of x |
| w | coefficients of the Toeplitz matrix A C^-1: w(x) = 1 / ((1 - x) c(x)) |

Column t of C is what a unit that joins step t adds to C G, G the sums of gradients: its
norm is the sensitivity. The first n - b + 1 columns have norm |c| and the others less,
so that |c| = 1 is the largest.

How many bands a planned run should have: more cancel more of the noise in prefix sums,
and cost amplification, since a unit joins b times as likely in one of every b steps.
Which wins depends on the target (`choose_banding`).

References:
    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), "(Amplified)
    Banded Matrix Factorization", section 4, https://arxiv.org/abs/2306.08153.
    McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism", the Toeplitz
    form and its loss, https://arxiv.org/abs/2405.15913.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal

from dptune.errors import ConfigError, InfeasibleBudgetError

Floats = NDArray[np.float64]
Coefficients = tuple[float, ...]

INDEPENDENT: Final[Coefficients] = (1.0,)
"""One band: C is the identity and the noise is independent."""

_SHORT_RUN: Final = 16
_HOPELESS: Final = 1e6
_ROUNDING: Final = 1e-12
_TIGHTNESS: Final = 1e-6


@functools.lru_cache(maxsize=256)
def band_coefficients(*, num_bands: int, num_steps: int) -> Coefficients:
    """Find the bands that make the prefix sums of a run least noisy.

    Minimises the mean over the n prefix sums of the variance that A C^-1 z has there,
    times |c|^2, by L-BFGS: first for a few steps, from the bands of the square root of
    A, then for twice as many, and so on up to n. The longer the run, the closer the
    best c comes to one whose C^-1 grows without bound, and a cold start ends there.

    Args:
        num_bands: b, from 1 to `num_steps`.
        num_steps: n, noisy updates of the run.

    Returns:
        c with norm at most 1, and below it by rounding only.

    Raises:
        ConfigError: a number is out of range.

    >>> bands = band_coefficients(num_bands=3, num_steps=60)
    >>> [round(value, 2) for value in bands]
    [0.74, 0.52, 0.43]
    >>> prefix_sum_error(bands, num_steps=60) < prefix_sum_error((1.0,), num_steps=60)
    True
    """
    if not 1 <= num_bands <= num_steps:
        raise ConfigError(
            "num_bands must be in [1, num_steps], got "
            f"num_bands={num_bands} and num_steps={num_steps}. Choose fewer bands."
        )
    if num_bands == 1:
        return INDEPENDENT
    tail = _square_root_bands(num_bands)[1:]
    for steps in _growing(num_steps, least=max(_SHORT_RUN, 4 * num_bands)):
        found = optimize.minimize(
            _loss, tail, args=(steps,), jac=True, method="L-BFGS-B"
        )
        if found.fun <= _loss(tail, steps)[0]:
            tail = found.x
    return normalized(np.concatenate(([1.0], tail)))


def normalized(values: Floats) -> Coefficients:
    """Scale bands to norm 1, from below."""
    scaled = values / (np.linalg.norm(values) * (1 + _ROUNDING))
    return tuple(float(value) for value in scaled)


def column_norm(coefficients: Coefficients) -> float:
    """Return the largest column norm of C: the sensitivity to one participation."""
    return math.sqrt(math.fsum(value**2 for value in coefficients))


def is_normalized(coefficients: Coefficients) -> bool:
    """Whether c is finite, c_0 > 0, and the norm at most 1 and not wasted."""
    if not coefficients or not all(math.isfinite(value) for value in coefficients):
        return False
    norm = column_norm(coefficients)
    return coefficients[0] > 0 and 1 - _TIGHTNESS <= norm <= 1


def prefix_sum_error(coefficients: Coefficients, *, num_steps: int) -> float:
    """Return the root mean square, over n prefix sums, of the noise of unit stddev.

    For independent noise it is sqrt((n + 1) / 2).

    Args:
        coefficients: c.
        num_steps: n, at least 1.
    """
    prefixes = _prefix_responses(np.asarray(coefficients), num_steps)
    return math.sqrt(float(_weights(num_steps) @ prefixes**2))


def step_error(coefficients: Coefficients, *, num_steps: int) -> float:
    """Return the root mean square, over n steps, of the noise of unit stddev in one.

    For independent noise it is 1. Bands raise it while they lower `prefix_sum_error`.

    Args:
        coefficients: c.
        num_steps: n, at least 1.
    """
    responses = _responses(np.asarray(coefficients), num_steps)
    return math.sqrt(float(_weights(num_steps) @ responses**2))


def _growing(num_steps: int, *, least: int) -> list[int]:
    """Halve the number of steps until it is small; smallest first."""
    sizes = [num_steps]
    while sizes[-1] > least:
        sizes.append(math.ceil(sizes[-1] / 2))
    return sizes[::-1]


def _loss(tail: Floats, num_steps: int) -> tuple[float, Floats]:
    """Logarithm of error times column norm, and its gradient, for c = (1, tail).

    dw/dc_j = -x^j w(x) / c(x), so that one more filter gives all derivatives. Where
    C^-1 overflows the loss is a large constant.
    """
    bands = np.concatenate(([1.0], tail))
    with np.errstate(over="ignore", invalid="ignore"):
        prefixes = _prefix_responses(bands, num_steps)
        weighted = _weights(num_steps) * prefixes
        error = float(weighted @ prefixes)
        filtered = signal.lfilter([1.0], bands, prefixes)
        slopes = np.array(
            [-2 * weighted[j:] @ filtered[: num_steps - j] for j in range(len(bands))]
        )
    if not (math.isfinite(error) and np.isfinite(slopes).all()):
        return _HOPELESS, np.zeros_like(tail)
    square = float(bands @ bands)
    gradient = 0.5 * slopes / error + bands / square
    return 0.5 * (math.log(error) + math.log(square)), gradient[1:]


def _prefix_responses(bands: Floats, num_steps: int) -> Floats:
    """Toeplitz coefficients w of A C^-1, `(n,)`."""
    return np.cumsum(_responses(bands, num_steps))


def _responses(bands: Floats, num_steps: int) -> Floats:
    """Toeplitz coefficients of C^-1, `(n,)`."""
    impulse = np.zeros(num_steps)
    impulse[0] = 1.0
    return np.asarray(signal.lfilter([1.0], bands, impulse))


def _weights(num_steps: int) -> Floats:
    """How many of the n prefix sums a coefficient of A C^-1 is in, over n."""
    return np.arange(num_steps, 0, -1) / num_steps


def _square_root_bands(num_bands: int) -> Floats:
    """First coefficients of (1 - x)^(-1/2), the square root of A."""
    steps = np.arange(1, num_bands)
    return np.concatenate(([1.0], np.cumprod((2 * steps - 1) / (2 * steps))))


WORTHWHILE: Final = 0.95
"""More bands must lower the error of prefix sums to this share, for their memory."""

_RATE_ROUNDING: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class Banding:
    """One way to spend a budget.

    Args:
        coefficients: c; one is independent noise.
        noise_multiplier: that meets the target.
        prefix_sum_error: root mean square, over the prefix sums of the run, of the
            noise, in units of max_grad_norm.
    """

    coefficients: Coefficients
    noise_multiplier: float
    prefix_sum_error: float


def candidate_bands(*, sample_rate: float, num_steps: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... as far as groups fill a batch and the run is that long."""
    most = min(num_steps, math.floor(1 / sample_rate * (1 + _RATE_ROUNDING)))
    return tuple(2**power for power in range(max(most, 1).bit_length()))


def choose_banding(
    bands: Iterable[int],
    *,
    num_steps: int,
    calibrate: Callable[[Coefficients], float],
) -> Banding:
    """Pick the bands whose noise hurts prefix sums least at one target.

    A candidate replaces the best so far only if its error is below `WORTHWHILE` of it:
    each doubling of the memory has to pay. The first one always stands, so that with 1
    in front the result is never worse than independent noise by this measure.

    The measure is that of plain SGD, whose weights are prefix sums of noisy gradients.
    With momentum, and with AdamW, which divides by running moments of them, it is a
    heuristic.

    Args:
        bands: numbers of bands, rising, not empty.
        num_steps: noisy updates of the run.
        calibrate: noise multiplier that meets the target with some coefficients.

    Raises:
        InfeasibleBudgetError: the first candidate cannot meet the target.
    """
    first, *more = bands
    best = _banding(first, num_steps, calibrate)
    for number in more:
        try:
            candidate = _banding(number, num_steps, calibrate)
        except InfeasibleBudgetError:
            continue
        if candidate.prefix_sum_error < WORTHWHILE * best.prefix_sum_error:
            best = candidate
    return best


def _banding(
    num_bands: int, num_steps: int, calibrate: Callable[[Coefficients], float]
) -> Banding:
    """Calibrate one candidate and measure it."""
    coefficients = band_coefficients(num_bands=num_bands, num_steps=num_steps)
    multiplier = calibrate(coefficients)
    error = prefix_sum_error(coefficients, num_steps=num_steps)
    return Banding(
        coefficients=coefficients,
        noise_multiplier=multiplier,
        prefix_sum_error=multiplier * error,
    )
