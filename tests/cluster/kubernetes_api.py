"""A Kubernetes API in memory: enough for ZenML's own orchestrator, over real HTTP.

Objects are kept as they were sent, so that tests see what a cluster would. Each pod is
a process of this machine with the pod's command, arguments and variables and those of
the image, and no others; a job starts another pod when one fails, as often as its
backoff limit says. Paths in variables lead to the pod's volumes: a claim is one folder
for all, an empty directory one for each pod, and anything else a root that a pod must
not write to.
"""

import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, urlparse

KINDS = {
    "jobs": ("batch/v1", "Job"),
    "cronjobs": ("batch/v1", "CronJob"),
    "pods": ("v1", "Pod"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "secrets": ("v1", "Secret"),
    "configmaps": ("v1", "ConfigMap"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
}
PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/v[^/]+)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(?:/(log))?$"
)
REPOSITORY = Path(__file__).resolve().parents[2]
# Read by every Python that a pod starts: a pod's host is called like the pod.
HOSTNAME = (
    "import os, socket\n"
    "if os.environ.get('FAKE_POD'):\n"
    "    socket.gethostname = lambda: os.environ['FAKE_POD']\n"
)


def now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Started(Protocol):
    """A process that was started."""

    def wait(self) -> int:
        """Wait for its end; 0, an exit code, or less for a signal."""
        ...

    def kill(self) -> None:
        """End it without a word."""
        ...


def start_process(
    command: Sequence[str], variables: Mapping[str, str], log: Path
) -> Started:
    """Start a Python of its own, as a container does."""
    site = log.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(HOSTNAME)
    with log.open("w") as sink:
        return subprocess.Popen(
            [sys.executable, *command[1:]],
            env={**variables, "PYTHONPATH": f"{site}:{REPOSITORY}"},
            cwd=REPOSITORY,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )


