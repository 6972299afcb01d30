"""The table of what a stack lacks, against servers that answer and none at all."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from kubernetes.config import kube_config

from infra.profiles import read_profile
from infra.stacks import checks
from infra.stacks.checks import State
from infra.stacks.settings import STACKS, ProductionStack


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

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
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
