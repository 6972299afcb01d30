"""The servers of infra/k8s know every flag and variable that manifests give them."""

import pytest
from uvicorn.main import main as uvicorn_command
from zenml.config.server_config import ServerConfiguration
from zenml.constants import (
    ENV_ZENML_DEFAULT_USER_NAME,
    ENV_ZENML_DEFAULT_USER_PASSWORD,
    ENV_ZENML_SECRETS_STORE_PREFIX,
    ENV_ZENML_SERVER,
    ENV_ZENML_STORE_PREFIX,
)

from infra.cluster.manifests import render_overlay
from tests.infra.clusters import find


@pytest.fixture(scope="module")
def staging():
    return render_overlay("staging")


def given(manifests, name):
    """Flags and variables that a server's container gets."""
    server = find(manifests, f"StatefulSet/{name}")["spec"]["template"]["spec"]
    (container,) = server["containers"]
    words = container["command"]
    flags = {word.split("=")[0] for word in words if word.startswith("--")}
    return flags, {variable["name"] for variable in container["env"]}


def options(command):
    """Flags of a command line, those that switch off included."""
    parts = command.params
    return {flag for part in parts for flag in (*part.opts, *part.secondary_opts)}


def test_mlflow_knows_what_it_is_given(staging):
    from mlflow import environment_variables  # noqa: PLC0415 - warns when imported
    from mlflow.cli import server as mlflow_command  # noqa: PLC0415 - as above

    flags, variables = given(staging, "mlflow")
    assert flags
    assert flags <= options(mlflow_command)
    known = {option.envvar for option in mlflow_command.params}
    known |= set(vars(environment_variables))
    assert {name for name in variables if name.startswith("MLFLOW_")} <= known


def test_zenml_knows_what_it_is_given(staging):
    flags, variables = given(staging, "zenml")
    assert flags
    assert flags <= options(uvicorn_command)
    known = {
        f"ZENML_SERVER_{name.upper()}" for name in ServerConfiguration.model_fields
    }
    known |= {ENV_ZENML_DEFAULT_USER_NAME, ENV_ZENML_DEFAULT_USER_PASSWORD}
    known |= {f"{ENV_ZENML_STORE_PREFIX}{name}" for name in ("TYPE", "URL")}
    known |= {
        f"{ENV_ZENML_SECRETS_STORE_PREFIX}{name}" for name in ("TYPE", "ENCRYPTION_KEY")
    }
    assert variables <= known | {ENV_ZENML_SERVER}
