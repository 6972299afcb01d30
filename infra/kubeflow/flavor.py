"""The flavor `dptune_kubeflow`, its settings, and who implements it where.

Whoever submits needs Kubeflow's SDK (kfp), whose versions of protobuf, requests and
urllib3 are not those of this project: an environment of its own, see `install.sh`. Pods
need none of it: they only ask which run they belong to.
"""

import os
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from zenml.integrations.kubeflow.flavors import KubeflowOrchestratorFlavor
from zenml.integrations.kubeflow.flavors.kubeflow_orchestrator_flavor import (
    KubeflowOrchestratorConfig,
    KubeflowOrchestratorSettings,
)
from zenml.orchestrators import ContainerizedOrchestrator

from dptune.errors import DependencyError
from infra.profiles import AcceleratedPods, PodSettings, SecretKey, Volume

NAME = "dptune_kubeflow"
SOURCE = f"{__name__}.PipelinesFlavor"
RUN_VARIABLE = "KFP_RUN_ID"


class StepPod(BaseModel):
    """What the pod of one step is given.

    Args:
        pod: its size, place and time.
        user: that owns the image's files.
        labels: of the pod.
        environment: nothing secret.
        secrets: by the name of the variable.
        volumes: as in the profile.
        image_pull_secrets: names of Kubernetes secrets.
        retries: how often a failed pod starts again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # The first that fits: a plain pod would fit both, and be given an accelerator.
    pod: PodSettings | AcceleratedPods = Field(union_mode="left_to_right")
    user: int
    labels: dict[str, str]
    environment: dict[str, str]
    secrets: dict[str, SecretKey]
    volumes: tuple[Volume, ...]
    image_pull_secrets: tuple[str, ...]
    retries: int


class PipelinesSettings(KubeflowOrchestratorSettings):  # type: ignore[misc]
    """Settings of a run, and of each step.

    Args:
        step: the pod of a step.
    """

    step: StepPod | None = None


class PipelinesConfig(KubeflowOrchestratorConfig, PipelinesSettings):  # type: ignore[misc]
    """Configuration of the orchestrator.

    Args:
        service_account: of every pod of a run: Kubeflow knows one for all.
    """

    service_account: str

    @property
    def is_schedulable(self) -> bool:
        """Recurring runs would hold a token of the server as long as they recur."""
        return False

    @property
    def handles_step_retries(self) -> bool:
        """A step starts again in a pod of its own, not in the process that failed."""
        return True

    @property
    def supports_client_side_caching(self) -> bool:
        """Steps look for what was cached where they run, as on Kubernetes."""
        return False


class InsidePod(ContainerizedOrchestrator):  # type: ignore[misc]
    """The orchestrator as a step sees it, and who submits without kfp."""

    @property
    def settings_class(self) -> type[PipelinesSettings]:
        """Settings of this flavor."""
        return PipelinesSettings

    def get_orchestrator_run_id(self) -> str:
        """Name Kubeflow's run, which every one of its pods is told.

        Raises:
            RuntimeError: this is no such pod.
        """
        if RUN_VARIABLE not in os.environ:
            raise RuntimeError(f"{RUN_VARIABLE} must be set in a pod of Kubeflow.")
        return os.environ[RUN_VARIABLE]

    def submit_pipeline(self, **_: Any) -> None:  # noqa: ANN401 - it refuses all
        """Refuse: only kfp writes specifications.

        Raises:
            DependencyError: always.
        """
        raise DependencyError(
            "kfp must be installed to submit runs to Kubeflow, and cannot be beside "
            "this project's versions of protobuf, requests and urllib3. Make an "
            "environment for it with `sh infra/kubeflow/install.sh FOLDER`, and submit "
            "with FOLDER/bin/dptune."
        )


class PipelinesFlavor(KubeflowOrchestratorFlavor):  # type: ignore[misc]
    """ZenML's Kubeflow orchestrator, with whole pods."""

    @property
    def name(self) -> str:
        """Name in stacks and settings."""
        return NAME

    @property
    def config_class(self) -> type[PipelinesConfig]:
        """Configuration of this flavor."""
        return PipelinesConfig

    @property
    def implementation_class(self) -> type[ContainerizedOrchestrator]:
        """Who submits where kfp is installed; elsewhere who knows the run."""
        if find_spec("kfp") is None:
            return InsidePod
        from infra.kubeflow.orchestrator import (  # noqa: PLC0415 - needs kfp
            PipelinesOrchestrator,
        )

        return PipelinesOrchestrator
