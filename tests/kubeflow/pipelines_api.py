"""The API of Kubeflow Pipelines in memory, over real HTTP: enough for its own client.

A run is refused unless it fits Kubeflow's schema. Each of its tasks becomes the pod
that Kubeflow's driver makes of it (kubeflow/pipelines, backend/src/v2/driver/k8s.go
and compiler/argocompiler/security_context.go), and that pod a process, as in
tests/cluster.
"""

import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlparse

from google.protobuf import json_format
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec

from tests.cluster.kubernetes_api import Cluster, now

PREFIX = re.compile(r"^/apis/v2(?:beta1)?/")
RUN_NAME = "{{$.pipeline_job_name}}"


class PipelinesApi:
    """Experiments and runs, and the pods of runs on a cluster.

    Args:
        cluster: where pods run.
        namespace: of the one user there is.
    """

    def __init__(self, cluster: Cluster, *, namespace: str):
        self.cluster, self.namespace = cluster, namespace
        self.experiments: dict[str, dict] = {}
        self.runs: dict[str, dict] = {}
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def create_run(self, body: dict) -> dict:
        """Start a run, if it can be understood."""
        pipeline, executors = specification(body)
        if not body.get("service_account"):
            raise ValueError("a run must have a service account")
        run = {**body, "run_id": str(uuid.uuid4()), "state": "RUNNING"}
        run["created_at"] = now()
        self.runs[run["run_id"]] = run
        arguments = (run, pipeline, executors)
        threading.Thread(target=self._run, args=arguments, daemon=True).start()
        return run

    def _run(self, run: dict, pipeline: dict, executors: dict) -> None:
        tasks, done = pipeline["root"]["dag"]["tasks"], set()
        state = "FAILED"
        try:
            while len(done) < len(tasks):
                name = next(
                    name
                    for name, task in tasks.items()
                    if name not in done and done >= set(task.get("dependentTasks", ()))
                )
                job = render_job(run, pipeline, executors, name)
                job = self.cluster.put("jobs", self.namespace, job)
                if not self.cluster.wait(job):
                    return
                done.add(name)
            state = "SUCCEEDED"
        finally:
            run["state"], run["finished_at"] = state, now()


def specification(body: dict) -> tuple[dict, dict]:
    """Read both halves of a run's pipeline, strictly.

    Returns:
        The pipeline, and what Kubernetes is told, by executor.
    """
    given = body["pipeline_spec"]
    pipeline = given.get("pipeline_spec", given)
    platforms = given.get("platform_spec", {})
    json_format.ParseDict(pipeline, PipelineSpec())
    json_format.ParseDict(platforms, PlatformSpec())
    kubernetes = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for executor in kubernetes.values():
        json_format.ParseDict(executor, KubernetesExecutorConfig())
    return pipeline, kubernetes


def render_job(run: dict, pipeline: dict, executors: dict, name: str) -> dict:
    """Make the pod of a task, in a job that starts it as often as its policy says."""
    task = pipeline["root"]["dag"]["tasks"][name]
    label = pipeline["components"][task["componentRef"]["name"]]["executorLabel"]
    given = pipeline["deploymentSpec"]["executors"][label]["container"]
    told = executors.get(label, {})
    volumes, mounts = _volumes(told)
    container = {
        "name": "main",
        "image": given["image"],
        "command": given["command"],
        "args": given["args"],
        "env": _variables(run, given, told),
        "resources": _resources(given["resources"]),
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
            **_security(told.get("securityContext", {})),
        },
    }
    labels = {"pipeline/runid": run["run_id"], "task": name}
    spec = {
        "containers": [container],
        "volumes": volumes,
        "nodeSelector": told.get("nodeSelector", {}).get("labels", {}),
        "tolerations": told.get("tolerations", []),
        "imagePullSecrets": told.get("imagePullSecret", []),
        "activeDeadlineSeconds": int(told["activeDeadlineSeconds"]),
        "serviceAccountName": run["service_account"],
        "restartPolicy": "Never",
    }
    labels |= told.get("podMetadata", {}).get("labels", {})
    return {
        "metadata": {"generateName": f"{name}-", "labels": labels},
        "spec": {
            "backoffLimit": int(task.get("retryPolicy", {}).get("maxRetryCount", 0)),
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _variables(run: dict, given: dict, told: dict) -> list[dict]:
    found = [
        {**variable, "value": variable["value"].replace(RUN_NAME, run["display_name"])}
        for variable in given.get("env", [])
    ]
    for secret in told.get("secretAsEnv", []):
        name = _constant(secret["secretNameParameter"])
        for pair in secret["keyToEnv"]:
            reference = {"name": name, "key": pair["secretKey"]}
            if "optional" in secret:
                reference["optional"] = secret["optional"]
            found.append(
                {"name": pair["envVar"], "valueFrom": {"secretKeyRef": reference}}
            )
    return found


def _volumes(told: dict) -> tuple[list[dict], list[dict]]:
    volumes, mounts = [], []
    for mount in told.get("pvcMount", []):
        claim = _constant(mount["pvcNameParameter"])
        source = {"persistentVolumeClaim": {"claimName": claim}}
        volumes.append({"name": claim, **source})
        mounts.append({"name": claim, "mountPath": mount["mountPath"]})
    for mount in told.get("emptyDirMounts", []):
        medium = {"medium": mount["medium"]} if "medium" in mount else {}
        source = {"emptyDir": {**medium, "sizeLimit": mount["sizeLimit"]}}
        volumes.append({"name": mount["volumeName"], **source})
        mounts.append({"name": mount["volumeName"], "mountPath": mount["mountPath"]})
    return volumes, mounts


def _security(given: dict) -> dict:
    """Numbers are text in Kubeflow's JSON, since they are long."""
    return {k: v if isinstance(v, bool) else int(v) for k, v in given.items()}


def _resources(given: dict) -> dict:
    devices = {}
    if accelerator := given.get("accelerator"):
        count = accelerator["resourceCount"]
        devices = {accelerator["resourceType"]: count}
    return {
        part: {
            "cpu": given[f"resourceCpu{kind}"],
            "memory": given[f"resourceMemory{kind}"],
            **devices,
        }
        for part, kind in (("requests", "Request"), ("limits", "Limit"))
    }


def _constant(parameter: dict) -> str:
    return parameter["runtimeValue"]["constant"]


class _Handler(BaseHTTPRequestHandler):
    api: PipelinesApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client

    def log_message(self, *_):
        pass

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        url = urlparse(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        kind, _, name = PREFIX.sub("", url.path).partition("/")
        if kind == "healthz":
            return self._answer(200, {"multi_user": True})
        if kind == "experiments" and self.command == "POST":
            made = {**body, "experiment_id": str(uuid.uuid4())}
            self.api.experiments[made["experiment_id"]] = made
            return self._answer(200, made)
        if kind == "experiments":
            query = dict(parse_qsl(url.query))
            wanted = json.loads(query.get("filter") or "{}").get("predicates", [])
            names = {p.get("stringValue") or p.get("string_value") for p in wanted}
            found = [
                made
                for made in self.api.experiments.values()
                if not names or made["display_name"] in names
            ]
            return self._answer(200, {"experiments": found})
        if kind == "runs" and self.command == "POST":
            try:
                return self._answer(200, self.api.create_run(body))
            except (ValueError, KeyError, json_format.ParseError) as error:
                return self._answer(400, {"error": str(error)})
        if kind == "runs" and name in self.api.runs:
            return self._answer(200, self.api.runs[name])
        return self._answer(404, {"error": self.path})

    do_GET = do_POST = _handle
