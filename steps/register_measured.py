"""Step: register a model that a script trained and measured."""

from pathlib import Path
from typing import Annotated

from zenml import step

from dptune.results import RegisteredVersion
from dptune.workflow.dossier import Dossier
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def register_measured(
    dossier: Dossier, folder: str, model_name: str
) -> Annotated[RegisteredVersion, "version"]:
    """Return the version; weights that are registered already keep theirs.

    Args:
        dossier: by `dptune.integrations.evidence.measure`.
        folder: of the model, which is read again.
        model_name: as it is registered.
    """
    from steps._registering import register_dossier

    return register_dossier(dossier, Path(folder), model_name=model_name)
