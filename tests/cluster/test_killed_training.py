"""A training pod that is killed, at the tests' size and at the quickstart's own."""

import pytest

from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.accounting.store.verify import verify
from dptune.gates.decision import GateOutcome

from .commands import output
from .killed import STAGE, UNPROTECTED, gather
from .story import codes_of, container, failed_logs, is_heavy, pods_of, witness_of
from .witness import KILL_AT

pytestmark = pytest.mark.slow  # ZenML knows one server in a process
BLOCK = 2
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def books(site, killed):
    plan = output(killed.run, "calibrate", "plan")
    return gather(
        url=site.budget_url,
        data_set=killed.data_set,
        ledger=output(killed.run, "train_private_finetune", "ledger"),
        witness=witness_of(site, killed.data_set),
        planned=plan.stages[1].num_steps,
        block=BLOCK,
    )


def test_killed_training_resumes_its_checkpoint_and_pays_for_one_block_more(
    site, killed, books
):
    assert killed.run.status == "completed", failed_logs(site)
    assert codes_of(site, killed.run)["train_private_finetune"] == [137, 0]
    assert books.kills == 1
    assert not books.faults()
    stored = KILL_AT // BLOCK * BLOCK
    assert books.draws.counts == (KILL_AT, books.planned - stored)
    assert books.store == (books.planned + BLOCK,)
    report = output(killed.run, "train_private_finetune", "stage_report")
    assert report.resumed_from_step == stored


def test_epsilon_is_that_of_an_undisturbed_run_and_one_block(killed):
    plan = output(killed.run, "calibrate", "plan")
    ledger = output(killed.run, "train_private_finetune", "ledger")

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
    assert epsilon(planned) < epsilon(charged) == epsilon(ledger.entries)
    card = output(killed.run, "gate", "privacy_card")
    (claim,) = (c for c in card.certificates if c.notion is plan.notion)
    assert claim.epsilon == epsilon(charged)


def test_killed_run_passes_the_gate_and_is_promoted(killed):
    decision = output(killed.run, "gate", "decision")
    assert decision.outcome is GateOutcome.PASS, decision.failed()
    assert output(killed.run, "promote", "promoted")


def test_its_reservation_is_settled_and_the_store_verifies(site, killed):
    store = BudgetStore.open(site.budget_url)
    runs = history(store, data_set=killed.data_set)
    (held,) = (run for run in runs if run.recipe != UNPROTECTED)
    assert held.status is ReservationStatus.SETTLED
    assert held.is_complete
    assert held.id == output(killed.run, "reserve_budget", "reservation").id
    assert verify(store).success
    store.engine.dispose()


def test_accelerators_go_to_the_named_steps_only(site, killed):
    for name, pod in pods_of(site, killed.run):
        limits = container(pod)["resources"]["limits"]
        assert (GPU in limits) == is_heavy(name), name
        mounts = {mount["mountPath"] for mount in container(pod)["volumeMounts"]}
        assert ("/dev/shm" in mounts) == is_heavy(name), name  # noqa: S108
        assert bool(pod["spec"].get("nodeSelector")) == is_heavy(name), name


def test_budget_is_held_before_a_pod_with_an_accelerator_starts(site, killed):
    names = [name for name, _ in pods_of(site, killed.run)]
    first = min(names.index(name) for name in names if is_heavy(name))
    assert names.index("reserve_budget") < first


def test_unprotected_quickstart_is_refused_for_what_it_leaks(quickstart):
    decision = output(quickstart.unprotected, "gate", "decision")
    assert quickstart.unprotected.status == "completed"
    assert quickstart.unprotected_code == 1
    assert decision.outcome is GateOutcome.BLOCK
    assert "memorization" in {criterion.name for criterion in decision.failed()}
    assert not output(quickstart.unprotected, "promote", "promoted")
