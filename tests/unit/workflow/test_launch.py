"""A stage on two processes: the same event, one charge, and nobody left behind."""

import contextlib
import json
import os
import signal
import socket
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.config import PerformanceSettings, TrainConfig
from dptune.dpsgd import step as dpsgd_step
from dptune.dpsgd.distributed import Ranks
from dptune.errors import (
    BudgetExceededError,
    ConfigError,
    DptuneError,
    ModelError,
    PrivacyError,
)
from dptune.files import locked
from dptune.recipes import Recipe
from dptune.workflow import job as workflow_job
from dptune.workflow import preflight, rank, ranks, shared_job
from dptune.workflow.budget import Spender, spender
from dptune.workflow.device import Placement, place_processes
from dptune.workflow.job import TrainingJob
from dptune.workflow.ranks import cause_of_failure, train_on_ranks
from dptune.workflow.shared_job import (
    BUDGET_URL,
    PROGRESS,
    read_units,
    train_share,
    write_job,
    write_units,
)
from dptune.workflow.train_stage import run_stage
from infra.workspace import REPOSITORY
from tests.forks import be_rank, serve
from tests.support import oracles

from .conftest import PERFORMANCE, spent_steps

EMPTY = PrivacyLedger()
LOOPBACK = {"0100007F", "0" * 24 + "01000000"}


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


def paid(home):
    """Steps of each block that was paid in a stage's folder."""
    entries = LedgerJournal(home / "ledger.jsonl").read().entries
    return [entry.num_steps for entry in entries]


@pytest.fixture
def started(monkeypatch):
    """Processes that were started."""
    pids = []
    honest = ranks._Agent._start_workers

    def start(self, group):
        found = honest(self, group)
        pids.extend(found.values())
        return found

    monkeypatch.setattr(ranks._Agent, "_start_workers", start)
    return pids


@pytest.fixture
def forked(monkeypatch):
    """Fork ranks from a process that has imported what they need."""
    serve()
    honest = ranks._Agent.__init__

    def init(self, spec, logs, **options):
        spec.entrypoint, spec.args = be_rank, spec.args[-1:]
        honest(self, spec, logs, start_method="forkserver", **options)

    monkeypatch.setattr(ranks._Agent, "__init__", init)


