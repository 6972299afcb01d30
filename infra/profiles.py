"""Where a run goes: a profile is data, and turns into options of one same pipeline.

Nothing here can change what a run computes or claims: pods, retries, timeouts and the
performance settings that `PerformanceSettings` already declares harmless.
"""

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dptune.config import TrainConfig
from dptune.configfile import named_or_given_file, read_yaml, validate
from dptune.errors import ConfigError, Problem
from infra.stacks.settings import ProductionStack, read_stack
from infra.workspace import configs_folder

PROFILES = configs_folder() / "profiles"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?$"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_SECRETIVE = (
    *("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL"),
    *("BUDGET_URL", "ALERT_URL"),
)
_USER = 10001
"""Owner of the image's files; see infra/docker."""

_KUBERNETES, _KUBEFLOW = "orchestrator.kubernetes", "orchestrator.dptune_kubeflow"
_LABELS = {"app.kubernetes.io/part-of": "dptune"}

Quantity = Annotated[str, Field(pattern=_QUANTITY)]
ObjectName = Annotated[str, Field(pattern=_NAME, max_length=253)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SecretKey(_Settings):
    """A value in a Kubernetes secret, by reference.

    Args:
        name: of the secret.
        key: in it.
        optional: whether pods start without it.
    """

    name: ObjectName
    key: str = Field(pattern=r"^[-._a-zA-Z0-9]+$")
    optional: bool = False


class Volume(_Settings):
    """What step pods mount: a claim, or room of the node that goes with the pod.

    Args:
        name: in the pod.
        path: where it is mounted.
        claim: a PersistentVolumeClaim; None for an empty directory.
        size: limit of an empty directory.
        read_only: whether pods may not write.
    """

    name: ObjectName
    path: str = Field(pattern=r"^/")
    claim: ObjectName | None = None
    size: Quantity | None = None
    read_only: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.claim is None) == (self.size is None):
            raise ValueError("exactly one of claim and size must be given")
        return self


class PodSettings(_Settings):
    """What a pod asks for and may use; requests and limits are the same.

    Args:
        cpu, memory: Kubernetes quantities.
        timeout_minutes: after which the step is ended, retries included.
    """

    cpu: Quantity
    memory: Quantity
    timeout_minutes: int = Field(ge=1, le=60 * 24 * 14)
    node_selectors: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str | int], ...] = ()
    priority_class: ObjectName | None = None


class AcceleratedPods(PodSettings):
    """Pods of the steps that need accelerators.

    Args:
        steps: their names; `train_*` is every stage.
        gpus: of one pod.
        gpu_resource: as the device plugin calls it.
        shared_memory: for the processes of one pod.
    """

    steps: tuple[str, ...] = ("train_*", "attack")
    gpus: int = Field(default=1, ge=0, le=64)
    gpu_resource: str = "nvidia.com/gpu"
    shared_memory: Quantity | None = None

    def wants(self, step: str) -> bool:
        """Whether a step runs in such a pod."""
        return any(fnmatch(step, pattern) for pattern in self.steps)


class Pods(_Settings):
    """Pods of a run: of its orchestrator, of most steps, and of the heavy ones."""

    steps: PodSettings
    orchestrator: PodSettings
    accelerated: AcceleratedPods


