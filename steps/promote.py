"""Step: move the champion on PASS, and only then."""

from typing import Annotated

from zenml import log_metadata, step

from dptune.gates.decision import GateDecision, GateOutcome
from dptune.results import RegisteredVersion
from steps._alerting import alert_verdict
from steps._caching import NEVER


@step(
    enable_cache=False,
    cache_policy=NEVER,
    experiment_tracker=True,
    on_success=alert_verdict,
)
def promote(
    version: RegisteredVersion, decision: GateDecision
) -> tuple[Annotated[bool, "promoted"], Annotated[GateDecision, "decision"]]:
    """Return whether the version is the champion now, and the decision on that.

    The decision is opened again, and every file read, before the champion moves.
    Another run may have moved the champion since the gate: then the gate decides again,
    and says so on this step, in an alert too.
    """
    from steps._deciding import decide_beside_champion
    from steps._promoting import promote_decided
    from steps._registry import moving_champion, refuse_version

    with moving_champion(version.model_name):
        newest = decide_beside_champion(version, decision)
        passed = newest.outcome is GateOutcome.PASS
        if passed:
            promote_decided(version.model_name, version.version)
        else:
            refuse_version(version.model_name, version.version)
    log_metadata({"promoted": passed})
    return passed, newest
