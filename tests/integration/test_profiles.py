"""A profile turns into pod settings, and can neither claim nor leak anything."""

import json
from pathlib import Path

import pytest
import yaml
from zenml.config import DockerSettings
from zenml.config.step_configurations import StepConfigurationUpdate
from zenml.enums import ExecutionMode
from zenml.integrations.kubernetes.flavors import KubernetesOrchestratorSettings
from zenml.integrations.kubernetes.serialization_utils import (
    deserialize_kubernetes_model,
)

from cli.runs import run_training
from dptune.configfile import load_train_config
from dptune.errors import ConfigError
from infra.nodes.settings import NodeJob
from infra.pods import run_options
from infra.profiles import PROFILES, read_profile
from infra.stacks.settings import STACKS, read_stack
from infra.workspace import REPOSITORY
from tests.cluster.node_cluster import node_profile

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - in a pod
KUBERNETES = "orchestrator.kubernetes"


@pytest.fixture(scope="module")
def names(project) -> list[str]:  # ZenML keeps to the test's own folder
    from pipelines.train import step_names  # noqa: PLC0415 - needs a stack

    config = load_train_config(
        REPOSITORY / "configs/train/quickstart.yaml", configs=REPOSITORY / "configs"
    )
    return step_names(config)


@pytest.fixture(scope="module")
def options(names) -> dict:
    return run_options(read_profile("kubernetes"), names)


def pods(options) -> dict[str, dict]:
    """Pod settings of every kind of pod, by a name for it."""
    common = options["settings"][KUBERNETES]
    steps = {
        name: step["settings"][KUBERNETES]["pod_settings"]
        for name, step in options["steps"].items()
    }
    orchestrator = common["orchestrator_pod_settings"]
    return {"*": common["pod_settings"], "orchestrator": orchestrator, **steps}


def test_every_profile_and_stack_can_be_read():
    profiles = sorted(path.stem for path in PROFILES.glob("*.yaml"))
    assert profiles == ["kubeflow", "kubernetes", "local"]
    assert [read_profile(name).name for name in profiles] == profiles
    stacks = sorted(path.stem for path in STACKS.glob("*.yaml"))
    assert stacks == ["kubeflow", "production"]
    assert read_stack("production").image.count("@sha256:") == 1


def test_local_run_ends_with_its_first_failed_step_and_changes_nothing_else(names):
    options = run_options(read_profile("local"), names)
    assert options == {"execution_mode": ExecutionMode.FAIL_FAST}


@pytest.mark.usefixtures("names")
def test_pipelines_that_take_no_profile_end_with_their_first_failed_step():
    from pipelines import audit, compare  # noqa: PLC0415 - needs a stack

    for pipeline in (
        audit.audit_run_pipeline,
        audit.audit_model_pipeline,
        compare.compare_pipeline,
    ):
        mode = pipeline.configuration.execution_mode
        assert mode is ExecutionMode.FAIL_FAST, pipeline.name


def test_accelerators_go_to_training_and_attacks_only(options, names):
    heavy = {n for n in names if n.startswith("train_")} | {"attack"}
    assert len(heavy) == 3
    assert set(options["steps"]) == set(names)
    for name, pod in pods(options).items():
        limits = pod["resources"]["limits"]
        assert ("nvidia.com/gpu" in limits) == (name in heavy), name
        assert ("dptune.dev/pool" in pod["node_selectors"]) == (name in heavy), name


def test_shared_memory_is_mounted_where_there_are_accelerators(options):
    for name, pod in pods(options).items():
        mounts = [m["mountPath"] for m in pod["volume_mounts"]]
        heavy = name == "attack" or name.startswith("train_")
        assert (SHARED_MEMORY in mounts) == heavy
        assert sorted(m["name"] for m in pod["volume_mounts"]) == sorted(
            v["name"] for v in pod["volumes"]
        )


