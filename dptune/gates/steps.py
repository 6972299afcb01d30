"""Did the engine do what the plan says, in every stage with noise?"""

from collections.abc import Sequence

from dptune.gates.criterion import Criterion, Verdict, missing
from dptune.gates.evidence import Evidence, StepAuditEvidence
from dptune.gates.policy import GatePolicy

_NAME = "step_audit"


def step_audit(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """Block if a check failed, whatever the policy; ask for checks where it does."""
    found = evidence.step_audits
    count = sum(audit.num_checks - audit.num_passed for audit in found)
    if count:
        failed = [f"{check} ({a.stage})" for a in found for check in a.failed]
        return Criterion(
            name=_NAME,
            verdict=Verdict.BLOCK,
            measured=float(count),
            threshold=0.0,
            reason="Claim contradicted: the engine did not do what its plan says: "
            f"{', '.join(failed)}.",
            what_would_change_it="Look for the fault in sampling, clipping, noise or "
            "accounting, mend it, and train again.",
        )
    if not policy.require_step_audit:
        return _not_applicable(f"Policy {policy.name} asks for no audit of steps.")
    if not found:
        return missing(_NAME, "audit of the stages' steps")
    private = [audit for audit in found if audit.is_private]
    if not private:
        return _not_applicable("No stage has noise to look at.")
    return _complete(private)


def _complete(private: Sequence[StepAuditEvidence]) -> Criterion:
    """Every stage must have been looked at, and every step of it."""
    absent = [a.stage for a in private if not a.num_checks]
    if absent:
        return missing(_NAME, f"audit of the steps of {', '.join(absent)}")
    short = [
        audit.stage
        for audit in private
        if not audit.unrecorded and (audit.num_recorded or 0) < audit.num_steps
    ]
    if short:
        return Criterion(
            name=_NAME,
            verdict=Verdict.INCONCLUSIVE,
            reason=f"Nobody looked on at some steps of {', '.join(short)}.",
            what_would_change_it="Train again with this version.",
        )
    checks = sum(audit.num_checks for audit in private)
    reasons = dict.fromkeys(a.unrecorded for a in private if a.unrecorded)
    found = f"All {checks} checks of {len(private)} stages with noise passed."
    return Criterion(
        name=_NAME,
        verdict=Verdict.PASS,
        measured=0.0,
        threshold=0.0,
        reason=" ".join([found, *reasons]),
    )


def _not_applicable(reason: str) -> Criterion:
    """Say why nothing is asked."""
    return Criterion(name=_NAME, verdict=Verdict.NOT_APPLICABLE, reason=reason)
