"""Two registries that must agree: MLflow (aliases) and ZenML's model control plane.

MLflow is written first and decides; `mend` brings ZenML's stages in line with it, so
that a process killed between the two leaves nothing wrong beyond the next call.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from zenml.client import Client
from zenml.enums import ModelStages
from zenml.exceptions import EntityExistsError
from zenml.metadata.metadata_types import MetadataType
from zenml.models import ModelResponse, ModelVersionResponse
from zenml.utils.metadata_utils import log_metadata

from dptune.errors import ArtifactError, GateFailedError
from dptune.gates.decision import GateOutcome
from dptune.reports.summary import verdict_tag
from infra.locks import one_at_a_time
from infra.workspace import current_workspace
from steps import _tracking


def twin_name(version: str) -> str:
    """Return ZenML's name of an MLflow version: it refuses plain numbers."""
    return f"v{version}"


def ensure_zenml_version(
    model_name: str, version: str, *, metadata: Mapping[str, MetadataType]
) -> ModelVersionResponse:
    """Return ZenML's twin of an MLflow version, made if absent, with metadata."""
    client, model, name = Client(), _zenml_model(model_name), twin_name(version)
    try:
        twin = client.get_model_version(model.id, name)
    except KeyError:
        with suppress(EntityExistsError):  # another run was first
            client.create_model_version(model.id, name=name)
        twin = client.get_model_version(model.id, name)
    if metadata:
        log_metadata(metadata=dict(metadata), model_version_id=twin.id)
    return twin


def _zenml_model(model_name: str) -> ModelResponse:
    """Return ZenML's model, made if absent; its own look-up takes prefixes."""
    client = Client()
    if not client.list_models(name=f"equals:{model_name}").items:
        with suppress(EntityExistsError):  # another run was first
            client.create_model(model_name, license="Apache-2.0")
    (model,) = client.list_models(name=f"equals:{model_name}").items
    return model


def tag_verdict(twin: ModelVersionResponse, outcome: GateOutcome) -> None:
    """Tag a version with the newest verdict on it, and with no other."""
    wanted = verdict_tag(outcome)
    others = {verdict_tag(other) for other in GateOutcome} - {wanted}
    have = {tag.name for tag in twin.tags}
    Client().update_model_version(
        twin.model.id,
        twin.id,
        add_tags=[wanted],
        remove_tags=sorted(others & have),
    )


@contextmanager
def moving_champion(model_name: str) -> Iterator[None]:
    """Let nobody else move a model's champion: neither registry can compare and set."""
    url = current_workspace().budget_url
    with one_at_a_time(url, f"champion of {model_name}"):
        yield


def promote_version(
    model_name: str, version: str, *, reason: str, action: str = "promote"
) -> None:
    """Make a version the champion in both registries and keep the trail.

    Called while `moving_champion`.
    """
    if _tracking.alias(model_name, _tracking.CHAMPION) != version:
        _tracking.append_history(
            model_name, action=action, version=version, reason=reason
        )
        _tracking.set_alias(model_name, _tracking.CHAMPION, version)
    if _tracking.alias(model_name, _tracking.CHALLENGER) == version:
        _tracking.drop_alias(model_name, _tracking.CHALLENGER)
    _mend(model_name)


def refuse_version(model_name: str, version: str) -> None:
    """Mark a version as challenger; the champion stays.

    Called while `moving_champion`.
    """
    if _tracking.alias(model_name, _tracking.CHAMPION) != version:
        _tracking.set_alias(model_name, _tracking.CHALLENGER, version)
    _mend(model_name)


def roll_back(model_name: str, *, to: str | None, reason: str) -> str:
    """Make an earlier champion the champion again.

    Args:
        model_name: as registered.
        to: a version that was champion before; the last such one by default.
        reason: kept in the trail.

    Raises:
        ArtifactError: no earlier champion fits.
    """
    with moving_champion(model_name):
        current = _tracking.alias(model_name, _tracking.CHAMPION)
        trail = [entry["version"] for entry in _tracking.history(model_name)]
        earlier = [v for v in reversed(trail) if v != current]
        if not earlier or (to is not None and to not in earlier):
            raise ArtifactError(
                f"rollback needs an earlier champion of {model_name} "
                f"({', '.join(dict.fromkeys(earlier)) or 'there is none'}), got {to}."
            )
        version = to or earlier[0]
        promote_version(model_name, version, reason=reason, action="rollback")
        return version


def promote_by_hand(model_name: str, version: str, *, override: str | None) -> bool:
    """Promote a version that passed, or any with a reason that stays on record.

    Returns:
        Whether it was promoted past the gate.

    Raises:
        GateFailedError: the version did not pass and no reason was given.
    """
    outcome = _tracking.outcome_of(_tracking.get_version(model_name, version))
    if outcome != "PASS" and not override:
        raise GateFailedError(
            f"version {version} of {model_name} has gate outcome {outcome}, so it is "
            "not promoted. Use --override 'reason' to promote it all the same; the "
            "reason stays on record."
        )
    reason = f"override: {override}" if outcome != "PASS" else "gate outcome PASS"
    with moving_champion(model_name):
        promote_version(model_name, version, reason=reason, action="promote by hand")
    return outcome != "PASS"


def mend(model_name: str) -> list[str]:
    """Bring ZenML's stages in line with MLflow's aliases; return what was changed."""
    with moving_champion(model_name):
        return _mend(model_name)


def _mend(model_name: str) -> list[str]:
    """Do so."""
    champion = _tracking.alias(model_name, _tracking.CHAMPION)
    client = Client()
    changed = []
    for twin in client.list_model_versions(
        model=model_name, stage=ModelStages.PRODUCTION
    ).items:
        if champion is None or twin.name != twin_name(champion):
            _set_stage(twin, ModelStages.ARCHIVED)
            changed.append(f"version {twin.name} leaves production")
    if champion is not None:
        twin = ensure_zenml_version(model_name, champion, metadata={})
        if twin.stage != ModelStages.PRODUCTION.value:
            _set_stage(twin, ModelStages.PRODUCTION)
            changed.append(f"version {champion} enters production")
    return changed


def _set_stage(version: ModelVersionResponse, stage: ModelStages) -> None:
    """Move one ZenML model version to a stage."""
    Client().update_model_version(
        version.model.id, version.id, stage=stage.value, force=True
    )
