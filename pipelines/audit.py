"""Audits on their own: of a recorded run's steps, and of a model trained elsewhere."""

from typing import Any

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

import materializers  # noqa: F401 - registers the materializers
from dptune.attacks.settings import AttackSettings
from dptune.config import PerformanceSettings, TrainConfig
from dptune.recipes import View
from dptune.workflow.external_audit import ForeignModel
from pipelines.train import remember_failure
from steps.attack_texts import attack_texts
from steps.check_engine import check_engine
from steps.rank_canaries import rank_canaries


@pipeline(
    name="audit_run",
    enable_step_logs=False,
    on_failure=remember_failure,
    execution_mode=ExecutionMode.FAIL_FAST,  # raises what a step raised
)
def audit_run_pipeline(run_id: str, config: dict[str, Any]) -> None:
    """Measure the steps of every stage of a recorded training run again.

    Args:
        run_id: of the training run, whose artifacts are read.
        config: its `TrainConfig` as JSON values.
    """
    run, steps = (
        TrainConfig.model_validate(config),
        Client().get_pipeline_run(run_id).steps,
    )

    def output(step: str, name: str) -> Any:  # noqa: ANN401 - an artifact of any type
        return steps[step].outputs[name][0]

    views = {
        View.ORIGINAL: output("detect", "labelled_corpus"),
        View.REDACTED: output("redact", "redacted_corpus"),
    }
    model = output("prepare_model", "base_model")
    for stage in run.recipe.stages:
        trained = f"train_{stage.name}"
        check_engine(
            model,
            views[stage.view],
            output("calibrate", "plan"),
            output(trained, "ledger"),
            output("score", "sensitivity"),
            stage=stage.name,
            settings=run.model,
            performance=run.performance,
            id=f"check_{stage.name}",
        )
        model = output(trained, "model")


@pipeline(
    name="audit_model",
    enable_step_logs=False,
    on_failure=remember_failure,
    execution_mode=ExecutionMode.FAIL_FAST,  # raises what a step raised
)
def audit_model_pipeline(
    foreign: ForeignModel, attacks: AttackSettings, performance: PerformanceSettings
) -> None:
    """Attack a model directory with texts that its owner vouches for.

    Args:
        foreign: the model, its base, texts, and canaries if there are any.
        attacks: how many records, how many bootstrap draws.
        performance: memory and speed.
    """
    attack_texts(foreign=foreign, attacks=attacks, performance=performance)
    if foreign.canaries is not None:
        rank_canaries(foreign=foreign, performance=performance)