def test_every_pod_is_restricted_limited_and_holds_no_secret(options):
    for pod in pods(options).values():
        assert pod["resources"]["limits"] == pod["resources"]["requests"]
        context = pod["container_security_context"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert pod["additional_pod_spec_args"]["security_context"]["runAsNonRoot"]
        for variable in pod["env"]:
            secret = any(w in variable["name"] for w in ("KEY", "TOKEN", "BUDGET"))
            assert ("valueFrom" in variable) >= secret, variable["name"]


def test_orchestrator_pod_sees_neither_data_nor_secrets(options):
    pod = pods(options)["orchestrator"]
    assert not any("persistentVolumeClaim" in v for v in pod["volumes"])
    assert not any("valueFrom" in v for v in pod["env"])


def test_preemption_is_nobodys_fault_and_failures_are_retried(options):
    rules = options["settings"][KUBERNETES]["pod_failure_policy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Count"]
    assert options["retry"]["max_retries"] == 3


def test_settings_are_those_of_the_unmodified_orchestrator(options):
    DockerSettings.model_validate(options["settings"]["docker"])
    known = KubernetesOrchestratorSettings.model_fields
    assert set(options["settings"][KUBERNETES]) <= set(known)
    KubernetesOrchestratorSettings.model_validate(options["settings"][KUBERNETES])
    for pod in pods(options).values():
        for volume in pod["volumes"]:
            deserialize_kubernetes_model(volume, "V1Volume")
        for variable in pod["env"]:
            deserialize_kubernetes_model(variable, "V1EnvVar")


def test_every_step_has_its_own_deadline_and_the_run_a_longer_one(options):
    whole = options["settings"][KUBERNETES]["active_deadline_seconds"]
    steps = {
        name: step["settings"][KUBERNETES]["active_deadline_seconds"]
        for name, step in options["steps"].items()
    }
    assert max(steps.values()) < whole
    assert steps["attack"] > steps["ingest"]


def test_code_of_the_image_runs_and_no_archive_of_the_folder(options):
    docker = options["settings"]["docker"]
    assert docker["skip_build"]
    assert not docker["allow_download_from_artifact_store"]


def write(tmp_path, **changes):
    values = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({**values, **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": {"DPTUNE_BUDGET_KEY": "00ff"}}, "by reference"),
        ({"environment": {"HF_TOKEN": "x"}}, "by reference"),
        ({"environment": {"DPTUNE_ALERT_URL": "x"}}, "by reference"),
        ({"pods": None}, "together"),
        ({"retries": 100}, "retries"),
        ({"volumes": [{"name": "a", "path": "/a"}]}, "claim and size"),
        ({"gpu": 1}, "gpu"),
        ({"environment": {"HTTPS_PROXY": "http://me:pw@proxy:3128"}}, "by reference"),
        ({"environment": {"DPTUNE_SIGNING_KEY": "x"}}, "not both"),
        ({"environment": {"A B": "x"}}, r"environment\.A B"),
        ({"performance": {"nodez": 2}}, "Did you mean 'nodes'"),
        ({"name": "a..b"}, "name: must"),
    ],
)
def test_broken_profile_is_refused(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        read_profile(write(tmp_path, **changes))


def changed(tmp_path, *keys, value):
    """Write the profile with one value of it in another way."""
    values = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
    inner = values
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return write(tmp_path, **values)


HEAVY = ("pods", "accelerated")


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("volumes", 3, "name"), "my.scratch", "volumes.3.name"),
        (("volumes", 3, "name"), "home", "got home"),
        (("volumes", 3, "name"), "dshm", "got dshm"),
        (("volumes", 3, "path"), "/data/", "got /data"),
        (("volumes", 3, "path"), SHARED_MEMORY, f"got {SHARED_MEMORY}"),
        (("volumes", 3, "path"), "/scratch/../etc", "without"),
        (("pods", "steps", "cpu"), "0", "pods.steps.cpu"),
        (("pods", "steps", "cpu"), "8Gi", "pods.steps.cpu"),
        (("pods", "steps", "memory"), "8", "pods.steps.memory"),
        (("pods", "steps", "memory"), "8m", "pods.steps.memory"),
        ((*HEAVY, "tolerations"), [{"operater": "Exists"}], "Did you mean 'operator'"),
        ((*HEAVY, "tolerations"), [{"effect": "noschedule"}], "NoSchedule"),
        ((*HEAVY, "node_selectors"), {"pool": "a b"}, "node_selectors"),
        ((*HEAVY, "gpu_resource"), "gpu", "gpu_resource"),
        ((*HEAVY, "nodes"), {"queue": "a" * 64}, "queue"),
    ],
)
def test_pod_that_kubernetes_would_refuse_is_refused_here(tmp_path, keys, value, words):
    with pytest.raises(ConfigError, match=words):
        read_profile(changed(tmp_path, *keys, value=value))


