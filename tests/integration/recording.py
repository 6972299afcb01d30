"""A Kubernetes API that remembers what it is asked to create; jobs are done at once.

Unmodified ZenML submits a run to it and, as the orchestrator's pod, starts every step:
the pod specs are those that a cluster would get.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

from kubernetes import client
from kubernetes.client.rest import ApiException

DONE = client.V1JobStatus(
    conditions=[
        client.V1JobCondition(type="Complete", status="True"),
    ],
    succeeded=1,
)


@dataclass
class Recorder:
    """What was created in a namespace."""

    jobs: dict = field(default_factory=dict)
    cron_jobs: dict = field(default_factory=dict)
    secrets: dict = field(default_factory=dict)

    def manifests(self):
        """Every job as it would be sent, with what the server adds."""
        api = client.ApiClient()
        for kind, found in (("Job", self.jobs), ("CronJob", self.cron_jobs)):
            for body, namespace in found.values():
                sent = api.sanitize_for_serialization(body)
                sent |= {"apiVersion": "batch/v1", "kind": kind}
                sent["metadata"]["namespace"] = namespace
                yield sent

    def batch_api(self, *_):
        """Stand in for `BatchV1Api`."""
        return SimpleNamespace(
            create_namespaced_job=self._create_job,
            create_namespaced_cron_job=self._create_cron_job,
            read_namespaced_job=self._read_job,
            list_namespaced_job=self._list_jobs,
            patch_namespaced_job=lambda **_: None,
        )

    def core_api(self, *_):
        """Stand in for `CoreV1Api`."""
        return SimpleNamespace(
            read_namespaced_pod=self._read_pod,
            list_namespaced_pod=lambda **_: SimpleNamespace(items=[]),
            create_namespaced_secret=self._create_secret,
            patch_namespaced_secret=self._create_secret,
            delete_namespaced_secret=lambda **_: None,
        )

    def _create_job(self, *, namespace, body, **_):
        self.jobs[body.metadata.name] = (body, namespace)
        return body

    def _create_cron_job(self, *, namespace, body, **_):
        self.cron_jobs[body.metadata.name] = (body, namespace)
        return body

    def _create_secret(self, *, namespace, body, **_):
        self.secrets[body["metadata"]["name"]] = frozenset(body["data"])

    def _read_job(self, *, name, **_):
        if name not in self.jobs:
            raise ApiException(status=404)
        metadata = self.jobs[name][0].metadata
        return client.V1Job(metadata=metadata, status=DONE)

    def _list_jobs(self, **_):
        return SimpleNamespace(items=[])

    def _read_pod(self, *, name, **_):
        """Be the orchestrator's pod, which its job started."""
        (first, *_rest) = self.jobs
        owner = client.V1OwnerReference(
            api_version="batch/v1", kind="Job", name=first, uid="1", controller=True
        )
        labels = {"job-name": first}
        metadata = client.V1ObjectMeta(
            name=name, labels=labels, owner_references=[owner]
        )
        return client.V1Pod(metadata=metadata)
