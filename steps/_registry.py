"""Two registries that must agree: MLflow (aliases) and ZenML's model control plane.

MLflow is written first and decides; `mend` brings ZenML's stages in line with it, so
that a process killed between the two leaves nothing wrong beyond the next call.

ZenML's open dashboard shows runs and no models, so that everything is said on the run
too; MLflow shows the description and the tags of a version.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from zenml import add_tags, get_step_context, log_metadata, remove_tags
from zenml.client import Client
from zenml.enums import ModelStages
from zenml.exceptions import EntityExistsError
from zenml.metadata.metadata_types import MetadataType, Uri
from zenml.models import (
    ModelResponse,
    ModelVersionPipelineRunRequest,
    ModelVersionResponse,
)
from zenml.utils.dashboard_utils import get_run_url

from dptune.gates.decision import GateOutcome
from dptune.reports.card.statements import verdict_tag
from dptune.results import RegisteredVersion
from infra.locks import one_at_a_time
from infra.workspace import current_workspace, mlflow_pages
from steps import _champions, _tracking
from steps._noting import note_promotion, noted_champion

_REFUSED, _CLAIM = "refused by ", "epsilon, "
"""How keys begin that tell why a decision refused, and what is claimed."""
_GONE = "not by the newest decision"


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


def show_decision(twin: ModelVersionResponse, found: Mapping[str, str]) -> None:
    """Say on a version what the newest decision says, and of no other."""
    log_metadata(metadata=_anew(found, twin.run_metadata), model_version_id=twin.id)


def _anew(
    found: Mapping[str, str], known: Mapping[str, MetadataType]
) -> dict[str, MetadataType]:
    """Overwrite what earlier decisions said: metadata cannot be taken back.

    Without a card there is no claim, so that those of earlier cards go as well.

    Args:
        found: what is said now.
        known: what is there.
    """
    has_claims = any(key.startswith(_CLAIM) for key in found)
    old = (_REFUSED,) if has_claims else (_REFUSED, _CLAIM)
    gone = [k for k in known if k.startswith(old) and k not in found]
    return {**dict.fromkeys(gone, _GONE), **found}


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
def registering(model_name: str, digest: str) -> Iterator[None]:
    """Let nobody else register the same weights: they would be two versions."""
    url = current_workspace().budget_url
    with one_at_a_time(url, f"registration of {digest} as {model_name}"):
        yield


@contextmanager
def moving_champion(model_name: str) -> Iterator[None]:
    """Let nobody else move a model's champion: neither registry can compare and set."""
    url = current_workspace().budget_url
    with one_at_a_time(url, f"champion of {model_name}"):
        yield


@contextmanager
def recording_decision(model_name: str) -> Iterator[None]:
    """Let nobody else record a decision on a model: files and tags are of one."""
    url = current_workspace().budget_url
    with one_at_a_time(url, f"decisions on {model_name}"):
        yield


def promote_version(
    model_name: str,
    version: str,
    *,
    reason: str,
    action: str,
    relied: Mapping[str, str],
) -> None:
    """Make a version the champion in both registries and keep the trail.

    Called while `moving_champion`.

    Args:
        model_name: as registered.
        version: its number.
        reason: why.
        action: by which command.
        relied: the policy, decision and files that it relied on, and what was not
            checked.
    """
    aliased = _champions.alias(model_name, _champions.CHAMPION) == version
    if not aliased or _champions.champion(model_name) != version:
        _champions.append_history(
            model_name,
            {"action": action, "version": version, "reason": reason, **relied},
        )
    if not aliased:
        _champions.set_alias(model_name, _champions.CHAMPION, version)
    if noted_champion(model_name) != version:
        note_promotion(model_name, version, relied["decision"])
    if _champions.alias(model_name, _champions.CHALLENGER) == version:
        _champions.drop_alias(model_name, _champions.CHALLENGER)
    _mend(model_name)


def refuse_version(model_name: str, version: str) -> None:
    """Mark a version as challenger; the champion stays.

    Called while `moving_champion`.
    """
    if _champions.alias(model_name, _champions.CHAMPION) != version:
        _champions.set_alias(model_name, _champions.CHALLENGER, version)
    _mend(model_name)


def mend(model_name: str) -> list[str]:
    """Bring ZenML's stages in line with MLflow's aliases; return what was changed."""
    with moving_champion(model_name):
        return _mend(model_name)


def _mend(model_name: str) -> list[str]:
    """Do so; an alias that was moved past the trail brings nothing into production."""
    champion = _champions.alias(model_name, _champions.CHAMPION)
    if champion is not None and _champions.misplaced_champion(model_name):
        return []
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


def link_run(version: RegisteredVersion) -> None:
    """Say on a version, in both registries, which run made it. Called in a step."""
    run = get_step_context().pipeline_run
    _tracking.record_run(version, name=str(run.name), url=get_run_url(run))
    twin = ensure_zenml_version(
        version.model_name, version.version, metadata=links(version)
    )
    Client().zen_store.create_model_version_pipeline_run_link(
        ModelVersionPipelineRunRequest(model_version=twin.id, pipeline_run=run.id)
    )


def show_on_run(
    glance: Mapping[str, str], version: RegisteredVersion, *, outcome: GateOutcome
) -> None:
    """Say on the run what was decided, and lead to the version. Called in a step."""
    run = get_step_context().pipeline_run
    known = Client().get_pipeline_run(run.id)
    found: dict[str, MetadataType] = {
        **_anew(glance, known.run_metadata),
        "model": f"{version.model_name} version {version.version}",
        **links(version),
    }
    log_metadata(metadata=found, run_id_name_or_prefix=run.id)
    others = [verdict_tag(other) for other in GateOutcome if other is not outcome]
    have = {tag.name for tag in known.tags}
    if gone := sorted(have.intersection(others)):
        remove_tags(tags=gone, run=run.id)
    add_tags(tags=[verdict_tag(outcome)], run=run.id)


def links(version: RegisteredVersion) -> dict[str, MetadataType]:
    """Where MLflow shows a version; nothing where it has no pages of its own."""
    pages = mlflow_pages() or _tracking.server()
    if pages is None:
        return {}
    place = f"models/{version.model_name}/versions/{version.version}"
    return {"MLflow version": Uri(f"{pages.rstrip('/')}/#/{place}")}
