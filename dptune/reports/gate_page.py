"""Blocks for a gate decision: every criterion, measured against its threshold."""

from dptune.gates.criterion import Criterion, Verdict
from dptune.gates.decision import GateDecision
from dptune.reports.blocks import (
    Bullets,
    Chip,
    Page,
    Section,
    Table,
    facts,
    table,
    verdict_chip,
)
from dptune.reports.formatting import epsilon, interval, number, short_digest, words

_WORST_FIRST = (
    Verdict.INVALID,
    Verdict.BLOCK,
    Verdict.INCONCLUSIVE,
    Verdict.PASS,
    Verdict.NOT_APPLICABLE,
)
_LEDES = {
    "PASS": "Every criterion of the policy is met. This version may be promoted.",
    "BLOCK": "A criterion is violated. This version must not be promoted.",
    "INCONCLUSIVE": "Evidence is missing or too weak. This is not a pass.",
    "INVALID": "The evidence cannot be trusted. Nothing can be concluded from it.",
}


def gate_page(decision: GateDecision) -> Page:
    """Describe a decision, failed criteria first, with what would change each."""
    return Page(
        kicker="Gate decision",
        title=f"Policy {decision.policy_name}, version {decision.policy_version}",
        chip=verdict_chip(decision.outcome),
        lede=_LEDES[decision.outcome],
        sections=(
            Section(title="Criteria", blocks=(criteria_table(decision),)),
            *(
                Section(title="What would change it", blocks=(steps,))
                for steps in change_bullets(decision)
            ),
            Section(
                title="What was decided on",
                blocks=(
                    facts(
                        ("Model", short_digest(decision.model_digest)),
                        ("Policy digest", decision.policy_digest),
                        ("Evidence digest", decision.evidence_digest),
                        ("Files", decision.manifest_digest or "not listed"),
                        ("Decision hash", decision.decision_hash),
                    ),
                ),
            ),
        ),
    )


def criteria_table(decision: GateDecision) -> Table:
    """Return every criterion with its figures and reason, worst first."""
    ordered = sorted(decision.criteria, key=lambda c: _WORST_FIRST.index(c.verdict))
    return table(
        ("Criterion", "Verdict", "Measured", "Threshold", "Reason"),
        (_row(criterion) for criterion in ordered),
        numeric=(2, 3),
    )


_LEAKS = frozenset({"memorization", "membership", "claim_contradiction"})


def headline_reason(decision: GateDecision) -> str:
    """Return the reason of the worst criterion, or say that all are met.

    Of equally bad ones a leak that was measured comes before a claim that is missing.
    """
    for verdict in _WORST_FIRST[:3]:
        found = [c for c in decision.criteria if c.verdict is verdict]
        if found:
            return min(found, key=lambda c: c.name not in _LEAKS).reason
    return "Every criterion of the policy is met."


def _row(criterion: Criterion) -> tuple[str | Chip, ...]:
    """Return one criterion's row."""
    measured = epsilon(criterion.measured)
    if criterion.interval:
        measured += f"\n{interval(criterion.interval)}"
    return (
        words(criterion.name),
        _verdict(criterion.verdict),
        measured,
        number(criterion.threshold),
        criterion.reason,
    )


def _verdict(verdict: Verdict) -> Chip:
    """Return the chip of one criterion."""
    if verdict is Verdict.NOT_APPLICABLE:
        return Chip(text="not applicable")
    return verdict_chip(verdict)


def change_bullets(decision: GateDecision) -> tuple[Bullets, ...]:
    """Say what would change each failed criterion."""
    steps = tuple(
        f"{words(c.name).capitalize()}: {c.what_would_change_it}"
        for c in decision.failed()
        if c.what_would_change_it
    )
    return (Bullets(items=steps),) if steps else ()
