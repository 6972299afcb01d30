"""ZenML's and MLflow's servers as processes of this machine, and a stack on both."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from infra.stacks.local import STACK, TRACKER

USER, PASSWORD = "default", "only-for-tests"
_START_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Where the two servers answer."""

    zenml: str
    mlflow: str

    def environment(self, home: Path) -> dict[str, str]:
        """What a process needs to run on them, with a project folder of its own."""
        return {
            **_without_zenml(),
            "DPTUNE_HOME": str(home),
            "ZENML_STORE_URL": self.zenml,
            "ZENML_STORE_USERNAME": USER,
            "ZENML_STORE_PASSWORD": PASSWORD,
        }


@contextmanager
def running_servers(
    folder: Path, *, zenml_database: str | None = None, mlflow_database: str
) -> Iterator[Servers]:
    """Run both, and register the local stack on them.

    Args:
        folder: for their files, logs, and the artifacts of runs.
        zenml_database: URL; a file of its own by default.
        mlflow_database: URL.
    """
    with (
        zenml_server(folder, database=zenml_database) as zenml,
        _mlflow_server(folder, mlflow_database) as mlflow,
    ):
        made = Servers(zenml=zenml, mlflow=mlflow)
        setup = [sys.executable, "-m", "tests.tracking_servers", str(folder), mlflow]
        subprocess.run(setup, env=made.environment(folder / "setup"), check=True)
        yield made


def register_stack(folder: Path, mlflow: str) -> None:
    """Register the local stack, but for MLflow's place and that of artifacts."""
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`
    from zenml.enums import StackComponentType as Kind  # noqa: PLC0415

    client = Client()
    place = {
        "tracking_uri": mlflow,
        "tracking_username": USER,
        "tracking_password": PASSWORD,
    }
    tracker = client.create_stack_component(
        TRACKER, "mlflow", Kind.EXPERIMENT_TRACKER, place
    )
    store = client.create_stack_component(
        "shared", "local", Kind.ARTIFACT_STORE, {"path": str(folder / "artifacts")}
    )
    default = client.get_stack("default").components
    parts = {
        Kind.ORCHESTRATOR: default[Kind.ORCHESTRATOR][0].id,
        Kind.ARTIFACT_STORE: store.id,
        Kind.EXPERIMENT_TRACKER: tracker.id,
    }
    client.create_stack(STACK, parts)


@contextmanager
def zenml_server(folder: Path, *, database: str | None = None) -> Iterator[str]:
    """Run ZenML's server alone; yields its URL.

    Args:
        folder: for its files and log.
        database: URL; a file of its own by default.
    """
    port = free_port()
    values = {
        **_without_zenml(),
        "ZENML_SERVER": "true",
        "ZENML_SERVER_DEPLOYMENT_TYPE": "kubernetes",
        "ZENML_SERVER_AUTO_ACTIVATE": "true",
        "ZENML_SERVER_JWT_SECRET_KEY": "0" * 64,
        "ZENML_DEFAULT_USER_NAME": USER,
        "ZENML_DEFAULT_USER_PASSWORD": PASSWORD,
        "ZENML_CONFIG_PATH": str(folder / "zenml-server"),
        "ZENML_STORE_TYPE": "sql",
        "ZENML_STORE_URL": database or f"sqlite:///{folder}/zenml.db",
        "ZENML_ANALYTICS_OPT_IN": "false",
        "ZENML_LOGGING_VERBOSITY": "WARNING",
    }
    command = ["uvicorn", "zenml.zen_server.zen_server_api:app"]
    place = ["--host", "127.0.0.1", "--port", str(port)]
    with _running([*command, *place], values, folder / "zenml-server.log", port) as url:
        yield url


@contextmanager
def _mlflow_server(folder: Path, database: str) -> Iterator[str]:
    port = free_port()
    values = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": str(folder / "mlflow-artifacts"),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = ["mlflow", "server", "--workers=1"]
    place = ["--host=127.0.0.1", f"--port={port}"]
    with _running([*command, *place], values, folder / "mlflow-server.log", port) as u:
        yield u


@contextmanager
def _running(
    command: list[str], environment: Mapping[str, str], log: Path, port: int
) -> Iterator[str]:
    """Run a Python program in a process until it is not needed any more."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=dict(environment),
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    try:
        _wait_for(f"{url}/health", process, log)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(url, timeout=2):  # noqa: S310 - ours
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"a server did not start:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _without_zenml() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("ZENML_")}


if __name__ == "__main__":
    from infra.stacks.local import isolate
    from infra.workspace import current_workspace

    isolate(current_workspace())
    register_stack(Path(sys.argv[1]), sys.argv[2])
