"""The production stack's life in a real ZenML store, without a cluster."""

import pytest
from zenml.client import Client
from zenml.enums import StackComponentType as Kind

from dptune.errors import ConfigError
from infra.stacks.production import components, register, unregister
from infra.stacks.settings import read_stack


@pytest.fixture
def stack(project):
    secret = Client().create_secret("dptune-mlflow", {"username": "u", "password": "p"})
    yield read_stack("production")
    unregister(read_stack("production"))
    Client().delete_secret(secret.id)


def test_up_is_idempotent_mends_what_differs_and_down_removes_all(project, stack):
    active = Client().active_stack_model.id
    assert len(register(stack)) == 7
    assert register(stack) == []
    tracker = Client().get_stack_component(
        Kind.EXPERIMENT_TRACKER, f"{stack.name}-experiment-tracker"
    )
    assert tracker.configuration["tracking_password"] == "{{dptune-mlflow.password}}"
    store = stack.artifact_store.model_copy(update={"path": "s3://another"})
    other = stack.model_copy(update={"artifact_store": store})
    assert register(other) == [f"{stack.name}-artifact-store updated"]
    assert register(other) == []
    assert Client().active_stack_model.id == active
    assert len(unregister(stack)) == 7
    assert unregister(stack) == []


def test_up_asks_for_missing_secrets_before_it_creates_anything(project):
    stack = read_stack("production")
    with pytest.raises(ConfigError, match="zenml secret create dptune-mlflow"):
        register(stack)
    for component in components(stack):
        with pytest.raises(KeyError):
            Client().get_stack_component(component.kind, component.name)


def test_check_lists_what_is_missing_and_exits_1(project):
    code, output = project.run("stack", "check", "--profile", "kubernetes")
    assert code == 1
    for words in ("not registered", "ZENML_STORE_URL", "the example", "cluster"):
        assert words in output


def test_train_on_a_profile_that_is_not_registered_says_what_to_run(project):
    code, output = project.run(
        "train", "tests/configs/tiny.yaml", "--profile", "kubernetes"
    )
    assert code == 2
    assert "dptune stack up" in output
