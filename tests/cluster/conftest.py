"""A ZenML server as a real process, and a cluster that is none."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from kubernetes.config import kube_config
from zenml.client import Client
from zenml.config.global_config import GlobalConfiguration
from zenml.utils import source_utils

from infra.profiles import PROFILES, Profile, read_profile
from infra.stacks.local import isolate
from infra.stacks.production import activate, register
from infra.stacks.settings import STACKS
from infra.workspace import REPOSITORY, Workspace

from .kubernetes_api import Cluster

PASSWORD = "only-for-tests"
source_utils.set_custom_source_root(str(REPOSITORY))  # tests import steps


def pytest_collection_modifyitems(items):
    """Third-party warnings pass here; ours stay errors."""
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def zenml_server(tmp_path_factory) -> Iterator[str]:
    """URL of a ZenML server with a database of its own."""
    folder = tmp_path_factory.mktemp("zenml-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {k: v for k, v in os.environ.items() if not k.startswith("ZENML_")}
    values |= {
        "ZENML_SERVER": "true",
        "ZENML_SERVER_DEPLOYMENT_TYPE": "kubernetes",
        "ZENML_SERVER_AUTO_ACTIVATE": "true",
        "ZENML_SERVER_JWT_SECRET_KEY": "0" * 64,
        "ZENML_DEFAULT_USER_NAME": "default",
        "ZENML_DEFAULT_USER_PASSWORD": PASSWORD,
        "ZENML_CONFIG_PATH": str(folder / "config"),
        "ZENML_STORE_TYPE": "sql",
        "ZENML_STORE_URL": f"sqlite:///{folder}/zenml.db",
        "ZENML_ANALYTICS_OPT_IN": "false",
        "ZENML_LOGGING_VERBOSITY": "ERROR",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn"),
                "zenml.zen_server.zen_server_api:app",
                *("--host", "127.0.0.1", "--port", str(port)),
            ],
            env=values,
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/health", process, folder / "log")
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with urlopen(url, timeout=2):  # noqa: S310 - ours
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster, and the profile that leads to it."""

    cluster: Cluster
    profile: Profile
    profile_file: Path


@pytest.fixture(scope="session")
def site(zenml_server, tmp_path_factory) -> Iterator[Site]:
    """The production stack, registered, on a cluster that runs no pods."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder, workdir=None)
    before, temporary = dict(os.environ), tempfile.tempdir
    os.environ |= {
        "DPTUNE_HOME": str(folder / "home"),
        "COLUMNS": "200",
    }
    location = kube_config.KUBE_CONFIG_DEFAULT_LOCATION  # KUBECONFIG at import
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = str(_kubeconfig(folder, cluster.url))
    isolate(Workspace(root=folder / "home"))
    os.environ |= {
        "ZENML_STORE_URL": zenml_server,
        "ZENML_STORE_USERNAME": "default",
        "ZENML_STORE_PASSWORD": PASSWORD,
    }
    GlobalConfiguration._reset_instance()
    Client._reset_instance()
    source_utils.set_custom_source_root(str(REPOSITORY))
    profile_file = _profile(folder, zenml_server)
    profile = read_profile(str(profile_file))
    Client().create_secret("dptune-mlflow", {"username": "u", "password": "p"})
    register(profile.production_stack())
    activate(profile.production_stack())
    yield Site(cluster=cluster, profile=profile, profile_file=profile_file)
    cluster.close()
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = location
    tempfile.tempdir = temporary
    os.environ.clear()
    os.environ.update(before)
    GlobalConfiguration._reset_instance()
    Client._reset_instance()


def _kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def _profile(folder: Path, server: str) -> Path:
    """The repository's own profile and stack, but for where they are."""
    stack = yaml.safe_load((STACKS / "production.yaml").read_text())
    stack["kubernetes"]["context"] = "test"
    stack |= {
        "zenml_server": server,
        "image": "registry.test/dptune@sha256:" + "a" * 64,
    }
    (folder / "stack.yaml").write_text(yaml.safe_dump(stack))
    profile = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
    profile["stack"] = str(folder / "stack.yaml")
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return folder / "profile.yaml"
