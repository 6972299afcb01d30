"""Pages of verdicts: the gate's decision, and the step-level audit of the engine."""

import math

from dptune.audits.step_report import StepAudit
from dptune.gates.criterion import Criterion, Verdict
from dptune.gates.decision import GateDecision
from dptune.reports.blocks import (
    Bullets,
    Chip,
    Page,
    Table,
    facts,
    page,
    section,
    table_of,
    verdict_chip,
)
from dptune.reports.formatting import (
    count,
    epsilon,
    interval,
    number,
    short_digest,
    words,
)
from dptune.rounding import at_most, nearest

_WORST_FIRST = (
    Verdict.INVALID,
    Verdict.BLOCK,
    Verdict.INCONCLUSIVE,
    Verdict.PASS,
    Verdict.NOT_APPLICABLE,
)
_SUBTITLES = {
    "PASS": "Every criterion of the policy is met. This version may be promoted.",
    "BLOCK": "A criterion is violated. This version must not be promoted.",
    "INCONCLUSIVE": "Evidence is missing or too weak. This is not a pass.",
    "INVALID": "The evidence cannot be trusted. Nothing can be concluded from it.",
}
_EPSILONS = frozenset({"budget", "dataset_budget"})
_P_VALUES = frozenset(
    {"base_model", "blind_membership", "claim_contradiction", "controls"}
)
_BOUNDS = (
    _EPSILONS
    | _P_VALUES
    | {"assurance", "claim_status", "language_missing_rate", "utility"}
)
"""Criteria that measure what something is at most."""
_LEAKS = frozenset({"memorization", "membership", "claim_contradiction"})


def gate_page(decision: GateDecision) -> Page:
    """Describe a decision, failed criteria first, with what would change each."""
    return page(
        section("Criteria", criteria_table(decision)),
        section("What would change it", change_bullets(decision)),
        section(
            "What was decided on",
            facts(
                ("Model", short_digest(decision.model_digest)),
                ("Policy digest", decision.policy_digest),
                ("Evidence digest", decision.evidence_digest),
                ("Files", decision.manifest_digest or "not listed"),
                ("Decision hash", decision.decision_hash),
            ),
        ),
        label="Gate decision",
        title=f"Policy {decision.policy_name}, version {decision.policy_version}",
        chip=verdict_chip(decision.outcome),
        subtitle=_SUBTITLES[decision.outcome],
    )


def criteria_table(decision: GateDecision) -> Table:
    """Return every criterion with its figures and reason, worst first."""
    not_asked = Chip(text="not applicable")
    return table_of(
        sorted(decision.criteria, key=lambda c: _WORST_FIRST.index(c.verdict)),
        ("Criterion", lambda c: words(c.name)),
        (
            "Verdict",
            lambda c: (
                not_asked
                if c.verdict is Verdict.NOT_APPLICABLE
                else verdict_chip(c.verdict)
            ),
        ),
        (
            "Measured",
            lambda c: (
                f"{compared(c)[0]}\n{interval(c.interval)}"
                if c.interval
                else compared(c)[0]
            ),
        ),
        ("Threshold", lambda c: compared(c)[1]),
        ("Reason", lambda c: c.reason),
        numeric=(2, 3),
    )


def compared(criterion: Criterion) -> tuple[str, str]:
    """Return what was measured and the threshold, in digits that tell them apart.

    An epsilon, an upper bound or a p-value is never written smaller than it is.
    """
    found, limit = criterion.measured, criterion.threshold
    is_bound = criterion.name in _BOUNDS
    if found is None or limit is None or not math.isfinite(found):
        is_epsilon = criterion.name in _EPSILONS
        return (epsilon if is_epsilon else number)(found), number(limit)
    rounded = at_most if is_bound else nearest
    for digits in (3, 6, 9, 12):
        near, shown = nearest(limit, digits=digits), rounded(found, digits=digits)
        if _order(shown, near) == _order(found, limit):
            return number(shown, digits=digits), number(near, digits=digits)
    return number(found, digits=17), number(limit, digits=17)


def _order(one: float, other: float) -> int:
    """Return -1, 0 or 1 as one number is smaller, equal or larger."""
    return (one > other) - (one < other)


def headline_reason(decision: GateDecision) -> str:
    """Return the reason of the worst criterion, or say that all are met.

    Of equally bad ones a leak that was measured comes before a claim that is missing.
    """
    for verdict in _WORST_FIRST[:3]:
        found = [c for c in decision.criteria if c.verdict is verdict]
        if found:
            return min(found, key=lambda c: c.name not in _LEAKS).reason
    return "Every criterion of the policy is met."


def change_bullets(decision: GateDecision) -> Bullets | None:
    """Say what would change each failed criterion."""
    steps = tuple(
        f"{words(c.name).capitalize()}: {c.what_would_change_it}"
        for c in decision.failed()
        if c.what_would_change_it
    )
    return Bullets(items=steps) if steps else None


def step_audit_page(audit: StepAudit) -> Page:
    """List every check with its figure; failed ones first."""
    verdict, said = (
        ("INCONCLUSIVE", "Nobody looked at the steps of this stage.")
        if not audit.checks
        else ("PASS", "The engine does what the plan of this stage says.")
        if audit.passed
        else (
            "BLOCK",
            (
                "The engine does not do what the plan of this stage says: its epsilon "
                "means nothing."
            ),
        )
    )
    return page(
        section(
            "Checks",
            table_of(
                sorted(audit.checks, key=lambda check: check.passed),
                ("Check", lambda check: words(check.name)),
                (
                    "Verdict",
                    lambda check: verdict_chip("PASS" if check.passed else "BLOCK"),
                ),
                ("Measured", lambda check: number(check.measured)),
                ("Limit", lambda check: number(check.limit)),
                ("What it is", lambda check: check.detail),
                numeric=(2, 3),
                caption="`Run`: while the stage trained. `Again`: in a few "
                "steps of training run again. The others: on the stage's own "
                "data, through the functions that train. A sound engine fails "
                "one check in a million. Figures of private data are left out.",
            ),
        ),
        section(
            "What was checked",
            facts(
                ("Corpus", short_digest(audit.data_fingerprint)),
                ("Steps of the stage", count(audit.num_steps)),
                ("Seconds that the checks took", number(audit.seconds)),
                (
                    "Recorded while it trained",
                    audit.unrecorded or count(audit.num_recorded or 0),
                ),
            ),
        ),
        label="Step-level audit",
        title=f"{audit.recipe}, stage {words(audit.stage)}",
        chip=verdict_chip(verdict),
        subtitle=said,
    )
