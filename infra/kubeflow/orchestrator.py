"""ZenML's Kubeflow orchestrator with whole pods, and no token in them. Needs kfp.

Seen in ZenML 0.98.0: it leaves out volumes, secrets, tolerations, requests and the
account of a pod; writes the server's token into the specification; logs a failed upload
and goes on; and takes a run that failed for one that ended.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from kfp import Client as PipelinesClient
from kfp import dsl
from zenml.client import Client
from zenml.enums import ExecutionStatus
from zenml.integrations.kubeflow.orchestrators.kubeflow_orchestrator import (
    KubeflowOrchestrator,
)
from zenml.models import PipelineRunResponse, PipelineSnapshotResponse
from zenml.orchestrators import SubmissionResult
from zenml.orchestrators.publish_utils import publish_pipeline_run_status_update
from zenml.stack import Stack

from dptune.errors import ConfigError, DptuneError
from infra.kubeflow.flavor import PipelinesConfig, PipelinesSettings, StepPod
from infra.kubeflow.specification import check_package
from infra.kubeflow.tasks import complete_task

_CREDENTIALS = re.compile(r"^ZENML_STORE_(API_TOKEN|API_KEY|USERNAME|PASSWORD)$")
_POD_CREDENTIALS = "ZENML_STORE_API_KEY"
_GOOD_ENDS = (ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED)


class PipelinesOrchestrator(KubeflowOrchestrator):  # type: ignore[misc]
    """Writes the specification of a run, checks it, submits it and follows it."""

    _pods: dict[str, StepPod]
    _steps: dict[str, str]
    _run: UUID | None = None

    @property
    def config(self) -> PipelinesConfig:
        """Configuration of this flavor."""
        config = self._config
        if not isinstance(config, PipelinesConfig):
            raise TypeError("the configuration must be of this flavor.")
        return config

    @property
    def settings_class(self) -> type[PipelinesSettings]:
        """Settings of this flavor."""
        return PipelinesSettings

    def submit_pipeline(
        self,
        snapshot: PipelineSnapshotResponse,
        stack: Stack,
        base_environment: dict[str, str],
        step_environments: dict[str, dict[str, str]],
        placeholder_run: PipelineRunResponse | None = None,
    ) -> SubmissionResult | None:
        """Compile with ZenML's own code, without the server's token.

        Raises:
            ConfigError: a step has no pod, or no key to the server; or the
                specification breaks a rule.
        """
        pods = {
            name: self.get_settings(step).step
            for name, step in snapshot.step_configurations.items()
        }
        if without := [n for n, p in pods.items() if p is None]:
            raise ConfigError(
                f"steps must be given pods by a profile, got none for "
                f"{', '.join(without)}. Run `dptune train --profile kubeflow`."
            )
        if without := [n for n, p in pods.items() if _POD_CREDENTIALS not in p.secrets]:
            raise ConfigError(
                f"{_POD_CREDENTIALS} must be among the profile's secrets, got none for "
                f"{', '.join(without)}. Pods are told no token of this machine's."
            )
        self._pods, self._steps = pods, {}
        self._run = placeholder_run.id if placeholder_run else None
        return super().submit_pipeline(
            snapshot=snapshot,
            stack=stack,
            base_environment=_without_credentials(base_environment),
            step_environments={
                name: _without_credentials(variables)
                for name, variables in step_environments.items()
            },
            placeholder_run=placeholder_run,
        )

    def _create_dynamic_component(
        self, image: str, command: list[str], arguments: list[str], component_name: str
    ) -> Any:  # noqa: ANN401 - a component of kfp
        """Remember which component is which step."""
        component = super()._create_dynamic_component(
            image, command, arguments, component_name
        )
        self._steps[component.name] = component_name
        return component

    def _configure_container_resources(
        self, dynamic_component: dsl.PipelineTask, *_: object, **__: object
    ) -> dsl.PipelineTask:
        """Called for each task while it is compiled: write its whole pod."""
        complete_task(
            dynamic_component, self._pods[self._steps[dynamic_component.name]]
        )
        return dynamic_component

    def _upload_and_run_pipeline(
        self, snapshot: PipelineSnapshotResponse, pipeline_file_path: str, run_name: str
    ) -> SubmissionResult:
        """Check what was compiled, and start it as its account."""
        check_package(Path(pipeline_file_path))
        settings = self.get_settings(snapshot)
        client = self._get_kfp_client(settings=settings)
        started = client.create_run_from_pipeline_package(
            pipeline_file_path,
            arguments={},
            run_name=run_name,
            experiment_name=snapshot.pipeline_configuration.name,
            namespace=settings.user_namespace,
            enable_caching=False,
            service_account=self.config.service_account,
        )
        wait = partial(self._wait, client, started.run_id, settings.timeout)
        return SubmissionResult(
            wait_for_completion=wait if settings.synchronous else None
        )

    def _wait(self, client: PipelinesClient, run_id: str, seconds: int) -> None:
        """Wait for a run's end, and say so where it is not a good one.

        A pod that never started told ZenML nothing: then the run fails there too.
        """
        ended = client.wait_for_run_completion(run_id, timeout=seconds)
        if str(ended.state).upper() == "SUCCEEDED" or self._run is None:
            return
        known = Client().get_pipeline_run(self._run).status
        if known in _GOOD_ENDS:
            return
        reason = f"Kubeflow's run {run_id} ended as {ended.state}"
        if not known.is_finished:
            publish_pipeline_run_status_update(
                self._run, ExecutionStatus.FAILED, status_reason=reason
            )
        raise DptuneError(f"{reason}. Its log and the dashboard's say why.")


def _without_credentials(variables: dict[str, str]) -> dict[str, str]:
    """Leave out what opens the server: pods have it from a Kubernetes secret."""
    return {k: v for k, v in variables.items() if not _CREDENTIALS.match(k)}