def test_deadlines_that_contradict_each_other_are_refused_together(tmp_path):
    """The run would end before the step that it waits for may."""
    file = Path(changed(tmp_path, "pods", "orchestrator", "timeout_minutes", value=359))
    with pytest.raises(ConfigError) as told:
        read_profile(str(file))
    for kind, minutes in (("steps", 360), ("accelerated", 2880)):
        words = f"pods.{kind}.timeout_minutes must be at most 359"
        assert words in str(told.value)
        assert f"got {minutes}" in str(told.value)
    for nodes in (1, 2):
        values = yaml.safe_load((PROFILES / "kubernetes.yaml").read_text())
        values["performance"]["nodes"] = nodes
        values["pods"]["accelerated"] |= {"timeout_minutes": 60}
        file.write_text(yaml.safe_dump(values))
        if nodes == 1:
            assert read_profile(str(file)).nodes == 1  # nothing waits
            continue
        with pytest.raises(ConfigError, match="start_within_minutes must be below"):
            read_profile(str(file))


def test_value_in_place_of_a_reference_is_refused_and_not_shown(tmp_path):
    """A log of CI would keep it."""
    for given in ("hunter2", {"name": "a", "key": "postgresql://me:hunter2@db/x"}):
        with pytest.raises(ConfigError, match=r"secrets\.DPTUNE_BUDGET_KEY") as caught:
            read_profile(write(tmp_path, secrets={"DPTUNE_BUDGET_KEY": given}))
        assert "hunter2" not in str(caught.value)
    stack = yaml.safe_load((STACKS / "production.yaml").read_text())
    stack["mlflow"]["tracking_uri"] = "http://me:hunter2@mlflow:5000"
    (tmp_path / "stack.yaml").write_text(yaml.safe_dump(stack))
    with pytest.raises(ConfigError, match=r"mlflow\.tracking_uri") as caught:
        read_stack(str(tmp_path / "stack.yaml"))
    assert "hunter2" not in str(caught.value)


def test_steps_that_name_no_training_do_not_leave_accelerators_idle(tmp_path):
    profile = read_profile(changed(tmp_path, *HEAVY, "steps", value=["trian_*"]))
    with pytest.raises(ConfigError, match="of train_a, got trian_"):
        run_options(profile, ["ingest", "train_a"])
    run_options(profile, ["ingest"])


def test_more_processes_than_accelerators_are_refused_before_a_pod_starts(tmp_path):
    config = load_train_config(
        REPOSITORY / "configs/train/quickstart.yaml", configs=REPOSITORY / "configs"
    )
    profile = read_profile(write(tmp_path, performance={"num_processes": 4}))
    with pytest.raises(ConfigError, match=r"at most 1, .*gpus of kubernetes, got 4"):
        profile.applied_to(config)
    profile = read_profile(write(tmp_path, performance={"nodes": "2"}))
    assert profile.nodes == profile.applied_to(config).performance.nodes == 2


def test_run_is_checked_with_the_accelerators_of_its_pods(tmp_path, monkeypatch):
    seen = []

    def check(_config, *, accelerators, **_):
        seen.append(accelerators)
        raise ConfigError("enough")

    monkeypatch.setattr("dptune.workflow.preflight.check_run", check)
    config = load_train_config(
        REPOSITORY / "configs/train/quickstart.yaml", configs=REPOSITORY / "configs"
    )
    eight = changed(tmp_path, *HEAVY, "gpus", value=8)
    for profile in (eight, "local"):
        with pytest.raises(ConfigError, match="enough"):
            run_training(config, profile=profile)
    assert seen == [8, None]


def test_unknown_profile_names_the_known_ones():
    with pytest.raises(ConfigError, match="kubeflow, kubernetes, local"):
        read_profile("moon")


def test_profile_can_only_change_performance(tmp_path):
    config = load_train_config(
        REPOSITORY / "configs/train/quickstart.yaml", configs=REPOSITORY / "configs"
    )
    applied = read_profile("kubernetes").applied_to(config)
    assert applied.performance.num_processes == "auto"
    unchanged = {"performance": config.performance}
    assert applied.model_copy(update=unchanged) == config
    with pytest.raises(ConfigError, match="target_epsilon"):
        read_profile(write(tmp_path, performance={"target_epsilon": 100.0}))


# Several nodes.


def several(folder, **changes):
    return run_options(node_profile(folder, **changes), ["ingest", "train_a", "attack"])


