"""A stage under two agents of torch, which meet over TCP, against one process."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from dptune.accounting.chain import LedgerJournal
from dptune.workflow.inputs import load_job
from dptune.workflow.job import TrainingJob, load_start, run_job
from dptune.workflow.shared_job import (
    PROGRESS,
    UNITS,
    SharedJob,
    read_units,
    train_share,
    write_job,
)
from infra.workspace import REPOSITORY
from tests import agent_ranks as scenarios
from tests.forks import run_forked
from tests.support.statistics import (
    FALSE_ALARM_RATE,
    variance_bounds,
    variance_escape_probability,
)

from .conftest import PERFORMANCE

STDDEV = 0.5  # noise multiplier 1, C 0.5
BATCH = 8  # the public divisor
ON_LOOPBACK = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def write(folder, inputs, *, processes, **performance):
    """Write the job of a stage, with its folder beside it."""
    home = folder.with_name(f"{folder.name}-stage")
    for made in (folder, home):
        made.mkdir(mode=0o700, parents=True)
    job = TrainingJob(
        model=inputs.model.path,
        plan=inputs.plan,
        max_tokens=24,
        seed=inputs.seed,
        checkpoint_dir=home / "checkpoint",
        performance=PERFORMANCE.model_copy(
            update={"num_processes": processes, **performance}
        ),
    )
    _, data = load_job(job, inputs)
    shared = SharedJob(
        job=job,
        corpus=inputs.corpus.report,
        recipe="r",
        device="cpu",
        reservation=None,
    )
    write_job(shared, data, folder)
    return shared


@pytest.fixture(scope="module")
def inputs(make_inputs):
    """Eighteen steps, seeded, so that one process draws the same units and noise."""
    return make_inputs(seed=4, epochs=5.0)


@pytest.fixture(scope="module")
def two(tmp_path_factory, inputs):
    """What two agents with a rank each left; all are forked from one process."""
    folder = tmp_path_factory.mktemp("agents")
    for name in ("honest", *scenarios.TWINS):
        write(folder / name, inputs, processes=2)
    line = command("tests.agent_ranks", folder, ranks=1, port=free_port())
    done = run_forked("-m", "tests.forked_agents", 2, *line, **ON_LOOPBACK)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def command(program, folder, *, ranks, port):
    """What an agent of so many ranks is told, which meets another one over TCP."""
    return (
        *f"--nnodes 2 --nproc-per-node {ranks} --rdzv-backend c10d".split(),
        *f"--rdzv-id job --rdzv-endpoint 127.0.0.1:{port}".split(),
        *("--local-addr", "127.0.0.1", "--log-dir", str(folder / "logs")),
        *("-m", program, str(folder)),
    )


def start(program, folder, *, ranks, port):
    """Start an agent."""
    line = command(program, folder, ranks=ranks, port=port)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *line],
        cwd=REPOSITORY,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        | ON_LOOPBACK,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_agents(program, folder, *, ranks):
    """Run two agents of so many ranks each; return how they end."""
    port = free_port()
    agents = [start(program, folder, ranks=count, port=port) for count in ranks]
    ends = [agent.communicate(timeout=300)[1] for agent in agents]
    return [agent.returncode for agent in agents], "\n".join(ends)[-4000:]


@pytest.fixture(scope="module")
def one(tmp_path_factory, inputs):
    """What one process is given in each step."""
    folder = tmp_path_factory.mktemp("alone") / "one"
    shared = write(folder, inputs, processes=1)
    with pytest.MonkeyPatch.context() as patch:
        kept = scenarios.watch(patch)
        train_share(shared, folder, device="cpu", budget_url=None)
    return {name: torch.stack(steps) for name, steps in kept.items()}, shared


def seen(folder, name, rank=0):
    return load_file(folder / f"{name}.{rank}.safetensors")


def farthest(found, expected):
    """Greatest distance of a step's sum, over the norm of what is expected."""
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


def test_sums_of_two_agents_are_those_of_one_process(two, one):
    found, (expected, _) = seen(two, "honest"), one
    assert found["sums"].shape == expected["sums"].shape
    assert farthest(found["sums"][:1], expected["sums"][:1]) <= 1e-6
    assert farthest(found["sums"], expected["sums"]) <= 1e-5  # weights drift by then
    assert torch.equal(found["given"], seen(two, "honest", rank=1)["given"])
    twin = seen(two, "own-draws")
    assert farthest(twin["sums"][:1], expected["sums"][:1]) > 0.1


def test_noise_of_two_agents_is_that_of_one(two, one):
    """What both are given, without the sum of one process."""
    expected, _ = one

    def excess(name):
        noise = BATCH * seen(two, name)["given"] - expected["sums"]
        noise = noise[:1] if name != "honest" else noise  # its weights go elsewhere
        return float(noise.square().mean()) / STDDEV**2 - 1

    count = expected["sums"].numel()
    low, high = variance_bounds(count, stddev=1.0)
    assert 0.98 < low < high < 1.02
    escape = variance_escape_probability(count, relative_error=0.05)
    assert escape < FALSE_ALARM_RATE
    assert abs(excess("honest")) <= 0.02
    assert excess("noise-twice") > 0.5


def test_first_rank_alone_pays_and_tells(two, one):
    entries = [
        LedgerJournal(home / "ledger.jsonl").read()
        for home in (two / "honest-stage", one[1].job.journal.parent)
    ]
    assert entries[0] == entries[1]
    count = one[1].job.plan.num_steps
    assert sum(entry.num_steps for entry in entries[0].entries) == count
    lines = (two / "honest" / PROGRESS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, count + 1))
    files = {path.name for path in (two / "honest-stage").iterdir()}
    assert files == {
        "checkpoint",
        "ledger.jsonl",
        "ledger.jsonl.head",
        "ledger.jsonl.lock",
        "training.lock",
    }


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(2, 2), (2, 1)])
def test_agents_of_two_ranks_keep_a_copy_each_and_uneven_ones_are_refused(
    tmp_path, inputs, ranks
):
    folder = tmp_path / "nodes"
    shared = write(folder, inputs, processes=2, nodes=2, sharding="hsdp")
    codes, ends = run_agents("dptune.workflow.rank", folder, ranks=ranks)
    journal, steps = LedgerJournal(shared.job.journal), shared.job.plan.num_steps
    paid = sum(entry.num_steps for entry in journal.read().entries)
    if ranks == (2, 1):
        told = [file.read_text() for file in (folder / "logs").rglob("error.json")]
        assert 0 not in codes
        assert paid == 0
        assert any("hsdp with 3 ranks and ranks_per_node=1, 2" in text for text in told)
        return
    assert codes == [0, 0], ends
    assert paid == steps
    (step,) = shared.job.checkpoint_dir.glob("step-*")
    shards = {file.name[:11] for file in step.glob("*.safetensors")}
    assert shards == {"shard-00001", "shard-00002"}
    loaded, _ = load_start(shared.job)
    data = read_units(folder / UNITS)
    done = run_job(shared.job.alone(), loaded, data, device="cpu", charge=refuse)
    assert done.num_steps == done.resumed_from_step == steps


def refuse(first_step, num_steps):
    raise AssertionError("nothing is left to be paid")
