"""Recipes side by side: the wiring of one cell, and of all their results."""

from typing import Any

from zenml import pipeline
from zenml.enums import ExecutionMode

import materializers  # noqa: F401 - registers the materializers
from dptune.config import TrainConfig
from dptune.reports.comparison import ComparisonReport
from pipelines.train import remember_failure, train_and_attack
from steps.assess import assess
from steps.compare import compare


@pipeline(name="compare_cell", enable_step_logs=False, on_failure=remember_failure)
def cell_pipeline(
    config: dict[str, Any],
    fingerprint: str,
    label: str,
    *,
    retrain: bool,
    review: str = "",
) -> None:
    """Train and attack as `train` does; register and promote nothing.

    Args:
        config: a `TrainConfig` as JSON values.
        fingerprint: of the source as the preflight saw it.
        label: of the recipe in its comparison.
        retrain: train again although an identical run was finished before.
        review: digest of the project's reviews as they are now.
    """
    run = TrainConfig.model_validate(config)
    done = train_and_attack(run, fingerprint, retrain=retrain, review=review)
    assess(done.model, done.results, done.samples, config=run, label=label)


@pipeline(
    name="compare",
    enable_step_logs=False,
    on_failure=remember_failure,
    execution_mode=ExecutionMode.FAIL_FAST,  # raises what a step raised
)
def compare_pipeline(plan: dict[str, Any], runs: dict[str, str], parent: str) -> None:
    """Put finished cells together.

    Args:
        plan: a `ComparisonReport` without results, as JSON values.
        runs: pipeline runs of finished cells, by number of the cell.
        parent: MLflow run of the comparison.
    """
    compare(plan=ComparisonReport.model_validate(plan), runs=runs, parent_run=parent)
