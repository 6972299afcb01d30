"""A private curve in MLflow: a few requests, whatever its length."""

import math

import mlflow
import pytest

from steps._figures import log_internal_curve


def test_a_long_curve_is_logged_whole_in_a_few_requests(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    batches = []
    log_batch = mlflow.MlflowClient.log_batch

    def counted(self, run_id, metrics=(), **more):
        batches.append(len(metrics))
        return log_batch(self, run_id, metrics, **more)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", counted)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with mlflow.start_run(experiment_id="0") as run:
            points = {step: 1 / (step + 1) for step in range(2_500)} | {9_000: math.nan}
            log_internal_curve("stage/loss", points)
        history = mlflow.MlflowClient().get_metric_history(
            run.info.run_id, "internal/stage/loss"
        )
    finally:
        mlflow.set_tracking_uri(before)
    assert batches == [1_000, 1_000, 500]
    assert {point.step: point.value for point in history} == {
        step: 1 / (step + 1) for step in range(2_500)
    }
