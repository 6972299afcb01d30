"""The `dashboard` and `mlflow` commands: bundled servers on this project's state."""

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from cli.runs import require_workspace
from steps._tracking import connect


def serve_dashboard(port: int) -> None:
    """Serve ZenML's bundled dashboard until interrupted."""
    require_workspace()
    console = Console(highlight=False)
    console.print(
        f"ZenML dashboard: http://127.0.0.1:{port} (user default, no password)"
    )
    zenml = Path(sys.executable).with_name("zenml")
    command = [str(zenml), "login", "--local", "--blocking", "--port", str(port)]
    try:
        subprocess.run(command, check=True)  # noqa: S603 - our own arguments
    finally:
        subprocess.run([str(zenml), "logout", "--local"], check=False)  # noqa: S603


def serve_mlflow(port: int) -> None:
    """Serve MLflow's own pages until interrupted."""
    import mlflow

    require_workspace()
    connect()
    console = Console(highlight=False)
    console.print(f"MLflow: http://127.0.0.1:{port}")
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        mlflow.get_tracking_uri(),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    subprocess.run(command, check=True)  # noqa: S603 - our own arguments
