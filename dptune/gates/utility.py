"""Is the model still good for its purpose, beside the one in production?"""

import math

from dptune.gates.criterion import Criterion, Verdict, broken, missing
from dptune.gates.evidence import Evidence
from dptune.gates.policy import GatePolicy
from dptune.results import UtilityReport
from dptune.statistics import paired_bootstrap_upper

_NAME = "utility"


def utility(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Block if the loss may have grown over the champion's by more than the policy's.

    Without a champion there is nothing to compare with: finite losses pass.
    """
    report = evidence.utility
    if report is None:
        return missing(_NAME, "utility report")
    if not _is_finite(report):
        return broken(_NAME, "The losses on held-out records are not finite numbers.")
    if evidence.champion_digest is not None:
        return _beside_champion(report, evidence.champion_utility, policy)
    return Criterion(
        name=_NAME,
        verdict=Verdict.PASS,
        measured=report.nll_per_token,
        reason=f"There is no champion; {_figures(report)}.",
    )


def _figures(report: UtilityReport) -> str:
    """Name the figures of the model and its base."""
    if report.accuracy is None or report.base_accuracy is None:
        return (
            f"perplexity is {report.perplexity:.4g}, the base model's "
            f"{report.base_perplexity:.4g}"
        )
    return (
        f"accuracy is {report.accuracy:.4g}, the base model's "
        f"{report.base_accuracy:.4g}, the most frequent class's "
        f"{report.majority_accuracy or 0:.4g}"
    )


def _beside_champion(
    report: UtilityReport, champion: UtilityReport | None, policy: GatePolicy
) -> Criterion:
    """Compare, if the champion's losses allow it."""
    if champion is None:
        return missing(_NAME, "utility report of the champion")
    if not _is_finite(champion):
        return broken(_NAME, "The champion's losses are not finite numbers.")
    if not _is_comparable(report, champion):
        return Criterion(
            name=_NAME,
            verdict=Verdict.INCONCLUSIVE,
            reason="The champion was measured on other records or other tokens.",
            what_would_change_it="Measure the champion on this run's held-out records.",
        )
    return _compare(report, champion, policy)


def _compare(
    report: UtilityReport, champion: UtilityReport, policy: GatePolicy
) -> Criterion:
    """Paired bootstrap of the change in nats per token."""
    change = report.nll_per_token - champion.nll_per_token
    upper = paired_bootstrap_upper(
        champion.record_nll,
        report.record_nll,
        report.record_tokens,
        confidence=policy.utility_confidence,
    )
    passed = upper <= policy.max_nll_increase
    return Criterion(
        name=_NAME,
        verdict=Verdict.PASS if passed else Verdict.BLOCK,
        measured=upper,
        threshold=policy.max_nll_increase,
        reason=f"Loss changes by {change:+.4f} nats per token over the champion, at "
        f"most {upper:+.4f} at confidence {policy.utility_confidence:g}.",
        what_would_change_it=""
        if passed
        else "Train longer or with less noise, or measure on more records.",
    )


def _is_finite(report: UtilityReport) -> bool:
    """Whether every loss is a number, and there is one for each record."""
    values = (report.nll_per_token, report.perplexity, *report.record_nll)
    sizes = {report.num_records, len(report.record_nll), len(report.record_tokens)}
    tokens = sum(report.record_tokens)
    return (
        all(map(math.isfinite, values))
        and len(sizes) == 1
        and tokens == report.num_tokens > 0
        and math.isclose(
            sum(report.record_nll), report.nll_per_token * tokens, rel_tol=1e-6
        )
    )


def _is_comparable(report: UtilityReport, champion: UtilityReport) -> bool:
    """Whether both are of the same records, cut into the same tokens."""
    return (
        report.corpus_fingerprint,
        report.split,
        report.record_tokens,
    ) == (champion.corpus_fingerprint, champion.split, champion.record_tokens)
