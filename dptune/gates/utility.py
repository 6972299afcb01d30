"""Is the model good for its purpose, beside the one in production or its base?"""

import math
from collections.abc import Sequence

from dptune.gates.criterion import Criterion, Verdict, broken, missing
from dptune.gates.evidence import Evidence
from dptune.gates.policy import GatePolicy
from dptune.results import UtilityReport
from dptune.rounding import at_most
from dptune.statistics import paired_bootstrap_upper

_NAME = "utility"
_RESAMPLES, _MOST_LOOKS = 2000, 100
"""Draws of the bootstrap for one evaluation, and for how many they are multiplied."""


def utility(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Block if the loss may have grown over the champion's by more than the policy's.

    Without a champion the base model stands in: who fine-tunes wants no worse one.
    """
    report = evidence.utility
    if report is None:
        return missing(_NAME, "utility report")
    if not _is_finite(report):
        return broken(_NAME, "The losses on held-out records are not finite numbers.")
    if evidence.champion_digest is not None:
        return _beside_champion(evidence, report, policy)
    if not report.base_record_nll:
        return missing(_NAME, "loss of the base model, record by record")
    found = _compare(
        report,
        report.base_record_nll,
        policy,
        over="base model",
        looks=evidence.num_looks,
    )
    reason = f"No other version is the champion; {_figures(report)}. {found.reason}"
    return found.model_copy(update={"reason": reason})


def _figures(report: UtilityReport) -> str:
    """Name the figures of the model and its base."""
    if report.accuracy is None or report.base_accuracy is None:
        return (
            f"perplexity is {report.perplexity:.4g}, the base model's "
            f"{report.base_perplexity:.4g}"
        )
    most = report.majority_accuracy
    return (
        f"accuracy is {report.accuracy:.4g}, the base model's "
        f"{report.base_accuracy:.4g}, the most frequent class's "
        f"{'not measured' if most is None else f'{most:.4g}'}"
    )


def _beside_champion(
    evidence: Evidence, report: UtilityReport, policy: GatePolicy
) -> Criterion:
    """Compare, if the champion's losses allow it."""
    champion = evidence.champion_utility
    if not evidence.champion_digest:
        return Criterion(
            name=_NAME,
            verdict=Verdict.INCONCLUSIVE,
            reason="The champion was deleted from the registry: nothing can be "
            "compared with it.",
            what_would_change_it="Make another version the champion, by `dptune "
            "rollback --to` or `dptune promote --override`, and decide again.",
        )
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
    other, looks = champion.record_nll, evidence.num_looks
    return _compare(report, other, policy, over="champion", looks=looks)


def _compare(
    report: UtilityReport,
    other: Sequence[float],
    policy: GatePolicy,
    *,
    over: str,
    looks: int,
) -> Criterion:
    """Paired bootstrap of the change in nats per token; one unit shows no spread."""
    if len(set(report.record_units) or report.record_nll) < 2:
        return Criterion(
            name=_NAME,
            verdict=Verdict.INCONCLUSIVE,
            reason="Held-out records are of one unit, which says nothing of others.",
            what_would_change_it="Measure on held-out records of several units.",
        )
    change = (sum(report.record_nll) - sum(other)) / report.num_tokens
    confidence = 1.0 - (1.0 - policy.utility_confidence) / looks
    upper = paired_bootstrap_upper(
        other,
        report.record_nll,
        report.record_tokens,
        units=report.record_units,
        confidence=confidence,
        num_resamples=_RESAMPLES * min(looks, _MOST_LOOKS),
    )
    passed = upper <= policy.max_nll_increase
    return Criterion(
        name=_NAME,
        verdict=Verdict.PASS if passed else Verdict.BLOCK,
        measured=upper,
        threshold=policy.max_nll_increase,
        reason=f"Loss changes by {change:+.4f} nats per token over the {over}, at "
        f"most {at_most(upper):+.12g} at confidence {confidence:g}.",
        what_would_change_it=""
        if passed
        else "Train longer or with less noise, or measure on more records.",
    )


def _is_finite(report: UtilityReport) -> bool:
    """Whether every loss is a number, and there is one for each record, as of units."""
    values = (report.nll_per_token, report.perplexity, *report.record_nll)
    sizes = {report.num_records, len(report.record_nll), len(report.record_tokens)}
    tokens, units = sum(report.record_tokens), report.record_units
    return (
        all(map(math.isfinite, values))
        and _is_base_finite(report)
        and len(sizes) == 1
        and len(units) in {0, report.num_records}
        and min(units, default=0) >= 0
        and tokens == report.num_tokens > 0
        and math.isclose(
            sum(report.record_nll), report.nll_per_token * tokens, rel_tol=1e-6
        )
    )


def _is_base_finite(report: UtilityReport) -> bool:
    """Whether the base's losses, if kept, are one a record and make its perplexity."""
    losses, tokens = report.base_record_nll, report.num_tokens
    if not losses:
        return True
    return (
        len(losses) == report.num_records
        and all(map(math.isfinite, losses))
        and tokens > 0 < report.base_perplexity
        and math.isclose(
            sum(losses) / tokens,
            math.log(report.base_perplexity),
            rel_tol=1e-6,
            abs_tol=1e-9,
        )
    )


def _is_comparable(report: UtilityReport, champion: UtilityReport) -> bool:
    """Whether both are of the same records, cut into the same tokens."""
    return (
        report.corpus_fingerprint,
        report.split,
        report.record_tokens,
    ) == (champion.corpus_fingerprint, champion.split, champion.record_tokens)
