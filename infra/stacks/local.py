"""The serverless local stack: ZenML and MLflow in the project folder, no network.

Importing this module does nothing. `isolate` must run before ZenML is imported for the
first time in a process; `ensure_local_stack` is idempotent.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import yaml

from dptune.errors import ArtifactError
from infra.locks import made_whole, never_made_twice
from infra.private import write_for_owner_only
from infra.workspace import Workspace

if TYPE_CHECKING:
    from zenml.client import Client

STACK = "dptune-local"
TRACKER = "dptune-mlflow"
_SQLITE: Final = "sqlite:///"


def isolate(workspace: Workspace, *, quiet: bool = True) -> None:
    """Point ZenML, MLflow and friends at `workspace`, with no telemetry.

    What they write there is for its owner only.
    """
    write_for_owner_only()
    never_made_twice()
    os.environ.update(
        {
            "ZENML_CONFIG_PATH": str(workspace.zenml),
            "ZENML_LOCAL_STORES_PATH": str(workspace.stores),
            "ZENML_ANALYTICS_OPT_IN": "false",
            "ZENML_AUTO_OPEN_DASHBOARD": "false",
            "ZENML_ENABLE_RICH_TRACEBACK": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
            "GX_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "true",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_DATASETS_CACHE": str(workspace.cache / "datasets"),  # plain text
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
    )
    if quiet:
        os.environ.setdefault("ZENML_LOGGING_VERBOSITY", "CRITICAL")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def ensure_local_stack(workspace: Workspace) -> None:
    """Create or mend the local stack and make it active.

    Where `ZENML_STORE_URL` or `zenml login` names a server, it keeps the stack.

    Args:
        workspace: where all state goes; made if absent.

    Raises:
        ArtifactError: the project folder was made elsewhere, and moved or copied.
    """
    _refuse_moved(workspace)
    workspace.make()
    workspace.zenml.mkdir(parents=True, exist_ok=True)
    workspace.stores.mkdir(parents=True, exist_ok=True)
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`
    from zenml.config.global_config import (  # noqa: PLC0415 - must follow `isolate`
        GlobalConfiguration,
    )

    url = str(GlobalConfiguration().store_configuration.url)
    with made_whole(_database(workspace)) if url.startswith(_SQLITE) else nullcontext():
        GlobalConfiguration().analytics_opt_in = False  # on disk too, not only here
        client = Client()
        client.zen_store  # noqa: B018 - opens it, and makes it where there is none
        if client.active_stack_model.name != STACK:  # made once, by one of two commands
            client.activate_stack(_stack(client))
            _dismiss_survey(client)


def _refuse_moved(workspace: Workspace) -> None:
    """Refuse a project folder whose databases would be looked for elsewhere.

    ZenML and MLflow name their files by absolute paths: of a folder that was moved, all
    versions would be gone, and a copy would read and promote those of its original.

    Raises:
        ArtifactError: names both places.
    """
    file = workspace.zenml / "config.yaml"
    if not file.is_file():
        return
    store = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("store") or {}
    url = str(store.get("url"))
    if not url.startswith(_SQLITE):
        return
    there = Path(url.removeprefix(_SQLITE))
    if there.resolve() == _database(workspace).resolve():
        return
    made = there.parent.parent.parent
    raise ArtifactError(
        f"the project folder must lie where it was made, at {made}, got "
        f"{workspace.root}: its databases name their files by that path, so that a "
        "moved one would show no version, and a copy would change those of its "
        "original. Move it back, or leave a link to it there: "
        f"`ln -s {workspace.root} {made}`. A copy is restored to that place; for a "
        "project of its own, let DPTUNE_HOME name a new folder."
    )


def _database(workspace: Workspace) -> Path:
    """Where ZenML's database lies in a project folder."""
    return workspace.stores / "default_zen_store" / "zenml.db"


def _stack(client: "Client") -> UUID:
    """Return our stack, made of the default components and an MLflow tracker."""
    from zenml.enums import StackComponentType as Kind  # noqa: PLC0415

    try:
        return client.get_stack(STACK, allow_name_prefix_match=False).id
    except KeyError:
        tracker = _tracker(client)
        default = client.get_stack("default").components
        components = {
            Kind.ORCHESTRATOR: default[Kind.ORCHESTRATOR][0].id,
            Kind.ARTIFACT_STORE: default[Kind.ARTIFACT_STORE][0].id,
            Kind.EXPERIMENT_TRACKER: tracker,
        }
        return client.create_stack(STACK, components).id


def _tracker(client: "Client") -> UUID:
    """Return our MLflow tracker: no URI, so that it lies in ZenML's store."""
    from zenml.enums import StackComponentType as Kind  # noqa: PLC0415

    try:
        found = client.get_stack_component(
            Kind.EXPERIMENT_TRACKER, TRACKER, allow_name_prefix_match=False
        )
    except KeyError:
        found = client.create_stack_component(
            name=TRACKER,
            flavor="mlflow",
            component_type=Kind.EXPERIMENT_TRACKER,
            configuration={},
        )
    return found.id


def _dismiss_survey(client: "Client") -> None:
    """Answer the dashboard's first-use survey, which would hide the runs."""
    from zenml.models import UserUpdate  # noqa: PLC0415

    client.zen_store.update_user(
        client.active_user.id,
        UserUpdate(
            email_opted_in=False,
            full_name="operator",
            user_metadata={"finished_onboarding_survey": True},
        ),
    )


def set_password(password: str) -> None:
    """Give the project's own ZenML account another password."""
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`
    from zenml.models import UserUpdate  # noqa: PLC0415

    client = Client()
    client.zen_store.update_user(client.active_user.id, UserUpdate(password=password))
