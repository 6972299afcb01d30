"""Register the production stack in a ZenML server: idempotent, from one YAML file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dptune.errors import ConfigError, Problem
from infra.stacks.settings import ProductionStack

if TYPE_CHECKING:
    from zenml.client import Client
    from zenml.enums import StackComponentType


@dataclass(frozen=True, kw_only=True)
class Component:
    """One part of the stack as it ought to be registered."""

    kind: "StackComponentType"
    name: str
    flavor: str
    configuration: dict[str, Any]


def components(stack: ProductionStack) -> Iterator[Component]:
    """List the parts of a stack. Secrets stay references: `{{name.key}}`."""
    from zenml.enums import StackComponentType as Kind  # noqa: PLC0415 - heavy

    def part(kind: Kind, flavor: str, **configuration: object) -> Component:
        given = {k: v for k, v in configuration.items() if v is not None}
        name = f"{stack.name}-{kind.value.replace('_', '-')}"
        return Component(kind=kind, name=name, flavor=flavor, configuration=given)

    store = stack.artifact_store
    flavor, configuration = _orchestrator(stack)
    yield part(Kind.ORCHESTRATOR, flavor, **configuration)
    client = {"endpoint_url": store.endpoint_url, "region_name": store.region}
    yield part(
        Kind.ARTIFACT_STORE,
        "s3",
        path=store.path,
        key=_reference(store.secret, "access_key_id"),
        secret=_reference(store.secret, "secret_access_key"),
        client_kwargs={k: v for k, v in client.items() if v} or None,
    )
    yield part(Kind.CONTAINER_REGISTRY, "default", uri=stack.container_registry)
    yield part(Kind.IMAGE_BUILDER, "local")  # asked for, never used: images are given
    yield part(
        Kind.EXPERIMENT_TRACKER,
        "mlflow",
        tracking_uri=stack.mlflow.tracking_uri,
        tracking_username=_reference(stack.mlflow.secret, "username"),
        tracking_password=_reference(stack.mlflow.secret, "password"),
    )
    yield part(Kind.MODEL_REGISTRY, "mlflow")


def _orchestrator(stack: ProductionStack) -> tuple[str, dict[str, Any]]:
    """Say which orchestrator starts the pods: its flavor, and its configuration."""
    cluster, kubeflow = stack.kubernetes, stack.kubeflow
    if kubeflow is None:
        return "kubernetes", {
            "kubernetes_context": cluster.context,
            "kubernetes_namespace": cluster.namespace,
            "incluster": cluster.context is None,
            "service_account_name": cluster.orchestrator_service_account,
            "step_pod_service_account_name": cluster.step_service_account,
            "pass_zenml_token_as_secret": True,
        }
    return "dptune_kubeflow", {
        "kubeflow_hostname": kubeflow.host,
        "kubernetes_context": cluster.context if kubeflow.host is None else None,
        "kubeflow_namespace": kubeflow.namespace,
        "service_account": kubeflow.service_account,
        "client_username": _reference(kubeflow.secret, "username"),
        "client_password": _reference(kubeflow.secret, "password"),
    }


def register(stack: ProductionStack) -> list[str]:
    """Create what is missing and mend what differs; says what changed.

    Raises:
        ConfigError: a secret that it names is not in the server, or a part of that
            name exists and is of another flavor.
    """
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`

    client, changed = Client(), []
    if missing := missing_secrets(stack):
        raise ConfigError(missing)
    changed += _ensure_flavor(client) if stack.kubeflow is not None else []
    wanted = {}
    for component in components(stack):
        identifier, change = _ensure(client, component)
        wanted[component.kind] = identifier
        changed += [change] if change else []
    try:
        found = client.get_stack(stack.name, allow_name_prefix_match=False)
    except KeyError:
        client.create_stack(stack.name, wanted)
        return [*changed, f"stack {stack.name} created"]
    have = {kind: parts[0].id for kind, parts in found.components.items()}
    if have != wanted:
        client.update_stack(found.id, component_updates=wanted)
        changed.append(f"stack {stack.name} updated")
    return changed


def missing_secrets(stack: ProductionStack) -> list[Problem]:
    """Name secrets that the stack refers to and the server does not have.

    Their values are not read.
    """
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`

    return [
        Problem(
            path=f"secret {name}",
            message="must be in the ZenML server, but is not.",
            next_step=f"Run `zenml secret create {name} "
            f"{' '.join(f'--{key}=...' for key in keys)}`.",
        )
        for name, keys in stack.secrets.items()
        if not any(found.name == name for found in Client().list_secrets(name=name))
    ]


def unregister(stack: ProductionStack) -> list[str]:
    """Remove the stack and its parts from the server; data and runs stay."""
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`

    client, changed = Client(), []
    try:
        found = client.get_stack(stack.name, allow_name_prefix_match=False)
    except KeyError:
        pass
    else:
        if client.active_stack_model.id == found.id:
            client.activate_stack("default")
        client.delete_stack(found.id)
        changed.append(f"stack {stack.name} removed")
    for component in components(stack):
        try:
            known = client.get_stack_component(
                component.kind, component.name, allow_name_prefix_match=False
            )
        except KeyError:
            continue
        client.delete_stack_component(known.id, component.kind)
        changed.append(f"{component.name} removed")
    return changed


def activate(stack: ProductionStack) -> None:
    """Make the stack active in this process's configuration.

    Raises:
        ConfigError: it is not registered.
    """
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`

    client = Client()
    try:
        found = client.get_stack(stack.name, allow_name_prefix_match=False)
    except KeyError:
        raise ConfigError(
            f"stack {stack.name} must be registered in the ZenML server, but is not. "
            "Run `dptune stack up`."
        ) from None
    if client.active_stack_model.id != found.id:
        client.activate_stack(found.id)


def _reference(secret: str | None, key: str) -> str | None:
    """Refer to a key of a secret in the ZenML server."""
    return None if secret is None else f"{{{{{secret}.{key}}}}}"


def _ensure_flavor(client: "Client") -> list[str]:
    """Tell the server of our flavor; its code is in the image and on this machine."""
    from zenml.enums import StackComponentType as Kind  # noqa: PLC0415 - heavy

    from infra.kubeflow.flavor import NAME, SOURCE  # noqa: PLC0415 - heavy

    try:
        client.get_flavor_by_name_and_type(NAME, Kind.ORCHESTRATOR)
    except KeyError:
        client.create_flavor(source=SOURCE, component_type=Kind.ORCHESTRATOR)
        return [f"flavor {NAME} created"]
    return []


def _ensure(client: "Client", component: Component) -> tuple[UUID, str]:
    """Create or update one part; the change is empty where nothing was to do."""
    try:
        found = client.get_stack_component(
            component.kind, component.name, allow_name_prefix_match=False
        )
    except KeyError:
        made = client.create_stack_component(
            name=component.name,
            flavor=component.flavor,
            component_type=component.kind,
            configuration=component.configuration,
        )
        return made.id, f"{component.name} created"
    if found.flavor_name != component.flavor:
        raise ConfigError(
            f"{component.name} must be of flavor {component.flavor}, got "
            f"{found.flavor_name}. Rename the stack, or remove that part."
        )
    have = {k: v for k, v in found.configuration.items() if v is not None}
    changes = {k: v for k, v in component.configuration.items() if have.get(k) != v}
    gone = dict.fromkeys(_OURS & set(have) - set(component.configuration))
    if not changes and not gone:
        return found.id, ""
    client.update_stack_component(
        found.id, component.kind, configuration={**changes, **gone}
    )
    return found.id, f"{component.name} updated"


_OURS = {
    *("kubernetes_context", "service_account_name", "step_pod_service_account_name"),
    *("key", "secret", "client_kwargs", "tracking_username", "tracking_password"),
    *("kubeflow_hostname", "client_username", "client_password"),
}
