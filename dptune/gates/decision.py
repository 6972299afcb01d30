"""The gate: a pure function from evidence and policy to a decision with reasons.

| outcome | when |
|---|---|
| INVALID | some criterion says that the evidence cannot be trusted |
| BLOCK | else, some criterion is violated |
| INCONCLUSIVE | else, something is missing or cannot be ruled out |
| PASS | else |
"""

import hashlib
from collections.abc import Sequence
from typing import Self

from dptune.errors import ConfigError, of_other_kinds
from dptune.gates.claims import claims
from dptune.gates.criterion import (
    Criterion,
    GateOutcome,
    Verdict,
    broken,
    canonical_digest,
)
from dptune.gates.evidence import Evidence, FileEvidence, PolicyReference
from dptune.gates.languages import languages
from dptune.gates.leakage import leakage
from dptune.gates.origin import origin
from dptune.gates.policy import GatePolicy
from dptune.gates.utility import utility
from dptune.gates.validity import validity
from dptune.results import Report

__all__ = [
    "Criterion",
    "GateDecision",
    "GateOutcome",
    "Verdict",
    "decide",
    "unreadable",
    "worst_outcome",
]

_WORST_FIRST = (Verdict.INVALID, Verdict.BLOCK, Verdict.INCONCLUSIVE)


class GateDecision(Report):
    """What the gate said of one model, and why. Holds no private text.

    Args:
        outcome: the worst verdict of any criterion.
        model_digest: the model that was decided on.
        policy_name: of the policy.
        policy_version: of the policy.
        policy_digest: of its thresholds.
        evidence_digest: of all evidence.
        manifest_digest: of the files that lay in the store; empty in decisions from
            before they were read.
        dossier_digest: of the stored file that it was read from; empty where nobody
            registered it.
        criteria: every check, passed ones included.
    """

    outcome: GateOutcome
    model_digest: str
    policy_name: str
    policy_version: int
    policy_digest: str
    evidence_digest: str
    manifest_digest: str = ""
    dossier_digest: str = ""
    criteria: tuple[Criterion, ...]

    @property
    def decision_hash(self: Self) -> str:
        """SHA-256 of the decision's canonical JSON, for card and version."""
        return canonical_digest(self)

    @property
    def policy(self: Self) -> str:
        """Name the policy, by its digest too: a name alone proves nothing."""
        return PolicyReference(
            name=self.policy_name,
            version=self.policy_version,
            digest=self.policy_digest,
        ).title

    def failed(self: Self) -> tuple[Criterion, ...]:
        """The criteria that stand in the way of a pass."""
        return tuple(c for c in self.criteria if c.verdict in _WORST_FIRST)


def decide(evidence: Evidence, policy: GatePolicy) -> GateDecision:
    """Decide whether a version may be promoted.

    A pure function: equal evidence and policy give an equal decision and hash. Missing
    evidence is INCONCLUSIVE; NaN, contradictory or foreign evidence is INVALID; neither
    ever passes.

    Args:
        evidence: reports and claims about one model.
        policy: the thresholds.

    Returns:
        The decision with every criterion.

    Raises:
        ConfigError: evidence or policy is something else.

    Privacy:
        Reports on private units are outside epsilon, and so is the decision: count the
        gate's attempts per data set.

    >>> from dptune.gates.evidence import Evidence
    >>> from dptune.gates.policy import GatePolicy
    >>> policy = GatePolicy(notion="record", max_epsilon=8.0, max_delta=1e-5)
    >>> decision = decide(Evidence(model_digest="0" * 64), policy)
    >>> decision.outcome.value
    'INCONCLUSIVE'
    """
    wanted = {"evidence": (evidence, Evidence), "policy": (policy, GatePolicy)}
    if problems := list(of_other_kinds(wanted)):
        raise ConfigError(problems)
    criteria = (
        *validity(evidence, policy),
        *origin(evidence, policy),
        *claims(evidence, policy),
        *languages(evidence, policy),
        *leakage(evidence, policy),
        utility(evidence, policy),
    )
    return GateDecision(
        outcome=worst_outcome(criteria),
        model_digest=evidence.model_digest,
        policy_name=policy.name,
        policy_version=policy.version,
        policy_digest=policy.digest,
        evidence_digest=canonical_digest(evidence),
        manifest_digest=(evidence.files or FileEvidence()).stored.digest,
        dossier_digest=evidence.origin.digest if evidence.origin else "",
        criteria=criteria,
    )


def unreadable(
    text: str,
    policy: GatePolicy,
    *,
    model_digest: str,
    reason: str,
    files: FileEvidence,
) -> GateDecision:
    """Decide on evidence that cannot be read: it is INVALID, whatever the policy asks.

    Args:
        text: the evidence as it is stored; only its digest enters the decision.
        policy: that was asked for.
        model_digest: the model that the evidence should be about.
        reason: what is wrong with it, without quoting it.
        files: of the version.
    """
    criteria = (broken("evidence", reason),)
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return GateDecision(
        outcome=worst_outcome(criteria),
        model_digest=model_digest,
        policy_name=policy.name,
        policy_version=policy.version,
        policy_digest=policy.digest,
        evidence_digest=digest,
        manifest_digest=files.stored.digest,
        dossier_digest=digest,
        criteria=criteria,
    )


def worst_outcome(criteria: Sequence[Criterion]) -> GateOutcome:
    """Return the outcome that follows from criteria: the worst verdict, or a pass."""
    found = {criterion.verdict for criterion in criteria}
    for verdict in _WORST_FIRST:
        if verdict in found:
            return GateOutcome(verdict.value)
    return GateOutcome.PASS
