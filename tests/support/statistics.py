"""Bounds for statistical tests, with both error rates written down.

A test of a law passes the true law and fails a broken twin. With `n` draws and
two-sided bounds at a false-alarm rate of 1e-6, a seed that was never tried before fails
once in a million; `variance_escape_probability` says how often the twin slips through.
"""

import math

from scipy import stats

FALSE_ALARM_RATE = 1e-6


def variance_bounds(
    num_draws: int, *, stddev: float, false_alarm_rate: float = FALSE_ALARM_RATE
) -> tuple[float, float]:
    """Return bounds on the mean square of `num_draws` draws of N(0, stddev^2).

    Args:
        num_draws: n; n * mean square / stddev^2 is chi-square with n degrees of
            freedom.
        stddev: of the true law.
        false_alarm_rate: chance that the true law falls outside.
    """
    law = stats.chi2(num_draws)
    scale = stddev**2 / num_draws
    low = float(law.ppf(false_alarm_rate / 2)) * scale
    high = float(law.isf(false_alarm_rate / 2)) * scale
    return low, high


def variance_escape_probability(
    num_draws: int,
    *,
    relative_error: float,
    false_alarm_rate: float = FALSE_ALARM_RATE,
) -> float:
    """Return how often a stddev that is off by a factor stays inside the bounds.

    Args:
        num_draws: see `variance_bounds`.
        relative_error: 0.05 stands for a stddev that is 5 % too large, -0.05 too small.
        false_alarm_rate: see `variance_bounds`.
    """
    low, high = variance_bounds(
        num_draws, stddev=1.0, false_alarm_rate=false_alarm_rate
    )
    law = stats.chi2(num_draws)
    scale = num_draws / (1 + relative_error) ** 2
    return float(law.cdf(high * scale) - law.cdf(low * scale))


def mean_bound(
    num_draws: int, *, stddev: float, false_alarm_rate: float = FALSE_ALARM_RATE
) -> float:
    """Return the bound on |mean| of `num_draws` draws of N(0, stddev^2)."""
    quantile = float(stats.norm.isf(false_alarm_rate / 2))
    return quantile * stddev / math.sqrt(num_draws)


def binomial_bounds(
    num_draws: int, *, probability: float, false_alarm_rate: float = FALSE_ALARM_RATE
) -> tuple[int, int]:
    """Return bounds on the number of successes among independent draws."""
    law = stats.binom(num_draws, probability)
    low = int(law.ppf(false_alarm_rate / 2))
    high = int(law.isf(false_alarm_rate / 2))
    return low, high


def binomial_escape_probability(
    num_draws: int,
    *,
    probability: float,
    relative_error: float,
    false_alarm_rate: float = FALSE_ALARM_RATE,
) -> float:
    """Return how often a probability off by a factor stays inside the bounds."""
    low, high = binomial_bounds(
        num_draws, probability=probability, false_alarm_rate=false_alarm_rate
    )
    law = stats.binom(num_draws, probability * (1 + relative_error))
    return float(law.cdf(high) - law.cdf(low - 1))


def chi_square_bounds(
    degrees: int, *, false_alarm_rate: float = FALSE_ALARM_RATE
) -> tuple[float, float]:
    """Return two-sided bounds on a chi-square statistic."""
    law = stats.chi2(degrees)
    return float(law.ppf(false_alarm_rate / 2)), float(law.isf(false_alarm_rate / 2))
