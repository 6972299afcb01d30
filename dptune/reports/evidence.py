"""What attack and utility reports come to: means, p-values, one-line readings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import chi2

from dptune.results import CanaryExposure, ExposureReport


@dataclass(frozen=True, kw_only=True)
class ExposureMeans:
    """Mean exposure of the three groups, bits, and the p-value of the planted ones.

    Args:
        planted, held_out, base: means; None where a group is empty.
        p_value: chance of planted exposures this large had no canary been seen.
        num_planted: canaries behind `planted`.
    """

    planted: float | None
    held_out: float | None
    base: float | None
    p_value: float | None
    num_planted: int


def exposure_means(report: ExposureReport) -> ExposureMeans:
    """Return the mean exposures and the p-value of the planted canaries."""
    planted = report.planted()
    return ExposureMeans(
        planted=_mean(planted),
        held_out=_mean(report.held_out()),
        base=_mean(report.base_planted()),
        p_value=never_seen_p_value(planted),
        num_planted=len(planted),
    )


def never_seen_p_value(canaries: Sequence[CanaryExposure]) -> float | None:
    """Return the p-value of "no model ever saw these", by Fisher's method.

    A never-seen uniform canary has rank R uniform on 1..|R|, so p = rank/|R| = 2^-E and
    2 ln 2 sum E follows chi^2 with 2m degrees of freedom for m independent canaries.

    Formal guarantee: under the null the result is at least as large, in distribution,
    as a uniform variable, up to the dependence of canaries that share one model.
    None without canaries.

    References:
        Fisher (1925), section 21.1; Carlini et al. (2019), eq. 2.
    """
    if not canaries:
        return None
    statistic = 2 * math.log(2) * sum(c.exposure for c in canaries)
    return float(chi2.sf(statistic, 2 * len(canaries)))


def _mean(canaries: Sequence[CanaryExposure]) -> float | None:
    """Return the mean exposure, None for no canaries."""
    if not canaries:
        return None
    return sum(c.exposure for c in canaries) / len(canaries)
