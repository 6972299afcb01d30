"""A version at a glance: what a dashboard shows of it without opening a file."""

import math
from collections.abc import Mapping
from typing import TypeAlias

from dptune.accounting.certificates import Certificate
from dptune.gates.decision import GateDecision, GateOutcome
from dptune.reports.formatting import epsilon, number, p_value, share
from dptune.reports.statements import (
    ExposureStatement,
    MembershipStatement,
    PrivacyCard,
    UtilityStatement,
)

Glance: TypeAlias = dict[str, str | dict[str, str]]


def at_a_glance(card: PrivacyCard, decision: GateDecision | None) -> Glance:
    """Say what was decided and why, what is claimed, and what was measured.

    Args:
        card: of the version; holds only what anybody may read.
        decision: on it; None where there is none yet.

    Returns:
        Words by heading; groups of them where there are several of a kind. What was
        not measured is left out.
    """
    found: Glance = {"verdict": str(decision.outcome) if decision else "none yet"}
    if failed := decision.failed() if decision else ():
        found["why it was refused"] = {c.name: c.reason for c in failed}
        found["what would change it"] = {
            c.name: c.what_would_change_it for c in failed if c.what_would_change_it
        }
    if card.override:
        found["promoted all the same"] = card.override
    found["epsilon"] = {c.label: epsilon_words(c) for c in card.certificates}
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


def summary_markdown(glance: Mapping[str, str | Mapping[str, str]]) -> str:
    """Write the same for a registry that shows Markdown."""
    lines = []
    for heading, words in glance.items():
        if isinstance(words, str):
            lines += [f"**{heading}**: {words}", ""]
            continue
        items = [f"- {name}: {text}" for name, text in words.items()]
        lines += [f"**{heading}**", "", *items, ""]
    return "\n".join(lines)


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
        f"{found.attack}: AUC {number(found.auc)}, finds {share(found.tpr)} of members "
        f"at {share(found.low_fpr)} false alarms"
    )


def _utility(found: UtilityStatement) -> str:
    """Before and after."""
    text = (
        f"perplexity {number(found.perplexity)}, base {number(found.base_perplexity)}"
    )
    if found.accuracy is not None:
        text += f"; accuracy {share(found.accuracy)}"
    return text
