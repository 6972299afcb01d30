"""The `dashboard` and `mlflow` commands: bundled servers on this project's state.

Both ask for a login, drawn anew at each start: the ports of a machine are open to all
of its accounts, and the pages show what artifacts hold, record text included.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console

from cli.runs import require_workspace
from infra.stacks.local import set_password
from infra.workspace import Workspace
from steps._tracking import connect

USER: Final = "default"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Python module to run on a port of this machine.

    Args:
        words: module and arguments; every account can read them.
        environment: variables on top of ours; only ours can read them.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]

    def serve(self, port: int) -> None:
        """Serve until interrupted."""
        command = [sys.executable, "-m", *self.words, "--host", "127.0.0.1"]
        subprocess.run(  # noqa: S603 - our own arguments
            [*command, "--port", str(port)],
            env=os.environ | dict(self.environment),
            check=True,
        )


def serve_dashboard(port: int) -> None:
    """Serve ZenML's bundled dashboard until interrupted."""
    workspace, password = require_workspace(), _drawn()
    set_password(password)
    _say("ZenML dashboard", port, password)
    zenml_server(workspace).serve(port)


def serve_mlflow(port: int) -> None:
    """Serve MLflow's own pages until interrupted."""
    import mlflow

    require_workspace()
    connect()
    password = _drawn()
    with TemporaryDirectory() as folder:  # in the project folder, for its owner alone
        server = mlflow_server(
            mlflow.get_tracking_uri(), password=password, folder=Path(folder)
        )
        _say("MLflow", port, password)
        server.serve(port)


def zenml_server(workspace: Workspace) -> Server:
    """ZenML's server on the project's database, and its login.

    `zenml login --local` would serve without one, and let every command of the project
    go through the server while it runs.
    """
    return Server(
        words=("uvicorn", "zenml.zen_server.zen_server_api:app"),
        environment={
            "ZENML_SERVER": "true",
            "ZENML_SERVER_AUTH_SCHEME": "OAUTH2_PASSWORD_BEARER",
            "ZENML_SERVER_AUTO_ACTIVATE": "true",
            "ZENML_SERVER_ALLOW_LOCAL_FILE_ACCESS": "true",
            "ZENML_SERVER_DEPLOYMENT_TYPE": "local",
            "ZENML_SERVER_JWT_SECRET_KEY": _drawn(),
            "ZENML_DISABLE_DATABASE_MIGRATION": "true",
            "ZENML_CONFIG_PATH": str(workspace.zenml / "server"),
            "ZENML_LOCAL_STORES_PATH": str(workspace.stores),
        },
    )


def mlflow_server(tracking_uri: str, *, password: str, folder: Path) -> Server:
    """MLflow's server behind its basic authentication.

    Args:
        tracking_uri: of the project.
        password: of the one account.
        folder: for the accounts; new, so that no earlier password stands in it.
    """
    settings = folder / "login.ini"
    accounts = f"sqlite:///{folder / 'login.db'}".replace("%", "%%")
    settings.write_text(
        f"[mlflow]\ndefault_permission = NO_PERMISSIONS\ndatabase_uri = {accounts}\n"
    )
    return Server(
        words=(
            *("mlflow", "server", "--app-name", "basic-auth", "--workers", "1"),
            *("--backend-store-uri", tracking_uri),
        ),
        environment={
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_USERNAME": USER,
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": _drawn(),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nobody submits any
        },
    )


def _drawn() -> str:
    return secrets.token_urlsafe(24)


def _say(name: str, port: int, password: str) -> None:
    Console(highlight=False, soft_wrap=True).print(
        f"{name}: http://127.0.0.1:{port} (user {USER}, password {password}, "
        "until Ctrl-C)"
    )
