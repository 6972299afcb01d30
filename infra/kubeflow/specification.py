"""What is sent to Kubeflow, read back by Kubeflow's own schema and checked. Needs kfp.

A package is two YAML documents: the pipeline (PipelineSpec of
https://github.com/kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto) and what
Kubernetes is told of each pod (KubernetesExecutorConfig of kubernetes_platform).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec.pipeline_spec_pb2 import (
    PipelineDeploymentConfig,
    PipelineSpec,
    PlatformSpec,
)

from dptune.errors import ConfigError, Problem
from infra.cluster.manifests import Pod
from infra.cluster.pod_policies import holds_no_secret, names_images_by_digest

_SOUNDS_LIKE_A_TOKEN = re.compile(r"\beyJ[\w-]{10,}\.|ZENKEY_")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A compiled pipeline.

    Args:
        pipeline: as written.
        kubernetes: what Kubernetes is told, by executor.
    """

    pipeline: Mapping[str, Any]
    kubernetes: Mapping[str, Mapping[str, Any]]

    @property
    def containers(self) -> dict[str, Mapping[str, Any]]:
        """Containers by executor."""
        executors = self.pipeline["deploymentSpec"]["executors"]
        return {name: executor["container"] for name, executor in executors.items()}


def read_package(path: Path) -> Package:
    """Read a compiled pipeline, and refuse what Kubeflow's schema does not know.

    Raises:
        ConfigError: a field is unknown or of another type.
    """
    documents = list(yaml.safe_load_all(path.read_text()))
    pipeline, platforms = documents[0], documents[1] if len(documents) > 1 else {}
    try:
        json_format.ParseDict(pipeline, PipelineSpec())
        # To the pipeline its deployment is any structure; it has a schema of its own.
        json_format.ParseDict(
            documents[0]["deploymentSpec"], PipelineDeploymentConfig()
        )
        json_format.ParseDict(platforms, PlatformSpec())
        executors = (
            platforms.get("platforms", {})
            .get("kubernetes", {})
            .get("deploymentSpec", {})
            .get("executors", {})
        )
        for executor in executors.values():
            json_format.ParseDict(executor, KubernetesExecutorConfig())
    except json_format.ParseError as error:
        raise ConfigError(
            f"the pipeline must fit Kubeflow's schema, but does not: {error}. Nothing "
            "was submitted; is kfp the version that infra/kubeflow/install.sh installs?"
        ) from None
    return Package(pipeline=pipeline, kubernetes=executors)


def package_problems(package: Package) -> Iterator[Problem]:
    """Say what no pod of ours may be, on Kubeflow as on Kubernetes."""
    tasks = package.pipeline["root"]["dag"]["tasks"]
    for name, task in tasks.items():
        for other in task.get("dependentTasks", ()):
            if other not in tasks:
                yield Problem(
                    path=name, message=f"waits for {other}, which is no task."
                )
    for name, container in package.containers.items():
        pod = Pod(
            owner=name,
            namespace="",
            labels={},
            spec={"containers": [{"name": name, **container}]},
        )
        for policy in (holds_no_secret, names_images_by_digest):
            for message in policy(pod):
                yield Problem(path=name, message=message)
        if _SOUNDS_LIKE_A_TOKEN.search(str(container)):
            yield Problem(path=name, message="a token must come from a secret.")
        limits = container.get("resources", {})
        if not {"resourceCpuLimit", "resourceMemoryLimit"} <= set(limits):
            yield Problem(path=name, message="must have limits of cpu and memory.")
        told = package.kubernetes.get(name, {})
        if not int(told.get("securityContext", {}).get("runAsUser", 0)):
            yield Problem(path=name, message="must run as a user that is not root.")
        if not int(told.get("activeDeadlineSeconds", 0)):
            yield Problem(path=name, message="must end in time.")


def check_package(path: Path) -> Package:
    """Read a package and refuse one that breaks a rule.

    Raises:
        ConfigError: all problems of it.
    """
    package = read_package(path)
    if problems := list(package_problems(package)):
        raise ConfigError(problems)
    return package
