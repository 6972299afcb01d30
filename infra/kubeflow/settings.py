"""What the flavor `dptune_kubeflow` is told of itself, of runs and of steps."""

from pydantic import BaseModel, ConfigDict, Field
from zenml.integrations.kubeflow.flavors.kubeflow_orchestrator_flavor import (
    KubeflowOrchestratorConfig,
    KubeflowOrchestratorSettings,
)

from infra.profiles import AcceleratedPods, PodSettings, SecretKey, Volume

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


class PipelinesSettings(KubeflowOrchestratorSettings):
    """Settings of a run, and of each step.

    Args:
        step: the pod of a step.
    """

    step: StepPod | None = None


class PipelinesConfig(KubeflowOrchestratorConfig, PipelinesSettings):
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
