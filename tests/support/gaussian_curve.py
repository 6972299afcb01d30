"""The Gaussian mechanism's own trade-off curve, for audits of known strength."""

import math

from scipy import special

from dptune.audits.tails import largest_refuted


class GaussianCurve:
    """The curve of distinguishing N(0, 1) from N(mu, 1)."""

    def __init__(self, mu: float) -> None:
        self._mu = mu

    def inverse(self, probability: float) -> float:
        """Return Phi(Phi^-1(probability) - mu)."""
        if not 0.0 < probability < 1.0:
            return min(1.0, max(0.0, probability))
        return float(special.ndtr(special.ndtri(probability) - self._mu))


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
