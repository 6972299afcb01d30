"""Give the registered stack the production stack's artifact store, keys as a secret.

python -m tests.servers.bucket STACK-FILE ACCESS-KEY
"""

import sys

from infra.stacks.local import STACK, isolate
from infra.stacks.production import components
from infra.stacks.settings import ProductionStack, read_stack
from infra.workspace import current_workspace


def main(stack: ProductionStack, key: str) -> None:
    """Register it as `stack up` does."""
    from zenml.client import Client  # noqa: PLC0415 - must follow `isolate`
    from zenml.enums import StackComponentType as Kind  # noqa: PLC0415

    client = Client()
    values = {"access_key_id": key, "secret_access_key": "for-tests"}
    client.create_secret(stack.artifact_store.secret, values)
    (store,) = (c for c in components(stack) if c.kind is Kind.ARTIFACT_STORE)
    made = client.create_stack_component(
        store.name, store.flavor, store.kind, store.configuration
    )
    client.update_stack(STACK, component_updates={store.kind: made.id})


if __name__ == "__main__":
    isolate(current_workspace())
    main(read_stack(sys.argv[1]), sys.argv[2])
