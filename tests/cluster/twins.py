"""The part of a run that a kill interrupts: a reservation, and the private stage."""

from typing import Any

from zenml import pipeline
from zenml.client import Client

import materializers  # noqa: F401 - registers the materializers
from dptune.config import TrainConfig
from steps.ingest import ingest
from steps.reserve_budget import reserve_budget
from steps.train_stage import train_stage


@pipeline(name="twin", enable_step_logs=False)
def twin_pipeline(run_id: str, config: dict[str, Any], seed: int) -> None:
    """Train a finished run's private stage once more, as a computation of its own.

    Args:
        run_id: of the finished run.
        config: of this one.
        seed: fixes the noise.
    """
    run, settings = (
        Client().get_pipeline_run(run_id),
        TrainConfig.model_validate(config),
    )

    def made(step: str, name: str) -> Any:
        return run.steps[step].outputs[name][0]

    plan = made("calibrate", "plan")
    # Charged for texts of its own: those of the run belong to another data set.
    others, _ = ingest(settings.data, fingerprint="")
    reservation = reserve_budget(others, plan, config=settings, retrain=False)
    train_stage(
        made("train_redacted_finetune", "model"),
        made("detect", "labelled_corpus"),
        plan,
        made("train_redacted_finetune", "ledger"),
        reservation,
        made("score", "sensitivity"),
        stage="private_finetune",
        settings=settings.model,
        performance=settings.performance,
        seed=seed,
        retrain=False,
        repetition=settings.repetition,
        labelled=made("detect", "labelled_corpus"),
        canaries=made("plant_canaries", "canaries"),
        attacks=settings.attack,
        audit=settings.audit,
        id="train_private_finetune",
    )
