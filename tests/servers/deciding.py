"""The part of a run that races with others': its decision, and the champion."""

from typing import Any

from zenml import pipeline
from zenml.client import Client

import materializers  # noqa: F401 - registers the materializers
from dptune.gates.policy import GatePolicy
from steps.gate import gate
from steps.promote import promote


@pipeline(name="decide", enable_step_logs=False)
def decide_pipeline(run_id: str, policy: dict[str, Any]) -> None:
    """Decide on a finished run's version once more.

    Args:
        run_id: of the finished run.
        policy: of the gate.
    """
    version = Client().get_pipeline_run(run_id).steps["register"].outputs["version"][0]
    decision, _ = gate(version, policy=GatePolicy.model_validate(policy))
    promote(version, decision)
