"""What dashboards show without opening a file, and the way from one to the other.

ZenML's open dashboard shows runs and no models, so that everything is said on the run
too; MLflow shows the description and the tags of a version.
"""

from collections.abc import Mapping

from zenml import add_tags, get_step_context, log_metadata, remove_tags
from zenml.client import Client
from zenml.metadata.metadata_types import MetadataType, Uri
from zenml.models import ModelVersionPipelineRunRequest
from zenml.utils.dashboard_utils import get_run_url

from dptune.gates.decision import GateOutcome
from dptune.reports.card.statements import verdict_tag
from dptune.results import RegisteredVersion
from infra.workspace import mlflow_pages
from steps import _registry, _tracking


def link_run(version: RegisteredVersion) -> None:
    """Say on a version, in both registries, which run made it. Called in a step."""
    run = get_step_context().pipeline_run
    _tracking.record_run(version, name=str(run.name), url=get_run_url(run))
    twin = _registry.ensure_zenml_version(
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
    found: dict[str, MetadataType] = {
        **glance,
        "model": f"{version.model_name} version {version.version}",
        **links(version),
    }
    log_metadata(metadata=found, run_id_name_or_prefix=run.id)
    others = [verdict_tag(other) for other in GateOutcome if other is not outcome]
    have = {tag.name for tag in Client().get_pipeline_run(run.id).tags}
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
