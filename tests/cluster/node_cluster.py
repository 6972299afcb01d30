"""A cluster in memory for the nodes of a stage: their pods are processes that meet.

Beside what `kubernetes_api` has: Indexed Jobs, headless services as the only names of
pods, liveness probes, a scheduler with so much room, owners that take along what they
own, and Kubeflow Trainer where it is installed. A pod's processes end together, as
those of a container do.
"""

import contextlib
import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from infra.nodes.settings import JOB, NODES, PORT, NodeJob
from infra.pods import run_options
from infra.profiles import PROFILES, read_profile
from infra.stacks.settings import STACKS
from tests.infra.clusters import DIGEST

from .kubernetes_api import KINDS, REPOSITORY, Cluster, now

TRAINER = "trainer.kubeflow.org/v1alpha1"
TRAINER_KINDS = {
    "trainjobs": (TRAINER, "TrainJob"),
    "trainingruntimes": (TRAINER, "TrainingRuntime"),
}
INDEX = "batch.kubernetes.io/job-completion-index"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def node_profile(folder: Path, *, gpus=1, performance=None, **nodes):
    """The repository's own profile, with two nodes and an image that is pinned."""
    folder.mkdir(exist_ok=True)
    stack = yaml.safe_load((STACKS / "production.yaml").read_text())
    stack |= {"image": f"registry.internal/dptune/cuda@{DIGEST}"}
    (folder / "stack.yaml").write_text(yaml.safe_dump(stack))
    profile = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
    profile["stack"] = str(folder / "stack.yaml")
    profile["performance"] |= {"nodes": 2} | (performance or {})
    profile["pods"]["accelerated"] |= {"gpus": gpus, "nodes": nodes}
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return read_profile(str(folder / "profile.yaml"))


def node_job(folder: Path, **changes) -> NodeJob:
    """What the step of a stage is told by that profile; it survives ZenML's JSON."""
    options = run_options(node_profile(folder, **changes), ["train_private"])
    extra = json.loads(json.dumps(options["steps"]["train_private"]["extra"]))
    return NodeJob.model_validate(extra[NODES])


