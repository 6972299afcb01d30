"""What a cluster would be sent for every step keeps every policy of infra/k8s."""

import copy
import json
import socket
import sys
from types import SimpleNamespace

import kubernetes.client
import pytest
import yaml
from zenml.client import Client
from zenml.config.schedule import Schedule
from zenml.integrations.kubernetes.orchestrators import (
    KubernetesOrchestrator,
    kubernetes_orchestrator_entrypoint,
)
from zenml.pipelines.run_utils import create_placeholder_run

from cli.schedules import with_schedule
from dptune.configfile import load_train_config
from infra.cluster.check import check_manifests, check_policies
from infra.cluster.manifests import find_objects, find_pods, selects
from infra.pods import run_options
from infra.profiles import PROFILES, read_profile
from infra.stacks.production import register, unregister
from infra.stacks.settings import STACKS
from infra.workspace import REPOSITORY
from tests.infra.clusters import DIGEST, filled_overlay
from tests.integration.recording import Recorder

pytestmark = pytest.mark.slow  # ZenML knows one stack in a process

TOKEN = "eyJhbGciOiJIUzI1NiJ9.e30.never-in-a-manifest"
REMOTE = {
    "ZENML_STORE_TYPE": "rest",
    "ZENML_STORE_URL": "http://zenml.dptune.svc.cluster.local:8080",
    "ZENML_STORE_API_TOKEN": TOKEN,
}
IMAGE = f"registry.internal/dptune/cuda@{DIGEST}"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """The profile of the repository on a stack whose image is pinned."""
    folder = tmp_path_factory.mktemp("profile")
    stack = yaml.safe_load((STACKS / "production.yaml").read_text()) | {"image": IMAGE}
    (folder / "stack.yaml").write_text(yaml.safe_dump(stack))
    values = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
    values |= {"stack": str(folder / "stack.yaml")}
    (folder / "profile.yaml").write_text(yaml.safe_dump(values))
    return read_profile(str(folder / "profile.yaml"))


@pytest.fixture(scope="module")
def config():
    return load_train_config(
        REPOSITORY / "tests/configs/tiny.yaml", configs=REPOSITORY / "configs"
    )


@pytest.fixture(scope="module")
def recorder(project, profile, config):
    """A run and a schedule, submitted; and every step started by the run's own pod."""
    stack = profile.production_stack()
    secret = Client().create_secret("dptune-mlflow", {"username": "u", "password": "p"})
    before = Client().active_stack_model.id
    register(stack)
    Client().activate_stack(stack.name)
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes.client, "BatchV1Api", recorder.batch_api)
        patch.setattr(kubernetes.client, "CoreV1Api", recorder.core_api)
        patch.setattr(KubernetesOrchestrator, "get_kube_client", _no_cluster)
        _start(patch, _submit(profile, config))
        _submit(profile, config, schedule=Schedule(cron_expression="0 3 * * *"))
        yield recorder
    Client().activate_stack(before)
    unregister(stack)
    Client().delete_secret(secret.id)


def _no_cluster(_orchestrator, incluster=None):
    return SimpleNamespace(configuration=kubernetes.client.Configuration())


def _submit(profile, config, *, schedule=None):
    """Submit a run with ZenML's own orchestrator; returns its snapshot and run."""
    from pipelines.train import step_names, train_pipeline  # noqa: PLC0415 - needs a stack

    options = run_options(profile, step_names(config))
    options["settings"]["orchestrator.kubernetes"] |= {
        "synchronous": False,
        "job_monitoring_interval": 0.01,
    }
    if schedule:
        options = with_schedule(options, deadline_seconds=3600, start_within_seconds=60)
    pipeline = train_pipeline.with_options(schedule=schedule, **options)
    pipeline.prepare(
        config=config.model_dump(mode="json"), fingerprint="f" * 64, retrain=True
    )
    snapshot = pipeline._create_snapshot(**pipeline._run_args)
    run = None if schedule else create_placeholder_run(snapshot=snapshot)
    Client().active_stack.orchestrator.submit_pipeline(
        snapshot=snapshot,
        stack=Client().active_stack,
        base_environment=dict(REMOTE),
        step_environments={},
        placeholder_run=run,
    )
    return snapshot, run


