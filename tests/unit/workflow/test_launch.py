"""A stage on two processes: the same event, one charge, and nobody left behind."""

import json
import math
import queue
import signal
import socket
import threading

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.config import PerformanceSettings, TrainConfig
from dptune.dpsgd.distributed import Ranks
from dptune.errors import BudgetExceededError, ConfigError, DptuneError, ModelError
from dptune.recipes import Recipe
from dptune.workflow import preflight, ranks
from dptune.workflow.device import Placement, place_processes
from dptune.workflow.job import TrainingJob
from dptune.workflow.ranks import Channel, cause_of_failure, read_units, write_units
from dptune.workflow.train_stage import run_stage
from infra.workspace import REPOSITORY
from tests.support import oracles

from .conftest import PERFORMANCE

EMPTY = PrivacyLedger()
LOST = {"kind": "RuntimeError", "message": "connection closed by peer"}


def on(num_processes, **changes):
    changes = {"num_processes": num_processes} | changes
    return PERFORMANCE.model_copy(update=changes)


def run(inputs, folder, performance, **options):
    return run_stage(inputs, EMPTY, folder=folder, performance=performance, **options)


def weights(outcome):
    return load_file(outcome.bundle.path / "model.safetensors")


def relative(found, expected):
    assert found.keys() == expected.keys()
    return oracles.distance(found, expected) / oracles.norm(expected)


@pytest.fixture
def started(monkeypatch):
    """Processes that were started."""
    processes = []
    honest = ranks._start

    def start(data):
        rank = honest(data)
        processes.append(rank.process)
        return rank

    monkeypatch.setattr(ranks, "_start", start)
    return processes


def test_stage_on_two_processes_is_the_stage_on_one(make_inputs, tmp_path, started):
    """Noisy and seeded, so that even the noise is the same."""
    inputs = make_inputs(seed=4)
    events = []
    two = run(
        inputs,
        tmp_path / "two",
        on(2),
        spend=lambda entry: events.append(("paid", entry.num_steps)),
        on_step=lambda now: events.append(("done", now.step)),
    )
    assert ended(started) == [True] * 2
    one = run(inputs, tmp_path / "one", PERFORMANCE)
    assert len(started) == 2
    assert two.ledger == one.ledger
    paid = [number for kind, number in events if kind == "paid"]
    done = [number for kind, number in events if kind == "done"]
    assert (paid, done) == ([2, 2, 1], [1, 2, 3, 4, 5])
    for first, start in ((1, ("paid", 2)), (3, ("paid", 2)), (5, ("paid", 1))):
        assert events.index(("done", first)) > events.index(start)
    assert relative(weights(two), weights(one)) <= 1e-5
    losses = [[p.loss for p in r.report.curve] for r in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert two.report.num_tokens == one.report.num_tokens
    assert two.report.resumed_from_step is None
    home = tmp_path / "two" / inputs.key()
    names = {path.name for path in home.iterdir()}
    alone = {path.name for path in (tmp_path / "one" / inputs.key()).iterdir()}
    assert names == alone  # nothing of the ranks is left
    again = run(inputs, tmp_path / "two", on(2))
    assert again.bundle == two.bundle
    assert again.ledger == two.ledger
    assert len(started) == 2


def test_refused_block_stops_sharded_ranks_and_one_process_goes_on(
    make_inputs, tmp_path, started
):
    refusal = BudgetExceededError("no budget left")
    blocks = []

    def spend(entry):
        blocks.append(entry.num_steps)
        if len(blocks) == 2:
            raise refusal

    inputs = make_inputs(trains="lora", lora={"rank": 2, "alpha": 4})
    with pytest.raises(BudgetExceededError) as caught:
        run(inputs, tmp_path, on(2, sharding="fsdp"), spend=spend)
    assert caught.value is refusal
    assert ended(started) == [True] * 2
    journal = LedgerJournal(tmp_path / inputs.key() / "ledger.jsonl")
    assert [entry.num_steps for entry in journal.read().entries] == [2]
    finished = run(inputs, tmp_path, PERFORMANCE)
    assert finished.report.resumed_from_step == 2
    assert [entry.num_steps for entry in finished.ledger.entries] == [2, 2, 1]


FAKE = """
import json, os, socket, sys, time
lines = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
rank = json.loads(lines.readline())["rank"]
def say(**message):
    lines.write(json.dumps(message).encode() + b"\\n")
    lines.flush()
"""
KILLED = "os.kill(os.getpid(), 9) if rank else time.sleep(600)"
LOSES_THE_OTHER = """
kind = "ModelError" if rank else "RuntimeError"
say(error={"kind": kind, "message": "of rank %d" % rank})
"""
ASKS = "say(charge=[0, 2]); lines.readline(); say(progress=FIGURES); time.sleep(600)"
FIGURES = {
    "step": 1,
    "num_steps": 5,
    "tokens": 9,
    "seconds": 1.0,
    "tokens_per_second": 9.0,
    "loss": 2.0,
}


def with_fakes(monkeypatch, behaviour):
    """Start processes that need no torch and do as they are told."""
    program = FAKE + f"FIGURES = {FIGURES!r}\n" + behaviour
    monkeypatch.setattr(ranks, "_PROGRAM", program)
    monkeypatch.setattr(ranks, "_GRACE_SECONDS", 0.2)


def ended(processes):
    return [process.returncode is not None for process in processes]


def test_killed_rank_stops_the_others_and_is_named(
    make_inputs, tmp_path, started, monkeypatch
):
    with_fakes(monkeypatch, KILLED)
    with pytest.raises(DptuneError, match=r"rank 1 ended without a word \(SIGKILL\)"):
        run(make_inputs(), tmp_path, on(3))
    assert ended(started) == [True] * 3


def test_error_of_a_rank_comes_back_as_it_was(
    make_inputs, tmp_path, started, monkeypatch
):
    with_fakes(monkeypatch, LOSES_THE_OTHER)
    with pytest.raises(ModelError, match="of rank 1"):
        run(make_inputs(), tmp_path, on(2))
    assert ended(started) == [True] * 2


def test_interrupt_leaves_no_process_behind(
    make_inputs, tmp_path, started, monkeypatch
):
    def interrupt(now):
        assert now.loss == 2.0
        raise KeyboardInterrupt

    inputs = make_inputs()
    with_fakes(monkeypatch, ASKS)
    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path, on(2), on_step=interrupt)
    assert ended(started) == [True] * 2
    journal = LedgerJournal(tmp_path / inputs.key() / "ledger.jsonl")
    assert [entry.num_steps for entry in journal.read().entries][:1] == [2]


