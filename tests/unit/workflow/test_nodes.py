"""A step starts nodes, follows them, and ends them, whatever happens to any of them."""

import json
import logging
import os
import socket
import threading
import time

import pytest
import yaml
from kubernetes.config import kube_config

from dptune.errors import (
    ArtifactError,
    BudgetExceededError,
    ConfigError,
    DptuneError,
    PrivacyError,
)
from dptune.workflow.shared_job import PROGRESS
from infra.cluster.manifests import find_pods
from infra.cluster.schemas import _lost
from infra.nodes import launcher, owned
from infra.nodes.launcher import NodeLauncher
from infra.nodes.objects import ALIVE, node_objects
from infra.nodes.settings import JOB
from tests.cluster.fake_rank import starting
from tests.cluster.node_cluster import NodeCluster, node_job
from tests.cluster.site import _kubeconfig, _secret

from .conftest import PERFORMANCE

WORKS = "index or [report(step) for step in (1, 2, 3)]"
SLEEPS = "time.sleep(60)"
REPORTS_AND_SLEEPS = "index or report(1); time.sleep(60)"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Makes a cluster of nodes that behave so; this process is the pod of a step."""
    made = []

    def make(behaviour, **options):
        cluster = NodeCluster(
            tmp_path / "cluster", start=starting(behaviour), **options
        )
        made.append(cluster)
        secret = _secret("dptune-budget", {"url": "sqlite://"})
        cluster.put("secrets", "dptune", secret)
        cluster.put_pod("step-1", phase="Running")
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(cluster.url)))
        cluster.made.clear()
        cluster.more_variables = lambda _pod: {
            "ATTEMPT": str(sum(m["kind"] == "Job" for m in cluster.made))
        }
        return cluster

    location = str(tmp_path / "kubeconfig")
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", location)
    monkeypatch.setattr(socket, "gethostname", lambda: "step-1")
    monkeypatch.setattr(launcher, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(owned, "_POLL_SECONDS", 0.05)
    yield make
    for one in made:
        one.close()


@pytest.fixture
def train(shared, tmp_path):
    """Trains a stage on nodes; returns the steps that were told of."""

    def call(*, max_restarts=0, on_step=None, performance=None, **changes):
        steps = []
        settings = {"nodes": 2, "num_processes": "auto", "max_restarts": max_restarts}
        told, data = shared(
            PERFORMANCE.model_copy(update=settings | (performance or {}))
        )
        limits = {k: changes.pop(k) for k in tuple(changes) if k in _LIMITS}
        job = node_job(tmp_path / "profile", **{"gpus": 0} | changes)
        NodeLauncher(job=job.model_copy(update=limits))(
            told, data, on_step=on_step or (lambda now: steps.append(now.step))
        )
        return steps

    return call


_LIMITS = ("start_within_minutes", "deadline_seconds")


def left(cluster):
    """Objects and processes of nodes that are still there."""
    kinds = ("services", "jobs", "trainjobs", "trainingruntimes", "podgroups")
    objects = [name for kind, name in cluster.objects if kind in kinds]
    running = [n for n, p in cluster.processes.items() if p.process.poll() is None]
    return [*objects, *(p["metadata"]["name"] for p in cluster.nodes()), *running]


def wait_until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def names(cluster):
    return [f"{m['kind']}/{m['metadata']['name']}" for m in cluster.made]


@pytest.mark.parametrize("with_trainer", [False, True])
def test_nodes_train_and_nothing_of_them_stays(
    cluster, train, tmp_path, with_trainer, caplog
):
    here = cluster(
        f"print('node', index, flush=True); {WORKS}", with_trainer=with_trainer
    )
    with caplog.at_level(logging.INFO, "infra.nodes"):
        assert train() == [1, 2, 3]
        wait_until(lambda: ": node 1" in caplog.text)  # its own log
    made = names(here)
    expected = ["TrainingRuntime", "TrainJob"] if with_trainer else ["Service", "Job"]
    assert made[:2] == [f"{kind}/dptune-stage" for kind in expected]
    assert left(here) == []
    assert not list((tmp_path / "stage").glob("nodes-*"))
    for manifest in here.made[:2]:
        (owner,) = manifest["metadata"]["ownerReferences"]
        uid = here.objects["pods", "step-1"]["metadata"]["uid"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "step-1", uid)


def test_kind_of_the_profile_is_made_and_must_be_served(cluster, train):
    here = cluster(WORKS, with_trainer=True)
    assert train(kind="Job") == [1, 2, 3]
    assert names(here)[:2] == ["Service/dptune-stage", "Job/dptune-stage"]


def test_kind_that_is_not_served_is_refused_with_a_way_out(cluster, train):
    here = cluster(WORKS)
    with pytest.raises(ConfigError, match=r"TrainJob(.|\n)*Install it, or change"):
        train(kind="TrainJob")
    here.kinds = {k: v for k, v in here.kinds.items() if k != "podgroups"}
    with pytest.raises(ConfigError, match="PodGroup"):
        train(scheduler="gang")
    assert left(here) == []


def test_error_of_ours_is_raised_as_it_was_and_never_tried_again(cluster, train):
    here = cluster(
        'fail("BudgetExceededError", "no budget") if index == 0 else '
        'once_lost() or fail("RuntimeError", "connection closed")'
    )
    with pytest.raises(BudgetExceededError, match=r"^no budget$"):
        train(max_restarts=3)
    assert names(here).count("Job/dptune-stage") == 1
    assert left(here) == []


@pytest.mark.parametrize(
    ("behaviour", "reason", "last_words", "message"),
    [
        (
            f"os.kill(os.getpid(), 9) if index else {SLEEPS}",
            "OOMKilled",
            {},
            r"node dptune-stage-\d.* ran out of memory \(OOMKilled\)",
        ),
        (
            f"os.kill(os.getpid(), 9) if index else {SLEEPS}",
            "",
            {},
            r"rank 1 ended without a word \(SIGKILL\)",
        ),
        (
            f"sys.exit(1) if index else {SLEEPS}",
            "",
            {"reason": "Evicted", "message": "ephemeral local storage exceeds 20Gi"},
            "Evicted, ephemeral local storage exceeds 20Gi",
        ),
        (
            'fail("RuntimeError", "of node %d" % index)',
            "",
            {},
            "stopped with RuntimeError: of node",
        ),
        (
            f"sys.exit(255) if index else {SLEEPS}",
            "",
            {},
            r"rank 1 ended without a word \(exit code 255\)",
        ),
        (
            "sys.exit(3) if index else time.sleep(.1) or fail('RuntimeError', 'off')",
            "",
            {},
            r"rank 1 ended without a word \(exit code 3\)",
        ),
    ],
)
def test_end_of_a_node_is_the_step_s_own_failure(
    cluster, train, behaviour, reason, last_words, message
):
    here = cluster(behaviour)
    here.reason, here.last_words = reason, last_words
    with pytest.raises(DptuneError, match=message):
        train()
    assert left(here) == []


LOST_ONCE = f"""
if first: os.kill(os.getpid(), 9) if index else {SLEEPS}
{WORKS}
"""


def test_lost_node_starts_all_again_as_often_as_allowed(cluster, train):
    here = cluster(LOST_ONCE)
    assert train(max_restarts=1) == [1, 2, 3]
    assert names(here).count("Job/dptune-stage") == 2
    assert left(here) == []


@pytest.mark.parametrize("with_trainer", [False, True])
def test_preempted_node_is_nobodys_fault_and_all_start_again(
    cluster, train, with_trainer
):
    here = cluster(f"{SLEEPS} if first else {WORKS}", with_trainer=with_trainer)
    threading.Thread(target=_disrupt_first, args=(here,), daemon=True).start()
    assert train()[-3:] == [1, 2, 3]
    assert [name.startswith("Job/") for name in names(here)].count(True) == 2
    assert left(here) == []


def _disrupt_first(here):
    wait_until(
        lambda: sum(p["status"]["phase"] == "Running" for p in here.nodes()) == 2
    )
    here.disrupt(here.nodes()[1]["metadata"]["name"], grace=0.5)


def test_nodes_without_room_are_given_up_with_the_scheduler_s_words(cluster, train):
    here = cluster(SLEEPS, room=1)
    with pytest.raises(
        DptuneError, match=r"got 1\. node .*Insufficient gpu.*Make room"
    ):
        train(start_within_minutes=0.02, max_restarts=3)
    assert names(here).count("Job/dptune-stage") == 1
    assert left(here) == []


def test_node_that_lacks_a_secret_is_named(cluster, train):
    here = cluster(SLEEPS)
    here.remove("secrets", "dptune-budget")
    with pytest.raises(DptuneError, match=r"CreateContainerConfigError.*dptune-budget"):
        train(start_within_minutes=0.02)
    assert left(here) == []


def test_nodes_end_in_time(cluster, train):
    here = cluster(SLEEPS)
    with pytest.raises(DptuneError, match=r"out of time\. Raise pods\.accelerated"):
        train(deadline_seconds=0.5, max_restarts=3)
    assert left(here) == []


def test_step_that_ends_takes_its_nodes_along(cluster, train):
    def interrupt(now):
        raise KeyboardInterrupt

    here = cluster(REPORTS_AND_SLEEPS)
    with pytest.raises(KeyboardInterrupt):
        train(on_step=interrupt)
    assert len(here.processes) == 2
    assert left(here) == []


def test_pod_of_the_step_that_is_removed_takes_its_nodes_along(cluster, train):
    here = cluster(REPORTS_AND_SLEEPS)
    with pytest.raises(DptuneError, match="but is gone"):
        train(on_step=lambda now: here.remove("pods", "step-1"))
    assert left(here) == []


def leftover(here, tmp_path, *, owner):
    """Nodes that another pod has started."""
    folder = tmp_path / "leftover"
    folder.mkdir(exist_ok=True)
    (folder / ALIVE).touch()
    pod = here.objects["pods", owner]
    manifests = node_objects(
        node_job(tmp_path / "profile", gpus=0),
        kind="Job",
        name="dptune-stage",
        folder=folder,
        num_processes=1,
        owner={"kind": "Pod", "name": owner, "uid": pod["metadata"]["uid"]},
    )
    for manifest in manifests:
        kind = {"Service": "services", "Job": "jobs"}[manifest["kind"]]
        here.put(kind, "dptune", manifest)
    wait_until(lambda: len(here.processes) == 2)
    return folder


def test_nodes_of_a_killed_step_end_by_themselves(cluster, tmp_path):
    here = cluster(SLEEPS)
    here.put_pod("step-0", phase="Failed")
    alive = leftover(here, tmp_path, owner="step-0") / ALIVE
    time.sleep(0.5)
    assert all(p.process.poll() is None for p in here.processes.values())
    old = time.time() - 11 * 60
    os.utime(alive, (old, old))
    wait_until(lambda: here.objects["jobs", "dptune-stage"]["status"].get("conditions"))
    assert all(p.process.poll() is not None for p in here.processes.values())


def test_next_start_removes_what_a_killed_step_left_before_it_trains(
    cluster, train, tmp_path
):
    here = cluster(f"{SLEEPS} if folder.name == 'leftover' else {WORKS}")
    here.put_pod("step-0", phase="Failed")
    leftover(here, tmp_path, owner="step-0")
    assert train() == [1, 2, 3]
    assert left(here) == []


def test_nodes_of_a_run_that_is_at_work_are_left_alone(cluster, train, tmp_path):
    here = cluster(SLEEPS)
    here.put_pod("step-0", phase="Running")
    leftover(here, tmp_path, owner="step-0")
    with pytest.raises(PrivacyError, match="pod step-0 trains it as Job/dptune-stage"):
        train()
    assert len(left(here)) == 6  # as before


def test_two_starts_that_ignored_each_other_are_caught(
    cluster, train, tmp_path, monkeypatch
):
    """The twin of the test above: it takes the other's nodes away."""
    here = cluster(f"{SLEEPS} if folder.name == 'leftover' else {WORKS}")
    here.put_pod("step-0", phase="Running")
    leftover(here, tmp_path, owner="step-0")
    monkeypatch.setattr(owned.Owned, "_refuse_another_pod", lambda self, found: None)
    assert train() == [1, 2, 3]
    assert left(here) == []


