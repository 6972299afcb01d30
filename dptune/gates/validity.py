"""Can the evidence be trusted at all? Every failure here makes a decision INVALID."""

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from dptune.gates.criterion import (
    Criterion,
    Verdict,
    any_nan,
    broken,
    holds_nan,
    missing,
)
from dptune.gates.evidence import Evidence, FileEvidence
from dptune.gates.manifest import difference
from dptune.gates.null_law import fisher_p_value, uniform_p_value
from dptune.gates.policy import GatePolicy
from dptune.results import CanaryExposure, ExposureReport
from dptune.rounding import written_p_value

_CLOCKS_DIFFER: Final = timedelta(minutes=5)
"""How far clocks of two machines may be apart."""

DRAW_FRESH: Final = "Draw fresh canaries (of a run: by another repetition)"
RANK_EXACTLY: Final = "Rank canaries exactly: leave attack.sampled_candidates out."
_NEXT: Final = {Verdict.PASS: "", Verdict.INCONCLUSIVE: RANK_EXACTLY}


def validity(evidence: Evidence, policy: GatePolicy) -> list[Criterion]:
    """All checks of the evidence itself."""
    found = [
        _identity(evidence, policy),
        _weights(evidence),
        _numbers(evidence),
        _complete(evidence, policy),
        _age(evidence, policy),
    ]
    report = evidence.exposure
    if report is None:
        found.append(missing("exposure_evidence", "exposure report"))
    elif fault := exposure_fault(report):
        found.append(broken("exposure_evidence", fault))
    else:
        found += [
            _planted_count(report),
            _controls(report, policy),
            _base_model(report, policy),
        ]
    found.append(_blind(evidence, policy))
    return found


def asks_for_canaries(report: ExposureReport | None, policy: GatePolicy) -> bool:
    """Whether canaries are needed: by the policy, or because some were trained on."""
    return policy.require_canaries or report is None or bool(report.trained())


def no_canaries(
    name: str,
    report: ExposureReport | None,
    policy: GatePolicy,
    *,
    what: str = "exposure of planted canaries",
) -> Criterion:
    """Say that canaries are missing, or that the policy does not ask for them.

    A report with some canaries, but not those that are needed, is always missing them.
    """
    asked = asks_for_canaries(report, policy)
    reason = (report.not_measurable or _untrained(report)) if report else ""
    if asked and not reason and (report is None or report.planted()):
        return missing(name, what)
    if asked:
        return Criterion(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            reason=f"There is no {what}. {reason}".strip(),
            what_would_change_it="Plant canaries that are trained on, with setting "
            "missed if redaction takes them; or decide under a policy with "
            "require_canaries: false, which asks for membership only.",
        )
    return Criterion(
        name=name,
        verdict=Verdict.NOT_APPLICABLE,
        reason=f"Policy {policy.name} asks for membership only. {reason}".strip(),
    )


def _untrained(report: ExposureReport) -> str:
    """Why planted canaries measure nothing; empty if they do, or there are none."""
    planted = report.planted()
    if not planted or report.trained():
        return ""
    if all(canary.trained is None for canary in planted):
        return "Nobody counted which of the planted canaries were trained on."
    return (
        f"None of {len(planted)} planted canaries was trained on with its whole "
        "secret: redaction or cutting took it. What no loss saw cannot be memorized, "
        "and its exposure says nothing of what can."
    )


def not_drawn(name: str) -> Criterion:
    """Say that the planted canaries can decide nothing, because nobody drew them."""
    return Criterion(
        name=name,
        verdict=Verdict.INCONCLUSIVE,
        reason="The report does not say that the planted secrets were drawn at "
        "random. Given ones follow no uniform law: they neither prove a leak nor "
        "rule one out.",
        what_would_change_it="Train with canaries that are drawn: leave "
        "canaries.fixed out.",
    )