class Cluster:
    """All objects of one cluster, and its pods as processes.

    Args:
        folder: of volumes, logs and roots of pods.
        image: variables of the image that all pods run.
        kubeconfig: of pods that ask the cluster, in place of their account's token.
        start: how a process is started.

    `more_variables` says more variables of a pod, of a test's own.
    """

    kinds: Mapping[str, tuple[str, str]] = KINDS

    def __init__(
        self,
        folder: Path,
        *,
        image: Mapping[str, str],
        kubeconfig: Path,
        start: Callable[..., Started] = start_process,
    ):
        self.objects: dict[tuple[str, str], dict] = {}
        self.processes: dict[str, Started] = {}
        self.lock = threading.RLock()
        self.folder = folder
        self.more_variables: Callable[[dict], Mapping[str, str]] = lambda _pod: {}
        self._image, self._start = dict(image), start
        self._kubeconfig = str(kubeconfig)
        self._is_closed = False
        for name in ("claims", "logs", "pods"):
            (folder / name).mkdir(parents=True)
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        ).start()

    def close(self) -> None:
        self._is_closed = True
        for process in list(self.processes.values()):
            process.kill()
        self._server.shutdown()
        self._server.server_close()

    def all(self, kind: str) -> list[dict]:
        with self.lock:
            return [o for (k, _), o in self.objects.items() if k == kind]

    def log(self, pod: str) -> str:
        file = self.folder / "logs" / pod
        return file.read_text(errors="replace") if file.exists() else ""

    def root(self, pod: str) -> Path:
        """What a pod would write outside of its volumes."""
        return self.folder / "pods" / pod / "root"

    def fire(self, cronjob: str) -> dict:
        """Start a job as the cluster's own controller does when its time has come."""
        known = self.objects["cronjobs", cronjob]
        template = json.loads(json.dumps(known["spec"]["jobTemplate"]))
        metadata = {**template.get("metadata", {}), "generateName": f"{cronjob}-"}
        body = {"metadata": metadata, "spec": template["spec"]}
        return self.put("jobs", known["metadata"]["namespace"], body)

    def wait(self, job: dict) -> bool:
        """Wait for a job's end; whether it succeeded."""
        while not job["status"].get("conditions"):
            time.sleep(0.1)
        return bool(job["status"].get("succeeded"))

    def put(self, kind: str, namespace: str, body: dict) -> dict:
        """Keep an object, with what a server fills in."""
        metadata = body.setdefault("metadata", {})
        prefix = metadata.get("generateName") or "x-"
        metadata.setdefault("name", prefix + uuid.uuid4().hex[:5])
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", now())
        metadata["namespace"] = namespace
        body["apiVersion"], body["kind"] = self.kinds[kind]
        with self.lock:
            self.objects[kind, metadata["name"]] = body
        self._control(kind, body)
        return body

    def remove(self, kind: str, name: str) -> None:
        """Remove an object."""
        self.objects.pop((kind, name))

    def refuses(self, verb: str, kind: str) -> bool:
        """Whether the caller's account may not do that."""
        return False

    def _control(self, kind: str, body: dict) -> None:
        """Do what the controller of a kind does."""
        if kind == "jobs":
            body.setdefault("status", {"active": 1, "startTime": now()})
            threading.Thread(target=self._run, args=(body,), daemon=True).start()

    def _run(self, job: dict) -> None:
        """Run a job to its end."""
        ended = False
        try:
            for _ in range(job["spec"].get("backoffLimit", 6) + 1):
                ended = self._run_pod(job)
                known = ("jobs", job["metadata"]["name"]) in self.objects
                if ended or self._is_closed or not known:
                    break
        finally:  # also where a pod could not be started: whoever waits must know
            condition = {"type": "Complete" if ended else "Failed", "status": "True"}
            job["status"] = {
                "succeeded" if ended else "failed": 1,
                "startTime": job["status"]["startTime"],
                "conditions": [{**condition, "lastTransitionTime": now()}],
            }

    def _run_pod(self, job: dict) -> bool:
        """Run one pod; whether it succeeded."""
        template, name = job["spec"]["template"], job["metadata"]["name"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
        body = {
            "metadata": {
                "generateName": f"{name}-",
                "labels": {
                    **(template["metadata"].get("labels") or {}),
                    "job-name": name,
                    "batch.kubernetes.io/job-name": name,
                },
                "annotations": template["metadata"].get("annotations"),
                "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}],
            },
            "spec": template["spec"],
            "status": {"phase": "Running", "startTime": now()},
        }
        pod = self.put("pods", job["metadata"]["namespace"], body)
        container, known = template["spec"]["containers"][0], pod["metadata"]["name"]
        process = self._start(
            [*container["command"], *container["args"]],
            self._variables(template["spec"], pod),
            self.folder / "logs" / known,
        )
        self.processes[known] = process
        code = process.wait()
        code = 128 - code if code < 0 else code
        state = {"terminated": {"exitCode": code, "finishedAt": now()}}
        status = {"name": "main", "ready": False, "restartCount": 0, "image": "x"}
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{**status, "imageID": "", "state": state}],
        }
        return code == 0

    def _variables(self, spec: dict, pod: dict) -> dict[str, str]:
        """Variables of a container, secrets looked up as a kubelet does."""
        name = pod["metadata"]["name"]
        (container,) = spec["containers"]
        values = dict(self._image)
        for variable in container.get("env") or []:
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if reference is None:
                values[variable["name"]] = variable.get("value") or ""
                continue
            secret = self.objects.get(("secrets", reference["name"]), {})
            data = secret.get("data", {}).get(reference["key"])
            if data is not None:
                values[variable["name"]] = base64.b64decode(data).decode()
            elif not reference.get("optional"):
                raise KeyError(f"secret {reference['name']} has no {reference['key']}")
        places = self._places(spec, container, name)
        values = {key: _placed(value, places) for key, value in values.items()}
        python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ours = {"FAKE_POD": name, "PATH": python, "KUBECONFIG": self._kubeconfig}
        return {**values, **ours, **self.more_variables(pod), "OMP_NUM_THREADS": "1"}

    def _places(self, spec: dict, container: dict, pod: str) -> dict[str, Path]:
        """Where the paths that a pod sees are on this machine."""
        folders = {}
        for volume in spec.get("volumes") or []:
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            empty = self.folder / "pods" / pod / volume["name"]
            folder = self.folder / "claims" / claim if claim else empty
            folder.mkdir(parents=True, exist_ok=True)
            folders[volume["name"]] = folder
        mounts = container.get("volumeMounts") or []
        return {m["mountPath"]: folders[m["name"]] for m in mounts} | {
            "": self.root(pod)
        }


