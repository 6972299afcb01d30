"""From a model that a script trained and measured to a gate decision."""

from zenml import pipeline
from zenml.enums import ExecutionMode

import materializers  # noqa: F401 - registers the materializers
from dptune.gates.policy import GatePolicy
from dptune.workflow.dossier import Dossier
from pipelines.train import remember_failure
from steps.gate import gate
from steps.promote import promote
from steps.register_measured import register_measured


@pipeline(
    name="register",
    enable_step_logs=False,
    on_failure=remember_failure,
    execution_mode=ExecutionMode.FAIL_FAST,  # raises what a step raised
)
def register_pipeline(
    dossier: Dossier, folder: str, model_name: str, policy: GatePolicy
) -> None:
    """Register a model with its evidence, decide on it, and move the champion.

    Args:
        dossier: by `dptune.integrations.evidence.measure`.
        folder: of the model.
        model_name: as it is registered.
        policy: what it must show.
    """
    version = register_measured(dossier, folder, model_name)
    decision, _ = gate(version, policy=policy)
    promote(version, decision)