def at_worst(report: ExposureReport) -> str:
    """Say that ranks are intervals, if they are."""
    return ", at the near ends of the ranks' intervals" if report.doubt else ""


def exposure_fault(report: ExposureReport) -> str | None:
    """Why an exposure report contradicts itself, or None."""
    for canary in (*report.canaries, *report.base_canaries):
        fault = _canary_fault(canary, report.space_size)
        if fault is not None:
            return fault
    if report.exact and any(c.method != "exact" for c in report.canaries):
        return "Ranks are said to be counted, but some are bounds or estimates."
    ids, base_ids = (_ids(c) for c in (report.canaries, report.base_canaries))
    if len(set(ids)) != len(ids) or sorted(ids) != sorted(base_ids):
        return "The model and its base were not measured on the same canaries."
    return None


def _canary_fault(canary: CanaryExposure, size: int) -> str | None:
    """Why the exposure of one canary contradicts itself, or None."""
    if not 1 <= canary.rank <= size:
        return f"Rank of {canary.canary_id} is not in [1, {size}]."
    expected = math.log2(size) - math.log2(canary.rank)
    if not math.isclose(canary.exposure, expected, abs_tol=1e-6):
        return f"Exposure of {canary.canary_id} does not follow from its rank."
    if any_nan([canary.nll]):
        return f"The loss of {canary.canary_id} is NaN."
    if canary.method == "interval" and not _is_interval(canary):
        return f"The interval of {canary.canary_id} does not stand for its rank."
    if canary.planted and canary.insertions < 1:
        return f"Canary {canary.canary_id} is planted, but in no record."
    return None


def _is_interval(canary: CanaryExposure) -> bool:
    """Whether the near end of an interval is what stands for the rank."""
    found = canary.exposure_interval
    if found is None or not 0.99 <= found.confidence < 1:
        return False
    is_near = math.isclose(found.high, canary.exposure, abs_tol=1e-6)
    return is_near and 0 <= found.low <= found.high


def _judged(
    name: str,
    report: ExposureReport,
    canaries: Sequence[CanaryExposure],
    test: Callable[[list[int], list[int]], float],
    *,
    level: float,
    tested: str,
    advice: str,
) -> Criterion:
    """Judge ranks by the smallest p-value that their intervals allow.

    It is INVALID where no ranks in the intervals would pass, INCONCLUSIVE where some
    would not.

    Args:
        name: of the criterion.
        report: of all canaries.
        canaries: whose ranks are tested.
        test: p-value of ranks; the second ones are other ends.
        level: at or below which the evidence means nothing.
        tested: what the p-value is of.
        advice: where it is INVALID.
    """
    near = [canary.rank for canary in canaries]
    far = [report.farthest_rank(canary) for canary in canaries]
    verdict, p_value = Verdict.PASS, test(near, far)
    if p_value <= level:
        passes = test(far, near) > level
        verdict = Verdict.INCONCLUSIVE if passes else Verdict.INVALID
    return Criterion(
        name=name,
        verdict=verdict,
        measured=p_value,
        threshold=level,
        reason=f"{tested} is {written_p_value(p_value, digits=3)}{at_worst(report)}.",
        what_would_change_it=_NEXT.get(verdict, advice),
    )


def _ids(canaries: tuple[CanaryExposure, ...]) -> list[tuple[str, bool]]:
    """Public names, and whether planted."""
    return [(canary.canary_id, canary.planted) for canary in canaries]


