"""MLflow's runs: what training and comparisons log, in figures that charts can show."""

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import MAX_METRICS_PER_BATCH
from zenml.client import Client

from dptune.reports.comparison import ComparisonRow
from steps import _deleted, _tracking

_LOG = logging.getLogger(__name__)
_COMPARISON = "dptune.comparison"


def log_numbers(numbers: Mapping[str, float]) -> None:
    """Log finite numbers to the active run; infinite ones become parameters."""
    if mlflow.active_run() is None:
        return
    finite = {k: v for k, v in numbers.items() if math.isfinite(v)}
    mlflow.log_metrics(finite)
    mlflow.log_params({k: str(v) for k, v in numbers.items() if k not in finite})


def log_internal_curve(name: str, points: Mapping[int, float]) -> None:
    """Log a private curve under `internal/`: for this run's readers, never a card."""
    run = mlflow.active_run()
    if run is None:
        return
    now = int(time.time() * 1000)
    metrics = [
        Metric(f"internal/{name}", value, now, step)
        for step, value in points.items()
        if math.isfinite(value)
    ]
    for start in range(0, len(metrics), MAX_METRICS_PER_BATCH):
        batch = metrics[start : start + MAX_METRICS_PER_BATCH]
        MlflowClient().log_batch(run.info.run_id, batch)


def log_progress(stage: str, figures: Mapping[str, float], *, step: int) -> None:
    """Log how a stage goes, while it goes; a tracker that is away stops nothing."""
    if mlflow.active_run() is None:
        return
    finite = {f"{k}/{stage}": v for k, v in figures.items() if math.isfinite(v)}
    try:
        mlflow.log_metrics(finite, step=step)
    except MlflowException as error:
        _LOG.warning("no progress was logged: %s", type(error).__name__)


def comparison_run(name: str, key: str) -> str:
    """Return the MLflow run that the cells of a comparison belong to, made if absent.

    Args:
        name: of the comparison, and of its experiment.
        key: of what is compared: the same again continues its run.

    Raises:
        ArtifactError: somebody deleted the experiment in MLflow.
    """
    client = _tracking.connect()
    _deleted.refuse_deleted_experiment(client, name)
    found = client.get_experiment_by_name(name)
    place = found.experiment_id if found else _experiment(client, name)
    runs = client.search_runs([place], f"tags.`{_COMPARISON}` = '{key}'")
    if runs:
        return str(runs[0].info.run_id)
    made = client.create_run(place, tags={_COMPARISON: key}, run_name=name)
    return str(made.info.run_id)


def _experiment(client: MlflowClient, name: str) -> str:
    """Make an experiment whose files lie where ZenML puts those of its own."""
    tracker = Client().active_stack.experiment_tracker
    folder = tracker.local_path if tracker else None
    location = f"file:{folder}" if folder else None  # else the server's choice
    return str(client.create_experiment(name, artifact_location=location))


def log_comparison(
    run_id: str, rows: Sequence[ComparisonRow], *, files: Mapping[str, str]
) -> None:
    """Log the rows of a comparison to its own run, as metrics that charts can show."""
    client = _tracking.connect()
    for row in rows:
        budget = f"_epsilon_{row.target_epsilon:g}" if row.target_epsilon else ""
        name = re.sub(r"[^\w. /-]", "_", f"{row.label}{budget}")
        spreads = {
            "perplexity": row.perplexity,
            "accuracy": row.accuracy,
            "exposure": row.exposure,
        }
        for metric, value in spreads.items():
            if value is not None and math.isfinite(value.mean):
                client.log_metric(run_id, f"{name}/{metric}", value.mean)
    for file, text in files.items():
        client.log_text(run_id, text, file)
    client.set_terminated(run_id)