@dataclass(frozen=True, kw_only=True)
class Container:
    """Processes that end together."""

    process: subprocess.Popen

    def wait(self) -> int:
        """Wait for the end of the first one."""
        return self.process.wait()

    def kill(self) -> None:
        """End all of them without a word."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the first one to end, and end the rest a little later."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2.0)
        self.kill()


def start_container(command, variables, log: Path) -> Container:
    with log.open("w") as sink:
        return Container(
            process=subprocess.Popen(
                [sys.executable, *command[1:]],
                env={**variables, "PYTHONPATH": str(REPOSITORY)},
                cwd=REPOSITORY,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )


class NodeCluster(Cluster):
    """See the module.

    Args:
        with_trainer: whether Kubeflow Trainer is installed.
        room: pods that find a node; the others wait.

    `made` is all that was ever asked for, `program` what pods run in place of a rank,
    `reason` why a container ends badly, and `last_words` what its pod then says.
    """

    def __init__(self, folder, *, with_trainer=False, room=64, start=start_container):
        self.kinds = KINDS | {
            "services": ("v1", "Service"),
            "podgroups": ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
            **(TRAINER_KINDS if with_trainer else {}),
        }
        self.room, self.forbidden = room, set()
        self.made: list[dict] = []
        self.program = "dptune.workflow.rank"
        self.last_words: dict = {}
        self.reason = ""
        self._ports: dict[str, int] = {}
        super().__init__(
            folder, image={}, kubeconfig=folder / "kubeconfig", start=start
        )

    def refuses(self, verb, kind):
        return (verb, kind) in self.forbidden

    def nodes(self) -> list[dict]:
        """Pods of stages."""
        return [p for p in self.all("pods") if JOB in p["metadata"].get("labels", ())]

    def put_pod(self, name: str, **status) -> dict:
        """Keep the pod of a step."""
        body = {"metadata": {"name": name}, "spec": {}, "status": status}
        return self.put("pods", "dptune", body)

    def remove(self, kind, name):
        """Remove an object, what it owns, and the process of a pod."""
        gone = self.objects.get((kind, name))
        if gone is None:
            return
        if name in self.processes and kind == "pods":
            self.processes[name].terminate()
        for (owned_kind, owned_name), other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                self.remove(owned_kind, owned_name)
        self.objects.pop((kind, name), None)

    def disrupt(self, pod: str, *, reason="PreemptionByScheduler", grace=3.0) -> None:
        """Take a pod away as the scheduler does that needs its room."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        self.objects["pods", pod]["status"]["conditions"] = [condition]
        time.sleep(grace)
        self.remove("pods", pod)

    def _control(self, kind, body):
        self.made.append(copy.deepcopy(body))
        run = {"jobs": self._run_indexed, "trainjobs": self._run_train_job}.get(kind)
        if run is not None:
            body["status"] = {"startTime": now()}
            threading.Thread(target=run, args=(body,), daemon=True).start()

    def _run_train_job(self, train_job):
        """Be Trainer and JobSet: a job, and a service, of the runtime's template."""
        name = train_job["metadata"]["name"]
        runtime = self.objects[
            "trainingruntimes", train_job["spec"]["runtimeRef"]["name"]
        ]
        template = runtime["spec"]["template"]["spec"]
        (replicated,) = template["replicatedJobs"]
        spec = copy.deepcopy(replicated["template"]["spec"])
        count = train_job["spec"]["trainer"]["numNodes"]
        spec["completions"] = spec["parallelism"] = count
        spec["template"]["spec"]["subdomain"] = name
        owner = {"kind": "TrainJob", "name": name, "uid": train_job["metadata"]["uid"]}
        names = {"clusterIP": "None", "selector": {JOB: name}}
        for kind, called, content in (
            ("services", name, names),
            ("jobs", f"{name}-{replicated['name']}-0", spec),
        ):
            metadata = {"name": called, "ownerReferences": [owner]}
            made = self.put(kind, "dptune", {"metadata": metadata, "spec": content})
        while not made["status"].get("conditions"):
            time.sleep(0.05)
        train_job["status"]["conditions"] = made["status"]["conditions"]

    def _run_indexed(self, job):
        """Start a pod for each index; one that fails by itself ends all."""
        name, spec = job["metadata"]["name"], job["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["backoffLimit"] == 0
        pods = [self._pod_of(job, index) for index in range(spec["parallelism"])]
        threads = [threading.Thread(target=self._run_node, args=(p,)) for p in pods]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + spec["activeDeadlineSeconds"]
        end = None
        while end is None and ("jobs", name) in self.objects and not self._is_closed:
            time.sleep(0.05)
            phases = [pod["status"]["phase"] for pod in pods]
            failed = [p for p in pods if p["status"]["phase"] == "Failed"]
            if all(phase == "Succeeded" for phase in phases):
                end = {"type": "Complete"}
            elif any(not p["status"].get("conditions") for p in failed):
                end = {"type": "Failed", "reason": "BackoffLimitExceeded"}
            elif time.monotonic() > deadline:
                end = {"type": "Failed", "reason": "DeadlineExceeded"}
        for pod in pods:
            if process := self.processes.get(pod["metadata"]["name"]):
                process.terminate()
        for thread in threads:
            thread.join()
        if end is not None:
            job["status"]["conditions"] = [end | {"status": "True", "message": "m"}]

    def _pod_of(self, job, index):
        template, name = job["spec"]["template"], job["metadata"]["name"]
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        body = {
            "metadata": {
                "name": f"{name}-{index}-{os.urandom(2).hex()}",
                "labels": dict(template["metadata"]["labels"]),
                "annotations": {INDEX: str(index)},
                "ownerReferences": [owner],
            },
            "spec": copy.deepcopy(template["spec"]) | {"hostname": f"{name}-{index}"},
            "status": {"phase": "Pending"},
        }
        return self.put("pods", job["metadata"]["namespace"], body)

    def _run_node(self, pod):
        """Be scheduler and kubelet of one pod."""
        name = pod["metadata"]["name"]
        while not self._is_there(name):
            if ("pods", name) not in self.objects or self._is_closed:
                return
            time.sleep(0.05)
        if ("pods", name) not in self.objects:
            return
        try:
            process = self._start(
                self._command(pod),
                self._variables(pod["spec"], pod),
                self.folder / "logs" / name,
            )
        except KeyError as error:  # a secret that is not there
            waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
            state = {"name": "node", "state": {"waiting": waiting}}
            pod["status"]["containerStatuses"] = [state]
            return
        self.processes[name] = process
        pod["status"] |= {"phase": "Running", "startTime": now()}
        pod["status"].pop("conditions", None)
        probe = threading.Thread(target=self._probe, args=(pod, process), daemon=True)
        probe.start()
        code = process.wait()
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code} | ({"reason": self.reason} if code else {})
        pod["status"] |= {
            "containerStatuses": [{"name": "node", "state": {"terminated": ended}}],
            "phase": "Failed" if code else "Succeeded",
            **(self.last_words if code else {}),
        }

    def _is_there(self, name):
        """Whether there is room for a pod; else say so in its status."""
        with self.lock:
            placed = [p for p in self.nodes() if p["spec"].get("nodeName")]
            pod = self.objects.get(("pods", name))
            if pod is None:
                return True
            if len(placed) < self.room:
                pod["spec"]["nodeName"] = "n"
                return True
            why = {"reason": "Unschedulable", "message": "0/3 nodes: Insufficient gpu"}
            condition = {"type": "PodScheduled", "status": "False", **why}
            pod["status"]["conditions"] = [condition]
            return False

    def _probe(self, pod, process):
        """Ask a pod whether it lives, as often as its probe says, ten times as fast."""
        probe = pod["spec"]["containers"][0]["livenessProbe"]
        failures = 0
        while process.process.poll() is None:
            time.sleep(probe["periodSeconds"] / 600)
            lives = (
                subprocess.run(probe["exec"]["command"], check=False).returncode == 0
            )
            failures = 0 if lives else failures + 1
            if failures == probe["failureThreshold"]:
                process.kill()

    def _command(self, pod):
        """Fill in the index, and call pods as this machine calls them."""
        (container,) = pod["spec"]["containers"]
        index, namespace = pod["metadata"]["annotations"][INDEX], {}
        for other in self.nodes():
            host = other["spec"].get("hostname")
            service = self.objects.get(("services", other["spec"].get("subdomain")))
            if service and service["spec"]["selector"].items() <= (
                other["metadata"]["labels"].items()
            ):
                namespace[f"{host}.{service['metadata']['name']}"] = "127.0.0.1"
        job = pod["metadata"]["ownerReferences"][0]["uid"]
        with self.lock:
            port = self._ports.setdefault(job, free_port())
        words = []
        for given in (*container["command"], *container["args"]):
            word = given.replace("$(JOB_COMPLETION_INDEX)", index)
            if found := re.fullmatch(r"--master-addr=(.*)", word):
                word = f"--master-addr={namespace.get(found[1], found[1])}"
            word = word.replace(f"--master-port={PORT}", f"--master-port={port}")
            words.append(self.program if word == "dptune.workflow.rank" else word)
        return words