def left(pids):
    """Processes that are still there."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            found.append(pid)
    return found


def listening(pids):
    """Addresses that processes listen at, as the kernel writes them: IPv4, IPv6."""
    inodes, found = set(), set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes.add(str(file.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].split(":")[0])
    return found


def test_socket_that_listens_on_all_interfaces_is_seen():
    with socket.create_server(("", 0)):
        assert listening([os.getpid()]) >= {"00000000"}


def test_stage_on_two_processes_is_the_stage_on_one(make_inputs, tmp_path, started):
    """Noisy and seeded, so that even the noise is the same; in a folder of odd name."""
    inputs, folder = make_inputs(seed=4), tmp_path / "z wö %20#?"
    done, addresses, at_first = [], set(), listening([os.getpid()])

    def on_step(now):
        done.append(now)
        addresses.update(listening(left([*started, os.getpid()])))

    handlers = [signal.getsignal(number) for number in ranks._SIGNALS]
    two = run(inputs, folder, on(2), on_step=on_step)
    assert len(started) == 2
    assert not left(started)
    assert [signal.getsignal(number) for number in ranks._SIGNALS] == handlers
    one = run(inputs, tmp_path / "one", PERFORMANCE)
    assert len(started) == 2
    assert two.ledger == one.ledger
    assert paid(folder / inputs.key()) == [2, 2, 1]
    assert [now.step for now in done] == [1, 2, 3, 4, 5]
    assert addresses - at_first <= LOOPBACK
    assert [now.loss for now in done] == [p.loss for p in two.report.curve]
    assert relative(weights(two), weights(one)) <= 1e-5
    losses = [[p.loss for p in r.report.curve] for r in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert two.report.num_tokens == one.report.num_tokens
    assert two.report.resumed_from_step is None
    home = folder / inputs.key()
    names = {path.name for path in home.iterdir()}
    alone = {path.name for path in (tmp_path / "one" / inputs.key()).iterdir()}
    assert names == alone  # nothing of the ranks is left
    again = run(inputs, folder, on(2))
    assert again.bundle == two.bundle
    assert again.ledger == two.ledger
    assert len(started) == 2


def test_refused_block_stops_sharded_ranks_and_one_process_goes_on(
    make_inputs, tmp_path, started, forked, hold, store, url, monkeypatch
):
    """Such as where an equal run in another folder has drawn what was held."""
    monkeypatch.setattr(Spender, "ensure", lambda *_, **__: None)
    inputs = make_inputs(trains="lora", lora={"rank": 2, "alpha": 4})
    reservation = hold(inputs, steps=7)
    spend, entry = spender(url, reservation), []
    run(inputs, tmp_path / "another", PERFORMANCE, spend=entry.append)
    for block in entry[:2]:
        spend(block)  # only one block of two steps, and one of one, is left
    assert spent_steps(store) == 4
    several = on(2, sharding="fsdp", max_restarts=3)
    with pytest.raises(BudgetExceededError, match="people"):
        run(inputs, tmp_path, several, spend=spend)
    assert len(started) == 2  # a refusal would only come again
    assert not left(started)
    home = tmp_path / inputs.key()
    assert paid(home) == [2]
    assert spent_steps(store) == 6
    finished = run(inputs, tmp_path, PERFORMANCE)
    assert finished.report.resumed_from_step == 2
    assert [e.num_steps for e in finished.ledger.entries] == [2, 2, 1]


FAKE = """
import json, os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def fail(kind, message):
    told = {"kind": kind, "message": message, "extraInfo": {"timestamp": "1"}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": told}, file)
    sys.exit(1)
def report(**figures):
    with (folder / "progress.jsonl").open("a") as file:
        file.write(json.dumps(figures) + "\\n")
"""
FIGURES = {
    "step": 1,
    "num_steps": 5,
    "tokens": 9,
    "seconds": 1.0,
    "tokens_per_second": 9.0,
    "loss": 2.0,
}
KILLED = "os.kill(os.getpid(), 9) if rank else time.sleep(600)"
LOSES_THE_OTHER = """
if rank: fail("ModelError", "of rank 1")
other = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1] / "1/error.json"
while not other.exists(): time.sleep(0.01)
fail("RuntimeError", "of rank 0")
"""
REPORTS = f"rank or report(**{FIGURES}); time.sleep(600)"
KILLED_ONCE = f"""
rank or report(**({FIGURES} | {{"step": attempt}}))
if attempt == 0: {KILLED}
"""
LOOKS_ROUND = """
modes = {str(f.relative_to(folder)): oct(f.stat().st_mode) for f in folder.rglob("*")}
held = b"".join(f.read_bytes() for f in folder.rglob("*") if f.is_file())
held += pathlib.Path("/proc/self/cmdline").read_bytes()
told = {"url": os.environ["DPTUNE_BUDGET_URL"], "in_files": b"hunt" + b"er2" in held,
        "folder": oct(folder.stat().st_mode), "files": modes}
