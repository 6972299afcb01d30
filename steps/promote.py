"""Step: move the champion on PASS, and only then."""

from typing import Annotated

from zenml import log_metadata, step

from dptune.gates.decision import GateDecision, GateOutcome
from dptune.results import RegisteredVersion
from steps._caching import NEVER
from steps._registry import promote_version, refuse_version


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def promote(
    version: RegisteredVersion, decision: GateDecision
) -> Annotated[bool, "promoted"]:
    """Return whether the version is the champion now."""
    passed = decision.outcome is GateOutcome.PASS
    if passed:
        reason = f"gate PASS, decision {decision.decision_hash[:16]}"
        promote_version(version.model_name, version.version, reason=reason)
    else:
        refuse_version(version.model_name, version.version)
    log_metadata({"promoted": passed})
    return passed
