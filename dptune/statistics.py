"""Small statistics that attacks and gates share: intervals, tests, corrections."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dptune.errors import DataError

Floats = NDArray[np.float64]

_BLOCK = 4_000_000


def clopper_pearson(
    num_successes: int, num_trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Exact two-sided interval of a binomial proportion; `(0, 1)` without trials.

    References:
        Clopper and Pearson (1934), "The use of confidence or fiducial limits".
    """
    tail = (1.0 - confidence) / 2.0
    failures = num_trials - num_successes
    low, high = 0.0, 1.0
    if num_successes > 0:
        low = float(stats.beta.ppf(tail, num_successes, failures + 1))
    if failures > 0:
        high = float(stats.beta.isf(tail, num_successes + 1, failures))
    return low, high


def resampled_indices(
    *sizes: int, num_resamples: int, generator: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Bootstrap draws of several groups in blocks of bounded memory.

    Yields:
        For each group an array `(resamples, size)` of indices into it.
    """
    rows = max(1, _BLOCK // max(sum(sizes), 1))
    for start in range(0, num_resamples, rows):
        count = min(rows, num_resamples - start)
        yield tuple(generator.integers(0, size, (count, size)) for size in sizes)


def paired_bootstrap_upper(
    champion_nll: Sequence[float],
    candidate_nll: Sequence[float],
    tokens: Sequence[int],
    *,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> float:
    """Upper bound of the change in nats per token from champion to candidate.

    Records are resampled in pairs, so that what is hard for both cancels.

    Args:
        champion_nll: total nats of each held-out record under the champion.
        candidate_nll: of the same records under the candidate.
        tokens: predicted tokens of each record.
        confidence: of the one-sided bound.
        num_resamples: bootstrap draws.
        seed: fixed, so that a decision can be repeated.

    Returns:
        The bound; NaN if a loss is NaN.

    Raises:
        DataError: lengths differ, or there is no token.
    """
    champion = np.asarray(champion_nll, np.float64)
    candidate = np.asarray(candidate_nll, np.float64)
    weight = np.asarray(tokens, np.float64)
    if not len(champion) == len(candidate) == len(weight):
        raise DataError(
            "paired losses must be of the same records, got "
            f"{len(champion)}, {len(candidate)} and {len(weight)}."
        )
    if weight.sum() <= 0:
        raise DataError("paired losses need at least one predicted token, got none.")
    generator = np.random.default_rng(seed)
    change = candidate - champion
    draws = resampled_indices(
        len(change), num_resamples=num_resamples, generator=generator
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [change[i].sum(axis=1) / weight[i].sum(axis=1) for (i,) in draws]
    values = np.concatenate(means)
    if np.isnan(values).any():
        return float("nan")
    return float(np.quantile(values, confidence, method="higher"))


def holm(p_values: Mapping[str, float], *, level: float) -> frozenset[str]:
    """Names of the hypotheses that Holm's procedure rejects at family-wise `level`.

    References:
        Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    rejected = []
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for position, (name, p_value) in enumerate(ordered):
        if not p_value <= level / (len(ordered) - position):
            break
        rejected.append(name)
    return frozenset(rejected)
