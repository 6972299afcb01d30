"""Was a model trained over one that this project had trained before, and on whom?

A certificate counts the training of its own version. A base model that learnt from the
same people is no public one: what it learnt of them adds up with that. One that learnt
from others, and was refused for what it gives away of them, still does.
"""

from contextlib import suppress
from pathlib import Path

from dptune.config import TrainConfig
from dptune.errors import ArtifactError, GateFailedError, ModelError, PrivacyError
from dptune.gates.decision import GateOutcome
from dptune.models.digest import model_digest
from dptune.models.folder import folder_of
from dptune.models.source import PathSource
from dptune.results import RegisteredVersion
from dptune.workflow.dossier import Dossier
from steps import _noting, _tracking


def trained_over(dossier: Dossier, version: RegisteredVersion) -> str:
    """Say that the base model is a version that must not be trained over; or nothing.

    Args:
        dossier: of the version.
        version: that is decided on.
    """
    own = (version.model_name, version.version)
    base = dossier.exposure.base_model_digest
    learnt = _learnt_before(base, _data_set(dossier), but=own)
    return learnt and f"The model was trained over {learnt}"


def refuse_trained_base(config: TrainConfig, *, data_root: Path) -> None:
    """Refuse a base model in a folder that is a version not to be trained over.

    The gate would refuse what is trained over it, after all was spent.

    Args:
        config: of the run.
        data_root: folder that relative paths start from.

    Raises:
        PrivacyError: it is a version of the registry, trained on this data set, or on
            another one and not passed by the gate.
    """
    source, base = config.model.source, ""
    if isinstance(source, PathSource):
        with suppress(ArtifactError, ModelError):  # whoever loads it says so
            base = model_digest(folder_of(source, data_root=data_root))
    if base and (learnt := _learnt_before(base, config.budget.data_set)):
        raise PrivacyError(f"model.source must be a public model, got {learnt}")


def refuse_other_training(dossier: Dossier, model_name: str) -> None:
    """Refuse evidence of a version that another training had made before.

    A training that changes no weight would else take the place of what they learnt.

    Raises:
        ArtifactError: it began with another base model, or was of another data set.
    """
    found = _tracking.find_version(model_name, digest=dossier.model_digest)
    known = None if found is None else _noted(model_name, str(found.version))
    if found and known and _origin(known) != _origin(dossier):
        raise ArtifactError(
            f"the trained model must not be version {found.version} of {model_name} "
            "again, which was trained over another base model or on another data set: "
            "its evidence would be lost. The training changed no weight; raise its "
            "learning rate."
        )


def _origin(dossier: Dossier) -> tuple[str, str]:
    return dossier.exposure.base_model_digest, _data_set(dossier)


def _noted(name: str, version: str) -> Dossier | None:
    """Read the evidence of a version, where it is what the registry noted."""
    text = _tracking.read_file(name, version, _tracking.EVIDENCE) or ""
    noted = _tracking.evidence_digest_of(_tracking.get_version(name, version))
    if noted == _tracking.digest_of(text):
        with suppress(ValueError):
            return Dossier.model_validate_json(text)
    return None


def _learnt_before(
    base: str, data_set: str, *, but: tuple[str, str] | None = None
) -> str:
    """Name the version that a base model is, where it learnt from a data set.

    So is one that learnt from another and has no pass: a training over it takes nothing
    back. It is known by its digest among all versions of the registry but one, and so
    is the model that it was trained over in its turn. A version whose evidence cannot
    be read, is not what the registry noted or names no data set is taken to be of this
    one.
    """
    seen, bases = set[str](), [base]
    while bases:
        seen.add(base := bases.pop())
        for name in _tracking.model_names():
            found = _tracking.find_version(name, digest=base)
            if found is None or (name, str(found.version)) == but:
                continue
            other, known = data_set, _noted(name, str(found.version))
            if known is not None:
                other = _data_set(known) or data_set
                bases += {known.exposure.base_model_digest} - seen
            who = f"version {found.version} of {name}, which had learnt from data set"
            if other == data_set:
                return (
                    f"{who} {data_set!r} before: what it has learnt is in no claim of "
                    "a later training. Begin with the model that it was trained from."
                )
            if not _passed(name, str(found.version)):
                return (
                    f"{who} {other!r} and has no PASS: what it gives away of them is "
                    "given away by what is trained over it. Begin with a version that "
                    "the gate passed, or with the model that it was trained from."
                )
    return ""


def _passed(name: str, version: str) -> bool:
    """Whether the newest decision that was noted of a version is a pass."""
    with suppress(GateFailedError):  # who broke the log has no pass in it
        return _noting.noted_outcomes(name).get(version) == GateOutcome.PASS
    return False


def _data_set(dossier: Dossier) -> str:
    return dossier.budget.data_set if dossier.budget else ""
