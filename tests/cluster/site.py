"""A ZenML server as a real process, our production stack on it, and a cluster."""

import base64
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes.config import kube_config
from mlflow import MlflowClient
from zenml.client import Client
from zenml.config.global_config import GlobalConfiguration
from zenml.enums import StackComponentType as Kind
from zenml.utils import source_utils

from infra.profiles import PROFILES, Profile, read_profile
from infra.stacks.local import isolate
from infra.stacks.production import activate, register
from infra.stacks.settings import STACKS, ProductionStack
from infra.workspace import REPOSITORY, Workspace
from tests.tracking_servers import PASSWORD, USER, zenml_server

from .kubernetes_api import Cluster, Started, start_process

BUDGET_KEY = "5" * 64


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster, and the profile that leads to it.

    Args:
        cluster: where pods run.
        profile: as it was read from `profile_file`.
        budget_url: of the budget store of all pods.
    """

    cluster: Cluster
    profile: Profile
    profile_file: Path
    budget_url: str

    @property
    def shared(self) -> Path:
        """What every pod sees as its project folder."""
        return self.cluster.folder / "claims" / "dptune-home"


@contextmanager
def open_site(
    folder: Path, *, start: Callable[..., Started] = start_process
) -> Iterator[Site]:
    """Start a server and a cluster, and make this process their client.

    Args:
        folder: of everything that they keep.
        start: how pods are started.
    """
    before, temporary = dict(os.environ), tempfile.tempdir
    location = kube_config.KUBE_CONFIG_DEFAULT_LOCATION  # KUBECONFIG at import
    kubeconfig, budget_url = folder / "kubeconfig", f"sqlite:///{folder}/budget.db"
    cluster = Cluster(
        folder / "cluster",
        image=image_variables(),
        start=start,
        kubeconfig=kubeconfig,
    )
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(cluster.url)))
    secret = {"url": budget_url, "key": BUDGET_KEY}
    cluster.put("secrets", "dptune", _secret("dptune-budget", secret))
    try:
        with zenml_server(folder) as url:
            kube_config.KUBE_CONFIG_DEFAULT_LOCATION = str(kubeconfig)
            os.environ |= {
                "DPTUNE_HOME": str(folder / "home"),
                "DPTUNE_BUDGET_URL": budget_url,
                "DPTUNE_BUDGET_KEY": BUDGET_KEY,
                "KUBECONFIG": str(kubeconfig),
                "COLUMNS": "200",
            }
            isolate(Workspace(root=folder / "home"))
            os.environ |= {
                "ZENML_STORE_URL": url,
                "ZENML_STORE_USERNAME": USER,
                "ZENML_STORE_PASSWORD": PASSWORD,
            }
            forget_client()
            profile_file = _profile(folder, url)
            profile = read_profile(str(profile_file))
            _register(profile.production_stack(), folder / "bucket")
            yield Site(
                cluster=cluster,
                profile=profile,
                profile_file=profile_file,
                budget_url=budget_url,
            )
            cluster.close()
    finally:
        kube_config.KUBE_CONFIG_DEFAULT_LOCATION = location
        tempfile.tempdir = temporary
        os.environ.clear()
        os.environ.update(before)
        forget_client()


def forget_client() -> None:
    """ZenML keeps one configuration per process; an earlier one may have been made."""
    GlobalConfiguration._reset_instance()
    Client._reset_instance()
    source_utils.set_custom_source_root(str(REPOSITORY))


def image_variables() -> dict[str, str]:
    """Variables that the last stage of our image sets."""
    text = (REPOSITORY / "infra" / "docker" / "cpu.Dockerfile").read_text()
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text.split(" AS run", 1)[1], re.M)
    pairs = (pair.split("=", 1) for pair in block.replace("\\\n", " ").split())
    return dict(pairs)


def _register(stack: ProductionStack, bucket: Path) -> None:
    """Register the production stack, then keep artifacts and runs on this disk."""
    client = Client()
    client.create_secret("dptune-mlflow", {"username": "u", "password": "p"})
    register(stack)
    local = {
        Kind.ARTIFACT_STORE: ("local", {"path": str(bucket)}),
        Kind.EXPERIMENT_TRACKER: ("mlflow", {}),
    }
    made = {
        kind: client.create_stack_component(
            name=f"here-{kind}",
            flavor=flavor,
            component_type=kind,
            configuration=settings,
        ).id
        for kind, (flavor, settings) in local.items()
    }
    client.update_stack_component(
        f"{stack.name}-orchestrator",
        Kind.ORCHESTRATOR,
        configuration={"skip_local_validations": True},
    )
    client.update_stack(stack.name, component_updates=made)
    activate(stack)
    # As a server does before it answers; two pods that made it at once would clash.
    tracker = client.active_stack.experiment_tracker
    MlflowClient(tracker.get_tracking_uri()).search_experiments(max_results=1)


def _secret(name: str, values: dict[str, str]) -> dict:
    data = {k: base64.b64encode(v.encode()).decode() for k, v in values.items()}
    return {"metadata": {"name": name}, "data": data}


def _kubeconfig(url: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }


def _profile(folder: Path, server: str) -> Path:
    """The repository's own profile and stack, but for where they are; fewer shards."""
    stack = yaml.safe_load((STACKS / "production.yaml").read_text())
    stack["kubernetes"]["context"] = "test"
    stack |= {
        "zenml_server": server,
        "image": "registry.test/dptune@sha256:" + "a" * 64,
    }
    (folder / "stack.yaml").write_text(yaml.safe_dump(stack))
    profile = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
    profile["stack"] = str(folder / "stack.yaml")
    profile["performance"]["detection_shards"] = 2
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return folder / "profile.yaml"