def _start(patch, submitted):
    """Be the orchestrator's pod: start every step's job."""
    snapshot, run = submitted
    entrypoint = kubernetes_orchestrator_entrypoint
    arguments = ["--snapshot_id", str(snapshot.id), "--run_id", str(run.id)]
    secret = {"ZENML_STORE_API_TOKEN": TOKEN}
    shared = {name: value for name, value in REMOTE.items() if name not in secret}
    patch.setattr(
        entrypoint, "get_config_environment_vars", lambda: (dict(shared), dict(secret))
    )
    patch.setattr(sys, "argv", ["entrypoint", *arguments])
    patch.setattr(socket, "gethostname", lambda: "orchestrator-pod")
    entrypoint.main()


@pytest.fixture(scope="module")
def production(tmp_path_factory):
    return filled_overlay("production", tmp_path_factory.mktemp("overlay"))


@pytest.fixture(scope="module")
def sent(recorder):
    """Everything that was sent: jobs of the orchestrator, of every step, a schedule."""
    return list(recorder.manifests())


def by_step(manifests):
    """Pods of steps, by the step."""
    pods = find_pods(find_objects(manifests, "Job"))
    return {p.labels["step_name"]: p for p in pods if "step_name" in p.labels}


def test_every_step_got_a_job_and_the_run_and_its_schedule_one_each(sent, config):
    from pipelines.train import step_names  # noqa: PLC0415 - needs a stack

    names = step_names(config)
    assert len(names) > 15
    assert sorted(by_step(sent)) == sorted(names)
    assert len(find_objects(sent, "Job")) == len(names) + 1
    assert len(find_objects(sent, "CronJob")) == 1


def test_what_is_sent_keeps_every_policy_beside_the_overlay(sent, production, recorder):
    assert check_manifests([*production, *sent], made=recorder.secrets) == []


def test_no_token_is_in_a_manifest_but_by_reference(sent, recorder):
    assert TOKEN not in json.dumps(sent)
    for pod in find_pods(sent):
        (container,) = pod.containers
        (token,) = [v for v in container["env"] if v["name"] == "ZENML_STORE_API_TOKEN"]
        assert token["valueFrom"]["secretKeyRef"]["name"] in recorder.secrets


def test_accelerators_are_asked_for_by_training_and_attacks_only(sent):
    for name, pod in by_step(sent).items():
        (container,) = pod.containers
        heavy = name.startswith("train_") or name == "attack"
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) is heavy, name
        volumes = {v["name"]: v for v in pod.spec["volumes"]}
        assert ("dshm" in volumes) is heavy, name
        assert bool(pod.spec.get("nodeSelector")) is heavy, name


def test_network_policies_select_the_pods_that_are_really_sent(sent, production):
    every = {"default-deny", "dns", "pipeline-to-servers"}
    every |= {"object-store", "databases", "endpoints"}
    for pod in find_pods(sent):
        found = {
            policy["metadata"]["name"]
            for policy in find_objects(production, "NetworkPolicy")
            if selects(policy["spec"]["podSelector"], pod.labels)
        }
        is_step = pod.spec["serviceAccountName"] == "dptune-step"
        assert found == every | (set() if is_step else {"orchestrator-to-kubernetes"})


def test_shared_folders_belong_to_the_user_of_the_pod(sent):
    for pod in find_pods(sent):
        assert pod.spec["securityContext"]["fsGroup"] == 10001, pod.owner


def test_steps_get_no_token_of_the_cluster_and_the_orchestrator_its_own(sent):
    accounts = {
        pod.spec["serviceAccountName"]: pod.spec.get("automountServiceAccountToken")
        for pod in find_pods(sent)
    }
    assert accounts == {"dptune-orchestrator": None, "dptune-step": False}


@pytest.mark.parametrize(
    ("policy", "spoil"),
    [
        ("has_limits", lambda c: c["resources"].pop("limits")),
        ("has_no_privilege", lambda c: c["securityContext"].update(privileged=True)),
        ("holds_no_secret", lambda c: c["env"].append({"name": "TOKEN", "value": "a"})),
        ("names_images_by_digest", lambda c: c.update(image="dptune:latest")),
        (
            "references",
            lambda c: c["env"].append(
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}
            ),
        ),
    ],
)
def test_policies_catch_a_spoiled_step(sent, production, recorder, policy, spoil):
    spoiled = copy.deepcopy(sent)
    spoil(by_step(spoiled)["score"].containers[0])
    found = check_policies([*production, *spoiled], made=recorder.secrets)
    assert policy in {finding.policy for finding in found}