def test_rank_ends_when_its_parent_is_gone(tmp_path):
    """What a killed parent leaves is a socket that is closed at its end."""
    with (tmp_path / "data").open("wb+") as data:
        rank = ranks._start(data)
        rank.channel.close()
        assert rank.process.wait(timeout=300) != 0


def test_rank_reports_its_error_and_ends_when_nobody_listens(monkeypatch, capsys):
    ends = queue.SimpleQueue()
    ours, theirs = socket.socketpair()
    kept = []
    monkeypatch.setattr(ranks.os, "_exit", ends.put)
    monkeypatch.setattr(
        ranks, "Channel", lambda end: kept.append(Channel(end)) or kept[0]
    )
    monkeypatch.setattr(ranks.sys, "argv", ["", str(theirs.detach()), "0"])
    channel = Channel(ours)
    channel.send({"no": "order"})
    ranks.main()
    assert channel.receive()["error"]["kind"] == "ValidationError"
    assert "Traceback" in capsys.readouterr().err
    assert ends.get(timeout=10) == 0
    channel.close()
    assert ends.get(timeout=10) == 1
    kept[0].close()


@pytest.mark.parametrize(
    ("errors", "codes", "kind", "message"),
    [
        ({0: LOST, 1: {"kind": "ModelError", "message": "no"}}, {}, ModelError, "no"),
        ({0: LOST}, {1: -signal.SIGKILL}, DptuneError, "rank 1 .*SIGKILL"),
        ({0: LOST}, {1: 3}, DptuneError, "exit code 3"),
        ({0: LOST}, {}, DptuneError, "rank 0 stopped with RuntimeError"),
    ],
)
def test_cause_of_failure_explains_the_others(errors, codes, kind, message):
    cause = cause_of_failure(errors, codes)
    assert type(cause) is kind
    with pytest.raises(kind, match=message):
        raise cause


def test_job_survives_the_handover(make_inputs, tmp_path):
    inputs = make_inputs(optimizer={"name": "sgd", "learning_rate": 0.1 + 0.2})
    job = TrainingJob(
        model=inputs.model.path,
        plan=inputs.plan,
        max_tokens=24,
        seed=None,
        checkpoint_dir=tmp_path,
        performance=on(2, sharding="fsdp"),
    )
    assert TrainingJob.model_validate(json.loads(job.model_dump_json())) == job
    assert job.alone().performance == PERFORMANCE


