"""Faults at random moments of real commands: do states agree, does the command go on?

    PYTHONPATH=. python benchmarks/faults.py --rounds 200

Drives `run.py train`, `gate`, `promote` and `rollback` on the tiny configuration of the
tests, in a project folder on a small file system of its own (tmpfs: needs root). A
round restores the folder, starts a command, lets one fault happen at a moment that is
uniform over the command's time, waits for the end, lifts the fault, looks, starts the
same command again, and looks again.

| fault | how |
|---|---|
| `SIGKILL`, `SIGTERM`, `SIGINT` | to the process, or to its group |
| `full` | the file system is filled, to the last byte |
| `EIO`, `EROFS` | calls of the C library on its files fail; with EIO reads too |
| `away` | a database (budget, ZenML, MLflow) is moved away, and moved back |
| `locked` | somebody else holds the write lock of a database |

| command | begins |
|---|---|
| `first` | `train`, in an empty folder |
| `train` | the same, where everything up to the first training stage is done |
| `register` | the same, where everything up to the registration is done |
| `gate`, `promote`, `rollback` | with two versions that passed |

Found after the first start: an exit code that is not the table's (`cli/main.py`), no
message or several, a trace, a fault that hangs, a version without its digest, a
champion that the trail does not know, unpaid noise, a store that does not verify.
After the second: the same, an exit code other than 0, versions without decision or with
evidence that is not what was noted, aliases, trail and ZenML that disagree, charges
beyond the plan and one block for each start, open reservations, files half written.
Processes are forked from one that has imported everything; a fifth of those that do
not train are real ones.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import random
import re
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from agreeing import Command, Place, agree, complete, paid

REPOSITORY = Path(__file__).resolve().parents[1]
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
MODEL, PATIENCE = "tiny-assistant", 900
TRAIN = ("train", str(TINY), "--set", "recipe=jft", "--set", "gate.max_epsilon=12")
"""A fault may cost a block twice: epsilon 9.7, where 8 was planned."""
FAULTS = ("SIGKILL", "SIGTERM", "SIGINT", "full", "EIO", "EROFS", "away", "locked")
CODES = {"SIGKILL": 137, "SIGTERM": 143, "SIGINT": 130}
ENDS = re.compile(
    r"^(stopped|crash|refused|cannot do that|\d+ problems?)\b", re.MULTILINE
)
SPENT = re.compile(
    r"Nothing was created and no|No budget was spent|The run had started"
)
TRACES = ("Traceback", "Exception ignored", "During handling")
IMPORTED = (
    *("cli.main", "cli.registry", "cli.training", "pipelines.train", "transformers"),
    *("mlflow.transformers", "mlflow.store.tracking.sqlalchemy_store", "witness"),
    *("zenml.orchestrators.local.local_orchestrator", "dptune.workflow.preflight"),
)


def main() -> int:
    """Do as many rounds as asked, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="commands")
    parser.add_argument("--faults", nargs="*", default=FAULTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if "FAULT_FLAG" not in os.environ:
        return _again_with_shim()
    place = Place(root=Path(os.environ["FAULT_FLAG"]).parent)
    _import(place)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `&` ignores it
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    started, done = time.monotonic(), Counter[str]()
    found: list[str] = []
    codes: dict[str, Counter[str]] = {}
    with _small_disk(place):
        commands = _commands(place, options.only)
        usual = {name: _usual(place, one) for name, one in commands.items()}
        print(json.dumps({"usual seconds": usual}), file=sys.stderr, flush=True)
        order = [n for _ in range(4) for n in commands if n != "first"]
        order += ["first"] if "first" in commands else []
        for number in range(options.rounds):
            name = order[number % len(order)]
            fault = options.faults[moments.randrange(len(options.faults))]
            problems, what = _round(
                place, commands[name], fault, usual[name], moments, number
            )
            done[name] += 1
            codes.setdefault(f"{name} {fault}", Counter())[what] += 1
            line = f"{number} {name} {fault} {what}"
            found += [f"{line}: {problem}" for problem in problems]
            print(line, problems or "", file=sys.stderr, flush=True)
    result = {
        "rounds": sum(done.values()),
        "by command": dict(done),
        "ends": {name: dict(count) for name, count in sorted(codes.items())},
        "problems": found,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(result))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def _again_with_shim() -> int:
    """Build the shim, and start this program anew with it."""
    with tempfile.TemporaryDirectory() as name:
        source, shim = Path(__file__).with_name("fault_shim.c"), Path(name, "shim.so")
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"]
        subprocess.run(build, check=True)
        place = Place(root=Path(name))
        more = {
            "LD_PRELOAD": str(shim),
            "FAULT_FLAG": str(place.flag),
            "FAULT_BELOW": str(place.disk),
            "DPTUNE_HOME": str(place.home),
            "COLUMNS": "200",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TMPDIR": str(place.root),
        }
        command = [sys.executable, *sys.argv]
        return subprocess.run(command, env=os.environ | more, check=False).returncode


def _import(place: Place) -> None:
    """Import what commands need, so that children begin with it."""
    from infra.stacks.local import isolate  # noqa: PLC0415 - before ZenML
    from infra.workspace import Workspace  # noqa: PLC0415

    isolate(Workspace(root=place.home))
    for name in IMPORTED:
        importlib.import_module(name)


@contextmanager
def _small_disk(place: Place) -> Iterator[None]:
    """Mount a file system that can be filled."""
    place.disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=600m,mode=755", "dptune-faults"]
    subprocess.run(["mount", *options, place.disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place.disk], check=True)


def _commands(place: Place, only: list[str] | None) -> dict[str, Command]:
    """Make the folders that commands begin with."""
    policy = place.root / "policy.yaml"
    values = yaml.safe_load(TINY.read_text())["gate"] | {"max_epsilon": 12}
    policy.write_text(yaml.safe_dump(values))
    gate = ("gate", MODEL, "--version", "2", "--policy", str(policy))
    one = {"champion": "1", "versions": 1}
    made = {
        "first": Command(arguments=TRAIN, base=None, **one),
        "train": Command(arguments=TRAIN, base="train", **one),
        "register": Command(arguments=TRAIN, base="register", **one),
        "gate": Command(arguments=gate, base="two", champion="2", versions=2),
        "promote": Command(
            arguments=("promote", MODEL, "--version", "2"),
            base="back",
            champion="2",
            versions=2,
        ),
        "rollback": Command(
            arguments=("rollback", MODEL, "--to", "1", "--reason", "worse"),
            base="two",
            champion="1",
            versions=2,
        ),
    }
    steps: dict[str, tuple[tuple[str, ...], int, Callable[[], None] | None]] = {
        "train": (TRAIN, 9, _stop_at_training),
        "register": (TRAIN, 9, _stop_at_registration),
        "one": (TRAIN, 0, None),
        "two": ((*TRAIN, "--retrain"), 0, None),
        "back": (made["rollback"].arguments, 0, None),
    }
    wanted = {name: made[name] for name in only or made}
    bases = {command.base for command in wanted.values()}
    for base, (arguments, code, hook) in steps.items():
        if bases - {None}:
            _must(_run(place, arguments, hook=hook), code)
            _keep(place, base)
            bases.discard(base)
    return wanted


def _stop_at_training() -> None:
    """Let a child end where the first stage would begin."""
    from dptune.workflow import train_stage  # noqa: PLC0415 - in the child alone

    train_stage.run_stage = lambda *_, **__: os._exit(9)


def _stop_at_registration() -> None:
    """Let a child end where the version would be registered."""
    from steps import _tracking  # noqa: PLC0415 - in the child alone

    _tracking.register_model = lambda *_, **__: os._exit(9)


def _must(got: int, wanted: int) -> None:
    """End where nothing that follows would mean anything."""
    if got != wanted:
        raise SystemExit(f"a command without a fault must end with {wanted}, got {got}")


def _keep(place: Place, name: str) -> None:
    """Keep a copy of the project folder."""
    subprocess.run(["cp", "-a", place.home, place.root / f"base-{name}"], check=True)


def _restore(place: Place, base: str | None) -> None:
    """Put a copy back; its path is the same, which databases know."""
    shutil.rmtree(place.home, ignore_errors=True)
    place.witness.unlink(missing_ok=True)
    if base:
        subprocess.run(
            ["cp", "-a", place.root / f"base-{base}", place.home], check=True
        )


def _usual(place: Place, command: Command) -> dict[bool, float]:
    """Time a command that nothing happens to, forked and, if it is short, real."""
    times = {}
    for real in (False, True) if command.arguments != TRAIN else (False,):
        _restore(place, command.base)
        began = time.monotonic()
        _must(_run(place, command.arguments, real=real), 0)
        times[real] = round(time.monotonic() - began, 1)
        problems = [*agree(place), *complete(place, command, starts=1)]
        if problems:
            raise SystemExit(f"a command without a fault must be whole: {problems}")
    return times


def _round(
    place: Place,
    command: Command,
    fault: str,
    usual: dict[bool, float],
    moments: random.Random,
    number: int,
) -> tuple[list[str], str]:
    """Do one round; return what is wrong, and how the first start ended."""
    _restore(place, command.base)
    real = number % 5 == 4 and True in usual
    moment = moments.uniform(0, usual[real])
    before = paid(place)
    code = _run(
        place,
        command.arguments,
        real=real,
        moment=moment,
        fault=lambda pid: _inject(place, fault, pid, moments),
    )
    problems = _answer(place, fault, code)
    problems += agree(place, since=before)
    before = paid(place)
    what = f"{code} at {moment:.1f} s{' real' if real else ''}"
    again = _run(place, command.arguments)
    if again != 0:
        text = (place.root / "log").read_text(errors="replace")
        problems.append(f"again: exit code {again}: {text[-400:]}")
    problems += [f"again: {p}" for p in agree(place, since=before)]
    problems += [f"again: {p}" for p in complete(place, command, starts=2)]
    return problems, what


def _run(
    place: Place,
    arguments: tuple[str, ...],
    *,
    real: bool = False,
    hook: Callable[[], None] | None = None,
    moment: float | None = None,
    fault: Callable[[int], Callable[[], None]] | None = None,
) -> int:
    """Start a command, let a fault happen, wait, lift the fault; return its code."""
    command = [sys.executable, "run.py", *arguments]
    with (place.root / "log").open("wb") as log:
        if real:
            process: Any = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True
            )
            wait = process.wait
        else:
            context = multiprocessing.get_context("fork")
            process = context.Process(
                target=_child, args=(place, arguments, log.fileno(), hook)
            )
            process.start()
            wait = _waiting(process)
        lift = None
        try:
            wait(PATIENCE if moment is None else moment)
        except subprocess.TimeoutExpired:
            if fault is not None:
                lift = fault(process.pid)
        try:
            code = wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            wait(None)
            code = -1000
        finally:
            if lift is not None:
                lift()
    return 128 - code if -1000 < code < 0 else int(code)


