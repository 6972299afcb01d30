"""Manifests against Kubernetes itself: the client's types, and the API's schemas.

Needs what `pip install 'dptune[dev]'` brings; imports it when asked.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from dptune.errors import ConfigError, Problem
from infra.cluster.manifests import Manifest, object_name

VERSIONS = ("1.33", "1.37")
"""Versions of Kubernetes whose schemas all objects must fit."""

_FOREIGN_GROUPS = ("external-secrets.io", "trainer.kubeflow.org", "scheduling.x-k8s.io")
_NEWER_THAN_CLIENT = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


@dataclass(frozen=True)
class _Answer:
    """What the client takes for the body of an answer."""

    data: str


def is_known_to_kubernetes(manifest: Manifest) -> bool:
    """Whether an object is of Kubernetes itself, not of an operator."""
    return manifest["apiVersion"].split("/")[0] not in _FOREIGN_GROUPS


def schema_problems(
    manifests: list[Manifest], *, versions: tuple[str, ...] = VERSIONS
) -> Iterator[tuple[str, str]]:
    """Say where objects do not fit the schemas of Kubernetes, unknown fields included.

    Args:
        manifests: objects; those of operators are left out.
        versions: of Kubernetes.

    Raises:
        ConfigError: the schemas are not installed.
    """
    _require("kubernetes_validate")
    import kubernetes_validate  # noqa: PLC0415 - not part of every installation

    for manifest in filter(is_known_to_kubernetes, manifests):
        for version in versions:
            try:
                kubernetes_validate.validate(
                    without_nulls(manifest), version, strict=True
                )
            except kubernetes_validate.ValidationError as error:
                path = ".".join(str(part) for part in error.path)
                yield object_name(manifest), f"{version}: {path}: {error.message}"


def round_trip_problems(manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Say what is lost when objects pass through the client's types.

    Raises:
        ConfigError: the client is not installed.
    """
    _require("kubernetes")
    from kubernetes import client  # noqa: PLC0415 - not part of every installation

    api = client.ApiClient()
    for manifest in filter(is_known_to_kubernetes, manifests):
        if manifest["kind"] in _NEWER_THAN_CLIENT:
            continue
        version = manifest["apiVersion"].rpartition("/")[2].capitalize()
        clean = without_nulls(manifest)
        typed = api.deserialize(_Answer(json.dumps(clean)), version + manifest["kind"])
        for path in _lost(clean, api.sanitize_for_serialization(typed), ""):
            yield object_name(manifest), f"{path} is no field of its type."


def without_nulls(value: Any) -> Any:  # noqa: ANN401 - any part of a manifest
    """Leave out nulls, which Kubernetes takes as not given."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value


def _lost(given: Any, kept: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Paths that are in one value and not in the other."""
    if isinstance(given, dict):
        for key, value in given.items():
            inside = isinstance(kept, dict) and key in kept
            if inside:
                yield from _lost(value, kept[key], f"{path}.{key}")
            elif value not in ({}, []):
                yield f"{path}.{key}"
    elif isinstance(given, list):
        for number, (value, other) in enumerate(zip(given, kept or [], strict=False)):
            yield from _lost(value, other, f"{path}[{number}]")


def _require(module: str) -> None:
    """Refuse where a package is not installed."""
    if find_spec(module) is None:
        name = module.replace("_", "-")
        raise ConfigError(
            [
                Problem(
                    path=name,
                    message="must be installed to check manifests.",
                    next_step="pip install --constraint constraints.txt 'dptune[dev]'",
                )
            ]
        )
