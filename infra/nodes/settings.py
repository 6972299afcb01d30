"""What the step of a stage that several nodes train is told of their pods."""

from typing import Any, Final

from infra.profiles import NodeSettings

NODES: Final = "nodes"
"""Under which a step's `extra` in ZenML holds a `NodeJob`."""
TRAINER: Final = "trainer.kubeflow.org/v1alpha1"
"""What Kubeflow Trainer serves."""
LAUNCHES: Final = {"dptune.dev/launches": "nodes"}
"""Label of pods that start others: they may speak to Kubernetes."""
JOB: Final = "dptune.dev/nodes-of"
"""Label of a node's pod: which others it may speak to, and the job it belongs to."""
PORT: Final = 29500
"""Where nodes meet, as torchrun and Kubeflow Trainer have it."""

_MADE = {
    "": ("services",),
    "batch": ("jobs",),
    "scheduling.x-k8s.io": ("podgroups",),
    "trainer.kubeflow.org": ("trainingruntimes", "trainjobs"),
}
NEEDED_VERBS: Final = (
    *(("", "pods", "get"), ("", "pods", "list"), ("", "pods/log", "get")),
    *(
        (group, resource, verb)
        for group, resources in _MADE.items()
        for resource in resources
        for verb in ("get", "create", "delete")
    ),
)
"""What the account of a step that starts nodes needs: group, resource, verb."""


class NodeJob(NodeSettings):
    """What a profile says of the nodes of a stage; holds no secret.

    Args:
        count: nodes, at least 2.
        gpus: of each.
        image: that they run.
        namespace: of their pods, and of the step's.
        service_account: of their pods, which get no token of it.
        deadline_seconds: after which they are ended, whatever they do.
        pod: ZenML's settings of one such pod.
    """

    count: int
    gpus: int
    image: str
    namespace: str
    service_account: str
    deadline_seconds: int
    pod: dict[str, Any]

    @property
    def device(self) -> str:
        """What ranks compute on."""
        return "cuda" if self.gpus else "cpu"
