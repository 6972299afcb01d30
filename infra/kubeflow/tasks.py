"""A step's pod in Kubeflow's words. Needs kfp."""

from collections.abc import Mapping

from kfp import kubernetes
from kfp.dsl import PipelineTask

from infra.kubeflow.settings import StepPod
from infra.profiles import AcceleratedPods, SecretKey


def complete_task(task: PipelineTask, step: StepPod) -> None:
    """Write all that a pod is given into a task.

    Args:
        task: of a pipeline that is being compiled; it has an image and a command.
        step: what its pod is given.
    """
    pod = step.pod
    task.set_cpu_request(pod.cpu).set_cpu_limit(pod.cpu)
    task.set_memory_request(pod.memory).set_memory_limit(pod.memory)
    for name, value in sorted(step.environment.items()):
        task.set_env_variable(name, value)
    if step.retries:
        task.set_retry(step.retries, backoff_duration="0s", backoff_factor=1.0)
    if isinstance(pod, AcceleratedPods):
        if pod.gpus:
            task.set_accelerator_type(pod.gpu_resource)
            task.set_accelerator_limit(pod.gpus)
        if pod.shared_memory:
            kubernetes.empty_dir_mount(
                task,
                volume_name="dshm",
                mount_path="/dev/shm",  # noqa: S108 - in a pod
                medium="Memory",
                size_limit=pod.shared_memory,
            )
    kubernetes.set_timeout(task, 60 * pod.timeout_minutes)
    kubernetes.set_security_context(
        task, run_as_user=step.user, run_as_group=step.user, run_as_non_root=True
    )
    for label, value in step.labels.items():
        kubernetes.add_pod_label(task, label, value)
    _place(task, step)
    _mount(task, step)
    _refer_to_secrets(task, step.secrets)


def _place(task: PipelineTask, step: StepPod) -> None:
    """Say which nodes the pod may run on, and who may pull its image."""
    for label, value in step.pod.node_selectors.items():
        kubernetes.add_node_selector(task, label, value)
    for toleration in step.pod.tolerations:
        given = toleration.model_dump(exclude_none=True)
        seconds = given.pop("tolerationSeconds", None)
        kubernetes.add_toleration(task, toleration_seconds=seconds, **given)
    if step.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(step.image_pull_secrets))


def _mount(task: PipelineTask, step: StepPod) -> None:
    """Mount claims and empty directories. Kubeflow has no read-only claims."""
    for volume in step.volumes:
        if volume.claim is not None:
            kubernetes.mount_pvc(task, volume.claim, volume.path)
        else:
            kubernetes.empty_dir_mount(
                task,
                volume_name=volume.name,
                mount_path=volume.path,
                size_limit=volume.size,
            )


def _refer_to_secrets(task: PipelineTask, secrets: Mapping[str, SecretKey]) -> None:
    """Refer to each value on its own: whether it may be absent is its own."""
    for variable, secret in secrets.items():
        kubernetes.use_secret_as_env(
            task,
            secret_name=secret.name,
            secret_key_to_env={secret.key: variable},
            optional=secret.optional,
        )
