"""The table of what a stack lacks, against servers that answer and none at all."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from kubernetes.config import kube_config

from infra.nodes.checks import check_nodes
from infra.nodes.settings import TRAINER
from infra.profiles import read_profile
from infra.stacks import checks
from infra.stacks.findings import State
from infra.stacks.settings import STACKS, ProductionStack
from tests.cluster.node_cluster import node_profile


def stack(**changes) -> ProductionStack:
    values = yaml.safe_load((STACKS / "production.yaml").read_text())
    return ProductionStack.model_validate(values | changes)


@pytest.fixture
def server():
    """Answers what `answers` says by path, 404 otherwise."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers.get(self.path, (404, {"kind": "Status"}))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
    served.answers = answers
    served.url = f"http://127.0.0.1:{served.server_port}"
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def kubeconfig(server, tmp_path, monkeypatch):
    """A context named `test` of the server."""
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": server.url}}
    context = {"name": "test", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [cluster],
        "contexts": [context],
        "users": [user],
    }
    path.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return "test"


def test_no_cluster_is_one_line_that_names_what_will_be_looked_for():
    (line,) = checks._check_cluster(stack(), read_profile("kubernetes"))
    assert line.state is State.MISSING
    for name in ("dptune-home", "dptune-budget", "dptune-step", "kubeconfig"):
        assert name in line.how


def in_namespace(kind, name):
    return f"/api/v1/namespaces/dptune/{kind}/{name}"


def test_cluster_is_asked_for_every_object_that_pods_refer_to(server, kubeconfig):
    version = {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
    version |= dict.fromkeys(
        ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "platform"),
        "",
    )
    there = (200, {"metadata": {"name": "x"}})
    server.answers |= {
        "/version/": (200, version),
        "/api/v1/namespaces/dptune": there,
        in_namespace("serviceaccounts", "dptune-orchestrator"): there,
        in_namespace("serviceaccounts", "dptune-step"): (403, {}),
        in_namespace("persistentvolumeclaims", "dptune-home"): there,
        in_namespace("secrets", "dptune-budget"): there,
    }
    cluster = stack().kubernetes.model_copy(update={"context": kubeconfig})
    found = checks._check_cluster(
        stack(kubernetes=cluster.model_dump()), read_profile("kubernetes")
    )
    states = {line.name: line.state for line in found}
    assert states == {
        "cluster": State.OK,
        "namespace dptune": State.OK,
        "service account dptune-orchestrator": State.OK,
        "service account dptune-step": State.UNKNOWN,
        "volume claim dptune-home": State.OK,
        "volume claim dptune-data": State.MISSING,
        "volume claim dptune-models": State.MISSING,
        "secret dptune-budget": State.OK,
        "secret dptune-signing": State.UNKNOWN,
        "secret dptune-alerts": State.UNKNOWN,
    }
    assert all(line.how for line in found if line.state is State.MISSING)


@pytest.mark.parametrize(
    ("status", "state"),
    [(200, State.OK), (401, State.OK), (500, State.MISSING)],
)
def test_server_that_answers_is_there(server, status, state):
    server.answers["/health"] = (status, {})
    line = checks._check_url("MLflow", f"{server.url}/health", "start it")
    assert line.state is state
    assert bool(line.how) == (state is State.MISSING)


def test_server_that_is_down_is_missing_with_a_way_out(server):
    server.shutdown()
    server.server_close()
    line = checks._check_url("MLflow", f"{server.url}/health", "start it")
    assert line.state is State.MISSING
    assert "start it" in line.how


@pytest.mark.parametrize(
    ("image", "state"),
    [
        (stack().image, State.MISSING),
        ("registry.local/dptune:latest", State.MISSING),
        ("registry.local/dptune@sha256:" + "a1" * 32, State.OK),
    ],
)
def test_image_must_be_named_by_digest(image, state):
    assert checks._check_image(image).state is state


# Several nodes.


def rights(allowed):
    """What the API answers who asks for an account's rights."""
    spec = {"user": "system:serviceaccount:dptune:dptune-launcher"}
    return (201, {"spec": spec, "status": {"allowed": allowed}})


REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def groups(*versions):
    return (
        200,
        {
            "groups": [
                {
                    "name": v.partition("/")[0],
                    "versions": [{"groupVersion": v, "version": v.partition("/")[2]}],
                }
                for v in versions
            ]
        },
    )


def nodes(
    server, kubeconfig, folder, *, modes=("ReadWriteMany",), answers=None, **kind
):
    """What is found for a profile of two nodes."""
    claim = {"metadata": {"name": "x"}, "spec": {"accessModes": list(modes)}}
    server.answers |= {
        "/apis/": groups("apps/v1", TRAINER),
        REVIEWS: rights(allowed=True),
        in_namespace("persistentvolumeclaims", "dptune-home"): (200, claim),
    } | (answers or {})
    api = checks._connect(kubeconfig)
    profile = node_profile(folder / "profile", **kind)
    return [
        (line.state, line.found)
        for line in check_nodes(api, profile.production_stack(), profile)
    ]


def test_cluster_that_has_what_nodes_need_is_found_complete(
    server, kubeconfig, tmp_path
):
    assert nodes(server, kubeconfig, tmp_path) == [
        (State.OK, f"TrainJob of {TRAINER}"),
        (State.OK, "may start nodes"),
        (State.OK, "ReadWriteMany"),
    ]
    profile = read_profile("kubernetes")
    assert list(check_nodes(None, profile.production_stack(), profile)) == []


def test_cluster_without_trainer_starts_indexed_jobs_unless_it_must_not(
    server, kubeconfig, tmp_path
):
    without = {"/apis/": groups("batch/v1")}
    found = nodes(server, kubeconfig, tmp_path, answers=without)
    assert found[0] == (State.OK, "Indexed Job with a headless Service")
    found = nodes(server, kubeconfig, tmp_path, answers=without, kind="TrainJob")
    assert found[0] == (State.MISSING, f"no {TRAINER}")
    found = nodes(server, kubeconfig, tmp_path, kind="Job")
    assert found[0][1].startswith("Indexed Job")


def test_missing_rights_and_a_volume_of_one_node_are_named(
    server, kubeconfig, tmp_path
):
    denied = {REVIEWS: rights(allowed=False)}
    found = nodes(server, kubeconfig, tmp_path, answers=denied, modes=["ReadWriteOnce"])
    (_, (state, lacks), volume) = found
    assert state is State.MISSING
    for words in ("create jobs", "delete services", "get pods/log", "create trainjobs"):
        assert words in lacks
    assert volume == (State.MISSING, "ReadWriteOnce")
    found = nodes(server, kubeconfig, tmp_path, answers={REVIEWS: (403, {})})
    assert found[1] == (State.UNKNOWN, "the cluster answers 403")


def test_account_that_starts_nodes_is_looked_for(tmp_path):
    profile = node_profile(tmp_path / "p")
    names = {
        o.name for o in checks._needed_objects(profile.production_stack(), profile)
    }
    assert "dptune-launcher" in names
