"""Where a run goes: a profile is data, which `infra.pods` turns into pods.

Nothing here can change what a run computes or claims: pods, retries, timeouts and the
performance settings that `PerformanceSettings` already declares harmless.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dptune.config import TrainConfig
from dptune.configfile import named_or_given_file, read_yaml, validate
from dptune.errors import ConfigError
from infra.stacks.settings import ProductionStack, read_stack
from infra.workspace import configs_folder

PROFILES = configs_folder() / "profiles"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?$"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
BUDGET_URL = "DPTUNE_BUDGET_URL"
_SECRETIVE = (
    *("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL"),
    *("BUDGET_URL", "ALERT_URL"),
)
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


class NodeSettings(_Settings):
    """How the pods of a stage start that several nodes train.

    Args:
        kind: of the object that starts them; `auto` is Kubeflow Trainer's TrainJob
            where the cluster serves that kind, else an Indexed Job.
        queue: a LocalQueue of Kueue, which lets all pods in, or none.
        scheduler: one with the coscheduling plugin, which places all pods, or none.
        start_within_minutes: how long pods may wait for nodes and for each other.
    """

    kind: Literal["auto", "TrainJob", "Job"] = "auto"
    queue: ObjectName | None = None
    scheduler: ObjectName | None = None
    start_within_minutes: int = Field(default=60, ge=1, le=60 * 24 * 14)


class AcceleratedPods(PodSettings):
    """Pods of the steps that need accelerators.

    Args:
        steps: their names; `train_*` is every stage.
        gpus: of one pod.
        gpu_resource: as the device plugin calls it.
        shared_memory: for the processes of one pod.
        nodes: how they start where `performance.nodes` train a stage together.
    """

    steps: tuple[str, ...] = ("train_*", "attack")
    gpus: int = Field(default=1, ge=0, le=64)
    gpu_resource: str = "nvidia.com/gpu"
    shared_memory: Quantity | None = None
    nodes: NodeSettings = NodeSettings()

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
        if self.nodes > 1 and (missing := list(self._missing_for_nodes())):
            raise ValueError("; ".join(missing))
        return self

    @property
    def nodes(self) -> int:
        """Nodes that train a stage together; what is no number is refused later."""
        found = self.performance.get("nodes", 1)
        return found if isinstance(found, int) else 1

    def _missing_for_nodes(self) -> Iterator[str]:
        """Say what several nodes need and this profile does not give them."""
        if self.pods is None:
            yield "performance.nodes must be 1 where there is no stack to start pods"
        home = PurePosixPath(self.environment.get("DPTUNE_HOME", ""))
        if not any(
            home.is_relative_to(volume.path) and volume.claim and not volume.read_only
            for volume in self.volumes
        ):
            yield (
                "performance.nodes needs a claim among volumes that all pods write "
                "(ReadWriteMany), with DPTUNE_HOME of environment on it"
            )
        if BUDGET_URL not in self.secrets:
            yield (
                f"performance.nodes needs {BUDGET_URL} among secrets: the first node "
                "pays"
            )

    def production_stack(self) -> ProductionStack | None:
        """Read the stack that this profile names."""
        return None if self.stack is None else read_stack(self.stack)

    def applied_to(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration with this profile's performance settings.

        Raises:
            ConfigError: the two together cannot be used, or the configuration speaks of
                nodes, which are the profile's.
        """
        if config.performance.nodes not in (1, self.nodes):
            raise ConfigError(
                f"performance.nodes must be said by the profile, got "
                f"{config.performance.nodes} from the configuration and {self.nodes} "
                f"from {self.name}. Leave it out of the configuration."
            )
        if not self.performance:
            return config
        values = config.model_dump(mode="json")
        values["performance"] |= self.performance
        applied = validate(TrainConfig, values)
        if self.nodes > 1 and applied.performance.device != "auto":
            raise ConfigError(
                f"performance.device must be auto where several nodes train, got "
                f"{applied.performance.device}: the pod that starts them has no "
                "accelerator. Leave it out; pods.accelerated.gpus decides."
            )
        return applied


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
