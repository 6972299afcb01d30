"""`dashboard` and `mlflow` serve behind a password that only their terminal shows."""

import subprocess
from configparser import ConfigParser

import pytest

from cli import servers
from infra.workspace import Workspace


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Commands and environments of processes that were started, and passwords set."""
    seen = {"passwords": [], "commands": [], "environments": []}

    def run(command, *, env, check):
        assert check
        seen["commands"].append(command)
        seen["environments"].append(env)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(servers, "set_password", seen["passwords"].append)
    monkeypatch.setattr(servers, "connect", lambda: None)
    workspace = Workspace(root=tmp_path)
    monkeypatch.setattr(servers, "require_workspace", lambda: workspace)
    return seen


def test_dashboard_prints_the_password_that_it_set(started, capsys):
    servers.serve_dashboard(8237)
    servers.serve_dashboard(8237)
    first, second = started["passwords"]
    assert first != second
    said = capsys.readouterr().out
    assert first in said
    assert second in said
    for command, environment in zip(
        started["commands"], started["environments"], strict=True
    ):
        assert command[-4:] == ["--host", "127.0.0.1", "--port", "8237"]
        assert first not in " ".join(command)
        assert environment["ZENML_SERVER_AUTH_SCHEME"] == "OAUTH2_PASSWORD_BEARER"
    keys = {e["ZENML_SERVER_JWT_SECRET_KEY"] for e in started["environments"]}
    assert len(keys) == 2


def test_mlflow_prints_the_password_that_it_set(started, capsys):
    servers.serve_mlflow(5050)
    (command,), (environment,) = started["commands"], started["environments"]
    password = environment["MLFLOW_AUTH_ADMIN_PASSWORD"]
    assert password in capsys.readouterr().out
    assert password not in " ".join(command)
    assert command[command.index("--app-name") + 1] == "basic-auth"


@pytest.mark.parametrize("name", ["a folder", "100% mine"])
def test_mlflow_accounts_lie_in_the_given_folder(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    server = servers.mlflow_server("sqlite:///x.db", password="told", folder=folder)
    read = ConfigParser()  # as MLflow reads it
    read.read(server.environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert read["mlflow"]["default_permission"] == "NO_PERMISSIONS"
    assert read["mlflow"]["database_uri"] == f"sqlite:///{folder}/login.db"
    assert "told" not in (folder / "login.ini").read_text()
