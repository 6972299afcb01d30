"""kill -9 a rank, the first rank or the agent of a stage: is any noise unpaid?

    python benchmarks/kill_ranks.py 50 --twins

What `kill_resume.py` does to a stage in one process this does to one on two ranks. At
moments that are uniform over the time of a whole run it kills the second rank, the
first, which pays, or the stage itself, which is torch's agent. Lost ranks are started
again by the agent; a killed stage by this program, as whoever runs the command would.
A witness, a file that is synced to disk, gets a line when a first rank starts, when a
charge has returned, before noise is drawn, and a digest of that noise. Then:

- **under-counts**: draws for which the same start of the first rank had not paid
  before, or runs whose journal or store says less than was drawn.
- **double counts**: runs that charged more than their steps and one block a kill.
- **reused**: runs in which the same noise was drawn twice.
- **incomplete**: runs that do not leave what an undisturbed one leaves, or leave ranks
  or the folder that they shared behind.

`--twins` plants the bugs of `kill_resume.py`, each of which must be found. Ranks are
forked from a process that has imported everything, which torch's agent can do too; the
tests start them as users do. Writes `--output`, if given.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import kill_resume as alone
import torch

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.dpsgd.noise import IndependentNoise
from dptune.workflow import rank, ranks, shared_job
from dptune.workflow.budget import settle_budget, spender
from dptune.workflow.train_stage import run_stage

VICTIMS = ("rank 0", "rank 1", "agent")
PERFORMANCE = alone.PERFORMANCE.model_copy(
    update={"num_processes": 2, "max_restarts": 100}
)
MOST_TWIN_KILLS = 30


@dataclass(kw_only=True)
class Found:
    """What was found over all runs."""

    kills: int = 0
    runs: int = 0
    starts: int = 0
    under_counts: int = 0
    double_counts: int = 0
    reused: int = 0
    incomplete: int = 0
    most_extra_steps: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    def faults(self) -> list[str]:
        """Name what must not be there and is."""
        names = ("under_counts", "double_counts", "reused", "incomplete")
        return [name for name in names if getattr(self, name)]


def main() -> int:
    """Kill as often as asked, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kills", type=int, nargs="?", default=50)
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads must not be forked
    started = time.monotonic()
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy = alone._toy(folder / "base")
        usual = _usual_seconds(toy, folder)
        found = Found()
        while found.kills < options.kills:
            _one_run(toy, folder / f"run-{found.runs}", usual, None, found, moments)
        twins = {
            twin: _first_faults(toy, folder / twin, usual, twin, moments)
            for twin in (alone.TWINS if options.twins else ())
        }
    result = {
        **vars(found),
        "twins": twins,
        "steps": alone.STEPS,
        "block": alone.BLOCK,
        "seed": options.seed,
        "usual_seconds": round(usual, 2),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def _usual_seconds(toy: alone.Toy, folder: Path) -> float:
    """Fill the accountant's cache, which children inherit, and time a whole run."""
    alone._reserve(toy, alone._made(folder / "warm"))
    for name in ("first", "whole"):
        began = time.monotonic()
        process = _start(toy, folder / name, None)
        process.join()
        if process.exitcode != 0:
            raise SystemExit("a run that nobody kills must end well")
    return time.monotonic() - began


def _first_faults(
    toy: alone.Toy, folder: Path, usual: float, twin: str, moments: random.Random
) -> list[str]:
    """Kill runs with a planted bug until something is found."""
    found = Found()
    while not found.faults() and found.kills < MOST_TWIN_KILLS:
        _one_run(toy, folder / str(found.runs), usual, twin, found, moments)
    return found.faults()


def _one_run(
    toy: alone.Toy,
    home: Path,
    usual: float,
    twin: str | None,
    found: Found,
    moments: random.Random,
) -> None:
    """Start a run, kill something of it a few times, let it end, and look."""
    kills, planned = 0, moments.randint(2, 5)
    process = _start(toy, home, twin)
    while process.exitcode is None and planned:
        process.join(moments.uniform(0, usual))
        victim = moments.choice(VICTIMS)
        pids = _pids(home)[-2:]
        if process.exitcode is not None or len(pids) < 2:
            continue
        planned -= 1
        target = {"rank 0": pids[0], "rank 1": pids[1], "agent": process.pid}[victim]
        with suppress(ProcessLookupError):
            os.kill(target or 0, signal.SIGKILL)
            kills += 1
            found.killed[victim] += 1
        if victim == "agent":
            process.join()
            process = _start(toy, home, twin)
    process.join()
    found.runs += 1
    found.kills += kills
    seen = _seen(home)
    found.starts += seen.count("start")
    drawn = seen.count("draw")
    charged = alone._counts(toy, home)
    paid = (charged.journal, charged.store)
    found.under_counts += _unpaid_draws(seen) + (min(paid) < drawn)
    extra = max(paid) - alone.STEPS
    found.double_counts += extra > kills * alone.BLOCK
    found.most_extra_steps = max(found.most_extra_steps, extra)
    digests = [line for line in seen if line.startswith("noise")]
    found.reused += len(set(digests)) < len(digests)
    whole = process.exitcode == 0 and alone._is_complete(toy, home)
    found.incomplete += not whole or _is_left(toy, home)


def _unpaid_draws(seen: list[str]) -> int:
    """Count draws that their own start of the first rank had not paid for."""
    unpaid = left = 0
    for line in seen:
        word, _, number = line.partition(" ")
        if word == "start":
            left = 0
        elif word == "charge":
            left += int(number)
        elif word == "draw":
            unpaid += left < 1
            left -= 1
    return unpaid


def _is_left(toy: alone.Toy, home: Path) -> bool:
    """Whether ranks, or their folder, are still there."""
    deadline = time.monotonic() + 5
    while alive := [pid for pid in _pids(home) if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    stage = home / "runs" / toy.inputs().key()
    return bool(alive) or any(stage.glob("ranks-*"))


def _pids(home: Path) -> list[int]:
    """Return the processes of all ranks that were started, the latest last."""
    file = home / "pids"
    return (
        [int(pid) for pid in file.read_text("ascii").split()] if file.exists() else []
    )


def _seen(home: Path) -> list[str]:
    """Read what the witness saw; a line that a kill cut short is none."""
    file = home / "witness"
    return file.read_text("ascii").split("\n")[:-1] if file.exists() else []


def _start(toy: alone.Toy, home: Path, twin: str | None) -> Any:  # noqa: ANN401
    """Run in a process of its own."""
    with suppress(FileNotFoundError):
        (home / "pids").unlink()  # of ranks whose agent is gone
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_run, args=(toy, home, twin))
    process.start()
    return process


def _run(toy: alone.Toy, home: Path, twin: str | None) -> None:
    """Hold the budget, train, settle: what the pipeline does, on two ranks."""
    alone._made(home)
    _watch(home)
    if twin is not None:
        alone.TWINS[twin](toy, home)
    reservation = alone._reserve(toy, home)
    url = alone._url(home)
    outcome = run_stage(
        toy.inputs(),
        PrivacyLedger(),
        folder=home / "runs",
        performance=PERFORMANCE,
        spend=spender(url, reservation),
    )
    settle_budget(url, reservation, delta=alone.DELTA)
    result = {
        "digest": outcome.bundle.digest,
        "steps": outcome.report.num_steps,
        "charged": sum(entry.num_steps for entry in outcome.ledger.entries),
    }
    (home / "result.json").write_text(json.dumps(result), "utf-8")


def _watch(home: Path) -> None:
    """Fork ranks, note which they are, and let the witness see what they do."""
    witness = os.open(home / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    pids = os.open(home / "pids", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(line: str) -> None:
        os.write(witness, f"{line}\n".encode("ascii"))
        os.fsync(witness)

    share, charge, add = (
        shared_job.train_share,
        LedgerJournal.charge,
        IndependentNoise.add,
    )

    def witnessed_share(*arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        if os.environ["RANK"] == "0":
            tell("start")
        share(*arguments, **keywords)

    def witnessed_charge(self: LedgerJournal, entry: Any) -> None:  # noqa: ANN401
        charge(self, entry)
        tell(f"charge {entry.num_steps}")

    def witnessed_add(self: IndependentNoise, sums: Any, *, step: int) -> None:  # noqa: ANN401
        if not sums:
            return add(self, sums, step=step)
        tell("draw")
        some = max(sums.values(), key=torch.numel).flatten()[:64]
        before = some.clone()
        add(self, sums, step=step)
        coarse = torch.round((some - before) * 1e3).to(torch.int32)  # noise alone
        tell("noise " + hashlib.sha256(coarse.numpy().tobytes()).hexdigest())
        return None

    rank.train_share = witnessed_share
    LedgerJournal.charge = witnessed_charge
    IndependentNoise.add = witnessed_add
    _fork_ranks(lambda found: os.write(pids, f"{found[0]} {found[1]} ".encode("ascii")))


def _fork_ranks(note: Callable[[dict[int, int]], object]) -> None:
    """Let the agent fork ranks, and say which processes they are."""
    make, start = ranks._Agent.__init__, ranks._Agent._start_workers

    def forking(self: ranks._Agent, spec: Any, logs: Any, **keywords: Any) -> None:  # noqa: ANN401
        spec.entrypoint, spec.args = rank.main, (Path(spec.args[-1]),)
        make(self, spec, logs, start_method="fork", **keywords)

    def noted(self: ranks._Agent, group: Any) -> dict[int, int]:  # noqa: ANN401
        found = start(self, group)
        note(found)
        return found

    ranks._Agent.__init__ = forking
    ranks._Agent._start_workers = noted


if __name__ == "__main__":
    sys.exit(main())
