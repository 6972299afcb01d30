"""What an exposure report comes to: means of its groups and one p-value."""

from collections.abc import Sequence
from dataclasses import dataclass

from dptune.gates.null_law import fisher_p_value
from dptune.results import CanaryExposure, ExposureReport


@dataclass(frozen=True, kw_only=True)
class ExposureMeans:
    """Mean exposure of the three groups, bits, and the p-value of the planted ones.

    Args:
        planted, held_out, base: means; None where a group is empty.
        p_value: chance of planted exposures this large had no canary been seen, by
            Fisher's method; assumes that canaries are independent.
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
        p_value=fisher_p_value([c.rank for c in planted], report.space_size)
        if planted
        else None,
        num_planted=len(planted),
    )


def _mean(canaries: Sequence[CanaryExposure]) -> float | None:
    """Return the mean exposure, None for no canaries."""
    if not canaries:
        return None
    return sum(c.exposure for c in canaries) / len(canaries)
