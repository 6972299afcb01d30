"""What Kubeflow is sent of a run: every pod whole, and nothing secret."""

import copy
import json

import pytest
import yaml

from dptune.errors import ConfigError
from infra.cluster.manifests import find_pods
from infra.cluster.pod_policies import POD_POLICIES
from infra.cluster.schemas import round_trip_problems, schema_problems
from tests.cluster.story import is_heavy

pytestmark = pytest.mark.slow  # ZenML knows one server in a process


@pytest.fixture(scope="module")
def halves(pair):
    from tests.kubeflow.pipelines_api import specification  # noqa: PLC0415 - needs kfp

    return specification(pair.there.record)


@pytest.fixture(scope="module")
def jobs(pair, halves):
    """Every pod as Kubeflow's driver makes it, in a job of its own."""
    from tests.kubeflow.pipelines_api import render_job  # noqa: PLC0415 - needs kfp

    pipeline, executors = halves
    made = {}
    for name in pipeline["root"]["dag"]["tasks"]:
        job = render_job(pair.there.record, pipeline, executors, name)
        job["metadata"] |= {"name": name, "namespace": "dptune-kubeflow"}
        made[name] = {"apiVersion": "batch/v1", "kind": "Job", **job}
    return made


def pods(jobs):
    return {p.owner.removeprefix("Job/"): p for p in find_pods(list(jobs.values()))}


def test_every_step_is_a_task_that_waits_for_its_own(halves, pair):
    tasks = halves[0]["root"]["dag"]["tasks"]
    snapshot = pair.there.run.snapshot.step_configurations
    waits = {
        name: {up.replace("_", "-") for up in step.spec.upstream_steps}
        for name, step in snapshot.items()
    }
    assert {n.replace("_", "-") for n in waits} == set(tasks)
    for name, ups in waits.items():
        task = tasks[name.replace("_", "-")]
        assert set(task.get("dependentTasks", [])) == ups, name
        assert task["retryPolicy"]["maxRetryCount"] == 3
        assert not task["cachingOptions"].get("enableCache")


def test_pods_fit_the_schemas_of_kubernetes(jobs):
    manifests = list(jobs.values())
    assert list(schema_problems(manifests)) == []
    assert list(round_trip_problems(manifests)) == []


def test_pods_keep_every_policy_but_those_that_kubeflow_cannot_be_told(jobs):
    broken = {
        policy.__name__
        for pod in pods(jobs).values()
        for policy in POD_POLICIES
        for _ in policy(pod)
    }
    assert broken == {"has_read_only_root"}
    for pod in pods(jobs).values():
        context = pod.containers[0]["securityContext"]
        assert context["runAsUser"] == context["runAsGroup"] == 10001


def test_accelerators_places_and_shared_memory_are_those_of_heavy_steps(jobs):
    for name, pod in pods(jobs).items():
        heavy = is_heavy(name.replace("-", "_"))
        limits = pod.containers[0]["resources"]["limits"]
        assert limits == pod.containers[0]["resources"]["requests"]
        assert (limits.get("nvidia.com/gpu") == "1") is heavy, name
        assert ("dshm" in {v["name"] for v in pod.spec["volumes"]}) is heavy, name
        assert bool(pod.spec["nodeSelector"]) is heavy, name
        assert len(pod.spec["tolerations"]) == (2 if heavy else 0), name
        assert pod.spec["activeDeadlineSeconds"] == 60 * (2880 if heavy else 360)


def test_volumes_and_labels_are_those_of_the_profile(jobs, kubeflow):
    wanted = {(v.claim or v.name, v.path) for v in kubeflow.profile.volumes}
    for pod in pods(jobs).values():
        mounts = {
            (m["name"], m["mountPath"]) for m in pod.containers[0]["volumeMounts"]
        }
        assert mounts - {("dshm", "/dev/shm")} == wanted  # noqa: S108 - in a pod
        assert pod.labels["app.kubernetes.io/part-of"] == "dptune"


def test_no_token_is_in_what_is_sent_and_secrets_are_references(jobs, pair, kubeflow):
    sent = json.dumps(pair.there.record)
    assert kubeflow.key not in sent
    assert "eyJ" not in sent  # how every token of the server begins
    assert "API_TOKEN" not in sent
    for pod in pods(jobs).values():
        found = {
            v["name"]: v["valueFrom"]["secretKeyRef"]
            for v in pod.containers[0]["env"]
            if "valueFrom" in v
        }
        assert found == {
            name: {"name": s.name, "key": s.key, "optional": s.optional}
            for name, s in kubeflow.profile.secrets.items()
        }


@pytest.fixture
def package(pair, tmp_path):
    """What was sent, as a file that a test may spoil."""
    given = pair.there.record["pipeline_spec"]
    halves = [
        copy.deepcopy(given["pipeline_spec"]),
        copy.deepcopy(given["platform_spec"]),
    ]

    def write(spoil=lambda _pipeline, _kubernetes: None):
        executors = halves[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
        spoil(halves[0], executors)
        path = tmp_path / "package.yaml"
        path.write_text(yaml.safe_dump_all(halves))
        return path

    return write


def container(pipeline):
    return pipeline["deploymentSpec"]["executors"]["exec-score"]["container"]


SPOILED = {
    "no task": lambda p, _: p["root"]["dag"]["tasks"]["score"].update(
        dependentTasks=["nobody"]
    ),
    "by its digest": lambda p, _: container(p).update(image="dptune:latest"),
    "must come from a secret": lambda p, _: container(p)["env"].append(
        {"name": "ZENML_STORE_API_TOKEN", "value": "abc"}
    ),
    "a token must come": lambda p, _: container(p)["env"].append(
        {"name": "HARMLESS", "value": "eyJhbGciOiJIUzI1NiJ9.e30.x"}
    ),
    "limits of cpu": lambda p, _: container(p)["resources"].pop("resourceMemoryLimit"),
    "not root": lambda _, k: k["exec-score"].pop("securityContext"),
    "end in time": lambda _, k: k["exec-score"].pop("activeDeadlineSeconds"),
    "Kubeflow's schema": lambda _, k: k["exec-score"].update(priorityClass="high"),
    "has no field": lambda p, _: container(p).update(privileged=True),
}


def test_package_that_was_sent_is_accepted(package):
    from infra.kubeflow.specification import check_package  # noqa: PLC0415 - needs kfp

    assert len(check_package(package()).containers) > 15


@pytest.mark.parametrize("words", SPOILED)
def test_spoiled_package_is_refused(package, words):
    from infra.kubeflow.specification import check_package  # noqa: PLC0415 - needs kfp

    with pytest.raises(ConfigError, match=words):
        check_package(package(SPOILED[words]))
