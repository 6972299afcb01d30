"""Step: register the model in both registries, with everything that is known of it."""

from typing import Annotated, Any

from zenml import step

from dptune.config import TrainConfig
from dptune.models.source import ModelBundle
from dptune.results import RegisteredVersion
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def register(
    model: ModelBundle, results: list[Any], config: TrainConfig
) -> Annotated[RegisteredVersion, "version"]:
    """Return the version; weights that are registered already keep theirs.

    Args:
        model: the weights.
        results: one artifact for each field of `RunResults`, told apart by type.
        config: of the run.
    """
    from dptune.workflow.dossier import RunResults
    from steps._registering import dossier_of_run, register_dossier

    dossier = dossier_of_run(model, RunResults.collect(results), config)
    return register_dossier(dossier, model.path, model_name=config.registry.model_name)
