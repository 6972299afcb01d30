"""The objects that start the nodes of a stage: a TrainJob, or an Indexed Job.

Either way a node is the same pod: one of the profile's accelerated pods, whose program
is torch's agent with the rank of its index. The first is the one that all others meet.

```
TrainJob        TrainingRuntime (the pod), TrainJob
Job             Service (names of pods), Job, and a PodGroup where a scheduler wants one
```
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from infra.cluster.manifests import Manifest
from infra.cluster.schemas import without_nulls
from infra.nodes.settings import JOB, PORT, TRAINER, NodeJob

KINDS: Final = {
    "Service": "v1",
    "Job": "batch/v1",
    "PodGroup": "scheduling.x-k8s.io/v1alpha1",
    "TrainJob": TRAINER,
    "TrainingRuntime": TRAINER,
}
"""Everything that a step may make, and of which version."""
ALIVE: Final = "alive"
"""File in the job's folder that the step touches; its age ends pods, see `_probe`."""
LOGS: Final = "logs"
"""Folder of what agents and ranks leave of their errors, one for each node."""
_PATIENCE_MINUTES: Final = 10
_KEPT_SECONDS: Final = 24 * 60 * 60


def node_objects(
    job: NodeJob,
    *,
    kind: str,
    name: str,
    folder: Path,
    num_processes: int,
    owner: Manifest,
) -> list[Manifest]:
    """Describe what starts the nodes, in the order in which it is to be made.

    Args:
        job: what the profile says.
        kind: `TrainJob` or `Job`.
        name: of every object; a DNS label.
        folder: of the job, on the volume of all pods.
        num_processes: of each node.
        owner: reference to the step's own pod: what it made goes with it.
    """

    def made(kind: str, **content: Any) -> Manifest:  # noqa: ANN401 - of any kind
        metadata = {
            "name": name,
            "namespace": job.namespace,
            "ownerReferences": [owner],
        }
        return {
            "apiVersion": KINDS[kind],
            "kind": kind,
            "metadata": {**metadata, "labels": dict(job.pod["labels"])},
            **content,
        }

    host = f"{name}-node-0-0.{name}" if kind == "TrainJob" else f"{name}-0.{name}"
    template = _pod(job, name=name, host=host, folder=folder, each=num_processes)
    spec = _indexed(job, template)
    if kind == "TrainJob":
        found = [made("TrainingRuntime", spec=_runtime(job, spec))]
        reference = {"apiGroup": TRAINER.partition("/")[0], "kind": "TrainingRuntime"}
        train = {"runtimeRef": {**reference, "name": name}}
        found += [made(kind, spec={**train, "trainer": {"numNodes": job.count}})]
    else:
        template["spec"]["subdomain"] = name
        spec["ttlSecondsAfterFinished"] = _KEPT_SECONDS
        found = [made("Service", spec=_names(name)), made(kind, spec=spec)]
        if job.scheduler:
            template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = name
            group = {"minMember": job.count, **_within(job)}
            found.insert(0, made("PodGroup", spec=group))
    if job.queue:
        found[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = job.queue
    return found


def _within(job: NodeJob) -> Manifest:
    """How long the scheduler tries to place all pods."""
    return {"scheduleTimeoutSeconds": 60 * job.start_within_minutes}


def _names(name: str) -> Manifest:
    """Give pods names, before they are ready: no traffic goes through this service."""
    port = {"name": "rendezvous", "port": PORT, "targetPort": "rendezvous"}
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOB: name},
        "ports": [port],
    }


def _indexed(job: NodeJob, template: Manifest) -> Manifest:
    """Start every node once: whoever is lost ends all, and the step decides."""
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "completionMode": "Indexed",
        "completions": job.count,
        "parallelism": job.count,
        "backoffLimit": 0,
        "activeDeadlineSeconds": job.deadline_seconds,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [disrupted]}]
        },
        "template": template,
    }


def _runtime(job: NodeJob, spec: Manifest) -> Manifest:
    """Describe the job as Trainer's template of a JobSet, complete but for its name."""
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    replicated = {
        "name": "node",
        "replicas": 1,
        "template": {"metadata": {"labels": step}, "spec": spec},
    }
    gang = {"podGroupPolicy": {"coscheduling": _within(job)}} if job.scheduler else {}
    return {
        "mlPolicy": {"numNodes": job.count},
        **gang,
        "template": {
            "spec": {
                "failurePolicy": {"maxRestarts": 0},
                "replicatedJobs": [replicated],
            }
        },
    }


def _pod(job: NodeJob, *, name: str, host: str, folder: Path, each: int) -> Manifest:
    """Build a pod as ZenML builds those of steps, with torch's agent as its program."""
    from kubernetes.client import ApiClient  # noqa: PLC0415 - an extra
    from zenml.integrations.kubernetes.manifest_utils import (  # noqa: PLC0415 - heavy
        build_pod_manifest,
    )
    from zenml.integrations.kubernetes.pod_settings import (  # noqa: PLC0415 - heavy
        KubernetesPodSettings,
    )

    built = build_pod_manifest(
        pod_name=None,
        image_name=job.image,
        command=list(_agent(job, host=host, folder=folder, each=each)),
        args=[],
        privileged=False,
        pod_settings=KubernetesPodSettings(**job.pod),
        service_account_name=job.service_account,
        labels={JOB: name},
        termination_grace_period_seconds=60,
    )
    pod: Manifest = without_nulls(ApiClient().sanitize_for_serialization(built))
    (container,) = pod["spec"]["containers"]
    container |= {
        "name": "node",
        "ports": [{"name": "rendezvous", "containerPort": PORT}],
        "livenessProbe": _probe(folder),
        # The step sees that a node will be taken away before the others fail for it.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "10"]}}},
    }
    if job.scheduler:
        pod["spec"]["schedulerName"] = job.scheduler
    return {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}


def _agent(job: NodeJob, *, host: str, folder: Path, each: int) -> Iterator[str]:
    """Name the program of a node; Kubernetes fills in its index."""
    index = "$(JOB_COMPLETION_INDEX)"
    yield from ("python", "-m", "torch.distributed.run")
    yield from (f"--nnodes={job.count}", f"--nproc-per-node={each}")
    yield from (f"--node-rank={index}", f"--master-addr={host}")
    yield from (f"--master-port={PORT}", "--max-restarts=0")
    yield f"--rdzv-conf=timeout={60 * job.start_within_minutes}"
    yield f"--log-dir={folder / LOGS}/{index}"
    yield from ("-m", "dptune.workflow.rank", str(folder))


def _probe(folder: Path) -> Manifest:
    """End a node whose step is gone: a killed pod keeps its objects until it goes."""
    recent = f'test -n "$(find "$0" -mmin -{_PATIENCE_MINUTES})"'
    return {
        "exec": {"command": ["sh", "-c", recent, str(folder / ALIVE)]},
        "periodSeconds": 60,
        "timeoutSeconds": 30,
        "failureThreshold": 3,
    }
