"""The flavor `dptune_kubeflow`, and who implements it where.

Whoever submits needs Kubeflow's SDK (kfp), whose versions of protobuf, requests and
urllib3 are not those of this project: an environment of its own, see `install.sh`. Pods
need none of it: they only ask which run they belong to.
"""

import os
from importlib.util import find_spec
from typing import Any

from zenml.integrations.kubeflow.flavors import KubeflowOrchestratorFlavor
from zenml.orchestrators import ContainerizedOrchestrator

from dptune.errors import DependencyError
from infra.kubeflow.settings import RUN_VARIABLE, PipelinesConfig, PipelinesSettings

NAME = "dptune_kubeflow"
SOURCE = f"{__name__}.PipelinesFlavor"


class InsidePod(ContainerizedOrchestrator):
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

    def submit_pipeline(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - refuses
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


class PipelinesFlavor(KubeflowOrchestratorFlavor):
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
    def implementation_class(  # type: ignore[override]
        self,
    ) -> type[ContainerizedOrchestrator]:
        """Who submits where kfp is installed; elsewhere who knows the run."""
        if find_spec("kfp") is None:
            return InsidePod
        from infra.kubeflow.orchestrator import (  # noqa: PLC0415 - needs kfp
            PipelinesOrchestrator,
        )

        return PipelinesOrchestrator
