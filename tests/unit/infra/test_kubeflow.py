"""The profile `kubeflow`: what is asked for a pod, without Kubeflow's own packages."""

import json
import os

import pytest
import yaml

from cli import schedules
from dptune.errors import ConfigError, DependencyError
from infra.kubeflow.flavor import InsidePod, PipelinesFlavor
from infra.kubeflow.settings import PipelinesConfig, PipelinesSettings, StepPod
from infra.pods import run_options
from infra.profiles import PROFILES, read_profile
from infra.stacks import checks
from infra.stacks.production import components
from infra.stacks.settings import STACKS, read_stack

NAMES = ["ingest", "train_private_finetune", "attack"]
KEY = "orchestrator.dptune_kubeflow"
SAME = ("performance", "environment", "retries")


@pytest.fixture
def options():
    return run_options(read_profile("kubeflow"), NAMES)


def step(options, name) -> StepPod:
    settings = options["steps"][name]["settings"][KEY]
    return PipelinesSettings.model_validate(settings).step


def test_profile_asks_for_what_the_one_for_kubernetes_asks_for():
    kubernetes, kubeflow = read_profile("kubernetes"), read_profile("kubeflow")
    for field in SAME:
        assert getattr(kubernetes, field) == getattr(kubeflow, field), field
    added = kubeflow.secrets.keys() - kubernetes.secrets.keys()
    assert added == {"ZENML_STORE_API_KEY"}
    assert kubernetes.secrets.items() <= kubeflow.secrets.items()
    plain = [v.model_copy(update={"read_only": False}) for v in kubernetes.volumes]
    assert tuple(plain) == kubeflow.volumes
    for kind in ("steps", "accelerated"):
        one, other = getattr(kubernetes.pods, kind), getattr(kubeflow.pods, kind)
        assert one.model_copy(update={"priority_class": None}) == other


def test_settings_survive_json_and_give_accelerators_to_heavy_steps_only(options):
    options = json.loads(json.dumps(options))
    for name in NAMES:
        assert hasattr(step(options, name).pod, "gpus") is (name != "ingest"), name
    assert options["settings"][KEY]["timeout"] == 4320 * 60
    assert options["settings"][KEY]["user_namespace"] == "dptune-kubeflow"
    assert options["settings"]["docker"]["skip_build"]


def test_every_secret_is_a_reference_and_the_key_of_pods_is_among_them(options):
    pod = step(options, "ingest")
    assert pod.secrets["ZENML_STORE_API_KEY"].name == "dptune-zenml-pods"
    assert pod.secrets["DPTUNE_SIGNING_KEY"].optional
    assert not pod.environment.keys() & pod.secrets.keys()
    assert pod.user == 10001


def changed(tmp_path, name="kubeflow", **changes):
    values = yaml.safe_load((PROFILES / f"{name}.yaml").read_text()) | changes
    (tmp_path / "mine.yaml").write_text(json.dumps(values))
    return read_profile(str(tmp_path / "mine.yaml"))


def test_what_kubeflow_cannot_be_told_is_refused_all_at_once(tmp_path):
    spoiled = changed(tmp_path, name="kubernetes", stack="kubeflow")
    with pytest.raises(ConfigError) as caught:
        run_options(spoiled, NAMES)
    assert [problem.path for problem in caught.value.problems] == [
        "volumes.data.read_only",
        "volumes.models.read_only",
        "pods.steps.priority_class",
        "pods.accelerated.priority_class",
    ]


def stack(tmp_path, **changes):
    values = yaml.safe_load((STACKS / "kubeflow.yaml").read_text()) | changes
    (tmp_path / "stack.yaml").write_text(json.dumps(values))
    return read_stack(str(tmp_path / "stack.yaml"))


def test_stack_without_accounts_or_a_way_to_kubeflow_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="orchestrator_service_account"):
        stack(tmp_path, kubeflow=None)
    with pytest.raises(ConfigError, match="host or kubernetes"):
        stack(tmp_path, kubeflow={"service_account": "default-editor"})


def test_orchestrator_of_the_stack_is_ours_and_its_login_a_reference(tmp_path):
    kubeflow = yaml.safe_load((STACKS / "kubeflow.yaml").read_text())["kubeflow"]
    chosen = stack(tmp_path, kubeflow=kubeflow | {"secret": "dptune-kubeflow"})
    assert chosen.secrets["dptune-kubeflow"] == ("username", "password")
    (orchestrator, *_) = components(chosen)
    assert orchestrator.flavor == PipelinesFlavor().name
    made = orchestrator.configuration
    assert made["client_password"] == "{{dptune-kubeflow.password}}"
    assert "kubernetes_context" not in made
    PipelinesConfig.model_validate(made)


def test_check_names_sdk_api_and_key_of_pods(tmp_path):
    secrets = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())["secrets"]
    profile = changed(tmp_path, secrets=secrets)
    found = checks._check_kubeflow(read_stack("kubeflow"), profile)
    lines = {line.name: line for line in found}
    assert list(lines) == ["Kubeflow's SDK", "Kubeflow Pipelines", "key of pods"]
    assert lines["key of pods"].state is checks.State.MISSING
    assert lines["Kubeflow Pipelines"].state is checks.State.MISSING
    assert list(checks._check_kubeflow(read_stack("production"), profile)) == []


def test_objects_of_the_namespace_are_those_that_kubeflow_asks_for():
    needed = checks._needed_objects(read_stack("kubeflow"), read_profile("kubeflow"))
    names = {(o.kind, o.name) for o in needed}
    assert ("service account", "default-editor") in names
    assert ("secret", "dptune-zenml-pods") in names
    assert sum(kind == "service account" for kind, _ in names) == 1


def test_schedule_is_refused_before_anything_is_asked():
    with pytest.raises(ConfigError, match="--if-changed --profile kubeflow"):
        schedules._refuse_kubeflow(read_profile("kubeflow"))
    schedules._refuse_kubeflow(read_profile("kubernetes"))
    schedules._refuse_kubeflow(read_profile("local"))


def test_pods_know_their_run_without_kubeflows_packages(monkeypatch):
    monkeypatch.setattr("infra.kubeflow.flavor.find_spec", lambda _name: None)
    assert PipelinesFlavor().implementation_class is InsidePod
    inside = InsidePod.__new__(InsidePod)
    monkeypatch.delitem(os.environ, "KFP_RUN_ID", raising=False)
    with pytest.raises(RuntimeError, match="KFP_RUN_ID"):
        inside.get_orchestrator_run_id()
    monkeypatch.setenv("KFP_RUN_ID", "train-7")
    assert inside.get_orchestrator_run_id() == "train-7"
    with pytest.raises(DependencyError, match=r"install\.sh FOLDER"):
        inside.submit_pipeline()


def test_steps_start_again_in_pods_and_are_cached_where_they_run():
    config = PipelinesConfig.model_validate(
        {"service_account": "default-editor", "kubeflow_hostname": "http://k:8888"}
    )
    assert config.handles_step_retries
    assert not config.supports_client_side_caching
    assert not config.is_schedulable
    assert config.is_remote
