"""A scheduled run of data that have not changed does nothing, and says so."""

import hashlib
import hmac
import json

from zenml import add_tags, get_step_context, log_metadata
from zenml.client import Client
from zenml.enums import ExecutionStatus
from zenml.orchestrators.publish_utils import publish_pipeline_run_status_update

from dptune.config import TrainConfig
from infra.workspace import current_workspace, data_root, ensure_budget_key
from steps._progress import say


def work_tag(config: TrainConfig, fingerprint: str) -> str:
    """Tag of runs that do the same on the same data, from the same base model.

    Performance settings decide nothing. The tag is keyed with the project's secret:
    whoever knows all records but one could compute a plain digest with and without it,
    and see in the tag which it was.

    Args:
        config: of the run.
        fingerprint: of the corpus.
    """
    from dptune.workflow.prepare_model import base_files_digest

    values = config.model_dump(mode="json", exclude={"performance"})
    files = base_files_digest(config.model, data_root=data_root())
    text = json.dumps([values, fingerprint, files], sort_keys=True)
    key = ensure_budget_key(current_workspace())
    return f"work-{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:24]}"


def finished_run(tag: str) -> str | None:
    """Name the newest completed run with a tag. A refusal by the gate completes too."""
    found = Client().list_pipeline_runs(
        tags=[tag],
        status=ExecutionStatus.COMPLETED,
        sort_by="desc:created",
        size=1,
    )
    return str(found.items[0].name) if found.items else None


def stop_if_done(config: TrainConfig, fingerprint: str) -> None:
    """Stop this run if a completed one did the same, see `work_tag`.

    Called in the first step, on a CPU: the orchestrator then starts no other, and the
    server refuses steps of a run that is stopping.
    """
    tag = work_tag(config, fingerprint)
    run = get_step_context().pipeline_run
    done = finished_run(tag)
    if done is None:
        add_tags(tags=[tag], run=run.id)
        return
    reason = f"nothing changed since {done}; nothing was done or spent"
    say(reason)
    log_metadata(metadata={"schedule": reason}, run_id_name_or_prefix=run.id)
    publish_pipeline_run_status_update(
        run.id, ExecutionStatus.STOPPING, status_reason=reason
    )
