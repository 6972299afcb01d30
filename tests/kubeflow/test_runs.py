"""The same pipeline through Kubeflow: the same answer, and no silent end."""

import pytest

from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.accounting.store.verify import verify
from tests.cluster.commands import command, measured, output, overrides
from tests.cluster.killed import gather
from tests.cluster.story import failed_logs
from tests.cluster.test_same_pipeline import leaves

from .conftest import TINY

pytestmark = pytest.mark.slow  # ZenML knows one server in a process


def codes(kubeflow, record):
    """Exit codes of all pods of each task, in the order of their starts."""
    found = {}
    for pod in kubeflow.site.cluster.all("pods"):
        labels = pod["metadata"]["labels"]
        if labels.get("pipeline/runid") == record["run_id"]:
            (status,) = pod["status"]["containerStatuses"]
            code = status["state"]["terminated"]["exitCode"]
            found.setdefault(labels["task"], []).append(code)
    return found


def test_run_completes_in_one_pod_for_each_step(kubeflow, pair):
    assert pair.there.run.status == "completed", failed_logs(kubeflow.site)
    assert pair.there.record["state"] == "SUCCEEDED"
    assert pair.there.record["service_account"] == "default-editor"
    found = codes(kubeflow, pair.there.record)
    assert set(found) == {n.replace("_", "-") for n in pair.there.run.steps}
    assert all(ends == [0] for ends in found.values()), found


def test_same_seed_gives_the_same_decision_and_metrics_as_on_this_machine(pair):
    here, there = dict(pair.here), measured(pair.there.run)
    assert here.pop("code") == pair.there.code
    for (name, value), (other, seen) in zip(leaves(here), leaves(there), strict=True):
        if isinstance(value, float):
            value = pytest.approx(value, rel=1e-5, abs=1e-7)  # noqa: PLW2901
        assert (name, value) == (other, seen)


def test_pods_keep_to_their_volumes(kubeflow, pair):
    cluster = kubeflow.site.cluster
    for pod in cluster.all("pods"):
        assert not cluster.root(pod["metadata"]["name"]).exists()


def test_killed_training_pod_starts_again_and_resumes_what_was_paid(kubeflow, killed):
    assert killed.run.status == "completed", failed_logs(kubeflow.site)
    assert codes(kubeflow, killed.record)["train-private-finetune"] == [137, 0]
    plan = output(killed.run, "calibrate", "plan")
    evidence = gather(
        url=kubeflow.site.budget_url,
        data_set="killed",
        ledger=output(killed.run, "train_private_finetune", "ledger"),
        witness=kubeflow.site.cluster.folder / "witness",
        planned=plan.stages[1].num_steps,
        block=2,
    )
    assert evidence.kills == 1
    assert evidence.faults() == set()
    store = BudgetStore.open(kubeflow.site.budget_url)
    (held,) = history(store, data_set="killed")
    assert held.status is ReservationStatus.SETTLED
    assert verify(store).success
    store.engine.dispose()


def test_run_whose_pods_cannot_start_fails_here_and_in_zenml(kubeflow, capfd):
    from zenml.client import Client  # noqa: PLC0415 - its place is set by now

    cluster = kubeflow.site.cluster
    secret = cluster.objects.pop(("secrets", "dptune-zenml-pods"))
    try:
        words = overrides(("name=nokey", "budget.data_set=seeded"))
        code = command("train", TINY, *words, "--profile", kubeflow.profile_file)
    finally:
        cluster.objects["secrets", "dptune-zenml-pods"] = secret
    assert code == 2
    (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    assert run.status == "failed"


def test_kubeflow_that_does_not_answer_is_an_error_and_not_a_line_in_a_log(
    kubeflow, monkeypatch, capfd
):
    def refuse(_body):
        raise ValueError("the quota of the namespace is used up")

    monkeypatch.setattr(kubeflow.api, "create_run", refuse)
    words = overrides(("name=refused", "budget.data_set=seeded"))
    code = command("train", TINY, *words, "--profile", kubeflow.profile_file)
    assert code == 2
