"""What an epsilon leaves to an attacker, in odds that a person can judge.

The attacker knows everything but one thing: which of two neighboring data sets was
used. He has a prior belief in one of them and sees everything that was released.

References:
    Wasserman, Zhou (2010), Theorem 2.4, trade-off of errors, arXiv:0811.2501.
    Kairouz, Oh, Viswanath (2015), Theorem 2.1, arXiv:1311.0776.
"""

import math

from dptune.errors import ConfigError


def posterior(*, prior: float, epsilon: float) -> float:
    """Bound the belief after seeing the release, from a prior belief.

    **Formal guarantee**: Bayes' rule with a likelihood ratio of at most exp(epsilon).
    Under (epsilon, delta)-DP it may be exceeded with probability about delta.

    >>> round(posterior(prior=0.01, epsilon=1.0), 4)
    0.0267
    """
    _check(prior, epsilon)
    if prior in {0.0, 1.0}:
        return prior
    return 1 / (1 + math.exp(-epsilon) * (1 - prior) / prior)


def best_true_positive_rate(
    *, false_positive_rate: float, epsilon: float, delta: float
) -> float:
    """Bound the share of members found by any test with that false positive rate.

    **Formal guarantee**: every test between neighbors that an (epsilon, delta)-DP
    mechanism separates obeys it, and some mechanism attains it.

    >>> best_true_positive_rate(false_positive_rate=0.01, epsilon=0.0, delta=0.0)
    0.01
    """
    _check(false_positive_rate, epsilon)
    if math.isinf(epsilon):
        return 1.0
    by_false_positives = (
        math.exp(min(epsilon, 700.0)) * false_positive_rate + delta
        if false_positive_rate > 0
        else delta
    )
    by_misses = 1 - math.exp(-epsilon) * (1 - delta - false_positive_rate)
    return min(by_false_positives, by_misses, 1.0)


def _check(probability: float, epsilon: float) -> None:
    """Refuse what is no probability or no epsilon."""
    if not (0 <= probability <= 1 and epsilon >= 0):
        raise ConfigError(
            "probability must be in [0, 1] and epsilon at least 0, got "
            f"probability={probability}, epsilon={epsilon}."
        )
