"""ZenML's Kubeflow orchestrator with whole pods, and no token in them. Needs kfp.

Seen in ZenML 0.98.0: with kfp 2.17 it compiles no pipeline whose steps wait for others
(it hands components to `after`, which takes tasks); it leaves out volumes, secrets,
tolerations, requests and the account of a pod; writes the server's token into the
specification; logs a failed upload and goes on; and takes a failed run for one that
ended.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from kfp import Client as PipelinesClient
from kfp import dsl
from kfp.compiler import Compiler
from kfp.dsl.graph_component import GraphComponent
from zenml.client import Client
from zenml.config.step_configurations import Step
from zenml.entrypoints import StepEntrypointConfiguration
from zenml.enums import ExecutionStatus
from zenml.integrations.kubeflow.orchestrators.kubeflow_orchestrator import (
    KubeflowOrchestrator,
)
from zenml.models import PipelineRunResponse, PipelineSnapshotResponse
from zenml.orchestrators import SubmissionResult
from zenml.orchestrators.publish_utils import publish_pipeline_run_status_update
from zenml.orchestrators.utils import get_orchestrator_run_name
from zenml.stack import Stack

from dptune.errors import ConfigError, DptuneError
from infra.kubeflow.settings import (
    RUN_VARIABLE,
    PipelinesConfig,
    PipelinesSettings,
    StepPod,
)
from infra.kubeflow.specification import check_package
from infra.kubeflow.tasks import complete_task

_CREDENTIALS = re.compile(r"^ZENML_STORE_(API_TOKEN|API_KEY|USERNAME|PASSWORD)$")
_POD_CREDENTIALS = "ZENML_STORE_API_KEY"
_GOOD_ENDS = (ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED)


class PipelinesOrchestrator(KubeflowOrchestrator):
    """Writes the specification of a run, checks it, submits it and follows it."""

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
        stack: Stack,  # noqa: ARG002 - ZenML's signature
        base_environment: dict[str, str],  # noqa: ARG002 - as above
        step_environments: dict[str, dict[str, str]],
        placeholder_run: PipelineRunResponse | None = None,
    ) -> SubmissionResult | None:
        """Compile a run, check it and start it.

        Raises:
            ConfigError: a step has no pod, or no key to the server; or the
                specification breaks a rule.
        """
        steps = snapshot.step_configurations
        given = {name: self._settings(step).step for name, step in steps.items()}
        pods = {name: pod for name, pod in given.items() if pod is not None}
        if without := [name for name in given if name not in pods]:
            raise ConfigError(
                f"steps must be given pods by a profile, got none for "
                f"{', '.join(without)}. Run `dptune train --profile kubeflow`."
            )
        if without := [n for n, p in pods.items() if _POD_CREDENTIALS not in p.secrets]:
            raise ConfigError(
                f"{_POD_CREDENTIALS} must be among the profile's secrets, got none for "
                f"{', '.join(without)}. Pods are told no token of this machine's."
            )
        self._run = placeholder_run.id if placeholder_run else None
        name = get_orchestrator_run_name(snapshot.pipeline_configuration.name)
        name = name.replace("_", "-")
        folder = Path(self.pipeline_directory)
        folder.mkdir(parents=True, exist_ok=True)
        package = folder / f"{name}.yaml"
        Compiler().compile(
            pipeline_func=self._pipeline(snapshot, pods, step_environments, name),
            package_path=str(package),
            pipeline_name=name,
        )
        return self._upload_and_run_pipeline(snapshot, str(package), name)

    def _pipeline(
        self,
        snapshot: PipelineSnapshotResponse,
        pods: dict[str, StepPod],
        environments: dict[str, dict[str, str]],
        run_name: str,
    ) -> GraphComponent:
        """Describe a run: a task for each step, which waits for those it needs."""

        def run() -> None:
            tasks: dict[str, dsl.PipelineTask] = {}
            for name in snapshot.step_configurations:
                task = self._component(snapshot, name)().set_display_name(name)
                task.set_caching_options(enable_caching=False)
                task.set_env_variable(RUN_VARIABLE, dsl.PIPELINE_JOB_NAME_PLACEHOLDER)
                for variable, value in sorted(environments[name].items()):
                    if not _CREDENTIALS.match(variable):
                        task.set_env_variable(variable, value)
                complete_task(task, pods[name])
                tasks[name] = task
            for name, step in snapshot.step_configurations.items():
                tasks[name].after(*(tasks[other] for other in step.spec.upstream_steps))

        return dsl.pipeline(name=run_name)(run)

    def _component(self, snapshot: PipelineSnapshotResponse, name: str) -> Any:  # noqa: ANN401 - of kfp
        """Describe what a step's container runs."""
        command = StepEntrypointConfiguration.get_entrypoint_command()
        arguments = StepEntrypointConfiguration.get_entrypoint_arguments(
            step_name=name, snapshot_id=snapshot.id
        )
        image = self.get_image(snapshot=snapshot, step_name=name)
        return self._create_dynamic_component(image, command, arguments, name)

    def _upload_and_run_pipeline(
        self, snapshot: PipelineSnapshotResponse, pipeline_file_path: str, run_name: str
    ) -> SubmissionResult:
        """Check what was compiled, and start it as its account."""
        check_package(Path(pipeline_file_path))
        settings = self._settings(snapshot)
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

    def _settings(self, of: Step | PipelineSnapshotResponse) -> PipelinesSettings:
        """Read settings of a step or of a whole run."""
        settings = self.get_settings(of)
        if not isinstance(settings, PipelinesSettings):
            raise TypeError("settings must be of this flavor.")
        return settings

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
