"""kill -9 a rank, the first rank or the agent of a stage: is any noise unpaid?

    python benchmarks/kill_ranks.py 30 --twins
    python benchmarks/kill_ranks.py 30 --twins --sharding fsdp

What `kill_resume.py` does to a stage in one process this does to one on two ranks. It
kills the second rank, the first, which pays, or the stage itself, which is torch's
agent: every other time at a moment that is uniform over the time of a whole run, else
inside of a checkpoint, at one of the places where a half of it could stay. Lost ranks
are started again by the agent; a killed stage by this program, as whoever runs the
command would. A witness, a file that is synced to disk, gets a line when a charge has
returned, before noise is drawn, and a digest of that noise, each with the start of the
ranks that it belongs to. Then:

- **under-counts**: draws for which the same start had not paid before, or runs whose
  journal or store says less than was drawn.
- **double counts**: runs that charged more than their steps and one block a kill.
- **reused**: runs in which the same noise was drawn twice.
- **incomplete**: runs that do not leave what an undisturbed one leaves, or leave ranks
  or the folder that they shared behind.

`--twins` plants the bugs of `kill_resume.py`, and `early`, which has no half of a
checkpoint beside the one before. Each must be found. Under `--sharding fsdp` each rank
draws the noise of its shards. Ranks are forked from a process that has imported
everything, which torch's agent can do too; the tests start them as users do. Writes
`--output`, if given.
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
from dptune.dpsgd import checkpoint
from dptune.dpsgd.noise import IndependentNoise
from dptune.workflow import rank, ranks
from dptune.workflow.budget import settle_budget, spender
from dptune.workflow.train_stage import run_stage

VICTIMS = ("rank 0", "rank 1", "agent")
PLACES = ("_make_empty", "_write_shard", "_digest", "_commit", "_write", "_sync_folder")
"""Functions of the checkpoint before which a kill may strike."""
PERFORMANCE = alone.PERFORMANCE.model_copy(
    update={"num_processes": 2, "max_restarts": 100}
)
MOST_TWIN_KILLS = 30
CHOSEN = {"sharding": "none"}


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
    places: Counter[str] = field(default_factory=Counter)

    def faults(self) -> list[str]:
        """Name what must not be there and is."""
        names = ("under_counts", "double_counts", "reused", "incomplete")
        return [name for name in names if getattr(self, name)]


def main() -> int:
    """Kill as often as asked, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kills", type=int, nargs="?", default=50)
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--sharding", choices=("none", "fsdp"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads must not be forked
    started = time.monotonic()
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    CHOSEN["sharding"] = options.sharding
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy = alone._toy(folder / "base")
        usual = _usual_seconds(toy, folder)
        found = Found()
        while found.kills < options.kills:
            _one_run(toy, folder / f"run-{found.runs}", usual, None, found, moments)
        twins = {
            twin: _first_faults(toy, folder / twin, usual, twin, moments)
            for twin in (TWINS if options.twins else ())
        }
    result = {
        **vars(found),
        "twins": twins,
        "steps": alone.STEPS,
        "block": alone.BLOCK,
        "sharding": options.sharding,
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
        victim, pids = moments.choice(VICTIMS), _pids(home)[-2:]
        if process.exitcode is not None or len(pids) < 2:
            continue
        planned -= 1
        target = {"rank 0": pids[0], "rank 1": pids[1], "agent": process.pid}[victim]
        if moments.random() < 1 / 2:
            place = moments.choice(PLACES)
            if not _struck(home, f"{victim} {place}", process):
                continue
            found.places[f"{victim} {place}"] += 1
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
    found.starts += len({line.split()[1] for line in seen})
    drawn, unpaid = _draws(seen)
    charged = alone._counts(toy, home)
    paid = (charged.journal, charged.store)
    found.under_counts += unpaid + (min(paid) < drawn)
    extra = max(paid) - alone.STEPS
    found.double_counts += extra > kills * alone.BLOCK
    found.most_extra_steps = max(found.most_extra_steps, extra)
    digests = [line.split()[2] for line in seen if line.startswith("noise")]
    found.reused += len(set(digests)) < len(digests)
    whole = process.exitcode == 0 and alone._is_complete(toy, home)
    found.incomplete += not whole or _is_left(toy, home)


def _struck(home: Path, order: str, process: Any) -> bool:  # noqa: ANN401
    """Wait until a rank stands still at a place, to be killed; or until it is over."""
    (home / "order").write_text(order, "ascii")
    while process.exitcode is None:
        if (home / "struck").exists():
            (home / "struck").unlink()
            return True
        process.join(0.005)
    (home / "order").unlink(missing_ok=True)
    return False


def _draws(seen: list[str]) -> tuple[int, int]:
    """Count steps that were drawn, and draws that their own start had not paid."""
    paid: Counter[str] = Counter()
    drawn: Counter[tuple[str, str]] = Counter()
    unpaid = 0
    for word, start, number in map(str.split, seen):
        if word == "charge":
            paid[start] += int(number)
        elif word == "draw":
            drawn[start, number] += 1
            unpaid += drawn[start, number] > paid[start]
    starts = {start for start, _ in drawn}
    steps = sum(max(drawn[start, "0"], drawn[start, "1"]) for start in starts)
    return steps, unpaid


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
        TWINS[twin](toy, home)
    reservation = alone._reserve(toy, home)
    url = alone._url(home)
    outcome = run_stage(
        toy.inputs(),
        PrivacyLedger(),
        folder=home / "runs",
        performance=PERFORMANCE.model_copy(update=CHOSEN),
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

    charge, add = LedgerJournal.charge, IndependentNoise.add

    def start() -> str:
        return f"{os.getppid()}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"

    def witnessed_charge(self: LedgerJournal, entry: Any) -> None:  # noqa: ANN401
        charge(self, entry)
        tell(f"charge {start()} {entry.num_steps}")

    def witnessed_add(self: IndependentNoise, sums: Any, *, step: int) -> None:  # noqa: ANN401
        if not sums:
            return add(self, sums, step=step)
        tell(f"draw {start()} {os.environ['RANK']}")
        some = max(sums.values(), key=torch.numel).flatten()[:64]
        before = some.clone()
        add(self, sums, step=step)
        coarse = torch.round((some - before) * 1e3).to(torch.int32)  # noise alone
        digest = hashlib.sha256(coarse.numpy().tobytes()).hexdigest()
        tell(f"noise {start()} {digest}")
        return None

    LedgerJournal.charge = witnessed_charge
    IndependentNoise.add = witnessed_add
    for place in PLACES:
        setattr(checkpoint, place, _standing(home, place, getattr(checkpoint, place)))
    _fork_ranks(lambda found: os.write(pids, f"{found[0]} {found[1]} ".encode("ascii")))


def _standing(home: Path, place: str, honest: Callable[..., Any]) -> Callable[..., Any]:
    """Stand still where the order says so, which is carried out once."""

    def standing(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        with suppress(FileNotFoundError, ValueError):
            victim, at = (home / "order").read_text("ascii").rsplit(" ", 1)
            mine = f"rank {os.environ.get('RANK')}"
            if at == place and victim in (mine, "agent"):
                (home / "order").rename(home / "struck")
                time.sleep(60)
        return honest(*arguments, **keywords)

    return standing


def _early(_toy: alone.Toy, _home: Path) -> None:
    """Write a checkpoint in its place, and not beside it."""
    make = checkpoint._make_empty

    def made(half: Path) -> None:
        final = half.with_name("step-" + half.name.split("-")[1])
        make(final)
        half.symlink_to(final)

    checkpoint._make_empty = made


TWINS = {**alone.TWINS, "early": _early}


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
