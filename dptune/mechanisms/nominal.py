"""Epsilons that papers print: their own formulas, for comparison only.

**Formal guarantee**: none. Nothing here is certified; a certificate comes from the
ledger's events.
"""

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from scipy.optimize import brentq
from scipy.stats import norm

from dptune.accounting.accountants import renyi_divergences
from dptune.accounting.events import event_to_json
from dptune.errors import ConfigError

OPACUS_ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(12, 64)),
)
"""Orders of Opacus' Renyi accountant, which most of the papers used."""

Steps = Sequence[tuple[float, int]]
"""Noise multipliers, and for how many steps each was used."""


def renyi_epsilon(
    steps: Steps,
    *,
    sample_rate: float,
    delta: float,
    orders: Sequence[float] = OPACUS_ORDERS,
) -> float:
    """Return the smallest RDP(order) + ln(1 / delta) / (order - 1), add or remove one.

    Args:
        steps: of Poisson-sampled Gaussians.
        sample_rate: q of each step, in (0, 1].
        delta: in (0, 1).
        orders: tried; a single one gives SA-ADP's bound at order 32.

    Raises:
        ConfigError: a number is out of range.

    References:
        Mironov (2017), proposition 3, https://arxiv.org/abs/1702.07476v3; ATDP, section
        4.4 and appendix A; SA-ADP, section IV.

    >>> round(renyi_epsilon([(1.0, 1000)], sample_rate=0.01, delta=1e-5), 2)
    2.54
    """
    if not 0 < delta < 1 or not 0 < sample_rate <= 1 or min(orders) <= 1:
        raise ConfigError(
            "a nominal epsilon must have delta in (0, 1), sample_rate in (0, 1] and "
            f"orders above 1, got delta={delta}, sample_rate={sample_rate}."
        )
    tried = tuple(orders)
    spent = sum(
        count * renyi_divergences(_step(sample_rate, noise_multiplier), tried)
        for noise_multiplier, count in steps
    )
    bounds = spent + math.log(1 / delta) / (np.asarray(tried) - 1)
    return float(np.nanmin(bounds))


def gdp_epsilon(steps: Steps, *, sample_rate: float, delta: float) -> float:
    """Return the epsilon of Gaussian DP by the central limit: too small by 1.2 to 6.

    mu^2 = q^2 sum of (exp(1 / sigma^2) - 1), and epsilon from delta = Phi(mu / 2 -
    epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu). It holds in the limit of
    many steps with q sqrt(steps) fixed only, and bounds nothing before.

    Args:
        steps: of Poisson-sampled Gaussians.
        sample_rate: q of each step, in (0, 1].
        delta: in (0, 1).

    References:
        Bu, Dong, Long, Su (2020), https://arxiv.org/abs/1911.11607v3, corollary 5.4;
        RLDP, section 2.3. Equation 7 there is another formula, which has no meaning:
        an inverse distribution function has one argument.

    >>> round(gdp_epsilon([(1.0, 1000)], sample_rate=0.01, delta=1e-5), 2)
    1.62
    """
    squares = (count * math.expm1(min(1 / s**2, 700.0)) for s, count in steps if s > 0)
    mu = sample_rate * math.sqrt(sum(squares))
    return gdp_to_epsilon(mu, delta=delta)


def gdp_to_epsilon(mu: float, *, delta: float) -> float:
    """Return the epsilon of mu-GDP; 0 for a mu of 0, infinite beyond reason.

    References:
        Dong, Roth, Su (2022), https://arxiv.org/abs/1905.02383v3, corollary 2.13.

    >>> round(gdp_to_epsilon(1.0, delta=1e-5), 2)
    4.38
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        log_second = epsilon + float(norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - math.exp(log_second) - delta

    if excess(0.0) <= 0:
        return 0.0
    largest = mu**2 / 2 + mu * (norm.isf(delta) + 1.0)
    if not math.isfinite(largest) or largest > 1e6:
        return math.inf
    return float(brentq(excess, 0.0, largest, xtol=1e-9))


def _step(sample_rate: float, noise_multiplier: float) -> str:
    """Describe one step, as JSON."""
    gaussian = GaussianDpEvent(noise_multiplier)
    return event_to_json(PoissonSampledDpEvent(sample_rate, gaussian))
