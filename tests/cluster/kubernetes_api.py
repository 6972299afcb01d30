"""A Kubernetes API in memory: enough for ZenML's own orchestrator, over real HTTP.

Objects are kept as they were sent, so that tests see what a cluster would. Where pods
run, each is a process of this machine with the pod's command, arguments and variables;
a job starts another pod when one fails, as often as its backoff limit says.
"""

import base64
import json
import os
import re
import subprocess
import threading
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
    r"^/(?:api/v1|apis/[^/]+/v1)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(?:/(log))?$"
)
# Read by every Python that a pod starts: a pod's host is called like the pod.
HOSTNAME = (
    "import os, socket\n"
    "if os.environ.get('FAKE_POD'):\n"
    "    socket.gethostname = lambda: os.environ['FAKE_POD']\n"
)


def now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """All objects of one cluster, and its pods as processes.

    Args:
        folder: of pods' working files and kubeconfig.
        workdir: where pods start; None runs none, and jobs stay active.
        environment: of every pod besides its own.
    """

    def __init__(self, folder: Path, *, workdir: Path | None, environment=None):
        self.objects: dict[tuple[str, str], dict] = {}
        self.logs: dict[str, str] = {}
        self.processes: dict[str, subprocess.Popen] = {}
        self.lock = threading.RLock()
        self._workdir, self._environment = workdir, dict(environment or {})
        self._site = folder / "site"
        self._site.mkdir(parents=True)
        (self._site / "sitecustomize.py").write_text(HOSTNAME)
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self._server.shutdown()
        self._server.server_close()

    def all(self, kind: str) -> list[dict]:
        with self.lock:
            return [o for (k, _), o in self.objects.items() if k == kind]

    def put(self, kind: str, namespace: str, body: dict) -> dict:
        """Keep an object, with what a server fills in."""
        metadata = body.setdefault("metadata", {})
        prefix = metadata.get("generateName") or "x-"
        metadata.setdefault("name", prefix + uuid.uuid4().hex[:5])
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", now())
        metadata["namespace"] = namespace
        body["apiVersion"], body["kind"] = KINDS[kind]
        with self.lock:
            self.objects[kind, metadata["name"]] = body
        if kind == "jobs":
            body.setdefault("status", {"active": 1, "startTime": now()})
            if self._workdir is not None:
                threading.Thread(target=self._run, args=(body,), daemon=True).start()
        return body

    def _run(self, job: dict) -> None:
        """Run a job to its end."""
        ended = False
        for _ in range(job["spec"].get("backoffLimit", 6) + 1):
            ended = self._run_pod(job)
            if ended or ("jobs", job["metadata"]["name"]) not in self.objects:
                break
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
        process = subprocess.Popen(
            [*container["command"], *container["args"]],
            env=self._variables(container, known),
            cwd=self._workdir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes[known], self.logs[known] = process, ""
        for line in process.stdout:
            self.logs[known] += line
        code = process.wait()
        state = {"terminated": {"exitCode": code, "finishedAt": now()}}
        status = {"name": "main", "ready": False, "restartCount": 0, "image": "x"}
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{**status, "imageID": "", "state": state}],
        }
        return code == 0

    def _variables(self, container: dict, pod: str) -> dict[str, str]:
        """Variables of a container, secrets looked up as a kubelet does."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("ZENML_STORE_")}
        values = {**ours, **self._environment, "FAKE_POD": pod}
        values["PYTHONPATH"] = f"{self._site}:{values.get('PYTHONPATH', '')}"
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
        return values


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

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
        found = PATH.match(url.path)
        if not found or found[2] not in KINDS:
            return self._refuse(404, "NotFound")
        namespace, kind, name, log = found.groups()
        if self.command == "POST":
            return self._create(kind, namespace, body)
        if self.command == "GET" and name is None:
            return self._list(kind, dict(parse_qsl(url.query)))
        known = self.cluster.objects.get((kind, name))
        if known is None:
            return self._refuse(404, "NotFound")
        if log:
            return self._answer(200, self.cluster.logs.get(name, ""))
        if self.command == "DELETE":
            self.cluster.objects.pop((kind, name))
            return self._answer(200, {"kind": "Status", "status": "Success"})
        if self.command in ("PATCH", "PUT"):
            _merge(known, body)
        return self._answer(200, known)

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
        version, name = KINDS[kind]
        head = {"apiVersion": version, "kind": f"{name}List"}
        self._answer(
            200, {**head, "metadata": {"resourceVersion": "1"}, "items": items}
        )

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle


def _merge(known: dict, changes: dict) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(known.get(key), dict):
            _merge(known[key], value)
        else:
            known[key] = value
