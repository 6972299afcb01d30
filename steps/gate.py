"""Step: decide whether a version may be promoted. Never cached."""

from typing import Annotated

from zenml import log_metadata, step

from dptune.gates.decision import GateDecision
from dptune.gates.policy import GatePolicy
from dptune.reports.card.statements import PrivacyCard
from dptune.results import RegisteredVersion
from steps._alerting import alert_verdict
from steps._caching import NEVER


@step(
    enable_cache=False,
    cache_policy=NEVER,
    experiment_tracker=True,
    on_success=alert_verdict,
)
def gate(
    version: RegisteredVersion, policy: GatePolicy
) -> tuple[Annotated[GateDecision, "decision"], Annotated[PrivacyCard, "privacy_card"]]:
    """Return the decision with a reason for every criterion, and the privacy card."""
    from dptune.errors import GateFailedError
    from steps._deciding import decide_on, decision_metadata, glance, reasons
    from steps._registry import show_on_run

    decision, card = decide_on(version.model_name, version.version, policy=policy)
    log_metadata(decision_metadata(decision, version))
    show_on_run(glance(decision, card), version, outcome=decision.outcome)
    if card is None:
        raise GateFailedError(
            f"version {version.version} of {version.model_name}: {decision.outcome}. "
            f"{reasons(decision)}"
        )
    return decision, card