def _waiting(process: Any) -> Callable[[float | None], int]:  # noqa: ANN401
    """Wait for a forked process as `Popen.wait` does."""

    def wait(seconds: float | None) -> int:
        process.join(seconds)
        if process.exitcode is None:
            raise subprocess.TimeoutExpired("child", seconds or 0)
        return int(process.exitcode)

    return wait


def _child(
    place: Place, arguments: tuple[str, ...], log: int, hook: Callable[[], None] | None
) -> None:
    """Be `run.py` with some arguments."""
    import witness  # noqa: PLC0415 - imported before, by name
    from zenml.client import Client  # noqa: PLC0415
    from zenml.config.global_config import GlobalConfiguration  # noqa: PLC0415
    from zenml.utils import source_utils  # noqa: PLC0415

    os.setsid()
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # noqa: SIM115
    GlobalConfiguration._reset_instance()
    Client._reset_instance()
    source_utils.set_custom_source_root(str(REPOSITORY))
    witness.watch(place.witness)
    if hook is not None:
        hook()
    sys.argv = ["run.py", *arguments]
    runpy.run_path(str(REPOSITORY / "run.py"), run_name="__main__")


def _inject(
    place: Place, fault: str, pid: int, moments: random.Random
) -> Callable[[], None]:
    """Let a fault happen; return what lifts it."""
    if fault.startswith("SIG"):
        number = getattr(signal, fault)
        with suppress(ProcessLookupError):
            os.killpg(pid, number) if moments.random() < 0.5 else os.kill(pid, number)
        return lambda: None
    if fault == "full":
        return _fill(place)
    if fault in ("EIO", "EROFS"):
        place.flag.write_text(str(5 if fault == "EIO" else 30))
        return place.flag.unlink
    databases = sorted(place.home.rglob("*.db")) if place.home.is_dir() else []
    if not databases:
        return lambda: None
    one = databases[moments.randrange(len(databases))]
    return _locked(one) if fault == "locked" else _moved(place, one)