def _identity(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Everything must be about this model, this base and this policy."""
    strangers = [
        name for name, digest in _digests(evidence) if digest != evidence.model_digest
    ]
    if strangers:
        names = ", ".join(dict.fromkeys(strangers))
        return broken("evidence_identity", f"Of another model: {names}.")
    planned = evidence.planned_for
    if planned and planned.name == policy.name and planned != policy.reference:
        return broken(
            "evidence_identity",
            f"The evidence was planned for version {planned.version} of policy "
            f"{planned.name}, whose thresholds have changed since.",
        )
    exposure, membership = evidence.exposure, evidence.membership
    if (
        exposure is not None
        and membership is not None
        and exposure.base_model_digest != membership.base_model_digest
    ):
        return broken("evidence_identity", "Attacks used different base models.")
    champion = evidence.champion_utility
    if champion is not None and champion.model_digest != evidence.champion_digest:
        return broken("evidence_identity", "The champion's utility is another model's.")
    return Criterion(
        name="evidence_identity",
        verdict=Verdict.PASS,
        reason="All evidence is about this model.",
    )


def _weights(evidence: Evidence) -> Criterion:
    """The version's files must be those that were registered, and hold this model."""
    name, files = "weights", evidence.files
    if files is None:
        return missing(name, "list of the version's files")
    if fault := _file_fault(files, evidence.model_digest):
        return broken(name, fault)
    if files.registered is None:
        return missing(name, "list of the files that were registered")
    return Criterion(
        name=name,
        verdict=Verdict.PASS,
        measured=len(files.stored.files),
        reason=f"All {len(files.stored.files)} files are those that were registered, "
        "byte for byte, and there are no others.",
    )


def _file_fault(files: FileEvidence, model_digest: str) -> str:
    """Why files are not those that were registered; empty if they are."""
    registered = files.registered
    if not files.stored.files:
        return f"The version's files cannot be listed: {files.fault}"
    if registered and (found := difference(registered, files.stored)):
        return f"The files are not those that were registered ({found})."
    if files.fault:
        return f"The version's weights cannot be read: {files.fault}"
    if {files.model_digest, files.registry_digest} != {model_digest}:
        return (
            f"The evidence is of model {model_digest[:16]}, the files hold "
            f"{files.model_digest[:16]}, and the registry's tag says "
            f"{files.registry_digest[:16] or 'nothing'}."
        )
    if registered and registered.digest != files.registry_manifest:
        return "The list of files is not the one that the registry's tag names."
    return ""


def _numbers(evidence: Evidence) -> Criterion:
    """No figure may be NaN, not even one that decides nothing."""
    if holds_nan(evidence.model_dump()):
        return broken("evidence_numbers", "A figure of the evidence is NaN.")
    return Criterion(
        name="evidence_numbers",
        verdict=Verdict.PASS,
        reason="Every figure of the evidence is a number.",
    )


def _complete(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Nothing that every run of the pipeline leaves may be absent."""
    name = "evidence_complete"
    parts = {
        "exposure": evidence.exposure,
        "membership": evidence.membership,
        "utility": evidence.utility,
        "claims": evidence.claims,
        "detection": evidence.detection,
        "audits": evidence.audits or not asks_for_canaries(evidence.exposure, policy),
        "policy it was planned for": evidence.planned_for,
        "time of measurement": evidence.measured_at,
        "time of decision": evidence.decided_at,
    }
    absent = [what for what, part in parts.items() if part in (None, ())]
    if absent:
        return missing(name, ", ".join(absent))
    return Criterion(
        name=name,
        verdict=Verdict.PASS,
        reason="Every report that a run leaves is there.",
    )


def _age(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Evidence is of a model in a world that goes on: it must not be stale."""
    name, limit = "evidence_age", policy.max_evidence_age_days
    parts = (evidence.exposure, evidence.membership, evidence.utility)
    of_parts = [part.measured_at for part in parts if part is not None]
    times = [evidence.measured_at, *of_parts]
    if None in times or evidence.decided_at is None:
        return missing(name, "date of the evidence")
    ages = [evidence.decided_at - time for time in times if time is not None]
    if min(ages) < -_CLOCKS_DIFFER:
        return broken(name, "The evidence was measured after the decision.")
    days = max(0.0, max(ages).total_seconds() / 86_400)
    fresh = days <= limit
    return Criterion(
        name=name,
        verdict=Verdict.PASS if fresh else Verdict.INCONCLUSIVE,
        measured=days,
        threshold=limit,
        reason=f"The oldest attack ran {days:.0f} days before the decision.",
        what_would_change_it="" if fresh else "Run the attacks again.",
    )


def _digests(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Name and model digest of every piece of evidence."""
    if evidence.exposure is not None:
        yield "exposure", evidence.exposure.model_digest
    if evidence.membership is not None:
        yield "membership", evidence.membership.model_digest
    if evidence.utility is not None:
        yield "utility", evidence.utility.model_digest
    for claim in evidence.claims:
        yield "claims", claim.model_digest
    for audit in evidence.audits:
        yield "audits", audit.model_digest
    for steps in evidence.step_audits:
        yield "step audits", steps.model_digest


def _planted_count(report: ExposureReport) -> Criterion:
    """The canaries must be in the corpus as often as planned."""
    planned = sum(canary.insertions for canary in report.planted())
    same = report.planted_found == report.planted_expected == planned
    return Criterion(
        name="planted_count",
        verdict=Verdict.PASS if same else Verdict.INVALID,
        measured=report.planted_found,
        threshold=planned,
        reason=f"{report.planted_found} of {planned} canary records are in the corpus; "
        f"{len(report.trained())} of {len(report.planted())} canaries were trained on, "
        "each copy with its whole secret.",
        what_would_change_it=""
        if same
        else "Plant canaries after deduplication, and keep their rows whole.",
    )


def _controls(report: ExposureReport, policy: GatePolicy) -> Criterion:
    """Ranks of held-out canaries must be uniform, whatever the model memorized."""
    held_out = report.held_out()
    if not held_out:
        found = no_canaries("controls", report, policy, what="held-out canary")
        if found.verdict is Verdict.NOT_APPLICABLE:
            return found
        advice = "Hold canaries out in the next run: canaries.num_held_out."
        return found.model_copy(update={"what_would_change_it": advice})
    return _judged(
        "controls",
        report,
        held_out,
        lambda near, far: uniform_p_value(near, report.space_size, late=far),
        level=policy.control_level,
        tested=f"Kolmogorov-Smirnov p-value of {len(held_out)} held-out canaries "
        "against the uniform law",
        advice=f"{DRAW_FRESH}; if it recurs, ranks are computed wrongly or "
        "controls got into the training data.",
    )


def _base_model(report: ExposureReport, policy: GatePolicy) -> Criterion:
    """The model before fine-tuning must not know the planted canaries."""
    planted = report.base_planted()
    if planted and not report.drawn:
        return not_drawn("base_model")
    if not planted:
        what = "exposure of planted canaries under the base"
        return no_canaries("base_model", report, policy, what=what)
    return _judged(
        "base_model",
        report,
        planted,
        lambda near, _: fisher_p_value(near, report.space_size),
        level=policy.base_level,
        tested="Fisher p-value of the planted canaries under the base model",
        advice=f"{DRAW_FRESH}, uniformly: these mean something to a model that "
        "never saw them.",
    )


def _blind(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """A classifier without any model must not tell members from non-members."""
    if evidence.membership is None:
        return missing("blind_membership", "membership report")
    blind = evidence.membership.blind
    if blind.p_value is None:
        return missing("blind_membership", "p-value of the blind baseline")
    if any_nan([blind.auc, blind.p_value, *dict(blind.auc_interval).values()]):
        return broken("blind_membership", "The blind baseline is NaN.")
    shifted = blind.p_value <= policy.blind_level
    return Criterion(
        name="blind_membership",
        verdict=Verdict.INVALID if shifted else Verdict.PASS,
        measured=blind.p_value,
        threshold=policy.blind_level,
        reason=f"Without any model, members are told from non-members with AUC "
        f"{blind.auc:.3f}; texts are so uneven by luck with chance "
        f"{written_p_value(blind.p_value, digits=3)}.",
        what_would_change_it="Split members and non-members at random from one corpus."
        if shifted
        else "",
    )