rank or pathlib.Path(OUT).write_text(json.dumps(told))
"""


def with_fakes(monkeypatch, behaviour):
    """Start processes that need no torch and do as they are told."""
    monkeypatch.setattr(ranks, "_PROGRAM", ("-c", FAKE + behaviour))


def test_killed_rank_stops_the_others_and_is_named(
    make_inputs, tmp_path, started, monkeypatch
):
    with_fakes(monkeypatch, KILLED)
    with pytest.raises(DptuneError, match=r"rank [12] ended .* \(SIGKILL\)"):
        run(make_inputs(), tmp_path, on(3))
    assert len(started) == 3
    assert not left(started)


def test_error_of_a_rank_comes_back_as_it_was(
    make_inputs, tmp_path, started, monkeypatch
):
    with_fakes(monkeypatch, LOSES_THE_OTHER)
    with pytest.raises(ModelError, match="of rank 1"):
        run(make_inputs(), tmp_path, on(2, max_restarts=2))
    assert len(started) == 2
    assert not left(started)


def test_interrupt_leaves_no_process_behind(
    make_inputs, tmp_path, started, monkeypatch
):
    def interrupt(now):
        assert now.loss == 2.0
        raise KeyboardInterrupt

    inputs = make_inputs()
    with_fakes(monkeypatch, REPORTS)
    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path, on(2), on_step=interrupt)
    assert len(started) == 2
    assert not left(started)
    assert not list((tmp_path / inputs.key()).glob("ranks-*"))


class Stopped(BaseException):
    """What a signal raises that somebody took."""


def test_signal_to_the_stage_ends_its_ranks_by_the_stage_s_own_rules(
    make_inputs, tmp_path, started, monkeypatch
):
    def stop(number, frame):
        raise Stopped

    with_fakes(monkeypatch, REPORTS)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(Stopped):
            run(
                make_inputs(),
                tmp_path,
                on(2),
                on_step=lambda now: os.kill(os.getpid(), signal.SIGTERM),
            )
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not left(started)


def test_lost_rank_starts_all_again_as_often_as_allowed(shared, started, monkeypatch):
    with_fakes(monkeypatch, KILLED_ONCE)
    steps = []

    def start(max_restarts):
        told, data = shared(on(2, max_restarts=max_restarts))
        train_on_ranks(
            told,
            data,
            num_processes=2,
            budget_url=None,
            on_step=lambda now: steps.append(now.step),
        )

    start(1)
    assert len(started) == 4
    assert steps[-1] == 1
    with pytest.raises(DptuneError, match="SIGKILL"):
        start(0)
    assert not left(started)


def test_address_of_the_store_is_in_no_file_and_all_files_are_private(
    shared, monkeypatch, tmp_path
):
    address = "postgresql://me:hunter2@host/budget"
    monkeypatch.delenv(BUDGET_URL, raising=False)
    out = tmp_path / "out.json"
    with_fakes(monkeypatch, LOOKS_ROUND.replace("OUT", repr(str(out))))
    told, data = shared(reservation="r1")
    train_on_ranks(
        told, data, num_processes=2, budget_url=address, on_step=lambda now: None
    )
    found = json.loads(out.read_text())
    assert found["url"] == address
    assert not found["in_files"]
    assert found["folder"] == oct(stat.S_IFDIR | 0o700)
    files = {k: v for k, v in found["files"].items() if not v.startswith("0o4")}
    assert set(files.values()) == {oct(stat.S_IFREG | 0o600)}
    assert set(files) == {"job.json", "units.safetensors", PROGRESS}
    assert BUDGET_URL not in os.environ
    assert not list(told.job.journal.parent.iterdir())


def test_rank_ends_when_its_agent_is_gone(monkeypatch):
    ends = []

    def leave(code):
        ends.append(code)
        raise SystemExit

    parents = iter([7, 7, 1])
    monkeypatch.setattr(rank.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(rank.os, "_exit", leave)
    with pytest.raises(SystemExit):
        rank._end_with(7)
    assert ends == [1]


def test_error_file_holds_kind_and_message_and_no_traceback(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    def fail():
        try:
            raise ValueError("the text of a record")
        except ValueError as error:
            raise ModelError("no") from error

    with pytest.raises(ModelError):
        rank.record(fail, error_handler=rank._Errors())()
    written = (tmp_path / "error.json").read_text()
    assert "record" not in written
    failure = ProcessFailure(1, 2, 1, str(tmp_path / "error.json"))
    cause, error = cause_of_failure({1: failure})
    assert (cause, type(error), str(error)) == ("ours", ModelError, "no")


def test_first_rank_trains_in_no_folder_where_another_one_does(
    shared, monkeypatch, tmp_path, make_inputs
):
    monkeypatch.setattr(workflow_job, "_MOMENT", 0)
    told, data = shared()
    write_job(told, data, tmp_path)
    for name, value in {"RANK": "0", "TORCHELASTIC_ERROR_FILE": ""}.items():
        monkeypatch.setenv(name, value)
    refused = pytest.raises(PrivacyError, match="by one run at a time")
    with locked(told.job.journal.with_name("training.lock")), refused:
        rank.main(tmp_path)
    inputs = make_inputs()
    home = tmp_path / inputs.key()
    home.mkdir()
    refused = pytest.raises(PrivacyError, match="by one run at a time")
    with locked(home / "training.lock"), refused:
        run(inputs, tmp_path, PERFORMANCE)
    assert paid(home) == []


def paid_before_noise(shared, folder, monkeypatch, hold, store, url):
    """Steps that were paid, to the store and the journal, when noise was made."""
    told, data = shared(reservation=hold_id(hold, shared))
    write_job(told, data, folder)
    seen = []
    compute = dpsgd_step.PrivateGradients.compute

    def watch(self, *arguments, **keywords):
        seen.append(min(spent_steps(store), sum(paid(told.job.journal.parent))))
        return compute(self, *arguments, **keywords)

    monkeypatch.setattr(dpsgd_step.PrivateGradients, "compute", watch)
    train_share(told, folder, device="cpu", budget_url=url)
    lines = (folder / PROGRESS).read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [1, 2, 3, 4, 5]
    return seen


def hold_id(hold, shared):
    class Inputs:
        plan = shared()[0].job.plan

    return hold(Inputs).id


def test_first_rank_pays_store_and_journal_before_every_noise(
    shared, tmp_path, monkeypatch, hold, store, url
):
    seen = paid_before_noise(shared, tmp_path, monkeypatch, hold, store, url)
    assert seen == [2, 2, 4, 4, 5]


def test_first_rank_that_pays_a_block_late_is_caught(
    shared, tmp_path, monkeypatch, hold, store, url
):
    honest = shared_job.charge_to

    def late(*arguments, **keywords):
        charge, waiting = honest(*arguments, **keywords), []

        def twin(first_step, num_steps):
            if waiting:
                charge(*waiting.pop())
            waiting.append((first_step, num_steps))

        return twin

    monkeypatch.setattr(shared_job, "charge_to", late)
    seen = paid_before_noise(shared, tmp_path, monkeypatch, hold, store, url)
    assert not all(number > step for step, number in enumerate(seen))


def test_first_rank_without_the_address_of_its_store_draws_nothing(shared, tmp_path):
    told, data = shared(reservation="r1")
    write_job(told, data, tmp_path)
    with pytest.raises(ConfigError, match="must name the budget store"):
        train_share(told, tmp_path, device="cpu", budget_url=None)
    assert paid(told.job.journal.parent) == []


def test_ranks_that_end_well_without_their_work_are_refused(
    make_inputs, tmp_path, monkeypatch
):
    with_fakes(monkeypatch, "")
    inputs = make_inputs()
    with pytest.raises(PrivacyError, match="got one of step 0"):
        run(inputs, tmp_path, on(2))
    assert paid(tmp_path / inputs.key()) == []


def failure(rank, code, kind=None, message="", folder=None):
    file = folder / f"{rank}.json"
    if kind is not None:
        told = {"kind": kind, "message": message, "extraInfo": {"timestamp": "1"}}
        file.write_text(json.dumps({"message": told}))
    return ProcessFailure(rank, 100 + rank, code, str(file))


def test_error_file_that_torch_wrote_itself_is_no_error_of_ours(tmp_path):
    file = tmp_path / "error.json"
    shown = {"message": "OSError: full", "extraInfo": {"timestamp": "1"}}
    file.write_text(json.dumps({"message": shown}))
    cause, error = cause_of_failure({0: ProcessFailure(0, 1, 1, str(file))})
    assert cause == "failed"
    assert "OSError: full" in str(error)


LOST = (1, "RuntimeError", "connection closed by peer")


@pytest.mark.parametrize(
    ("ends", "cause", "message"),
    [
        ({0: LOST, 1: (1, "ModelError", "no")}, "ours", "no"),
        ({0: LOST, 1: (-signal.SIGKILL,)}, "lost", "rank 1 .*SIGKILL"),
        ({0: LOST, 1: (3,)}, "lost", "exit code 3"),
        ({0: (-signal.SIGTERM,), 1: LOST}, "failed", "rank 1 stopped with Run"),
        ({0: (-signal.SIGTERM,), 1: (-signal.SIGSEGV,)}, "lost", "1 .*SIGSEGV"),
        ({0: (-signal.SIGTERM,)}, "stopped", "rank 0 .*SIGTERM"),
    ],
)
def test_cause_of_failure_explains_the_others(ends, cause, message, tmp_path):
    failures = {n: failure(n, *end, folder=tmp_path) for n, end in ends.items()}
    found, error = cause_of_failure(failures)
    assert found == cause
    assert type(error) is (ModelError if cause == "ours" else DptuneError)
    with pytest.raises(DptuneError, match=message):
        raise error


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


def test_what_ranks_cannot_do_is_refused_before_a_charge(
    make_inputs, tmp_path, monkeypatch
):
    def spend(entry):
        raise AssertionError

    with pytest.raises(ConfigError, match="must be 1 for a controller"):
        run(make_inputs(), tmp_path, on(2), controller=object(), spend=spend)
    with pytest.raises(ConfigError, match="must be a Spender"):
        run(make_inputs(), tmp_path, on(2), spend=spend)
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


@pytest.mark.parametrize("recipe", ["rldp", "dp_forward"])
def test_recipe_that_trains_in_one_process_is_refused_on_several_nodes(recipe):
    several = PerformanceSettings(nodes=2)
    path = REPOSITORY / "configs/recipes" / f"{recipe}.yaml"
    made = Recipe.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    config = TrainConfig.model_construct(recipe=made, performance=several)
    with pytest.raises(ConfigError, match=r"performance\.nodes: must be 1 .* got 2"):
        preflight._check_processes(config)


def test_nodes_that_nobody_starts_are_refused_before_anything(make_inputs, tmp_path):
    with pytest.raises(ConfigError, match=r"nodes must be said by the profile.*got 2"):
        run(make_inputs(), tmp_path, on(1, nodes=2))
    assert not list(tmp_path.iterdir())


def test_units_survive_the_handover(tmp_path):
    data = oracles.random_data(rows_per_unit=(1, 3, 2), seed=1)
    write_units(data, tmp_path / "units")
    again = read_units(tmp_path / "units")
    assert again.digest() == data.digest()
    assert again.max_sequences_per_unit == data.max_sequences_per_unit
    assert again.sequences[0].dtype == np.int64


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
            {"sharding": "hsdp", "nodes": 2, "num_processes": 2},
            0,
            Placement(device="cpu", num_processes=4),
        ),
        ({"nodes": 3}, 0, Placement(device="cpu", num_processes=3)),
        (
            {"nodes": 2, "num_processes": 8, "sharding": "fsdp"},
            1,
            Placement(device="cuda", num_processes=16),
        ),
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


@pytest.mark.parametrize(
    ("values", "visible", "paths"),
    [
        ({"num_processes": 5}, 4, ["performance.num_processes"]),
        ({"sharding": "fsdp"}, 0, ["performance.sharding"]),
        ({"sharding": "fsdp", "num_processes": "auto"}, 1, ["performance.sharding"]),
        ({"sharding": "fsdp", "device": "cuda"}, 0, ["", "performance.sharding"]),
        ({"sharding": "hsdp", "num_processes": 4}, 4, ["performance.sharding"]),
        ({"sharding": "hsdp", "nodes": 2}, 4, ["performance.sharding"]),
    ],
)
def test_processes_that_do_not_fit_are_refused(monkeypatch, values, visible, paths):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    with pytest.raises(ConfigError) as caught:
        place_processes(performance(**values))
    assert [problem.path for problem in caught.value.problems] == paths


@pytest.mark.parametrize(
    ("values", "pods", "expected"),
    [
        ({"num_processes": "auto", "sharding": "fsdp"}, 8, ("cuda", 8)),
        ({"device": "cuda"}, 1, ("cuda", 1)),
        ({"num_processes": "auto"}, 0, ("cpu", 1)),
        ({"num_processes": 4, "device": "cpu"}, 1, ("cpu", 4)),
    ],
)
@pytest.mark.parametrize("here", [0, 1])
def test_processes_of_pods_are_placed_by_their_accelerators_and_not_by_ours(
    monkeypatch, values, pods, expected, here
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    placed = place_processes(performance(**values), accelerators=pods)
    assert (placed.device, placed.num_processes) == expected


def test_accelerator_that_pods_do_not_have_is_refused():
    with pytest.raises(ConfigError, match="where pods have no accelerator, got cuda"):
        place_processes(performance(device="cuda"), accelerators=0)