class Profile(_Settings):
    """Where and with what a run is computed.

    Args:
        stack: a file under `configs/stacks`; None is this machine.
        retries: how often a failed or preempted step starts again.
        performance: performance settings in place of the configuration's own.
        environment: of every pod; nothing secret.
        secrets: of every step pod, by reference.
        volumes: of every step pod.
        pods: sizes and places; needed where there is a stack.
    """

    name: str = Field(pattern=_NAME)
    stack: str | None = None
    retries: int = Field(default=0, ge=0, le=10)
    performance: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretKey] = Field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    pods: Pods | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.stack is None) != (self.pods is None):
            raise ValueError("stack and pods must be given together, or neither")
        looks_secret = [
            name
            for name in self.environment
            if any(word in name.upper() for word in _SECRETIVE)
        ]
        if looks_secret:
            raise ValueError(
                f"{', '.join(looks_secret)} must be under secrets, by reference"
            )
        return self

    def production_stack(self) -> ProductionStack | None:
        """Read the stack that this profile names."""
        return None if self.stack is None else read_stack(self.stack)

    def applied_to(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration with this profile's performance settings."""
        if not self.performance:
            return config
        values = config.model_dump(mode="json")
        values["performance"] |= self.performance
        return validate(TrainConfig, values)


def read_profile(name: str) -> Profile:
    """Read a profile by its name under `configs/profiles` or by its path.

    Raises:
        ConfigError: there is no such profile, or it cannot be used.
    """
    path = named_or_given_file(PROFILES, name, "--profile")
    return validate(Profile, read_yaml(path))


def default_profile() -> str:
    """Name the profile of commands that were given none (`DPTUNE_PROFILE`)."""
    return os.environ.get("DPTUNE_PROFILE") or "local"


def run_options(profile: Profile, step_names: Sequence[str]) -> dict[str, Any]:
    """Turn a profile into options of `Pipeline.with_options`.

    On this machine a run ends with what its first step raised: in ZenML's other modes
    the steps that do not need it go on, and what the run raises names the step alone.

    Args:
        profile: where the run goes.
        step_names: of the pipeline's steps, as they are called in the run.

    Raises:
        ConfigError: the profile asks Kubeflow for what it cannot be told.
    """
    stack, pods = profile.production_stack(), profile.pods
    if stack is None or pods is None:
        return {"execution_mode": "fail_fast"}
    if stack.kubeflow is None:
        key, settings, deadline = _KUBERNETES, _orchestrator, "active_deadline_seconds"
    else:
        _refuse_unsayable(profile, pods)
        key, settings, deadline = _KUBEFLOW, _kubeflow, "timeout"
    accelerated, plain = (
        {"settings": {key: settings(profile, stack, pod)}}
        for pod in (pods.accelerated, pods.steps)
    )
    whole_run = {deadline: 60 * pods.orchestrator.timeout_minutes}
    return {
        "settings": {
            "docker": _image(stack),
            key: plain["settings"][key] | whole_run,
        },
        "retry": {"max_retries": profile.retries, "delay": 0, "backoff": 0},
        "steps": {
            name: accelerated if pods.accelerated.wants(name) else plain
            for name in step_names
        },
    }


def _image(stack: ProductionStack) -> dict[str, Any]:
    """Run the image as it is: its code is the code that was tested."""
    return {
        "parent_image": stack.image,
        "skip_build": True,
        "allow_download_from_artifact_store": False,
        "allow_download_from_code_repository": False,
    }


def _orchestrator(
    profile: Profile, stack: ProductionStack, pod: PodSettings
) -> dict[str, Any]:
    """Settings of the Kubernetes orchestrator for one kind of step."""
    cluster = stack.kubernetes
    pods = profile.pods
    return {
        "service_account_name": cluster.orchestrator_service_account,
        "step_pod_service_account_name": cluster.step_service_account,
        "pod_settings": _pod(profile, stack, pod, volumes=profile.volumes),
        "orchestrator_pod_settings": _pod(
            profile,
            stack,
            pods.orchestrator if pods else pod,
            volumes=[v for v in profile.volumes if v.claim is None],
            with_secrets=False,
        ),
        "active_deadline_seconds": 60 * pod.timeout_minutes,
        "pod_failure_policy": _FAILURE_POLICY,
        "backoff_limit_margin": 1,
        "ttl_seconds_after_finished": 60 * 60 * 24,
        "pod_stop_grace_period": 60,
        "prevent_orchestrator_pod_caching": False,
    }


def _refuse_unsayable(profile: Profile, pods: Pods) -> None:
    """Refuse what Kubeflow cannot be told of a pod, rather than leave it out."""
    problems = [
        Problem(
            path=f"volumes.{volume.name}.read_only",
            message="must be false: Kubeflow mounts claims to be written.",
            next_step="Let the claim itself be ReadOnlyMany.",
        )
        for volume in profile.volumes
        if volume.read_only
    ]
    problems += [
        Problem(
            path=f"pods.{kind}.priority_class",
            message="must be left out: Kubeflow knows none.",
            next_step="Let the namespace's default be the one you mean.",
        )
        for kind in ("steps", "accelerated")
        if getattr(pods, kind).priority_class
    ]
    if problems:
        raise ConfigError(problems)


def _kubeflow(
    profile: Profile, stack: ProductionStack, pod: PodSettings
) -> dict[str, Any]:
    """Settings of the Kubeflow orchestrator for one kind of step."""
    values = profile.model_dump(mode="json")
    several = stack.kubeflow is not None and stack.kubeflow.several_users
    return {
        "user_namespace": stack.kubernetes.namespace if several else None,
        "step": {
            "pod": pod.model_dump(mode="json"),
            "user": _USER,
            "labels": _LABELS,
            "image_pull_secrets": list(stack.kubernetes.image_pull_secrets),
            **{k: values[k] for k in ("environment", "secrets", "volumes", "retries")},
        },
    }


_FAILURE_POLICY = {
    "rules": [
        # First: a preempted pod may also exit with 137 or 143, and is nobody's fault.
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {
            "action": "Count",
            "onExitCodes": {
                "containerName": "main",
                "operator": "NotIn",
                "values": [0],
            },
        },
    ]
}


def _pod(
    profile: Profile,
    stack: ProductionStack,
    pod: PodSettings,
    *,
    volumes: Sequence[Volume],
    with_secrets: bool = True,
) -> dict[str, Any]:
    """One pod under the restricted Pod Security level."""
    amount = {"cpu": pod.cpu, "memory": pod.memory}
    gpus: dict[str, str] = {}
    mounted = list(volumes)
    extra = []
    if isinstance(pod, AcceleratedPods):
        gpus = {pod.gpu_resource: str(pod.gpus)} if pod.gpus else {}
        if pod.shared_memory is not None:
            extra = [_shared_memory(pod.shared_memory)]
    return {
        "resources": {"requests": amount | gpus, "limits": amount | gpus},
        "node_selectors": pod.node_selectors,
        "tolerations": list(pod.tolerations),
        "image_pull_secrets": list(stack.kubernetes.image_pull_secrets),
        "labels": _LABELS,
        "env": [
            *({"name": n, "value": v} for n, v in sorted(profile.environment.items())),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": secret.model_dump()}}
                for name, secret in profile.secrets.items()
                if with_secrets
            ),
        ],
        "volumes": [*(_source(v) for v in mounted), *(v for v, _ in extra)],
        "volume_mounts": [*(_mount(v) for v in mounted), *(m for _, m in extra)],
        "container_security_context": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # In snake case: ZenML drops names that are no attribute of its client's type.
        "additional_pod_spec_args": {
            "security_context": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                # Else every start would walk through all of a shared volume.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "enable_service_links": False,
            # Only the orchestrator speaks to Kubernetes.
            **({"automount_service_account_token": False} if with_secrets else {}),
            **(
                {"priority_class_name": pod.priority_class}
                if pod.priority_class
                else {}
            ),
        },
    }


def _source(volume: Volume) -> dict[str, Any]:
    """What is mounted."""
    if volume.claim is None:
        return {"name": volume.name, "emptyDir": {"sizeLimit": volume.size}}
    claim = {"claimName": volume.claim, "readOnly": volume.read_only}
    return {"name": volume.name, "persistentVolumeClaim": claim}


def _mount(volume: Volume) -> dict[str, Any]:
    """Where it is mounted."""
    return {
        "name": volume.name,
        "mountPath": volume.path,
        "readOnly": volume.read_only,
    }


def _shared_memory(size: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Memory that the processes of one pod share; counts against its limit."""
    source = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return source, {"name": "dshm", "mountPath": "/dev/shm"}  # noqa: S108 - in a pod
