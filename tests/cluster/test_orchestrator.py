"""ZenML's unmodified Kubernetes orchestrator, submitting our pipeline to an API.

The API is one in memory (kubernetes_api.py) that keeps what it is sent. Pods of steps
are built by ZenML's own functions from what the server stored of the run.
"""

import sys

import pytest
from kubernetes.client import ApiClient
from zenml.client import Client
from zenml.integrations.kubernetes.manifest_utils import build_pod_manifest

from cli.main import main
from cli.runs import read_config
from infra.profiles import run_options
from infra.workspace import REPOSITORY

pytestmark = pytest.mark.slow  # ZenML knows one server in a process
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
GPU = "nvidia.com/gpu"
HEAVY = {"train_redacted_finetune", "train_private_finetune", "attack"}


@pytest.fixture(scope="module")
def submitted(site):
    """A run that was handed to the cluster; nobody waits for it."""
    from pipelines.train import step_names, train_pipeline  # noqa: PLC0415 - needs a stack

    config = site.profile.applied_to(read_config(TINY))
    options = run_options(site.profile, step_names(config))
    settings = options["settings"]["orchestrator.kubernetes"]
    settings["synchronous"] = False
    return train_pipeline.with_options(**options)(
        config=config.model_dump(mode="json"), fingerprint="f", retrain=False
    )


@pytest.fixture(scope="module")
def pods(submitted):
    """The pod of every step, as the orchestrator pod would create it."""
    orchestrator = Client().active_stack.orchestrator
    made = {}
    for name, step in submitted.snapshot.step_configurations.items():
        settings = orchestrator.get_settings(step)
        pod = build_pod_manifest(
            pod_name=None,
            image_name=orchestrator.get_image(submitted.snapshot, step_name=name),
            command=["python"],
            args=[],
            privileged=settings.privileged,
            pod_settings=settings.pod_settings,
            service_account_name=settings.step_pod_service_account_name,
        )
        made[name] = ApiClient().sanitize_for_serialization(pod)["spec"]
    return made


def container(pod):
    (only,) = pod["containers"]
    return only


def test_orchestrator_job_runs_the_image_with_a_deadline_and_no_plain_token(
    site, submitted
):
    (job,) = site.cluster.all("jobs")
    pod = job["spec"]["template"]["spec"]
    assert container(pod)["image"] == site.profile.production_stack().image
    assert job["spec"]["activeDeadlineSeconds"] == 4320 * 60
    assert pod["serviceAccountName"] == "dptune-orchestrator"
    for variable in container(pod)["env"]:
        secret = any(w in variable["name"] for w in ("TOKEN", "PASSWORD", "API_KEY"))
        assert not (secret and variable.get("value")), variable["name"]
    (token,) = site.cluster.all("secrets")
    assert token["metadata"]["name"].startswith("zenml-token-")


def test_accelerators_go_to_the_named_steps_only(pods):
    limits = {name: container(pod)["resources"]["limits"] for name, pod in pods.items()}
    assert len(pods) == 16
    assert {name for name, limit in limits.items() if GPU in limit} == HEAVY
    for name, pod in pods.items():
        mounts = {mount["mountPath"] for mount in container(pod)["volumeMounts"]}
        assert ("/dev/shm" in mounts) == (name in HEAVY)  # noqa: S108
        assert bool(pod.get("nodeSelector")) == (name in HEAVY)


def test_every_step_pod_is_restricted(pods):
    for pod in pods.values():
        assert pod["serviceAccountName"] == "dptune-step"
        assert pod["securityContext"]["runAsNonRoot"]
        context = container(pod)["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert not context.get("privileged")
        assert context["capabilities"]["drop"] == ["ALL"]


def test_retries_and_deadlines_reach_every_step(submitted):
    orchestrator = Client().active_stack.orchestrator
    for name, step in submitted.snapshot.step_configurations.items():
        assert step.config.retry.max_retries == 3
        settings = orchestrator.get_settings(step)
        minutes = 2880 if name in HEAVY else 360
        assert settings.active_deadline_seconds == 60 * minutes
        assert settings.pod_failure_policy["rules"][0]["action"] == "Ignore"


def test_budget_is_reserved_without_an_accelerator_before_any_training(pods, submitted):
    steps = submitted.snapshot.step_configurations
    assert "reserve_budget" not in HEAVY
    for name in HEAVY - {"attack"}:
        assert "reserve_budget" in steps[name].spec.upstream_steps


def test_no_archive_of_the_folder_travels(submitted):
    assert submitted.snapshot.code_path is None


def run(*arguments):
    """Run a command of ours; the exit code."""
    argv, sys.argv = sys.argv, ["run.py", *map(str, arguments)]
    try:
        return main()
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.argv = argv


def test_a_schedules_whole_life(site, capsys):
    profile = ("--profile", site.profile_file)
    create = ("schedule", "create", "weekly", TINY, "--cron", "0 3 * * 1", *profile)
    assert run(*create, "--deadline", "600", "--start-within", "30") == 0
    (made,) = site.cluster.all("cronjobs")
    spec = made["spec"]
    assert spec["schedule"] == "0 3 * * 1"
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["startingDeadlineSeconds"] == 1800
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 36000
    assert run(*create) == 2  # the name is taken
    for command, is_suspended in (("pause", True), ("resume", False)):
        assert run("schedule", command, "weekly", *profile) == 0
        (known,) = site.cluster.all("cronjobs")
        assert known["spec"]["suspend"] is is_suspended
    capsys.readouterr()
    assert run("schedule", "list", *profile) == 0
    assert "weekly" in capsys.readouterr().out
    assert run("schedule", "delete", "weekly", *profile) == 0
    assert site.cluster.all("cronjobs") == []
    assert run("schedule", "delete", "weekly", *profile) == 2


def test_scheduled_ingest_is_never_answered_from_the_cache(site):
    profile = ("--profile", site.profile_file)
    assert run("schedule", "create", "a", TINY, "--cron", "0 3 * * 1", *profile) == 0
    schedule = Client().get_schedule("a")
    (snapshot,) = (
        Client()
        .list_snapshots(schedule_id=schedule.id, named_only=False, hydrate=True)
        .items
    )
    assert snapshot.step_configurations["ingest"].config.enable_cache is False
    assert snapshot.step_configurations["detect"].config.enable_cache is True
    assert run("schedule", "delete", "a", *profile) == 0
