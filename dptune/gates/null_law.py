"""The law of canary ranks when nothing leaks, and when a claim holds.

Let R be the candidates, N = |R|, and let m canaries be drawn uniformly, each planted
in k privacy units. `rank` is 1 + the number of candidates that the model likes better.

**Nothing leaks.** A model that never saw the canaries ranks each of them uniformly, so
`rank / N` is a p-value, exposure E = log2(N / rank) has mean 1.44 bits, and
2 ln 2 sum E follows a chi-square law with 2m degrees of freedom (Fisher's method).

**A claim (epsilon, delta) holds.** Write (e, d) for the group guarantee of size k:
e = k epsilon, d = delta (exp(k epsilon) - 1) / (exp(epsilon) - 1). Suppose first that
the m secrets are independent.

1. One canary. Replace its k copies by those of another secret, or leave them out. The
   model then does not depend on the secret, so rank <= r has probability r / N at most.
   (Records of others that a copy is appended to stay without it: that replaces them.)
   By group privacy and post-processing

       P[rank <= r] <= exp(e) r / N + d,             so the right side is a p-value.

2. Any v of m, whatever the dependence (Markov; Rueger 1978): if p is the v-th smallest
   of these p-values, (m / v) p is a p-value.
3. All m together. Fix r and let A be the r best candidates, a function of the model
   alone. Under a replace guarantee (e, d), which an add-or-remove guarantee implies at
   group size 2k, the ratio L(s) of the model's density given secret s to its average
   over secrets satisfies E[(L - exp(e))+] <= d, by convexity also after averaging over
   later canaries. Given the model and earlier canaries, secret i therefore falls into A
   with probability at most exp(e) r / N + h_i where E[h_i] <= d. A coupling with
   independent coins gives

       P[at least v canaries have rank <= r] <= P[Bin(m, exp(e) r / N) >= v] + m d.

Secrets are drawn distinct, that is, independent given that they are distinct: every
probability above is divided by that of distinct secrets, which is 0.999 for 50 of 10^6.
Nothing assumes that canaries do not influence each other in training. Candidates that
tie are put in order by a draw that is independent of the model, so that |A| is r: given
the model, a uniform secret has rank r with probability 1 / N exactly.

References:
    Carlini et al. (2019), "The secret sharer", equation 2. Steinke, Nasr, Jagielski
    (2023), "Privacy auditing with one training run", for the argument in 3. Vadhan
    (2017), "The complexity of differential privacy", lemma 2.2 (groups). Rueger (1978),
    "Das maximale Signifikanzniveau des Tests: Lehne H0 ab, wenn k unter n gegebenen
    Tests zur Ablehnung fuehren".
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from dptune.privacy import NeighboringRelation

Floats = NDArray[np.float64]

_TOP_SHARES = (1e-5, 1e-3, 1e-1)
_CLEAN_BITS = 1.0 / math.log(2.0)
_HARDLY_CLEAN = 0.002
_HALF_WEIGHT = 0.8
_OTHER_WEIGHT = (1.0 - _HALF_WEIGHT) / (1 + len(_TOP_SHARES))


def fisher_p_value(ranks: Sequence[int], space_size: int) -> float:
    """p-value of all ranks together against the uniform law; 1 without canaries.

    >>> round(fisher_p_value([250, 500, 750], 1000), 2)
    0.58
    >>> fisher_p_value([1, 1, 1], 1000) < 1e-6
    True
    """
    if not ranks:
        return 1.0
    statistic = -2.0 * np.log(np.asarray(ranks, np.float64) / space_size).sum()
    return float(stats.chi2.sf(statistic, 2 * len(ranks)))


def single_p_value(ranks: Sequence[int], space_size: int) -> float:
    """p-value of the best rank against the uniform law, corrected for their number.

    >>> single_p_value([2, 400, 750, 910], 1000)
    0.008
    """
    if not ranks:
        return 1.0
    return min(1.0, len(ranks) * min(ranks) / space_size)


def uniform_p_value(
    ranks: Sequence[int], space_size: int, *, late: Sequence[int] | None = None
) -> float:
    """Two-sided Kolmogorov-Smirnov p-value of ranks against the uniform law.

    Args:
        ranks: of the canaries.
        space_size: number of candidates.
        late: other ranks of the same canaries, by which to say how much too large they
            are; `ranks` then only say how much too small. Of intervals, nearest ranks
            here and farthest there give the smallest p-value that they allow, and the
            other way round one that none of them is above.
    """
    early, late_ones = (
        np.sort((np.asarray(some, np.float64) - 0.5) / space_size)
        for some in (ranks, ranks if late is None else late)
    )
    steps = np.arange(len(early) + 1) / len(early)
    apart = max((steps[1:] - early).max(), (late_ones - steps[:-1]).max())
    return float(stats.kstwo.sf(apart, len(early)))


def mean_exposure_bounds(
    mean: float, num_canaries: int, *, level: float
) -> tuple[float, float]:
    """One-sided lower and upper bounds, each at `level`, of the law's mean exposure.

    Exposures are taken as exponential with an unknown mean, of which the clean law is
    the case of 1.44 bits: the upper bound is 2 m mean / chi2_{2m, level}.

    >>> low, high = mean_exposure_bounds(1.44, 50, level=0.01)
    >>> round(low, 2), round(high, 2)
    (1.06, 2.06)
    """
    scaled, freedom = 2.0 * num_canaries * mean, 2 * num_canaries
    low = scaled / stats.chi2.isf(level, freedom)
    return float(low), float(scaled / stats.chi2.ppf(level, freedom))


def skewed_mean_upper(exposures: ArrayLike, *, level: float) -> Floats:
    """Upper bound of the mean exposure for laws of any shape that the sample shows.

    Where a few canaries leak much and the others nothing, exposures are no exponential
    law, and its bound is too small. With `t` Student's quantile, `s` the deviation and
    `g` the third central moment of m exposures, this one is
    `mean + t s / sqrt(m) + g (1 + 2 t^2) / (6 s^2 m)`: Student's bound, corrected for
    skewness to first order. The mean itself where all are equal. What is too rare to be
    among so many is not in it, see `few_known_upper`.

    Args:
        exposures: `(..., canaries)`, bits.
        level: of the bound.

    References:
        Johnson (1978), "Modified t tests and confidence intervals for asymmetrical
        populations".

    >>> float(skewed_mean_upper([1.0] * 95 + [15.0] * 5, level=0.005).round(2))
    2.81
    """
    values = np.asarray(exposures, np.float64)
    num, mean = values.shape[-1], values.mean(-1)
    apart = values - mean[..., None]
    variance = (apart**2).sum(-1) / max(1, num - 1)
    third = (apart**3).mean(-1)
    quantile = float(stats.t.isf(level, max(1, num - 1)))
    skew = third / (6.0 * np.where(variance > 0, variance, 1.0) * num)
    wider = np.maximum(0.0, skew * (1.0 + 2.0 * quantile**2))
    upper: Floats = mean + quantile * np.sqrt(variance / num) + wider
    return upper


def few_known_upper(exposures: ArrayLike, *, most_bits: float, level: float) -> Floats:
    """Upper bound of the mean exposure if few secrets are known by heart, others not.

    That none of the known ones was planted shows in no exposure: where a share f is
    known, m canaries have none with chance `(1 - f)^m`, however small the level of
    other bounds. With k of m canaries so early that one in 500 clean runs has such a
    one, Clopper and Pearson's bound of f at twice the level makes a mean of
    `log2 e + f (most_bits - log2 e)`. Twice, since a leak of any shape may pass as
    often.

    Args:
        exposures: `(..., canaries)`, bits.
        most_bits: of a canary that is ranked first.
        level: of the other bounds, below one half.

    >>> float(few_known_upper([1.4427] * 100, most_bits=20, level=0.005).round(2))
    2.28
    >>> float(few_known_upper([1.4427] * 100, most_bits=20, level=0.00025).round(2))
    2.8
    """
    values = np.asarray(exposures, np.float64)
    num = values.shape[-1]
    known = (num * np.exp2(-values) <= _HARDLY_CLEAN).sum(-1)
    left = np.maximum(num - known, 1)
    share = np.where(
        known < num, special.betainccinv(known + 1, left, 2.0 * level), 1.0
    )
    upper: Floats = _CLEAN_BITS + share * (most_bits - _CLEAN_BITS)
    return upper


def largest_mean_exposure(
    exposures: ArrayLike, *, most_bits: float, level: float
) -> Floats:
    """One-sided upper bound of the mean exposure that `assurance` goes by.

    The largest one of those for exponential laws, for laws of any shape that shows,
    and for few secrets that are known by heart; of a canary ranked first at most.

    Args:
        exposures: `(..., canaries)`, bits.
        most_bits: of a canary that is ranked first.
        level: of the bound.
    """
    values = np.asarray(exposures, np.float64)
    of_one = mean_exposure_bounds(1.0, values.shape[-1], level=level)[1]
    skewed = skewed_mean_upper(values, level=level)
    few = few_known_upper(values, most_bits=most_bits, level=level)
    upper: Floats = np.minimum(
        most_bits, np.maximum.reduce([of_one * values.mean(-1), skewed, few])
    )
    return upper


def group_privacy(epsilon: float, delta: float, *, size: int) -> tuple[float, float]:
    """(epsilon, delta) of a group of `size` units, from that of one; delta is capped.

    | size | epsilon | result |
    |---|---|---|
    | 0 | any | (0, 0) |
    | k | 0 | (0, k delta) |
    | k | so large that delta overflows | (k epsilon, 1) |
    """
    if size == 0:
        return 0.0, 0.0
    total = size * epsilon
    if epsilon == 0.0:
        return 0.0, min(1.0, size * delta)
    if total > 700.0:
        return total, 1.0 if delta > 0 else 0.0
    # the quotient first: times delta, a tiny numerator would vanish, and delta with it
    return total, min(1.0, delta * (math.expm1(total) / math.expm1(epsilon)))


def contradiction_p_value(
    ranks: Sequence[int],
    insertions: Sequence[int],
    space_size: int,
    *,
    epsilon: float,
    delta: float,
    relation: NeighboringRelation,
    appended: bool = False,
) -> float:
    """p-value of the planted canaries' ranks if the claim (epsilon, delta) holds.

    Combines, by weighted Bonferroni, the median canary (weight 0.8), the best one, and
    the counts within the best 1e-5, 1e-3 and 1e-1 of all candidates (see the module).

    Args:
        ranks: of the planted canaries.
        insertions: copies of each, each copy in a unit of its own.
        space_size: number of candidates.
        epsilon: of the claim; infinite gives 1.
        delta: of the claim.
        relation: of the claim.
        appended: copies sit in records of others, which stay where one is left out: to
            add or remove, that is a group of two.

    Returns:
        In [0, 1]; small says that the claim, its accounting or its code is wrong.
    """
    num = len(ranks)
    if num == 0 or not math.isfinite(epsilon):
        return 1.0
    pair = 2 if relation is NeighboringRelation.ADD_OR_REMOVE_ONE else 1
    each = pair if appended else 1
    own = sorted(
        _bounded(rank / space_size, *group_privacy(epsilon, delta, size=each * copies))
        for rank, copies in zip(ranks, insertions, strict=True)
    )
    half = math.ceil(num / 2)
    found = [
        num / half * own[half - 1] / _HALF_WEIGHT,
        num * own[0] / _OTHER_WEIGHT,
    ]
    group = group_privacy(epsilon, delta, size=pair * max(insertions))
    for share in _TOP_SHARES:
        top = math.floor(share * space_size)
        count = sum(rank <= top for rank in ranks)
        chance = _bounded(top / space_size, group[0], 0.0)
        joint = float(stats.binom.sf(count - 1, num, chance)) + num * group[1]
        found.append(joint / _OTHER_WEIGHT)
    distinct = distinct_probability(num, space_size)
    return 1.0 if distinct == 0.0 else min(1.0, min(found) / distinct)


def distinct_probability(num: int, space_size: int) -> float:
    """Chance that `num` independent uniform secrets are all distinct."""
    chances = 1.0 - np.arange(num) / space_size
    return float(np.prod(np.maximum(chances, 0.0)))


def _bounded(share: float, epsilon: float, delta: float) -> float:
    """min(1, exp(epsilon) share + delta), without overflow."""
    if share <= 0.0:
        return min(1.0, delta)
    exponent = epsilon + math.log(share)
    return 1.0 if exponent >= 0.0 else min(1.0, math.exp(exponent) + delta)