def _placed(value: str, places: Mapping[str, Path]) -> str:
    """Lead an absolute path into the volume that is mounted there."""
    if not value.startswith("/"):
        return value
    for path, folder in places.items():
        if path == value or value.startswith(f"{path}/"):
            return f"{folder}{value[len(path) :]}"
    raise AssertionError("unreachable: every absolute path is below the root")


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client

    def log_message(self, *_):
        pass

    def _answer(self, status: int, value: object) -> None:
        is_text = isinstance(value, str)
        data = (value if is_text else json.dumps(value)).encode()
        self.send_response(status)
        kind = "text/plain" if is_text else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, reason: str) -> None:
        body = {"kind": "Status", "status": "Failure", "code": status}
        self._answer(status, {**body, "reason": reason, "message": self.path})

    def _handle(self) -> None:
        url = urlparse(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        if url.path.rstrip("/") == "/version":
            empty = ("buildDate", "compiler", "gitCommit", "gitTreeState")
            version = dict.fromkeys((*empty, "goVersion", "platform"), "")
            version |= {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
            return self._answer(200, version)
        if re.fullmatch(r"/api/v1/namespaces(/[^/]+)?", url.path):
            name = url.path.rpartition("/")[2]
            return self._answer(200, {"metadata": {"name": name}, "kind": "Namespace"})
        if (served := self._discovery(url.path)) is not None:
            return self._answer(200, served)
        found = PATH.match(url.path)
        if not found or found[2] not in self.cluster.kinds:
            return self._refuse(404, "NotFound")
        namespace, kind, name, log = found.groups()
        if self.cluster.refuses(self.command, kind):
            return self._refuse(403, "Forbidden")
        if self.command == "POST":
            return self._create(kind, namespace, body)
        if self.command == "GET" and name is None:
            return self._list(kind, dict(parse_qsl(url.query)))
        known = self.cluster.objects.get((kind, name))
        if known is None:
            return self._refuse(404, "NotFound")
        if log:
            if "follow=True" in url.query:
                self.cluster.processes[name].wait()
            return self._answer(200, self.cluster.log(name))
        if self.command == "DELETE":
            wanted = ((body or {}).get("preconditions") or {}).get("uid")
            if wanted not in (None, known["metadata"]["uid"]):
                return self._refuse(409, "Conflict")
            self.cluster.remove(kind, name)
            return self._answer(200, {"kind": "Status", "status": "Success"})
        if self.command in ("PATCH", "PUT"):
            _merge(known, body)
        return self._answer(200, known)

    def _discovery(self, path: str) -> dict | None:
        """What is served: groups, or the kinds of one version."""
        versions = {version for version, _ in self.cluster.kinds.values()}
        named = path.removeprefix("/apis/").removeprefix("/api/")
        if path == "/apis":
            groups = [
                {"name": v.partition("/")[0], "versions": [_version(v)]}
                | {"preferredVersion": _version(v)}
                for v in sorted(versions - {"v1"})
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if named == path or named not in versions:
            return None
        resources = [
            {"name": plural, "singularName": "", "kind": kind, "namespaced": True}
            | {"verbs": ["create", "delete", "get", "list"]}
            for plural, (version, kind) in self.cluster.kinds.items()
            if version == named
        ]
        return {"kind": "APIResourceList", "groupVersion": named} | {
            "resources": resources
        }

    def _create(self, kind: str, namespace: str, body: dict) -> None:
        if (kind, body.get("metadata", {}).get("name")) in self.cluster.objects:
            return self._refuse(409, "AlreadyExists")
        policy = body.get("spec", {}).get("podFailurePolicy") or {}
        for rule in policy.get("rules", []):  # as the server fills it in
            for condition in rule.get("onPodConditions") or []:
                condition.setdefault("status", "True")
        return self._answer(201, self.cluster.put(kind, namespace, body))

    def _list(self, kind: str, query: dict[str, str]) -> None:
        wanted = [s.split("=", 1) for s in query.get("labelSelector", "").split(",")]
        items = [
            o
            for o in self.cluster.all(kind)
            if all(
                (o["metadata"].get("labels") or {}).get(pair[0]) == pair[1].lstrip("=")
                for pair in wanted
                if len(pair) == 2
            )
        ]
        version, name = self.cluster.kinds[kind]
        head = {"apiVersion": version, "kind": f"{name}List"}
        self._answer(
            200, {**head, "metadata": {"resourceVersion": "1"}, "items": items}
        )

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle


def _version(group_version: str) -> dict[str, str]:
    return {"groupVersion": group_version, "version": group_version.split("/")[1]}


def _merge(known: dict, changes: dict) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(known.get(key), dict):
            _merge(known[key], value)
        else:
            known[key] = value
