"""Was a model trained over one that had learnt from the same data set before?

A certificate counts the training of its own version. A base model that this project
trained on the same people is no public one: what it learnt of them adds up with that.
"""

from contextlib import suppress
from pathlib import Path

from dptune.config import TrainConfig
from dptune.errors import ArtifactError, ModelError, PrivacyError
from dptune.models.digest import model_digest
from dptune.models.folder import folder_of
from dptune.models.source import PathSource
from dptune.results import RegisteredVersion
from dptune.workflow.dossier import Dossier
from steps import _tracking


def trained_over(dossier: Dossier, version: RegisteredVersion) -> str:
    """Say that the base model is a version that learnt from this data set; or nothing.

    Args:
        dossier: of the version.
        version: that is decided on.
    """
    own = (version.model_name, version.version)
    base = dossier.exposure.base_model_digest
    learnt = _learnt_before(base, _data_set(dossier), but=own)
    return learnt and f"The model was trained over {learnt}"


def refuse_trained_base(config: TrainConfig, *, data_root: Path) -> None:
    """Refuse a base model in a folder that learnt from the data set of a run before.

    The gate would refuse what is trained over it, after all was spent.

    Args:
        config: of the run.
        data_root: folder that relative paths start from.

    Raises:
        PrivacyError: it is a version of the registry, trained on this data set.
    """
    source, base = config.model.source, ""
    if isinstance(source, PathSource):
        with suppress(ArtifactError, ModelError):  # whoever loads it says so
            base = model_digest(folder_of(source, data_root=data_root))
    if base and (learnt := _learnt_before(base, config.budget.data_set)):
        raise PrivacyError(f"model.source must be a public model, got {learnt}")


def _learnt_before(
    base: str, data_set: str, *, but: tuple[str, str] | None = None
) -> str:
    """Name the version that a base model is, where it learnt from a data set.

    It is known by its digest among all versions of the registry but one. A version
    whose evidence cannot be read is taken to be of this data set.
    """
    for name in _tracking.model_names():
        found = _tracking.find_version(name, digest=base)
        if found is None or (name, str(found.version)) == but:
            continue
        text = _tracking.read_file(name, str(found.version), _tracking.EVIDENCE)
        other = data_set
        with suppress(ValueError):
            other = _data_set(Dossier.model_validate_json(text or ""))
        if other == data_set:
            return (
                f"version {found.version} of {name}, which had learnt from data set "
                f"{data_set!r} before: what it has learnt is in no claim of a later "
                "training. Begin with the model that it was trained from."
            )
    return ""


def _data_set(dossier: Dossier) -> str:
    return dossier.budget.data_set if dossier.budget else ""
