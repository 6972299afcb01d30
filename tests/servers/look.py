"""Print what both registries say of a model, as JSON: a process of its own.

python -m tests.servers.look MODEL
"""

import json
import math
import sys
from typing import Any

from infra.stacks.local import isolate
from infra.workspace import current_workspace


def look(model: str) -> dict[str, Any]:
    """Read MLflow and ZenML."""
    from steps import _champions, _tracking  # noqa: PLC0415 - must follow `isolate`

    _tracking.connect()
    return {
        "versions": {
            str(v.version): _look_at(model, v) for v in _tracking.versions(model)
        },
        "champion": _champions.alias(model, _champions.CHAMPION),
        "challenger": _champions.alias(model, _champions.CHALLENGER),
        "trail": _champions.history(model),
    }


def _look_at(model: str, version: Any) -> dict[str, Any]:
    """Read one version."""
    from mlflow import MlflowClient  # noqa: PLC0415
    from zenml.client import Client  # noqa: PLC0415

    from steps._registry import twin_name  # noqa: PLC0415

    mlflow, client, number = MlflowClient(), Client(), str(version.version)
    twin = client.get_model_version(model, twin_name(number))
    run = client.get_pipeline_run(version.tags["zenml.run"])
    logged = mlflow.get_logged_model(str(version.source).removeprefix("models:/"))
    links = client.list_model_version_pipeline_run_links(model_version_id=twin.id)
    return {
        "tags": version.tags,
        "description": version.description,
        "metrics": {metric.key: metric.value for metric in logged.metrics},
        "measured": _measured(model, number),
        "curves": {
            name: [m.step for m in mlflow.get_metric_history(version.run_id, name)]
            for name in mlflow.get_run(version.run_id).data.metrics
        },
        "zenml": {
            "metadata": dict(twin.run_metadata),
            "tags": sorted(tag.name for tag in twin.tags),
            "stage": twin.stage,
            "runs": [str(link.pipeline_run.id) for link in links.items],
        },
        "run": {
            "id": str(run.id),
            "status": str(run.status),
            "metadata": dict(run.run_metadata),
            "tags": sorted(tag.name for tag in run.tags),
            "steps": {name: str(step.status) for name, step in run.steps.items()},
        },
    }


def _measured(model: str, number: str) -> dict[str, float]:
    """Work the metrics out again from the evidence."""
    from steps._deciding import read_dossier  # noqa: PLC0415
    from steps._registering import measured_numbers  # noqa: PLC0415

    numbers = measured_numbers(read_dossier(model, number))
    return {k: v for k, v in numbers.items() if math.isfinite(v)}


if __name__ == "__main__":
    isolate(current_workspace())
    sys.stdout.write(json.dumps(look(sys.argv[1]), default=str))
