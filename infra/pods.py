"""A profile as options of one same pipeline: pods for its steps, and what they get."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dptune.errors import ConfigError, Problem
from infra.nodes.settings import LAUNCHES, NODES, NodeJob
from infra.profiles import (
    BUDGET_URL,
    AcceleratedPods,
    Pods,
    PodSettings,
    Profile,
    SecretKey,
    Volume,
)
from infra.stacks.settings import ProductionStack

_USER = 10001
"""Owner of the image's files; see infra/docker."""

_KUBERNETES, _KUBEFLOW = "orchestrator.kubernetes", "orchestrator.dptune_kubeflow"
_LABELS = {"app.kubernetes.io/part-of": "dptune"}


def run_options(profile: Profile, step_names: Sequence[str]) -> dict[str, Any]:
    """Turn a profile into options of `Pipeline.with_options`.

    On this machine a run ends with what its first step raised: in ZenML's other modes
    the steps that do not need it go on, and what the run raises names the step alone.

    Args:
        profile: where the run goes.
        step_names: of the pipeline's steps, as they are called in the run.

    Raises:
        ConfigError: the profile asks Kubeflow for what it cannot be told, or leaves
            all training without the accelerators that it names.
    """
    stack, pods = profile.production_stack(), profile.pods
    if stack is None or pods is None:
        return {"execution_mode": "fail_fast"}
    settings: Callable[[Profile, ProductionStack, PodSettings], dict[str, Any]]
    if stack.kubeflow is None:
        key, settings, deadline = _KUBERNETES, _orchestrator, "active_deadline_seconds"
    else:
        _refuse_unsayable(profile, pods)
        key, settings, deadline = _KUBEFLOW, _kubeflow, "timeout"
    _refuse_idle_accelerators(profile, pods, step_names)
    accelerated, plain = (
        {"settings": {key: settings(profile, stack, pod)}}
        for pod in (pods.accelerated, pods.steps)
    )
    options = {
        n: accelerated if pods.accelerated.wants(n) else plain for n in step_names
    }
    if profile.nodes > 1:
        launching = _launching(profile, stack, pods)
        options |= {n: launching for n in step_names if n.startswith("train_")}
    whole_run = {deadline: 60 * pods.orchestrator.timeout_minutes}
    return {
        "settings": {
            "docker": _image(stack),
            key: plain["settings"][key] | whole_run,
        },
        "retry": {"max_retries": profile.retries, "delay": 0, "backoff": 0},
        "steps": options,
    }


def _refuse_idle_accelerators(
    profile: Profile, pods: Pods, step_names: Sequence[str]
) -> None:
    """Refuse a misspelt `steps`: stages would train for days on processors."""
    heavy = pods.accelerated
    training = [name for name in step_names if name.startswith("train_")]
    if profile.nodes > 1 or not heavy.gpus or not training:
        return
    if not any(map(heavy.wants, training)):
        raise ConfigError(
            "pods.accelerated.steps must name a step that trains, of "
            f"{', '.join(training)}, got {', '.join(heavy.steps)}. Say train_* for all."
        )


def _launching(profile: Profile, stack: ProductionStack, pods: Pods) -> dict[str, Any]:
    """Options of a step that starts nodes: it reads their model, on a CPU, anywhere.

    Nodes get no secret but the address of the budget's store.
    """
    heavy, cluster = pods.accelerated, stack.kubernetes
    if cluster.launcher_service_account is None:
        raise ConfigError(
            "kubernetes.launcher_service_account of the stack must be given where "
            "performance.nodes is more than 1, got none. Name an account that may "
            "start pods, such as dptune-launcher of infra/k8s."
        )
    sized = {n: getattr(heavy, n) for n in ("cpu", "memory", "timeout_minutes")}
    launcher = pods.steps.model_copy(update=sized)
    job = NodeJob(
        **heavy.nodes.model_dump(),
        count=profile.nodes,
        gpus=heavy.gpus,
        image=stack.image,
        namespace=cluster.namespace,
        service_account=cluster.step_service_account or "default",
        deadline_seconds=60 * heavy.timeout_minutes,
        pod=_pod(
            profile,
            stack,
            heavy,
            volumes=profile.volumes,
            secrets={BUDGET_URL: profile.secrets[BUDGET_URL]},
        ),
    )
    return {
        "settings": {
            _KUBERNETES: _orchestrator(profile, stack, launcher, launches=True)
        },
        "extra": {NODES: job.model_dump(mode="json")},
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
    profile: Profile,
    stack: ProductionStack,
    pod: PodSettings,
    *,
    launches: bool = False,
) -> dict[str, Any]:
    """Settings of the Kubernetes orchestrator for one kind of step."""
    cluster = stack.kubernetes
    pods = profile.pods
    account = cluster.step_service_account
    if launches:
        account = cluster.launcher_service_account
    return {
        "service_account_name": cluster.orchestrator_service_account,
        "step_pod_service_account_name": account,
        "pod_settings": _pod(
            profile,
            stack,
            pod,
            volumes=profile.volumes,
            secrets=profile.secrets,
            labels=LAUNCHES if launches else {},
            speaks=launches,
        ),
        "orchestrator_pod_settings": _pod(
            profile,
            stack,
            pods.orchestrator if pods else pod,
            volumes=[v for v in profile.volumes if v.claim is None],
            secrets={},
            speaks=True,
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
    if profile.nodes > 1:
        problems += [
            Problem(
                path="performance.nodes",
                message="must be 1: Kubeflow runs a step in one pod.",
                next_step="Use a profile of Kubernetes, which asks Kubeflow's Trainer.",
            )
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
    secrets: Mapping[str, SecretKey],
    labels: Mapping[str, str] = MappingProxyType({}),
    speaks: bool = False,
) -> dict[str, Any]:
    """One pod under the restricted Pod Security level; may it speak to Kubernetes."""
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
        "tolerations": [t.model_dump(exclude_none=True) for t in pod.tolerations],
        "image_pull_secrets": list(stack.kubernetes.image_pull_secrets),
        "labels": {**_LABELS, **labels},
        "env": [
            *({"name": n, "value": v} for n, v in sorted(profile.environment.items())),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": secret.model_dump()}}
                for name, secret in secrets.items()
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
            **({} if speaks else {"automount_service_account_token": False}),
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
