"""How many bands a planned run should have: noise against amplification.

More bands cancel more of the noise in prefix sums, and cost amplification: a unit joins
b times as likely in one of every b steps. Which wins depends on the target.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dptune.dpsgd.factorization import (
    Coefficients,
    band_coefficients,
    prefix_sum_error,
)
from dptune.errors import InfeasibleBudgetError

WORTHWHILE: Final = 0.95
"""More bands must lower the error of prefix sums to this share, for their memory."""

_ROUNDING: Final = 1e-9


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
    most = min(num_steps, math.floor(1 / sample_rate * (1 + _ROUNDING)))
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