@pytest.mark.parametrize("moment", ["_remove", "_wait_until_gone"])
def test_nodes_that_another_run_starts_at_the_same_moment_are_left_alone(
    cluster, train, tmp_path, monkeypatch, moment
):
    """Neither the look at what is there, nor the end of the refused run, takes them."""
    here = cluster(SLEEPS)
    here.put_pod("step-0", phase="Running")
    original, started = getattr(owned.Owned, moment), []

    def with_another(self, **how):
        original(self, **how)
        if not started:
            started.append(leftover(here, tmp_path, owner="step-0"))

    monkeypatch.setattr(owned.Owned, moment, with_another)
    with pytest.raises(PrivacyError, match="one run at a time"):
        train()
    assert len(left(here)) == 6


def test_object_that_was_made_anew_since_it_was_looked_at_is_left_alone(
    cluster, train, tmp_path, monkeypatch
):
    here = cluster(SLEEPS)
    for name, phase in (("step-0", "Running"), ("step-9", "Failed")):
        here.put_pod(name, phase=phase)
    leftover(here, tmp_path, owner="step-9")
    original = owned.Owned._refuse_another_pod

    def meanwhile(self, found):
        original(self, found)
        for kind in ("jobs", "services"):
            here.remove(kind, "dptune-stage")
        here.processes.clear()
        leftover(here, tmp_path, owner="step-0")

    monkeypatch.setattr(owned.Owned, "_refuse_another_pod", meanwhile)
    with pytest.raises(ArtifactError, match="answers 409"):
        train()
    assert len(left(here)) == 6


