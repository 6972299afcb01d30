"""Is the claim within budget, founded as the policy asks, and not contradicted?"""

import math
from collections.abc import Iterable, Sequence

from dptune.accounting.assumptions import ABOUT_REDACTION, Assumption, weakens
from dptune.gates.criterion import Criterion, Verdict, any_nan, broken, missing
from dptune.gates.evidence import (
    AuditEvidence,
    BudgetEvidence,
    ClaimEvidence,
    Evidence,
)
from dptune.gates.null_law import contradiction_p_value
from dptune.gates.policy import GatePolicy
from dptune.gates.steps import step_audit
from dptune.gates.validity import (
    RANK_EXACTLY,
    exposure_fault,
    no_canaries,
)
from dptune.privacy import (
    CertificateStatus,
    NeighboringRelation,
    Notion,
)
from dptune.results import ExposureReport
from dptune.rounding import (
    percent_at_most,
    written_at_least,
    written_at_most,
    written_p_value,
)

_PROVEN = (CertificateStatus.CERTIFIED, CertificateStatus.CONDITIONAL)


def claims(evidence: Evidence, policy: GatePolicy) -> list[Criterion]:
    """All checks of the privacy claim."""
    fault = next(filter(None, map(_claim_fault, evidence.claims)), None)
    if fault:
        return [broken("claims", fault)]
    return [
        _contradiction(evidence, policy),
        _audits(evidence, policy),
        step_audit(evidence, policy),
        _budget(evidence, policy),
        _status(evidence, policy),
        _dataset_budget(evidence, policy),
    ]


def _delta(value: float) -> str:
    """Write a delta for a sentence, not smaller than it is."""
    return f"delta {written_at_most(value, digits=6)}"


def _epsilon(value: float, *, digits: int = 4) -> str:
    """Write an epsilon for a sentence, not smaller than it is."""
    most = written_at_most(value, digits=digits)
    return "infinite" if math.isinf(value) else most


def _claim_fault(claim: ClaimEvidence) -> str | None:
    """Why a claim means nothing, or None."""
    numbers = (claim.epsilon, claim.delta, claim.missing_rate, claim.missing_rate_upper)
    if any_nan(numbers):
        return f"A figure of the {claim.notion} claim is NaN."
    if set(claim.assumptions) - set(Assumption):
        return f"The {claim.notion} claim rests on what this version does not know."
    if claim.epsilon < 0 or not 0 <= claim.delta <= 1:
        return f"Epsilon or delta of the {claim.notion} claim is out of range."
    if (
        claim.notion is not Notion.RECORD
        and claim.relation is not NeighboringRelation.REPLACE_ONE
    ):
        return (
            f"The {claim.notion} claim is accounted as {claim.relation}, which is too "
            "small: its neighbors are replacements."
        )
    return None


