"""Pods as processes: what ZenML's orchestrator does with kills, and with no news."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from kubernetes.config import kube_config
from zenml.client import Client
from zenml.enums import StackComponentType as Kind

from infra.profiles import read_profile, run_options
from infra.workspace import REPOSITORY

from .killable import killable_pipeline, looking_pipeline
from .kubernetes_api import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture
def processes(site, tmp_path):
    """A second cluster, whose pods are processes, and a stack on this disk."""
    places = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    cluster = Cluster(tmp_path, workdir=REPOSITORY, environment=places)
    file = Path(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
    before = file.read_text()
    file.write_text(before.replace(site.cluster.url, cluster.url))
    cluster._environment["KUBECONFIG"] = str(file)
    client, active = Client(), Client().active_stack_model.id
    parts = {
        Kind.ORCHESTRATOR: (
            "kubernetes",
            {
                "kubernetes_context": "test",
                "kubernetes_namespace": "dptune",
                "skip_local_validations": True,
                "pass_zenml_token_as_secret": True,
            },
        ),
        Kind.ARTIFACT_STORE: ("local", {"path": str(tmp_path / "artifacts")}),
        Kind.CONTAINER_REGISTRY: ("default", {"uri": "registry.test"}),
        Kind.IMAGE_BUILDER: ("local", {}),
    }
    made = {
        kind: client.create_stack_component(
            name=f"processes-{kind}",
            flavor=flavor,
            component_type=kind,
            configuration=settings,
        ).id
        for kind, (flavor, settings) in parts.items()
    }
    client.activate_stack(client.create_stack("processes", made).id)
    yield cluster
    client.activate_stack(active)
    file.write_text(before)
    cluster.close()


@pytest.fixture
def options(site, tmp_path):
    """Our profile's own options, with places that exist on this machine."""
    values = yaml.safe_load(site.profile_file.read_text())
    (tmp_path / "pod").mkdir()
    values["environment"] = {"HOME": str(tmp_path / "pod")}
    values["secrets"] = {}
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(values))
    profile = read_profile(str(tmp_path / "profile.yaml"))
    made = run_options(profile, [])
    for step in ({"settings": made["settings"]}, *made["steps"].values()):
        settings = step["settings"]["orchestrator.kubernetes"]
        settings |= {"job_monitoring_interval": 0.5, "interrupt_check_interval": 0.5}
    return made


def test_killed_pod_starts_again_and_the_run_completes(processes, options, tmp_path):
    run = killable_pipeline.with_options(**options)(folder=str(tmp_path))
    run = Client().get_pipeline_run(run.id)
    assert run.status == "completed", "\n".join(processes.logs.values())[-3000:]
    assert run.steps["interrupted"].outputs["attempts"][0].load() == 2
    assert run.steps["after"].outputs["seen"][0].load() == 2
    names = [
        pod["metadata"]["labels"].get("step_name") for pod in processes.all("pods")
    ]
    assert sorted(filter(None, names)) == ["after", "interrupted", "interrupted"]


def started(cluster):
    """How often each step's pod was started."""
    names = [p["metadata"]["labels"].get("step_name") for p in cluster.all("pods")]
    return Counter(name for name in names if name)


def test_run_of_data_that_did_not_change_does_nothing_and_says_since_when(
    processes, options
):
    def run(fingerprint):
        made = looking_pipeline.with_options(**options)(fingerprint=fingerprint)
        return Client().get_pipeline_run(made.id)

    first, again = run("a"), run("a")
    assert first.status == "completed"
    assert again.status == "stopped"
    assert first.name in again.run_metadata["schedule"]
    assert started(processes) == {"look": 2, "after": 1}
    assert run("b").status == "completed"