def test_step_that_starts_nodes_asks_for_no_accelerator_and_may_ask_kubernetes(
    tmp_path,
):
    options = several(tmp_path / "p", gpus=8)
    found = {n: s["settings"][KUBERNETES] for n, s in options["steps"].items()}
    accounts = {n: s["step_pod_service_account_name"] for n, s in found.items()}
    assert accounts == {
        "ingest": "dptune-step",
        "train_a": "dptune-launcher",
        "attack": "dptune-step",
    }
    for name, settings in found.items():
        pod, starts = settings["pod_settings"], name == "train_a"
        assert ("dptune.dev/launches" in pod["labels"]) is starts
        spec = pod["additional_pod_spec_args"]
        assert ("automount_service_account_token" not in spec) is starts
        assert ("nvidia.com/gpu" in pod["resources"]["limits"]) is (name == "attack")
    launcher = found["train_a"]["pod_settings"]
    assert launcher["resources"]["limits"] == {"cpu": "8", "memory": "64Gi"}
    assert launcher["node_selectors"] == {}
    assert found["train_a"]["active_deadline_seconds"] == 2880 * 60
    assert {"DPTUNE_BUDGET_URL", "DPTUNE_BUDGET_KEY"} <= {
        v["name"] for v in launcher["env"]
    }
    assert [n for n, s in options["steps"].items() if "extra" in s] == ["train_a"]


def test_training_steps_start_nodes_wherever_accelerated_steps_are(tmp_path):
    profile = node_profile(tmp_path / "p", gpus=0)
    heavy = profile.pods.accelerated.model_copy(update={"steps": ("attack",)})
    pods = profile.pods.model_copy(update={"accelerated": heavy})
    options = run_options(profile.model_copy(update={"pods": pods}), ["train_a"])
    assert options["steps"]["train_a"]["extra"]["nodes"]["count"] == 2


def test_zenml_takes_the_extra_of_a_step(tmp_path):
    extra = several(tmp_path / "p")["steps"]["train_a"]["extra"]
    assert StepConfigurationUpdate.model_validate({"extra": extra}).extra == extra
    assert NodeJob.model_validate(extra["nodes"]).device == "cuda"


NEEDS = {
    "volumes": ([{"name": "home", "size": "1Gi", "path": "/var/lib/dptune"}], "claim"),
    "secrets": ({}, "must have DPTUNE_BUDGET_URL"),
    "environment": ({}, "DPTUNE_HOME of environment"),
}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("field", NEEDS)
def test_profile_whose_pods_would_forget_what_they_spent_is_refused(
    tmp_path, field, nodes
):
    value, words = NEEDS[field]
    with pytest.raises(ConfigError, match=words):
        read_profile(write(tmp_path, **{field: value, "performance": {"nodes": nodes}}))


def test_budget_store_must_not_be_optional_and_all_that_lacks_is_told_at_once(tmp_path):
    url = {"name": "dptune-budget", "key": "url", "optional": True}
    changes = {"secrets": {"DPTUNE_BUDGET_URL": url}, "environment": {"HF_TOKEN": "x"}}
    with pytest.raises(ConfigError) as caught:
        read_profile(write(tmp_path, **changes))
    for words in ("not optional", "HF_TOKEN must be", "DPTUNE_HOME of environment"):
        assert words in str(caught.value)


def test_nodes_on_this_machine_or_on_kubeflow_are_refused(tmp_path):
    file = tmp_path / "here.yaml"
    file.write_text(yaml.safe_dump({"name": "here", "performance": {"nodes": 2}}))
    with pytest.raises(ConfigError, match="no stack to start pods"):
        read_profile(str(file))
    profile = read_profile(write(tmp_path, stack="kubeflow", performance={"nodes": 2}))
    with pytest.raises(ConfigError, match="Kubeflow runs a step in one pod"):
        run_options(profile, ["train_a"])


def test_stack_without_an_account_that_starts_pods_is_refused(tmp_path):
    folder = tmp_path / "p"
    profile = node_profile(folder)
    stack = yaml.safe_load((folder / "stack.yaml").read_text())
    del stack["kubernetes"]["launcher_service_account"]
    (folder / "stack.yaml").write_text(yaml.safe_dump(stack))
    with pytest.raises(ConfigError, match="launcher_service_account"):
        run_options(profile, ["train_a"])


def test_nodes_are_the_profile_s_and_their_device_too(tmp_path):
    config = load_train_config(
        REPOSITORY / "configs/train/quickstart.yaml", configs=REPOSITORY / "configs"
    )
    profile = node_profile(tmp_path / "p")
    assert profile.applied_to(config).performance.nodes == 2
    own = config.performance.model_copy(update={"nodes": 3})
    for chosen in (profile, read_profile("local")):
        with pytest.raises(ConfigError, match="must be said by the profile"):
            chosen.applied_to(config.model_copy(update={"performance": own}))
    cuda = config.performance.model_copy(update={"device": "cuda"})
    with pytest.raises(ConfigError, match=r"device must be auto.*got cuda"):
        profile.applied_to(config.model_copy(update={"performance": cuda}))
