"""The whole pipeline on a cluster of processes, by ZenML's unmodified orchestrator."""

from collections import Counter

import pytest

from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.accounting.store.verify import verify
from dptune.gates.decision import GateOutcome

from .commands import measured, output
from .killed import STAGE, gather
from .story import failed_logs, pods_of, witness_of
from .witness import KILL_AT

pytestmark = pytest.mark.slow  # ZenML knows one server in a process
TINY_BLOCK = 2
GPU = "nvidia.com/gpu"
TRAINING = {"train_redacted_finetune", "train_private_finetune"}
HEAVY = TRAINING | {"attack"}


def container(pod):
    (only,) = pod["spec"]["containers"]
    return only


def test_both_runs_complete_in_a_pod_for_each_step(site, story):
    for run, again in ((story.seeded, []), (story.killed, ["train_private_finetune"])):
        assert run.status == "completed", failed_logs(site)
        names = Counter(name for name, _ in pods_of(site, run))
        assert names.keys() <= run.steps.keys()
        assert {n: names[n] for n in computed(run)} == Counter([*computed(run), *again])
        assert len(run.steps) == 18


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
    assert leaves(measured(story.killed)) != leaves(measured(story.seeded))


def books(site, run):
    plan = output(run, "calibrate", "plan")
    return gather(
        url=site.budget_url,
        data_set="scheduled",
        ledger=output(run, "train_private_finetune", "ledger"),
        witness=witness_of(site, "scheduled"),
        planned=plan.stages[1].num_steps,
        block=TINY_BLOCK,
    )


def test_killed_training_resumes_its_checkpoint_and_pays_for_one_block_more(
    site, story
):
    found = books(site, story.killed)
    assert found.kills == 1
    assert not found.faults()
    stored = KILL_AT // TINY_BLOCK * TINY_BLOCK
    assert found.draws.counts == (KILL_AT, found.planned - stored)
    assert found.store == (found.planned + TINY_BLOCK,)
    report = output(story.killed, "train_private_finetune", "stage_report")
    assert report.resumed_from_step == stored
    codes = [
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for name, pod in pods_of(site, story.killed)
        if name == "train_private_finetune"
    ]
    assert codes == [137, 0]


def test_epsilon_is_that_of_an_undisturbed_run_and_one_block(story):
    plan = output(story.killed, "calibrate", "plan")
    ledger = output(story.killed, "train_private_finetune", "ledger")

    def epsilon(entries):
        claim = PrivacyLedger(entries=tuple(entries)).certificate(
            plan.notion, delta=plan.target_delta, relation=plan.relation
        )
        return claim.epsilon

    charged = [entry for entry in ledger.entries if entry.stage == STAGE]
    planned, steps = [], 0
    for entry in charged:
        if steps < plan.stages[1].num_steps:
            planned.append(entry)
            steps += entry.num_steps
    assert steps == plan.stages[1].num_steps
    assert epsilon(planned) == pytest.approx(plan.epsilon, rel=1e-3)
    decision = output(story.killed, "gate", "decision")
    assert decision.outcome is GateOutcome.PASS
    assert epsilon(planned) < epsilon(charged) == epsilon(ledger.entries)
    card = output(story.killed, "gate", "privacy_card")
    (claim,) = (c for c in card.certificates if c.notion is plan.notion)
    assert claim.epsilon == epsilon(charged)


def test_budget_store_has_one_settled_reservation_for_each_run_and_verifies(
    site, story
):
    store = BudgetStore.open(site.budget_url)
    for name, run in (("scheduled", story.killed), ("seeded", story.seeded)):
        (held,) = history(store, data_set=name)
        assert held.status is ReservationStatus.SETTLED
        assert held.is_complete
        assert held.id == output(run, "reserve_budget", "reservation").id
    assert verify(store).success
    store.engine.dispose()


def test_accelerators_go_to_the_named_steps_only(site, story):
    for name, pod in pods_of(site, story.killed):
        limits = container(pod)["resources"]["limits"]
        assert (GPU in limits) == (name in HEAVY), name
        mounts = {mount["mountPath"] for mount in container(pod)["volumeMounts"]}
        assert ("/dev/shm" in mounts) == (name in HEAVY), name  # noqa: S108
        assert bool(pod["spec"].get("nodeSelector")) == (name in HEAVY), name


def test_budget_is_held_before_a_pod_with_an_accelerator_starts(site, story):
    for run in (story.killed, story.seeded):
        names = [name for name, _ in pods_of(site, run)]
        first = min(names.index(name) for name in HEAVY)
        assert names.index("reserve_budget") < first


def test_every_step_pod_is_restricted_and_keeps_to_its_volumes(site, story):
    for name, pod in (*pods_of(site, story.killed), *pods_of(site, story.seeded)):
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
        minutes = 2880 if name in HEAVY else 360
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
