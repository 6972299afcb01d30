"""Where a run goes: a profile is data, which `infra.pods` turns into pods.

Nothing here can change what a run computes or claims: pods, retries, timeouts and the
performance settings that `PerformanceSettings` already declares harmless.
"""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dptune.config import PerformanceSettings, TrainConfig
from dptune.configfile import named_or_given_file, read_yaml, validate
from dptune.errors import ConfigError
from infra.stacks.settings import ProductionStack, read_stack
from infra.workspace import configs_folder

PROFILES = configs_folder() / "profiles"
_POSITIVE = r"^([1-9][0-9]*(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?"
BUDGET_URL = "DPTUNE_BUDGET_URL"
_SECRETIVE = (
    *("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL"),
    *("BUDGET_URL", "ALERT_URL", "PWD"),
)
_SECRET_VALUE = re.compile(r"://[^/\s@]+@|\b(Bearer|Basic)\b")
_SHARED_MEMORY = "dshm", "/dev/shm"  # noqa: S108 - in a pod
Processors = Annotated[str, Field(pattern=rf"{_POSITIVE}m?$")]
Bytes = Annotated[str, Field(pattern=rf"{_POSITIVE}(Ki|Mi|Gi|Ti|k|M|G|T)$")]
Label = Annotated[str, Field(pattern=rf"^{_LABEL}$", max_length=63)]
ObjectName = Annotated[str, Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
LabelKey = Annotated[str, Field(pattern=rf"^({_LABEL}(\.{_LABEL})*/)?{_WORD}$")]
LabelValue = Annotated[str, Field(pattern=rf"^({_WORD})?$", max_length=63)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Toleration(_Settings):
    """A taint of nodes that pods put up with, as Kubernetes writes it."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None  # noqa: N815 - Kubernetes' name


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

    name: Label
    path: str = Field(pattern=r"^/[^:]*$")
    claim: ObjectName | None = None
    size: Bytes | None = None
    read_only: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.claim is None) == (self.size is None):
            raise ValueError("exactly one of claim and size must be given")
        if ".." in PurePosixPath(self.path).parts:
            raise ValueError("path must be without `..`")
        return self


class PodSettings(_Settings):
    """What a pod asks for and may use; requests and limits are the same.

    Args:
        cpu, memory: Kubernetes quantities.
        timeout_minutes: after which the step is ended, retries included; those of the
            orchestrator end the run, and are the longest.
    """

    cpu: Processors
    memory: Bytes
    timeout_minutes: int = Field(ge=1, le=60 * 24 * 14)
    node_selectors: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
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
    queue: Label | None = None
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
    gpu_resource: str = Field(
        default="nvidia.com/gpu", pattern=rf"^{_LABEL}(\.{_LABEL})*/{_WORD}$"
    )
    shared_memory: Bytes | None = None
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

    name: ObjectName
    stack: str | None = None
    retries: int = Field(default=0, ge=0, le=10)
    performance: PerformanceSettings = PerformanceSettings()
    environment: dict[Variable, str] = Field(default_factory=dict)
    secrets: dict[Variable, SecretKey] = Field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    pods: Pods | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = (self._written_down(), self._twice(), self._missing(), self._late())
        if wrong := [each for problems in found for each in problems]:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def nodes(self) -> int:
        """Nodes that train a stage together."""
        return self.performance.nodes

    @property
    def accelerators(self) -> int | None:
        """Those of each pod that trains; None where this machine does."""
        return self.pods.accelerated.gpus if self.pods else None

    def _written_down(self) -> Iterator[str]:
        """Name variables whose value is a secret, by their name or their value."""
        looks_secret = [
            name
            for name, value in self.environment.items()
            if any(word in name.upper() for word in _SECRETIVE)
            or _SECRET_VALUE.search(value)
        ]
        if looks_secret:
            yield f"{', '.join(looks_secret)} must be under secrets, by reference"

    def _twice(self) -> Iterator[str]:
        """Name what a pod can be given once only."""
        for name in sorted(self.environment.keys() & self.secrets.keys()):
            yield f"{name} must be under environment or under secrets, not both"
        names = [volume.name for volume in self.volumes]
        paths = [str(PurePosixPath(volume.path)) for volume in self.volumes]
        for kind, found, ours in zip(
            ("names", "paths"), (names, paths), _SHARED_MEMORY, strict=True
        ):
            if twice := sorted({f for f in found if found.count(f) > 1 or f == ours}):
                yield (
                    f"{kind} of volumes must differ from each other and from {ours}, "
                    f"which is shared_memory, got {', '.join(twice)}"
                )

    def _missing(self) -> Iterator[str]:
        """Say what pods need and this profile does not give them.

        A pod keeps nothing: its budget would be an empty one, and its checkpoints gone.
        """
        if (self.stack is None) != (self.pods is None):
            yield "stack and pods must be given together, or neither"
        if self.pods is None:
            if self.nodes > 1:
                yield (
                    "performance.nodes must be 1 where there is no stack to start pods"
                )
            return
        home = PurePosixPath(self.environment.get("DPTUNE_HOME", ""))
        if ".." in home.parts or not any(
            home.is_relative_to(volume.path) and volume.claim and not volume.read_only
            for volume in self.volumes
        ):
            yield (
                "volumes must have a claim that all pods write (ReadWriteMany), with "
                "DPTUNE_HOME of environment on it: checkpoints and journals are there"
            )
        if BUDGET_URL not in self.secrets or self.secrets[BUDGET_URL].optional:
            yield (
                f"secrets must have {BUDGET_URL}, which is not optional: every pod "
                "pays from the same budget"
            )

    def _late(self) -> Iterator[str]:
        """Say which deadlines come before what they are to wait for."""
        if self.pods is None:
            return
        whole, heavy = self.pods.orchestrator.timeout_minutes, self.pods.accelerated
        for kind, pod in (("steps", self.pods.steps), ("accelerated", heavy)):
            if pod.timeout_minutes > whole:
                yield (
                    f"pods.{kind}.timeout_minutes must be at most {whole}, those of "
                    "pods.orchestrator, which end the run with all its steps, got "
                    f"{pod.timeout_minutes}"
                )
        wait = heavy.nodes.start_within_minutes
        if self.nodes > 1 and wait >= heavy.timeout_minutes:
            yield (
                "pods.accelerated.nodes.start_within_minutes must be below the "
                f"{heavy.timeout_minutes} timeout_minutes of pods.accelerated, which "
                f"end nodes that wait, too, got {wait}"
            )

    def production_stack(self) -> ProductionStack | None:
        """Read the stack that this profile names."""
        return None if self.stack is None else read_stack(self.stack)

    def applied_to(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration with this profile's performance settings.

        Raises:
            ConfigError: the two together cannot be used, or the configuration speaks of
                nodes, which are the profile's; or a pod has too few accelerators.
        """
        if config.performance.nodes not in (1, self.nodes):
            raise ConfigError(
                f"performance.nodes must be said by the profile, got "
                f"{config.performance.nodes} from the configuration and {self.nodes} "
                f"from {self.name}. Leave it out of the configuration."
            )
        own = self.performance.model_dump(mode="json", exclude_unset=True)
        if own:
            values = config.model_dump(mode="json")
            values["performance"] |= own
            config = validate(TrainConfig, values)
        self._refuse_unfit(config.performance)
        return config

    def _refuse_unfit(self, chosen: PerformanceSettings) -> None:
        """Refuse what would fail in the pod, after other steps have done their work."""
        gpus, count = self.accelerators or 0, chosen.num_processes
        if chosen.device != "cpu" and isinstance(count, int) and 0 < gpus < count:
            raise ConfigError(
                f"performance.num_processes must be at most {gpus}, the "
                f"pods.accelerated.gpus of {self.name}, got {count}. Say auto."
            )
        if self.nodes > 1 and chosen.device != "auto":
            raise ConfigError(
                f"performance.device must be auto where several nodes train, got "
                f"{chosen.device}: the pod that starts them has no accelerator. Leave "
                "it out; pods.accelerated.gpus decides."
            )


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