def _fill(place: Place) -> Callable[[], None]:
    """Leave no byte on the small file system."""
    ballast = place.disk / "ballast"
    with ballast.open("wb") as sink:
        while free := os.statvfs(place.disk).f_bfree * os.statvfs(place.disk).f_bsize:
            try:
                os.posix_fallocate(sink.fileno(), sink.seek(0, 2), free)
            except OSError:
                break
    return ballast.unlink


def _locked(database: Path) -> Callable[[], None]:
    """Hold the write lock of a database."""
    holder = sqlite3.connect(database, timeout=10, isolation_level=None)
    with suppress(sqlite3.OperationalError):
        holder.execute("BEGIN EXCLUSIVE")
    return holder.close


def _moved(place: Place, database: Path) -> Callable[[], None]:
    """Take a database away with all that belongs to it."""
    aside = place.disk / "aside"
    aside.mkdir()
    for file in database.parent.glob(f"{database.name}*"):
        if not file.name.endswith((".lock", ".made")):
            file.rename(aside / file.name)

    def back() -> None:
        for file in database.parent.glob(f"{database.name}*"):
            if not file.name.endswith((".lock", ".made")):
                file.unlink()
        for file in aside.iterdir():
            file.rename(database.parent / file.name)
        aside.rmdir()

    return back


def _answer(place: Place, fault: str, code: int) -> list[str]:
    """Compare exit code and message with the table."""
    text = (place.root / "log").read_text(errors="replace")
    problems = [f"{word} in the output" for word in TRACES if word in text]
    if code not in {0, CODES.get(fault, 4)}:
        problems.append(f"exit code {code}: {text[-300:]}")
        crashes = place.home.glob("**/crash-*.txt")
        problems += [crash.read_text(errors="replace")[-3000:] for crash in crashes]
    counts = len(ENDS.findall(text)), len(SPENT.findall(text))
    wanted = (0, 0) if code in {0, 137} else (1, 1)
    if counts != wanted:
        problems.append(f"{counts} messages for code {code}: {text[-300:]}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
