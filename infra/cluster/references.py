"""Whatever a manifest names is there: accounts, claims, secrets, services, classes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.cluster.manifests import (
    Manifest,
    Pod,
    find_objects,
    find_pods,
    object_name,
    selects,
)

Wrong = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class SecretReference:
    """A value of a secret that a pod asks for.

    Args:
        owner: of the pod.
        secret: name.
        key: in it; empty for the whole secret.
        optional: whether the pod starts without it.
    """

    owner: str
    secret: str
    key: str
    optional: bool


def unresolved_references(
    manifests: list[Manifest], *, secrets: Mapping[str, frozenset[str]]
) -> Iterator[Wrong]:
    """Say what objects name and nobody makes.

    Args:
        manifests: all objects that are in the namespace.
        secrets: names of secrets and their keys, that are made outside.
    """
    known = {object_name(manifest) for manifest in manifests}
    for pod in find_pods(manifests):
        for kind, name in _named_by(pod, _claims(manifests, pod)):
            if f"{kind}/{name}" not in known:
                yield pod.owner, f"names {kind}/{name}, which nobody makes."
    for reference in secret_references(manifests):
        keys = secrets.get(reference.secret)
        if keys is None or (reference.key and reference.key not in keys):
            value = f"{reference.key or 'all'} of Secret/{reference.secret}"
            yield reference.owner, f"names {value}, which nobody makes."
    yield from _unselected(manifests)
    yield from _unbound(manifests, known)


def secret_references(manifests: list[Manifest]) -> Iterator[SecretReference]:
    """Find every value of a secret that a pod asks for."""
    for pod in find_pods(manifests):
        for container in pod.containers:
            for variable in container.get("env") or []:
                found = (variable.get("valueFrom") or {}).get("secretKeyRef")
                if found:
                    yield _reference(pod, found["name"], found["key"], found)
            for source in container.get("envFrom") or []:
                if source.get("secretRef"):
                    found = source["secretRef"]
                    yield _reference(pod, found["name"], "", found)
        for volume in pod.spec.get("volumes") or []:
            if volume.get("secret"):
                found = volume["secret"]
                for item in found.get("items") or [{"key": ""}]:
                    yield _reference(pod, found["secretName"], item["key"], found)


def external_secrets(manifests: list[Manifest]) -> dict[str, frozenset[str]]:
    """Name the secrets that the External Secrets Operator will make, and their keys."""
    return {
        manifest["spec"]["target"]["name"]: frozenset(
            part["secretKey"] for part in manifest["spec"]["data"]
        )
        for manifest in find_objects(manifests, "ExternalSecret")
    }


def _reference(
    pod: Pod, secret: str, key: str, found: Mapping[str, Any]
) -> SecretReference:
    """Make a reference of what a pod says."""
    optional = bool(found.get("optional"))
    return SecretReference(owner=pod.owner, secret=secret, key=key, optional=optional)


def _claims(manifests: list[Manifest], pod: Pod) -> set[str]:
    """Volumes that a StatefulSet makes claims for."""
    for manifest in find_objects(manifests, "StatefulSet"):
        if object_name(manifest) == pod.owner:
            templates = manifest["spec"].get("volumeClaimTemplates") or []
            return {template["metadata"]["name"] for template in templates}
    return set()


def _named_by(pod: Pod, own_claims: set[str]) -> Iterator[tuple[str, str]]:
    """Objects that a pod names."""
    yield "ServiceAccount", pod.spec.get("serviceAccountName") or "default"
    if pod.spec.get("priorityClassName"):
        yield "PriorityClass", pod.spec["priorityClassName"]
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes") or []}
    for volume in volumes.values():
        if volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
        if volume.get("configMap"):
            yield "ConfigMap", volume["configMap"]["name"]
    for container in pod.containers:
        for mount in container.get("volumeMounts") or []:
            if mount["name"] not in volumes and mount["name"] not in own_claims:
                yield "volume", mount["name"]
        for source in container.get("envFrom") or []:
            if source.get("configMapRef"):
                yield "ConfigMap", source["configMapRef"]["name"]
        for variable in container.get("env") or []:
            found = (variable.get("valueFrom") or {}).get("configMapKeyRef")
            if found:
                yield "ConfigMap", found["name"]


def _unselected(manifests: list[Manifest]) -> Iterator[Wrong]:
    """Services and disruption budgets that select no pod, ports that none opens."""
    pods = list(find_pods(manifests))
    for service in find_objects(manifests, "Service"):
        selector = {"matchLabels": service["spec"].get("selector") or {"": ""}}
        chosen = [pod for pod in pods if selects(selector, pod.labels)]
        opened = {
            port.get("name")
            for pod in chosen
            for container in pod.containers
            for port in container.get("ports") or []
        }
        if not chosen:
            yield object_name(service), "selects no pod."
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in opened:
                yield object_name(service), f"no pod opens {port['targetPort']}."
    for budget in find_objects(manifests, "PodDisruptionBudget"):
        if not any(selects(budget["spec"]["selector"], pod.labels) for pod in pods):
            yield object_name(budget), "selects no pod."


def _unbound(manifests: list[Manifest], known: set[str]) -> Iterator[Wrong]:
    """Roles, accounts, services and policies that are named and not there."""
    for binding in find_objects(manifests, "RoleBinding"):
        named = [(binding["roleRef"]["kind"], binding["roleRef"]["name"])]
        named += [(part["kind"], part["name"]) for part in binding["subjects"]]
        for kind, name in named:
            if f"{kind}/{name}" not in known:
                yield object_name(binding), f"names {kind}/{name}, which is not there."
        for subject in binding["subjects"]:
            if subject.get("namespace") != binding["metadata"].get("namespace"):
                yield object_name(binding), "names an account of another namespace."
    for manifest in find_objects(manifests, "StatefulSet"):
        if f"Service/{manifest['spec']['serviceName']}" not in known:
            yield object_name(manifest), "names a Service that is not there."
    for binding in find_objects(manifests, "ValidatingAdmissionPolicyBinding"):
        name = binding["spec"]["policyName"]
        if f"ValidatingAdmissionPolicy/{name}" not in known:
            yield object_name(binding), "names a policy that is not there."
