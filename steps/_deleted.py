"""What somebody deleted in MLflow: an experiment, or the run behind a version."""

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Run
from mlflow.entities.model_registry import ModelVersion

from dptune.errors import ArtifactError
from steps._champions import none_if_absent


def refuse_deleted_experiment(client: MlflowClient, name: str) -> None:
    """Refuse to start what could not be logged: its steps would end in a crash.

    Args:
        client: of the stack's MLflow, as `connect` returns it.
        name: of the experiment, which need not be there yet.

    Raises:
        ArtifactError: somebody deleted the experiment in MLflow.
    """
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage != LifecycleStage.ACTIVE:
        raise ArtifactError(
            f"MLflow's experiment {name} must be there to log in, but was deleted. "
            "Restore it in MLflow: `mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`."
        )


def keeping_run(version: ModelVersion) -> Run:
    """Return the run that keeps a version's evidence and decisions.

    What lies in MLflow's trash can be read until `mlflow gc` empties it. Somebody threw
    it away all the same, so that no decision may rest on it.

    Raises:
        ArtifactError: the run or its experiment was deleted.
    """
    client, run_id = MlflowClient(), str(version.run_id)
    run = none_if_absent(lambda: client.get_run(run_id))
    place = client.get_experiment(run.info.experiment_id) if run else None
    if run is None or place is None:
        restore = "MLflow's database and store"
    elif place.lifecycle_stage != LifecycleStage.ACTIVE:
        restore = (
            f"it: `mlflow experiments restore --experiment-id {place.experiment_id}`"
        )
    elif run.info.lifecycle_stage != LifecycleStage.ACTIVE:
        restore = f"it: `mlflow runs restore --run-id {run_id}`"
    else:
        return run
    raise ArtifactError(
        f"version {version.version} of {version.name} must have its run in MLflow, "
        "which keeps its evidence and decisions, but the run or its experiment was "
        f"deleted there. Restore {restore}."
    )