def test_controller_and_ranks_of_others_are_refused_before_a_charge(
    make_inputs, tmp_path, monkeypatch
):
    def spend(entry):
        raise AssertionError

    with pytest.raises(ConfigError, match="must be 1 for a controller"):
        run(make_inputs(), tmp_path, on(2), controller=object(), spend=spend)
    monkeypatch.setattr(Ranks, "current", lambda: Ranks(rank=1, size=2))
    with pytest.raises(ConfigError, match="in place of torchrun"):
        run(make_inputs(), tmp_path, PERFORMANCE, spend=spend)


ONE_PROCESS = {
    "adaclip": "gradients are transformed",
    "geoclip": "gradients are transformed",
    "rldp": "controller lives in one",
    "rldp_h": "controller lives in one",
    "rldp_l": "controller lives in one",
    "sa_adp": "units are in parts",
}
RECIPES = sorted(path.stem for path in (REPOSITORY / "configs/recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_that_trains_in_one_process_is_refused_with_two(recipe):
    """Before anything is made; every other recipe is let through."""
    several = PerformanceSettings(num_processes=2, device="cpu")
    path = REPOSITORY / "configs/recipes" / f"{recipe}.yaml"
    made = Recipe.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    config = TrainConfig.model_construct(recipe=made, performance=several)
    reason = ONE_PROCESS.get(recipe)
    if reason is None:
        preflight._check_processes(config)
        return
    with pytest.raises(ConfigError, match=f"must be 1 for stage .* whose {reason}"):
        preflight._check_processes(config)


def test_units_survive_the_handover(tmp_path):
    data = oracles.random_data(rows_per_unit=(1, 3, 2), seed=1)
    with (tmp_path / "units").open("wb+") as file:
        write_units(data, file)
        again = read_units(file.fileno())
    assert again.digest() == data.digest()
    assert again.max_sequences_per_unit == data.max_sequences_per_unit
    assert again.sequences[0].dtype == np.int64


def test_channel_carries_lines_until_either_end_hangs_up():
    first, second = map(Channel, socket.socketpair())
    first.send({"progress": {"loss": math.nan, "note": "a\nb"}})
    assert second.receive()["progress"]["note"] == "a\nb"
    heard = []
    thread = threading.Thread(target=lambda: heard.append(second.receive()))
    thread.start()
    first.close()
    thread.join(timeout=10)
    assert heard == [None]
    second.close()
    assert second.receive() is None


def performance(**values):
    return PerformanceSettings.model_validate(values)


@pytest.mark.parametrize(
    ("values", "visible", "expected"),
    [
        ({}, 0, Placement(device="cpu", num_processes=1)),
        ({"num_processes": 3}, 0, Placement(device="cpu", num_processes=3)),
        ({"num_processes": "auto"}, 0, Placement(device="cpu", num_processes=1)),
        ({"num_processes": "auto"}, 4, Placement(device="cuda", num_processes=4)),
        ({}, 4, Placement(device="cuda", num_processes=1)),
        (
            {"num_processes": "auto", "device": "cpu"},
            4,
            Placement(device="cpu", num_processes=1),
        ),
    ],
)
def test_processes_are_placed_where_there_is_room(
    monkeypatch, values, visible, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert place_processes(performance(**values)) == expected


def test_every_accelerator_has_a_process():
    many = Placement(device="cuda", num_processes=2)
    assert [many.device_of(rank) for rank in (0, 1)] == ["cuda:0", "cuda:1"]
    assert Placement(device="cpu", num_processes=2).device_of(1) == "cpu"


@pytest.mark.parametrize(
    ("values", "visible", "paths"),
    [
        ({"num_processes": 5}, 4, ["performance.num_processes"]),
        ({"sharding": "fsdp"}, 0, ["performance.sharding"]),
        ({"sharding": "fsdp", "num_processes": "auto"}, 1, ["performance.sharding"]),
        ({"sharding": "fsdp", "device": "cuda"}, 0, ["", "performance.sharding"]),
    ],
)
def test_processes_that_do_not_fit_are_refused(monkeypatch, values, visible, paths):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    with pytest.raises(ConfigError) as caught:
        place_processes(performance(**values))
    assert [problem.path for problem in caught.value.problems] == paths