def _contradiction(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Block if the exposures are impossible under some claim: a bug, not bad luck."""
    name = "claim_contradiction"
    report = evidence.exposure
    if report is None:
        return missing(name, "exposure report")
    if exposure_fault(report):
        return broken(name, "The exposure report contradicts itself.")
    tested = [c for c in evidence.claims if _is_tested(c, report)]
    if not tested or not report.planted():
        return Criterion(
            name=name,
            verdict=Verdict.NOT_APPLICABLE,
            reason="No finite claim is of a notion that these canaries test.",
        )
    planted = report.planted()
    (p_value, claim), (proven, _) = (
        min(
            ((_p_value(c, report, ranks) * len(tested), c) for c in tested),
            key=lambda pair: pair[0],
        )
        for ranks in (
            [c.rank for c in planted],
            list(map(report.farthest_rank, planted)),
        )
    )
    p_value, level = min(1.0, p_value), policy.contradiction_level
    contradicted = p_value <= level
    if not contradicted and not report.trained():
        return no_canaries(name, report, policy)
    if proven > level >= p_value:
        return Criterion(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            measured=p_value,
            threshold=level,
            reason="Whether the ranks contradict a claim depends on where in their "
            "intervals they are.",
            what_would_change_it=RANK_EXACTLY,
        )
    what = f"{claim.notion} epsilon {_epsilon(claim.epsilon)} at {_delta(claim.delta)}"
    reason = (
        f"If {what} holds, such ranks have probability {written_p_value(p_value)} at "
        "most."
    )
    if contradicted and claim.status is CertificateStatus.CONDITIONAL:
        reason += " The claim is wrong, or its assumptions are violated."
    return Criterion(
        name=name,
        verdict=Verdict.BLOCK if contradicted else Verdict.PASS,
        measured=p_value,
        threshold=level,
        reason=reason,
        what_would_change_it="Look for the fault in sampling, clipping, noise or "
        "accounting; a new training run alone does not change it."
        if contradicted
        else "",
    )


def _is_tested(claim: ClaimEvidence, report: ExposureReport) -> bool:
    """Whether the planted canaries test this claim.

    A canary is a whole record, so it tests record claims. Its secret is random in a
    fixed template, so it also tests selective claims, unless spans were taken from the
    detector on purpose: then the claim's assumption is violated by design. A secret
    that nobody drew tests nothing.
    """
    if claim.status not in _PROVEN or not math.isfinite(claim.epsilon):
        return False
    if not report.drawn:
        return False
    hidden = report.setting in ("missed", "partly_missed")
    return claim.notion is not Notion.SELECTIVE or not hidden


def _p_value(
    claim: ClaimEvidence, report: ExposureReport, ranks: Sequence[int]
) -> float:
    """p-value of the planted canaries' ranks under one claim."""
    return contradiction_p_value(
        ranks,
        [canary.insertions for canary in report.planted()],
        report.space_size,
        epsilon=claim.epsilon,
        delta=claim.delta,
        relation=claim.relation,
        appended=report.appended,
    )


def _audits(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Compare lower bounds of audits with the claims that they can refute."""
    name, audits = "audit", evidence.audits
    if any_nan(v for a in audits for v in (a.epsilon_lower_bound, a.capacity, a.delta)):
        return broken(name, "A figure of an audit is NaN.")
    if any(a.epsilon_lower_bound > a.capacity for a in audits):
        return broken(name, "An audit found more than it could.")
    refuted = [
        (audit, claim)
        for audit in audits
        for claim in evidence.claims
        if _refutes(audit, claim)
    ]
    if not refuted:
        return _capacity(evidence, policy)
    audit, claim = min(refuted, key=lambda pair: pair[0].assumption_violated)
    found = (
        f"Audit {audit.method} bounds {audit.notion} epsilon from below by "
        f"{written_at_least(audit.epsilon_lower_bound, digits=6)} at confidence "
        f"{audit.confidence:g}, above "
        f"the claimed {_epsilon(claim.epsilon, digits=6)}"
    )
    bug = not audit.assumption_violated
    return Criterion(
        name=name,
        verdict=Verdict.BLOCK,
        measured=audit.epsilon_lower_bound,
        threshold=claim.epsilon,
        reason=f"Claim contradicted: {found}."
        if bug
        else f"Assumption violated, no bug: {found}, on secrets that the detector "
        "missed.",
        what_would_change_it="Look for the fault in sampling, clipping, noise or "
        "accounting."
        if bug
        else "Use a wider detector: the claim does not cover what it misses.",
    )


def _refutes(audit: AuditEvidence, claim: ClaimEvidence) -> bool:
    """Whether a bound is of a claim's own notion, and above it."""
    return (
        claim.status in _PROVEN
        and (claim.notion, claim.relation) == (audit.notion, audit.relation)
        and claim.delta <= audit.delta
        and audit.epsilon_lower_bound > claim.epsilon
    )


def _capacity(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """An audit that could not have found anything is no evidence."""
    wanted = policy.min_audit_capacity
    asked = (policy.notion, policy.neighboring_relation)
    own = [a for a in evidence.audits if (a.notion, a.relation) == asked]
    if not own:
        if policy.notion is Notion.LOCAL:
            return Criterion(
                name="audit",
                verdict=Verdict.NOT_APPLICABLE,
                reason="Canaries do not test a local claim.",
            )
        what = f"audit of the {policy.notion} {policy.neighboring_relation} claim"
        if evidence.exposure is None or evidence.exposure.trained():
            return missing("audit", what)
        return no_canaries("audit", evidence.exposure, policy, what=what)
    best = max(own, key=lambda audit: audit.capacity)
    passed = wanted is None or best.capacity >= wanted
    bound = written_at_least(max(audit.epsilon_lower_bound for audit in own))
    return Criterion(
        name="audit",
        verdict=Verdict.PASS if passed else Verdict.INCONCLUSIVE,
        measured=best.capacity,
        threshold=wanted,
        reason=f"No audit refutes a claim: epsilon is at least {bound} at "
        f"confidence {best.confidence:g}; {best.num_canaries} canaries could have "
        f"shown {written_at_least(best.capacity)}.",
        what_would_change_it="" if passed else "Plant more canaries in the next run.",
    )


def _selected(evidence: Evidence, policy: GatePolicy) -> list[ClaimEvidence]:
    """Claims of the policy's notion for its unit or a coarser one, under its relation.

    None at all if one of a coarser unit lacks a relation that it must be claimed under.
    """
    found = [
        claim
        for claim in evidence.claims
        if claim.notion is policy.notion
        and claim.privacy_unit.coarseness >= policy.privacy_unit.coarseness
        and claim.relation in policy.relations_for(claim.privacy_unit)
    ]
    known = {(claim.privacy_unit, claim.relation) for claim in found}
    wanted = {(u, r) for u, _ in known for r in policy.relations_for(u)}
    return found if wanted == known else []


def _wanted(policy: GatePolicy) -> str:
    """The kind of claim that the policy asks for, in words."""
    return (
        f"{policy.notion} claim under {policy.neighboring_relation} for a "
        f"{policy.privacy_unit}"
    )


def _budget(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """The worst claim of the notion must be within the policy's epsilon and delta."""
    found = _selected(evidence, policy)
    if not found:
        return missing("budget", _wanted(policy))
    worst = max(found, key=lambda claim: claim.epsilon)
    delta = max(claim.delta for claim in found)
    within = worst.epsilon <= policy.max_epsilon and delta <= policy.max_delta
    is_own = worst.relation is policy.neighboring_relation
    under = "" if is_own else f" under {worst.relation}"
    return Criterion(
        name="budget",
        verdict=Verdict.PASS if within else Verdict.BLOCK,
        measured=worst.epsilon,
        threshold=policy.max_epsilon,
        reason=f"Composed {policy.notion} epsilon is {_epsilon(worst.epsilon)} per "
        f"{worst.privacy_unit}{under} at {_delta(delta)} (at most "
        f"{policy.max_delta:.12g}).",
        what_would_change_it=""
        if within
        else "Train with more noise or fewer steps, under a smaller target epsilon "
        "and delta.",
    )


def _status(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Every claim of the notion must be founded in a way that the policy accepts."""
    name, found = "claim_status", _selected(evidence, policy)
    if not found:
        return missing(name, _wanted(policy))
    refused = {c.status for c in found} - set(policy.accepted_statuses)
    if refused:
        return Criterion(
            name=name,
            verdict=Verdict.BLOCK,
            reason=f"A {policy.notion} claim has the status "
            f"{' and '.join(sorted(refused))}; accepted: "
            f"{', '.join(sorted(policy.accepted_statuses))}.",
            what_would_change_it="Use a mechanism in its sound mode.",
        )
    conditional = [c for c in found if c.status is CertificateStatus.CONDITIONAL]
    founded = {a for claim in conditional for a in _weakening(claim)}
    unknown = not_accepted(founded, policy)
    if unknown:
        return Criterion(
            name=name,
            verdict=Verdict.BLOCK,
            reason=f"A {policy.notion} claim is conditional on {', '.join(unknown)}, "
            "which no measurement supports and the policy does not accept.",
            what_would_change_it="Set what makes it unnecessary, such as "
            "data.public_units, or list it under accepted_assumptions.",
        )
    by_detector = [c for c in conditional if _is_about_redaction(c)]
    if by_detector:
        return _missing_rate(evidence, policy, by_detector)
    accepted = ", ".join(sorted(founded))
    return Criterion(
        name=name,
        verdict=Verdict.PASS,
        reason=f"A {policy.notion} claim is conditional on {accepted}, as accepted."
        if conditional
        else f"Every {policy.notion} claim is certified.",
    )


def not_accepted(
    assumptions: Iterable[Assumption], policy: GatePolicy
) -> list[Assumption]:
    """Name what a claim is conditional on, unmeasured and against the policy.

    Args:
        assumptions: that weaken the claim.
        policy: which may take some at their word.
    """
    accepted = ABOUT_REDACTION | set(policy.accepted_assumptions)
    return sorted(set(assumptions) - accepted)


def _weakening(claim: ClaimEvidence) -> set[Assumption]:
    """Name what makes a claim conditional."""
    known = map(Assumption, claim.assumptions)
    return {a for a in known if weakens(a, claim.notion, claim.relation)}


def _is_about_redaction(claim: ClaimEvidence) -> bool:
    """Whether a claim rests on the detector, or does not say on what it rests."""
    named = _weakening(claim)
    return not named or bool(named & ABOUT_REDACTION)


def _missing_rate(
    evidence: Evidence, policy: GatePolicy, conditional: list[ClaimEvidence]
) -> Criterion:
    """A claim that depends on recall is worth as much as the recall was measured."""
    rates = [_rate_and_upper(claim, evidence) for claim in conditional]
    known = [pair for pair in rates if pair is not None]
    if len(known) < len(rates):
        return _unaudited(evidence)
    if not policy.accept_declared_missing_rate and not _is_measured(evidence):
        return _declared(evidence)
    rate, upper = max(known, key=lambda pair: pair[1])
    if any_nan([rate, upper]) or not 0 <= rate <= upper <= 1:
        return broken("claim_status", "The missing rate is not a rate below its bound.")
    source = evidence.detection.missing_rate_source if evidence.detection else ""
    by = f", by {source}" if source else ""
    limit = policy.max_missing_rate
    verdict = Verdict.PASS
    if upper > limit:
        verdict = Verdict.BLOCK if rate > limit else Verdict.INCONCLUSIVE
    return Criterion(
        name="claim_status",
        verdict=verdict,
        measured=upper,
        threshold=limit,
        reason=f"The {policy.notion} claim is conditional; the detector misses "
        f"{rate:.2%} of all words, at most {percent_at_most(upper)}{by}.",
        what_would_change_it=""
        if verdict is Verdict.PASS
        else "Review a larger sample, or use a wider detector.",
    )


def _is_measured(evidence: Evidence) -> bool:
    """Whether the missing rate was measured on texts, by gold spans or a review."""
    detection = evidence.detection
    return (
        detection is not None
        and detection.missing_rate_origin in ("gold", "review")
        and detection.missing_rate_texts > 0
    )


def _declared(evidence: Evidence) -> Criterion:
    """Say that the missing rate is somebody's word."""
    source = evidence.detection.missing_rate_source if evidence.detection else ""
    return Criterion(
        name="claim_status",
        verdict=Verdict.INCONCLUSIVE,
        reason="The evidence does not say that the missing rate was measured, by gold "
        f"spans or a review: it is {source or 'of unknown origin'}.",
        what_would_change_it="Review a sample: `dptune review export`; or take "
        "the word for it: `accept_declared_missing_rate: true` in the policy.",
    )


def _unaudited(evidence: Evidence) -> Criterion:
    """Say that nobody measured what the detector misses, or why a figure is refused."""
    found = missing("claim_status", "audited missing rate of the detector")
    refusal = evidence.detection.missing_rate_refusal if evidence.detection else ""
    reason = f"{found.reason} The imported one was refused: {refusal}."
    return found.model_copy(
        update={
            "reason": reason if refusal else found.reason,
            "what_would_change_it": "Review a sample: `dptune review export`, "
            "then `review import`, then train again; finished stages are kept.",
        }
    )


def _rate_and_upper(
    claim: ClaimEvidence, evidence: Evidence
) -> tuple[float, float] | None:
    """Missing rate and its upper bound, from the claim or else from detection."""
    if claim.missing_rate is not None and claim.missing_rate_upper is not None:
        return claim.missing_rate, claim.missing_rate_upper
    detection = evidence.detection
    if (
        detection is None
        or detection.missing_rate is None
        or detection.missing_rate_interval is None
    ):
        return None
    return detection.missing_rate, detection.missing_rate_interval.high


def _dataset_budget(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """What all runs spent together must be within the data set's budget.

    A budget under another relation, or at a larger delta, bounds nothing here.
    """
    name, budget = "dataset_budget", evidence.dataset_budget
    units = [
        policy.privacy_unit,
        *(c.privacy_unit for c in _selected(evidence, policy)),
    ]
    relation = policy.relations_for(max(units, key=lambda u: u.coarseness))[-1]
    asked = (policy.notion, relation)
    if budget is not None and (budget.notion, budget.relation) == asked:
        if any_nan([budget.spent_epsilon, budget.budget_epsilon, budget.delta]):
            return broken(name, "A figure of the data set's budget is NaN.")
        within = math.isfinite(budget.spent_epsilon) and (
            budget.spent_epsilon <= budget.budget_epsilon
        )
        if not within or budget.delta <= policy.max_delta:
            return _spent_of(name, budget, within=within)
    if policy.require_dataset_budget:
        return missing(
            name,
            f"{policy.notion} budget of the data set under {relation}, at delta <= "
            f"{policy.max_delta:.12g}",
        )
    return Criterion(
        name=name,
        verdict=Verdict.NOT_APPLICABLE,
        reason="The policy does not ask for the data set's budget.",
    )


def _spent_of(name: str, budget: BudgetEvidence, *, within: bool) -> Criterion:
    """Say what was spent of a grant."""
    return Criterion(
        name=name,
        verdict=Verdict.PASS if within else Verdict.BLOCK,
        measured=budget.spent_epsilon,
        threshold=budget.budget_epsilon,
        reason=f"All runs on this data set spent {budget.notion} epsilon "
        f"{_epsilon(budget.spent_epsilon)} of "
        f"{_epsilon(budget.budget_epsilon, digits=12)}.",
        what_would_change_it="" if within else "Collect new data.",
    )
