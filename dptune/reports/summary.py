"""A version at a glance: what a dashboard shows of it without opening a file."""

import math
from collections.abc import Mapping

from dptune.accounting.certificates import Certificate
from dptune.gates.decision import GateDecision, GateOutcome
from dptune.reports.formatting import epsilon, number, p_value, share, words
from dptune.reports.statements import (
    ExposureStatement,
    MembershipStatement,
    PrivacyCard,
    UtilityStatement,
)


def at_a_glance(card: PrivacyCard, decision: GateDecision | None) -> dict[str, str]:
    """Say what was decided and why, what is claimed, and what was measured.

    Args:
        card: of the version; holds only what anybody may read.
        decision: on it; None where there is none yet.

    Returns:
        Sentences by what they are about, since dashboards fold what is nested. What
        was not measured is left out.
    """
    failed = decision.failed() if decision else ()
    found = {"verdict": str(decision.outcome) if decision else "none yet"}
    for criterion in failed:
        change = criterion.what_would_change_it
        found[f"refused by {words(criterion.name)}"] = " ".join(
            filter(None, (criterion.reason, change))
        )
    if card.override:
        found["promoted all the same"] = card.override
    for notion in dict.fromkeys(c.notion for c in card.certificates):
        found[f"epsilon, {notion}"] = "; ".join(
            f"{epsilon_words(c)} ({words(c.relation)} {c.privacy_unit})"
            for c in card.certificates
            if c.notion is notion
        )
    if card.exposure:
        found["exposure"] = _exposure(card.exposure)
    if card.membership:
        found["membership attack"] = _membership(card.membership)
    if card.utility:
        found["utility"] = _utility(card.utility)
    return found


def epsilon_words(certificate: Certificate) -> str:
    """Say what is claimed, and how well it is founded."""
    claimed, delta = epsilon(certificate.epsilon), number(certificate.delta)
    return f"{claimed} at δ {delta}, {certificate.status}"


def summary_markdown(glance: Mapping[str, str]) -> str:
    """Write the same for a registry that shows Markdown."""
    return "".join(f"**{about}**: {text}\n\n" for about, text in glance.items())


def verdict_tag(outcome: GateOutcome) -> str:
    """Tag by which runs and versions of one verdict are found.

    >>> verdict_tag(GateOutcome.PASS)
    'verdict:PASS'
    """
    return f"verdict:{outcome.value}"


def _exposure(found: ExposureStatement) -> str:
    """Canaries beside chance and beside a full leak."""
    most = number(math.log2(found.space_size))
    return (
        f"{number(found.planted_mean)} bits, mean of {found.num_planted} planted "
        f"canaries ({p_value(found.p_value)} against chance); never-seen ones have "
        f"{number(found.held_out_mean)}, a memorized one has {most}"
    )


def _membership(found: MembershipStatement) -> str:
    """The strongest attack beside guessing."""
    return (
        f"AUC {number(found.auc)} by {words(found.attack)}, finds {share(found.tpr)} "
        f"of members at {share(found.low_fpr)} false alarms"
    )


def _utility(found: UtilityStatement) -> str:
    """Before and after."""
    text = (
        f"perplexity {number(found.perplexity)}, base {number(found.base_perplexity)}"
    )
    if found.accuracy is not None:
        text += f"; accuracy {share(found.accuracy)}"
    return text