def test_account_that_may_not_start_nodes_is_told_so(cluster, train):
    here = cluster(SLEEPS)
    here.forbidden.add(("POST", "jobs"))
    with pytest.raises(ConfigError, match=r"403 Forbidden.*stack check"):
        train()
    assert left(here) == []


def test_cluster_that_is_silent_for_a_while_is_waited_for(cluster, train, monkeypatch):
    here = cluster(f"index or report(1); time.sleep(.5); {WORKS}")
    look, calls = owned.Owned.look, []

    def deaf(self):
        calls.append(1)
        if len(calls) in (2, 3, 4):
            raise ArtifactError("Kubernetes answers 503.")
        return look(self)

    monkeypatch.setattr(owned.Owned, "look", deaf)
    assert train()[-3:] == [1, 2, 3]
    calls.clear()
    monkeypatch.setattr(launcher, "_SILENCE_SECONDS", -1)
    with pytest.raises(ArtifactError, match="503"):
        train()
    assert left(here) == []


def test_more_processes_than_accelerators_are_refused_before_anything(cluster, train):
    here = cluster(SLEEPS)
    with pytest.raises(ConfigError, match=r"at most 2, the pods\.accelerated\.gpus"):
        train(gpus=2, performance={"num_processes": 3})
    assert here.made == []


