"""What a production stack is made of: the schema of `configs/stacks`."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dptune.configfile import named_or_given_file, read_yaml, validate
from infra.workspace import configs_folder

STACKS = configs_folder() / "stacks"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_SECRET = r"^[a-zA-Z0-9][-_a-zA-Z0-9]*$"  # noqa: S105 - a pattern of names


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class KubernetesSettings(_Settings):
    """The cluster, and the accounts that exist in it already.

    Args:
        context: of the kubeconfig; None inside the cluster.
        namespace: of all pods.
        orchestrator_service_account: may start and watch jobs in the namespace; not
            asked for under Kubeflow.
        launcher_service_account: of steps that several nodes train, which may start
            their pods; asked for where a profile says so.
        step_service_account: may do nothing in the cluster; not asked for under
            Kubeflow.
        image_pull_secrets: names of Kubernetes secrets.
    """

    context: str | None = None
    namespace: str = Field(pattern=_NAME)
    orchestrator_service_account: str | None = Field(default=None, pattern=_NAME)
    step_service_account: str | None = Field(default=None, pattern=_NAME)
    launcher_service_account: str | None = Field(default=None, pattern=_NAME)
    image_pull_secrets: tuple[str, ...] = ()


class KubeflowSettings(_Settings):
    """Kubeflow Pipelines, where it starts the pods instead of ZenML.

    Args:
        host: its API, as this machine reaches it; None asks through Kubernetes' own,
            with the `kubernetes.context`.
        namespace: that it is installed in.
        several_users: whether each has a namespace; then pods run in
            `kubernetes.namespace`, else beside Kubeflow.
        service_account: of all pods of a run, Kubeflow's own among them.
        secret: a secret of the ZenML server with `username` and `password`, where
            `host` asks for a login.
    """

    host: str | None = Field(default=None, pattern=r"^https?://[^\s@]+$")
    namespace: str = Field(default="kubeflow", pattern=_NAME)
    several_users: bool = True
    service_account: str = Field(pattern=_NAME)
    secret: str | None = Field(default=None, pattern=_SECRET)


class ArtifactStoreSettings(_Settings):
    """Where artifacts go.

    Args:
        path: a bucket, with or without a prefix.
        endpoint_url: of an S3 that is not Amazon's.
        secret: a secret of the ZenML server with `access_key_id` and
            `secret_access_key`; None leaves it to the pods' identity.
    """

    path: str = Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?$")
    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^\s@]+$")
    region: str | None = None
    secret: str | None = Field(default=None, pattern=_SECRET)


class MlflowSettings(_Settings):
    """The tracking server.

    Args:
        tracking_uri: without user and password.
        secret: a secret of the ZenML server with `username` and `password`, which
            ZenML asks for; a server without accounts ignores them.
    """

    tracking_uri: str = Field(pattern=r"^https?://[^\s@]+$")
    secret: str = Field(pattern=_SECRET)


class ProductionStack(_Settings):
    """One ZenML stack on a cluster.

    Args:
        name: of the stack; its components are named after it.
        image: that every pod runs.
        container_registry: where the image comes from.
        zenml_server: as this machine reaches it.
        kubeflow: who starts the pods; None is ZenML's own orchestrator.
    """

    name: str = Field(pattern=_NAME)
    image: str = Field(min_length=1)
    container_registry: str = Field(pattern=r"^[^\s@]+$")
    kubernetes: KubernetesSettings
    artifact_store: ArtifactStoreSettings
    mlflow: MlflowSettings
    zenml_server: str = Field(pattern=r"^https?://[^\s@]+$")
    kubeflow: KubeflowSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        cluster = self.kubernetes
        accounts = (cluster.orchestrator_service_account, cluster.step_service_account)
        if self.kubeflow is None and None in accounts:
            raise ValueError(
                "kubernetes must name orchestrator_service_account and "
                "step_service_account, unless kubeflow is given"
            )
        if self.kubeflow is not None and self.kubeflow.host is None is cluster.context:
            raise ValueError("kubeflow.host or kubernetes.context must be given")
        return self

    @property
    def secrets(self) -> dict[str, tuple[str, ...]]:
        """Secrets of the ZenML server that components refer to, and their keys."""
        found: dict[str, tuple[str, ...]] = {}
        if self.artifact_store.secret is not None:
            found[self.artifact_store.secret] = ("access_key_id", "secret_access_key")
        if self.kubeflow is not None and self.kubeflow.secret is not None:
            found[self.kubeflow.secret] = ("username", "password")
        return found | {self.mlflow.secret: ("username", "password")}


def read_stack(name: str) -> ProductionStack:
    """Read a stack by its name under `configs/stacks` or by its path.

    Raises:
        ConfigError: there is no such stack, or it cannot be used.
    """
    path = named_or_given_file(STACKS, name, "stack")
    return validate(ProductionStack, read_yaml(path))
