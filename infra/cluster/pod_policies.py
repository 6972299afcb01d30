"""What every pod must keep: the restricted Pod Security level, limits, no secrets.

Each policy takes a pod and yields what is wrong with it. The level is that of
https://kubernetes.io/docs/concepts/security/pod-security-standards/ (restricted),
and stricter: root file systems are read-only, images are named by digest.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from infra.cluster.manifests import Manifest, Pod

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_DIGEST = re.compile(r"@sha256:(?!0{64}$)[0-9a-f]{64}$")
_SECRET_NAME = re.compile(
    r"(?i)TOKEN|PASSWORD|SECRET|CREDENTIAL|_KEY$|_KEY_|BUDGET_URL"
)
_HARMLESS = {
    "ZENML_SECRETS_STORE_TYPE",
    "TOKENIZERS_PARALLELISM",
    "DISABLE_CREDENTIALS_DISK_CACHING",  # ZenML asks for nothing to be kept
}
_USER_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def runs_as_somebody(pod: Pod) -> Iterator[str]:
    """No container runs as root, and each says so with a number."""
    common = pod.spec.get("securityContext") or {}
    for container in pod.containers:
        own = common | _without_nulls(container.get("securityContext"))
        if own.get("runAsNonRoot") is not True or not own.get("runAsUser"):
            yield f"{container['name']} must run as a numbered user that is not root."


def has_seccomp_profile(pod: Pod) -> Iterator[str]:
    """System calls are filtered."""
    common = pod.spec.get("securityContext") or {}
    for container in pod.containers:
        own = common | _without_nulls(container.get("securityContext"))
        profile = (own.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            yield f"{container['name']} must have the seccomp profile RuntimeDefault."


def has_no_privilege(pod: Pod) -> Iterator[str]:
    """No capability, no escalation, nothing of the node."""
    for container in pod.containers:
        own = _without_nulls(container.get("securityContext"))
        capabilities = own.get("capabilities") or {}
        name = container["name"]
        if own.get("privileged"):
            yield f"{name} must not be privileged."
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} must set allowPrivilegeEscalation: false."
        if "ALL" not in (capabilities.get("drop") or []) or capabilities.get("add"):
            yield f"{name} must drop ALL capabilities and add none."
        if own.get("procMount") not in (None, "Default"):
            yield f"{name} must keep the default procMount."
        if any(port.get("hostPort") for port in container.get("ports") or []):
            yield f"{name} must not use a port of the node."
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(key):
            yield f"the pod must not set {key}."


def has_read_only_root(pod: Pod) -> Iterator[str]:
    """Programs cannot change their image."""
    for container in pod.containers:
        own = _without_nulls(container.get("securityContext"))
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{container['name']} must have a read-only root file system."


def mounts_only_harmless_volumes(pod: Pod) -> Iterator[str]:
    """No folder of the node; what is written in a node's room has a limit."""
    for volume in pod.spec.get("volumes") or []:
        kinds = set(_without_nulls(volume)) - {"name"}
        for kind in kinds - _VOLUMES:
            yield f"volume {volume['name']} must not be a {kind}."
        if "emptyDir" in kinds and not (volume["emptyDir"] or {}).get("sizeLimit"):
            yield f"volume {volume['name']} must have a sizeLimit."


def has_limits(pod: Pod) -> Iterator[str]:
    """Every container asks for memory and processors, and has limits of both."""
    for container in pod.containers:
        resources = container.get("resources") or {}
        for part in ("requests", "limits"):
            missing = {"cpu", "memory"} - set(resources.get(part) or {})
            if missing:
                named = " and ".join(sorted(missing))
                yield f"{container['name']} must have {part} for {named}."
        for name in resources.get("limits") or {}:
            if "/" in name:
                yield from _whole_devices(container, name)


def holds_no_secret(pod: Pod) -> Iterator[str]:
    """Secrets are referred to, never written down."""
    for container in pod.containers:
        for variable in container.get("env") or []:
            name, value = variable["name"], variable.get("value")
            sounds = _SECRET_NAME.search(name) and name not in _HARMLESS
            if sounds and value and not value.startswith("/"):
                yield f"{container['name']}: {name} must come from a secret."
        for text in _texts(container):
            if _USER_IN_URL.search(text):
                yield f"{container['name']}: a password must not be in an address."


def names_images_by_digest(pod: Pod) -> Iterator[str]:
    """What runs is what was tested."""
    for container in pod.containers:
        if not _DIGEST.search(container.get("image") or ""):
            yield f"{container['name']}: the image must be named by its digest."


def answers_probes(pod: Pod) -> Iterator[str]:
    """A server says when it is ready."""
    if not pod.owner.startswith(("Deployment/", "StatefulSet/")):
        return
    for container in pod.spec["containers"]:
        if not container.get("readinessProbe"):
            yield f"{container['name']} must have a readinessProbe."


def does_not_learn_services(pod: Pod) -> Iterator[str]:
    """Servers get no variables about their neighbours."""
    if not pod.owner.startswith(("Deployment/", "StatefulSet/")):
        return
    if pod.spec.get("enableServiceLinks") is not False:
        yield "the pod must set enableServiceLinks: false."


POD_POLICIES: tuple[Callable[[Pod], Iterator[str]], ...] = (
    runs_as_somebody,
    has_seccomp_profile,
    has_no_privilege,
    has_read_only_root,
    mounts_only_harmless_volumes,
    has_limits,
    holds_no_secret,
    names_images_by_digest,
    answers_probes,
    does_not_learn_services,
)


def _whole_devices(container: Manifest, name: str) -> Iterator[str]:
    """Devices are asked for whole, and as many as allowed."""
    resources = container["resources"]
    limit, request = (resources[p].get(name) for p in ("limits", "requests"))
    if not re.fullmatch(r"[1-9]\d*", str(limit)) or request != limit:
        yield f"{container['name']}: {name} must be whole, request equal to limit."


def _without_nulls(values: Manifest | None) -> Manifest:
    """Leave out what Kubernetes takes as not given."""
    return {key: value for key, value in (values or {}).items() if value is not None}


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - any part of a manifest
    """Every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