def test_nodes_see_the_job_and_the_model_and_no_secret_but_the_budget_s(
    cluster, train, tmp_path
):
    out = tmp_path / "seen.json"
    here = cluster(f"""
told = {{
    "files": sorted(p.name for p in folder.iterdir()),
    "model": json.loads((folder / "job.json").read_text())["job"]["model"],
    "environment": sorted(os.environ),
    "words": words,
}}
index or pathlib.Path({str(out)!r}).write_text(json.dumps(told))
""")
    train()
    seen = json.loads(out.read_text())
    assert {"job.json", "units.safetensors", PROGRESS, "model", ALIVE} <= set(
        seen["files"]
    )
    assert seen["model"].endswith("/model")
    assert "DPTUNE_BUDGET_URL" in seen["environment"]
    assert not {"DPTUNE_BUDGET_KEY", "DPTUNE_SIGNING_KEY"} & set(seen["environment"])
    assert [w for w in seen["words"] if w.startswith("--n")] == [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--node-rank=0",
    ]
    assert "--master-addr=127.0.0.1" in seen["words"]  # its name was resolved
    assert here.made


def objects(tmp_path, kind, **changes):
    return node_objects(
        node_job(tmp_path / "profile", **changes),
        kind=kind,
        name="dptune-stage",
        folder=tmp_path,
        num_processes=1,
        owner={"apiVersion": "v1", "kind": "Pod", "name": "step-1", "uid": "1"},
    )


