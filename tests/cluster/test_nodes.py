"""Two nodes, each an agent of torch in a pod, train a stage as one process does."""

import socket
import threading
from dataclasses import dataclass

import pytest
import yaml
from kubernetes.config import kube_config
from safetensors.torch import load_file

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.errors import BudgetExceededError
from dptune.workflow.budget import Spender, spender
from dptune.workflow.train_stage import run_stage
from infra.nodes import launcher
from infra.nodes.launcher import NodeLauncher
from tests.support import oracles
from tests.unit.workflow import conftest as stages

from .node_cluster import NodeCluster, node_job
from .site import _kubeconfig, _secret
from .witness import read_draws

pytestmark = pytest.mark.slow
EMPTY = PrivacyLedger()
BLOCK = stages.PERFORMANCE.block_size
corpus, bundle, make_inputs = stages.corpus, stages.bundle, stages.make_inputs
url, store, hold = stages.url, stages.store, stages.hold


@dataclass(frozen=True, kw_only=True)
class Step:
    """The pod of a step, which this process is."""

    cluster: NodeCluster
    job: object
    url: str

    def train(self, inputs, *, spend=None, on_step=None, **performance):
        """Train a stage on nodes."""
        settings = {"nodes": 2, "device": "auto"} | performance
        return run_stage(
            inputs,
            EMPTY,
            folder=self.runs,
            performance=stages.PERFORMANCE.model_copy(update=settings),
            spend=spend,
            on_step=on_step,
            launch=NodeLauncher(job=self.job),
        )

    @property
    def runs(self):
        return self.cluster.folder / "claims" / "dptune-home" / "runs"

    def paid(self, inputs):
        """Steps of the blocks that were paid in the stage's journal."""
        return [entry.num_steps for entry in entries(self.runs / inputs.key())]


def entries(home):
    """What was charged in a stage's folder."""
    return LedgerJournal(home / "ledger.jsonl").read().entries


@pytest.fixture
def step(tmp_path, monkeypatch, url):
    made = NodeCluster(tmp_path / "cluster")
    made.put("secrets", "dptune", _secret("dptune-budget", {"url": url}))
    made.put_pod("step-1", phase="Running")
    made.more_variables = lambda _pod: {"GLOO_SOCKET_IFNAME": "lo"}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(made.url)))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.setattr(socket, "gethostname", lambda: "step-1")
    monkeypatch.setattr(launcher, "_POLL_SECONDS", 0.1)
    yield Step(cluster=made, job=node_job(tmp_path / "profile", gpus=0), url=url)
    made.close()


def weights(outcome):
    return load_file(outcome.bundle.path / "model.safetensors")


def test_stage_on_two_nodes_is_the_stage_on_one_process(step, tmp_path, make_inputs):
    """Noisy and seeded, so that even the noise is the same."""
    inputs, steps = make_inputs(seed=4), []
    two = step.train(inputs, on_step=steps.append)
    one = run_stage(
        inputs, EMPTY, folder=tmp_path / "one", performance=stages.PERFORMANCE
    )
    assert two.ledger == one.ledger
    assert [now.step for now in steps] == [1, 2, 3, 4, 5]
    assert step.paid(inputs) == [2, 2, 1]
    found, expected = weights(two), weights(one)
    assert oracles.distance(found, expected) <= 1e-5 * oracles.norm(expected)
    home = step.runs / inputs.key()
    assert not list(home.glob("nodes-*"))
    again = step.train(inputs)  # answered from its folder
    assert again.bundle == two.bundle
    assert sum(m["kind"] == "Job" for m in step.cluster.made) == 1


def killed(step, inputs, folder, twin="", **budget):
    """Kill the first rank in the middle of a block; its draws, and what was paid."""
    step.cluster.program = "tests.cluster.watched_rank"
    step.cluster.more_variables = lambda _pod: {
        "GLOO_SOCKET_IFNAME": "lo",
        "WITNESS": str(folder),
        "TWIN": twin,
    }
    outcome = step.train(inputs, max_restarts=1, **budget)
    assert (folder / "killed").exists()
    draws = read_draws(folder)
    assert len(draws.counts) == 2
    return outcome, draws, sum(step.paid(inputs))


def test_killed_rank_is_paid_for_again_and_no_noise_is_drawn_twice(
    step, tmp_path, make_inputs, hold, store
):
    inputs = make_inputs(epochs=2.5)
    outcome, draws, paid = killed(
        step, inputs, tmp_path / "seen", spend=spender(step.url, hold(inputs))
    )
    planned = inputs.plan.num_steps
    assert sum(draws.counts) == planned + 1  # the block that was cut off in its middle
    assert sum(draws.counts) <= paid <= planned + BLOCK
    assert stages.spent_steps(store) == paid
    assert not draws.reused
    assert sum(entry.num_steps for entry in outcome.ledger.entries) == paid


def test_restarted_job_that_draws_noise_unpaid_is_caught(step, tmp_path, make_inputs):
    inputs = make_inputs(epochs=2.5)
    _, draws, paid = killed(step, inputs, tmp_path / "seen", twin="unpaid")
    assert paid < sum(draws.counts)


def test_restarted_job_that_draws_the_same_noise_is_caught(step, tmp_path, make_inputs):
    inputs = make_inputs(epochs=2.5, seed=4)
    _, draws, _ = killed(step, inputs, tmp_path / "seen", twin="replay")
    assert draws.reused


def test_refused_block_of_a_node_is_the_step_s_own_error(
    step, tmp_path, make_inputs, hold, store, monkeypatch
):
    """On ranks that share weights: the first one is refused, the other waits for it.

    Such as where an equal run in another folder draws what was held.
    """
    monkeypatch.setattr(Spender, "ensure", lambda *_, **__: None)
    inputs = make_inputs(trains="lora", lora={"rank": 2, "alpha": 4})
    spend = spender(step.url, hold(inputs, steps=7))
    run_stage(inputs, EMPTY, folder=tmp_path, performance=stages.PERFORMANCE)
    for block in entries(tmp_path / inputs.key())[:2]:
        spend(block)  # only one block of two steps, and one of one, is left
    with pytest.raises(BudgetExceededError, match="people"):
        step.train(inputs, spend=spend, max_restarts=3, sharding="fsdp")
    assert step.paid(inputs) == [2]
    assert stages.spent_steps(store) == 6
    assert sum(m["kind"] == "Job" for m in step.cluster.made) == 1


def test_preempted_node_goes_on_from_the_checkpoint(step, tmp_path, make_inputs):
    inputs, steps = make_inputs(epochs=5.0), []
    preempted = threading.Event()

    def preempt():
        (pod,) = [p for p in step.cluster.nodes() if "-1-" in p["metadata"]["name"]]
        step.cluster.disrupt(pod["metadata"]["name"], grace=1.0)

    def on_step(now):
        steps.append(now.step)
        if now.step >= 4 and not preempted.is_set():
            preempted.set()
            threading.Thread(target=preempt, daemon=True).start()

    outcome = step.train(inputs, on_step=on_step)
    assert sum(m["kind"] == "Job" for m in step.cluster.made) == 2
    planned = inputs.plan.num_steps
    assert steps[-1] == planned
    assert steps.index(max(steps[: steps.index(4) + 1])) >= 3
    paid = sum(step.paid(inputs))
    assert planned <= paid <= planned + BLOCK
    assert sum(entry.num_steps for entry in outcome.ledger.entries) == paid
