"""The whole pipeline on a cluster of processes, by ZenML's unmodified orchestrator."""

import pytest

from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.accounting.store.verify import verify

from .commands import measured, output
from .story import LOST, codes_of, container, failed_logs, is_heavy, pods_of

pytestmark = pytest.mark.slow  # ZenML knows one server in a process
# Killed after its step ended; then refused as often as a step may start again.
LOST_CODES = [137, 1, 1, 1, 1]


def test_both_runs_complete_in_a_pod_for_each_step(site, story):
    for run, others in (
        (story.seeded, {LOST: LOST_CODES}),
        (story.killed.run, {"train_private_finetune": [137, 0]}),
    ):
        codes = codes_of(site, run)
        assert run.status == "completed", failed_logs(site)
        assert codes.keys() <= run.steps.keys()
        expected = {name: others.get(name, [0]) for name in computed(run)}
        assert {name: codes[name] for name in computed(run)} == expected
        assert len(run.steps) == 18


def test_pod_lost_after_its_step_ended_does_no_work_again(site, story):
    first, *again = (p for name, p in pods_of(site, story.seeded) if name == LOST)
    assert "step ended" in site.cluster.log(first["metadata"]["name"])
    for pod in again:
        said = site.cluster.log(pod["metadata"]["name"])
        assert "A successful step with this name already exists" in said
        assert "step started" not in said


def computed(run):
    """Steps of a run that no other run's answer stood for, found before or in a pod."""
    return [name for name, step in run.steps.items() if step.status != "cached"]


def test_same_seed_gives_the_same_decision_and_metrics_on_both_profiles(story):
    here, there = dict(story.local), measured(story.seeded)
    assert here.pop("code") == story.seeded_code
    assert here["decision"]["outcome"] == there["decision"]["outcome"]
    for (name, value), (other, seen) in zip(leaves(here), leaves(there), strict=True):
        if isinstance(value, float):
            value = pytest.approx(value, rel=1e-5, abs=1e-7)  # noqa: PLW2901
        assert (name, value) == (other, seen)


def leaves(value, name=""):
    """All values of nested JSON, with their places."""
    if isinstance(value, dict):
        return [x for k in sorted(value) for x in leaves(value[k], f"{name}.{k}")]
    if isinstance(value, list):
        return [x for i, v in enumerate(value) for x in leaves(v, f"{name}.{i}")]
    return [(name, value)]


def test_other_seed_is_told_apart(story):
    assert leaves(measured(story.killed.run)) != leaves(measured(story.seeded))


def test_budget_store_has_one_settled_reservation_for_each_run_and_verifies(
    site, story
):
    store = BudgetStore.open(site.budget_url)
    for name, run in (("scheduled", story.killed.run), ("seeded", story.seeded)):
        (held,) = history(store, data_set=name)
        assert held.status is ReservationStatus.SETTLED
        assert held.is_complete
        assert held.id == output(run, "reserve_budget", "reservation").id
    assert verify(store).success
    store.engine.dispose()


def test_every_step_pod_is_restricted_and_keeps_to_its_volumes(site, story):
    for name, pod in (*pods_of(site, story.killed.run), *pods_of(site, story.seeded)):
        spec = pod["spec"]
        assert spec["serviceAccountName"] == "dptune-step"
        assert spec["securityContext"]["runAsNonRoot"]
        context = container(pod)["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert not context.get("privileged")
        assert context["capabilities"]["drop"] == ["ALL"]
        assert not site.cluster.root(pod["metadata"]["name"]).exists(), name


def test_retries_and_deadlines_reach_every_step(site, story):
    jobs = {
        job["metadata"]["labels"]["step_name"].replace("-", "_"): job["spec"]
        for job in site.cluster.all("jobs")
        if job["metadata"]["labels"].get("run_id") == str(story.seeded.id)
        and "step_name" in job["metadata"]["labels"]
    }
    assert set(computed(story.seeded)) <= set(jobs) <= set(story.seeded.steps)
    for name, job in jobs.items():
        assert job["backoffLimit"] >= 3
        minutes = 2880 if is_heavy(name) else 360
        assert job["activeDeadlineSeconds"] == 60 * minutes
        assert job["podFailurePolicy"]["rules"][0]["action"] == "Ignore"


def test_orchestrator_pods_have_a_deadline_and_no_plain_token(site, story):
    jobs = [j for j in site.cluster.all("jobs") if "step_name" not in labels(j)]
    assert len(jobs) >= 2
    for job in jobs:
        pod = job["spec"]["template"]
        assert container(pod)["image"] == site.profile.production_stack().image
        assert job["spec"]["activeDeadlineSeconds"] in (4320 * 60, 600 * 60)
        assert pod["spec"]["serviceAccountName"] == "dptune-orchestrator"
        for variable in container(pod)["env"]:
            name = variable["name"]
            secret = any(w in name for w in ("TOKEN", "PASSWORD", "API_KEY"))
            assert not (secret and variable.get("value")), name


def labels(thing):
    return thing["metadata"].get("labels") or {}


def test_no_archive_of_the_folder_travels(story):
    assert story.seeded.snapshot.code_path is None