def rejected(manifest):
    """Say what Trainer's own models do not know of an object."""
    from kubeflow_trainer_api import models  # noqa: PLC0415 - seconds of each worker

    model = getattr(models, f"TrainerV1alpha1{manifest['kind']}")
    return list(_lost(manifest, model.from_dict(manifest).to_dict(), ""))


def test_train_job_and_runtime_fit_the_models_of_trainer(tmp_path):
    made = objects(tmp_path, "TrainJob", queue="research", scheduler="gang")
    assert [m["kind"] for m in made] == ["TrainingRuntime", "TrainJob"]
    assert [rejected(m) for m in made] == [[], []]
    runtime, job = made
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    job["spec"]["numNodes"] = 2
    assert rejected(job) == [".spec.numNodes"]
    runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"][
        "x"
    ] = 1
    assert len(rejected(runtime)) == 1


@pytest.mark.parametrize("kind", ["Job", "TrainJob"])
def test_nodes_are_the_accelerated_pods_of_the_profile(tmp_path, kind):
    (pod,) = find_pods(objects(tmp_path, kind, scheduler="gang"))
    assert pod.labels[JOB] == "dptune-stage"
    assert pod.labels["app.kubernetes.io/part-of"] == "dptune"
    assert "pipeline" not in pod.labels  # no server is reached
    assert pod.spec["priorityClassName"] == "dptune-step"
    assert pod.spec["nodeSelector"] == {"dptune.dev/pool": "accelerated"}
    assert len(pod.spec["tolerations"]) == 2
    assert pod.spec["serviceAccountName"] == "dptune-step"
    assert pod.spec["automountServiceAccountToken"] is False
    assert pod.spec["schedulerName"] == "gang"
    (container,) = pod.containers
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    secrets = [v for v in container["env"] if "valueFrom" in v]
    assert [v["name"] for v in secrets] == ["DPTUNE_BUDGET_URL"]


def test_gang_is_a_queue_of_kueue_or_a_pod_group(tmp_path):
    group, _, job = objects(tmp_path, "Job", queue="research", scheduler="gang")
    assert group["spec"] == {"minMember": 2, "scheduleTimeoutSeconds": 3600}
    label = job["spec"]["template"]["metadata"]["labels"]
    assert label["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    runtime, train_job = objects(tmp_path, "TrainJob", queue="research", scheduler="g")
    assert runtime["spec"]["podGroupPolicy"]["coscheduling"]
    assert train_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    plain = objects(tmp_path, "Job")
    assert [m["kind"] for m in plain] == ["Service", "Job"]
    assert "k8s.io/queue-name" not in json.dumps(plain)
