"""The largest epsilon that an observation refutes."""

import math
from collections.abc import Callable

from scipy import special

_LARGEST = 100.0
_STEPS = 24


def largest_refuted(refutes: Callable[[float], bool]) -> float:
    """Return an epsilon that is refuted and above which, near by, none is.

    Whoever has a smaller epsilon has any larger one too, so that every smaller epsilon
    is refuted with it. 0 where even epsilon 0 is not refuted.

    Args:
        refutes: whether an epsilon, at least 0, is refuted.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, 0.5
    while refutes(high):
        low, high = high, 2.0 * high
        if low >= _LARGEST:
            return _LARGEST
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def gaussian_epsilon(mu: float, *, delta: float) -> float:
    """Return the epsilon at `delta` of a mechanism whose curve is `GaussianCurve(mu)`.

    References:
        Dong, Roth, Su (2019), "Gaussian differential privacy", corollary 2.13,
        https://arxiv.org/abs/1905.02383.
    """
    if mu == 0.0:
        return 0.0
    return largest_refuted(lambda epsilon: _gaussian_delta(mu, epsilon) > delta)


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    upper = special.ndtr(mu / 2.0 - epsilon / mu)
    lower = epsilon + special.log_ndtr(-mu / 2.0 - epsilon / mu)
    return float(upper - math.exp(min(lower, 700.0)))
