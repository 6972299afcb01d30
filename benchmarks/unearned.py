"""Does any way lead to a PASS that is not earned? Every one is played, on real parts.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/unearned.py [--only TEXT] [--list]

A project folder is made once, with ZenML, MLflow, a budget store and a signing key, and
three versions in it by `run.py train`: a clean one that passed, a leaking one (trained
without noise on planted access codes until it knows them by heart) that was refused,
and a second clean one that is the champion. Every way starts from a copy of that
folder, in a process of its own, does what somebody with the named rights could do
(docs/THREATS.md), and then asks by the command line: `gate`, `promote`, `rollback`,
`verify-decision`, `train`.

One line is one way. It is *undeserved* where a command that must refuse ends with exit
code 0 or as a crash, or where what it prints does not name the cause. Exits with 1 if
any is.
"""

import argparse
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from unearned_world import World

from tests.integration.conftest import TINY
from tests.unit.gates.test_signing import PUBLIC

ROOMS = ("files", "evidence", "tags", "policies", "clocks", "runs", "races", "attacks")
GROUPS = (
    "files",
    "evidence",
    "policies",
    "tags, aliases, decisions",
    "clocks",
    "concurrency",
    "canaries",
    "models and tokenizers",
    "test sets and attacks",
    "budget and attempts",
    "environment",
)
REFUSED, BAD_INPUT = 1, 2

DATA, CONFIGURATION = "the data", "the configuration of a run"
POLICIES, FOLDER = "the policy files", "the project folder"
ARTIFACTS, STORE = "ZenML's artifact store", "MLflow's artifact store"
REGISTRY, BOTH = "the registry", "both store and registry"
BUDGET, DEPLOY = "the budget store", "the deploy job's folder"
ENVIRONMENT, COMMANDS = "the environment", "commands"
CLOCK = "the machine's clock"
"""Rights, as the rows of docs/THREATS.md name them."""


Answer = tuple[int, str] | list[tuple[int, str]]
Play = Callable[[World], Answer]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to a PASS that is not earned.

    Args:
        group: one of `GROUPS`.
        what: is done, in words.
        rights: that it needs, a row of docs/THREATS.md.
        says: pattern of the words that must name the cause.
        play: does it, and returns exit code and output of what it asked: of one
            command, or of several, each of which must refuse.
    """

    group: str
    what: str
    rights: str
    says: str
    play: Play


WAYS: list[Way] = []


def way(group: str, what: str, *, rights: str, says: str) -> Callable[[Play], Play]:
    """Put a function on the list."""

    def enlist(play: Play) -> Play:
        one = Way(group=group, what=what, rights=rights, says=says, play=play)
        WAYS.append(one)
        return play

    return enlist


def trained(**changes: object) -> Play:
    """Return a way that trains with other values of the configuration."""

    def play(world: World) -> Answer:
        code, said = world.train(config=world.config_with(**changes))
        return code, said

    return play


@dataclass
class Outcome:
    """What came of a way."""

    deserved: bool
    outcome: str
    reason: str
    seconds: float
    said: list[str] = field(default_factory=list)


_RELIES = re.compile("has gate outcome (BLOCK|INCONCLUSIVE|INVALID) ")
"""What says no more than that the decision before, which named the cause, refused."""
_ROW = re.compile(r"(PASS|BLOCK|INCONCLUSIVE|INVALID|NOT_APPLICABLE)")


def reasons_in(said: str) -> tuple[str, str]:
    """Find the worst verdict of a decision, and the reasons that were printed."""
    found = []
    for line in said.splitlines():
        cells = [cell.strip() for cell in re.split(r"[│┃]|\s{2,}", line)]
        cells = [cell for cell in cells if cell]
        if len(cells) > 4 and _ROW.fullmatch(cells[1]):
            name, verdict, _, _, reason, *_ = cells
            if verdict not in ("PASS", "NOT_APPLICABLE"):
                found.append((verdict, f"{name}: {reason}"))
    order = ("INVALID", "BLOCK", "INCONCLUSIVE")
    worst = next((one for one in order if any(v == one for v, _ in found)), "")
    return worst, "; ".join(reason for _, reason in found)


def judge(asked: list[tuple[int, str]], says: str) -> tuple[bool, str, str]:
    """Say whether all was refused for its cause; name outcomes and reasons."""
    outcomes, reasons, fine = [], [], True
    for code, said in asked:
        flat = " ".join(said.split())
        verdict, reason = reasons_in(said)
        message = re.search(r"(refused|cannot do that|\d+ problems?)\b(.*)", flat)
        reason = reason or (message[2].strip() if message else flat[-300:])
        if code == 0 or code not in (REFUSED, BAD_INPUT):
            fine = False
        named = re.search(says, f"{reason} {flat}", re.IGNORECASE)
        if not named and not (reasons and _RELIES.search(flat)):
            fine = False
        told = verdict or ("refused" if code == REFUSED else f"exit {code}")
        outcomes.append(told if code else "exit 0")
        reasons.append(reason)
    return fine, ", ".join(dict.fromkeys(outcomes)), _around(reasons, says)


def _around(reasons: list[str], says: str) -> str:
    """Quote the part of the reasons that names the cause."""
    for reason in reasons:
        for part in re.split(r"(?<=[.;]) ", reason):
            if re.search(says, part, re.IGNORECASE):
                return part.strip(" .;•")
    return (reasons[0] if reasons else "")[:200]


def _child(home: Path, play: Play, sink: Connection) -> None:
    """Play a way in a process of its own."""
    world = World(home)
    try:
        world.renew()
        asked = play(world)
        sink.send(asked if isinstance(asked, list) else [asked])
    except BaseException as error:  # noqa: BLE001 - whatever it is, the way failed
        sink.send("".join(traceback.format_exception(error))[-3000:])
    finally:
        sink.close()
        os._exit(0)


def play_once(root: Path, one: Way) -> Outcome:
    """Copy the pristine folder, play a way on it, and judge what came of it."""
    restore(root)
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    source, sink = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(root / "home", one.play, sink))
    process.start()
    sink.close()
    try:
        asked = source.recv() if source.poll(600) else "no answer in ten minutes"
    except EOFError:
        asked = "the process died"
    process.join(5)
    if process.is_alive():
        process.kill()
    seconds = time.monotonic() - began
    if isinstance(asked, str):
        failed = "the way itself failed"
        return Outcome(
            deserved=False,
            outcome=failed,
            reason=asked[-600:],
            seconds=seconds,
            said=[asked],
        )
    fine, outcome, reason = judge(asked, one.says)
    said = [printed for _, printed in asked]
    return Outcome(
        deserved=fine, outcome=outcome, reason=reason, seconds=seconds, said=said
    )


def restore(root: Path) -> None:
    """Put the project folder back to what it was; its paths stay the same."""
    shutil.rmtree(root / "home", ignore_errors=True)
    shutil.copytree(root / "pristine", root / "home", symlinks=True)


def warm_up(root: Path) -> None:
    """Load once what every way needs: the stores, and what commands import."""
    restore(root)
    world = World(root / "home")
    world.open()
    codes = [world.gate()[0], world.verify()[0], world.promote("9")[0]]
    if codes != [0, 0, BAD_INPUT]:
        raise SystemExit(f"the clean version must pass before it is attacked: {codes}")
    world.renew()


def _set_up(home: Path, sink: Connection) -> None:
    """Train the three versions."""
    world = World(home)
    world.outside.mkdir(parents=True, exist_ok=True)
    values = yaml.safe_load(TINY.read_text())
    values["canaries"] |= {"num_planted": 20, "num_held_out": 20, "insertions": 3}
    values["gate"] |= {"effect_size_bits": 2.5, "min_canaries": 10}
    values["gate"] |= {"memorization_level": 8.6e-4}  # asks for 46,512 candidates
    values["attack"] |= {"extraction": None, "shadows": {"epochs": 0.2}}
    values["audit"] = {"num_steps": 2}
    values["stages"]["no_dp"]["finetune"] = {
        "epochs": 40,
        "expected_batch_size": 32,
        "optimizer": {"name": "adamw", "learning_rate": 1.0e-2, "schedule": "linear"},
    }
    world.config.write_text(yaml.safe_dump(values))
    world.policy.write_text(yaml.safe_dump(values["gate"]))
    world.public.write_bytes(PUBLIC)
    world.open()
    told = [
        world.train(),
        world.train("recipe=no_dp"),
        world.train("repetition=1"),
    ]
    sink.send([(code, said[-2000:]) for code, said in told])
    sink.close()
    os._exit(0)


def set_up(root: Path) -> None:
    """Make the pristine folder, unless an earlier run left it."""
    if (root / "pristine").is_dir():
        return
    context = multiprocessing.get_context("fork")
    source, sink = context.Pipe(duplex=False)
    process = context.Process(target=_set_up, args=(root / "home", sink))
    process.start()
    sink.close()
    told = source.recv()
    process.join()
    codes = [code for code, _ in told]
    if codes != [0, REFUSED, 0]:
        raise SystemExit(f"the versions must pass, fail, pass: {codes}\n{told}")
    shutil.move(root / "home", root / "pristine")


def table(found: list[tuple[Way, Outcome]]) -> Iterator[str]:
    """Write the head of the table and its lines."""
    yield "| way | rights it needs | outcome | reason as printed |"
    yield "|---|---|---|---|"
    yield from rows(found)


def rows(found: list[tuple[Way, Outcome]]) -> Iterator[str]:
    """Write one line for every way."""
    for one, outcome in found:
        mark = "" if outcome.deserved else "**UNDESERVED** "
        reason = outcome.reason.replace("|", "/").replace("\n", " ")[:220]
        yield f"| {one.what} | {one.rights} | {mark}{outcome.outcome} | {reason} |"


def main() -> int:
    """Play all ways, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="ways whose words or group match")
    parser.add_argument("--list", action="store_true", help="list the ways and stop")
    parser.add_argument("--root", type=Path, help="keeps the trained versions there")
    parser.add_argument("--rows", type=Path, help="file that rows are added to")
    parser.add_argument("--verbose", action="store_true", help="print all output")
    given = parser.parse_args()
    for room in ROOMS:
        importlib.import_module(f"unearned_{room}")  # its ways enlist themselves

    ways = [w for w in WAYS if re.search(given.only, f"{w.group}: {w.what}")]
    ways.sort(key=lambda w: GROUPS.index(w.group))
    if given.rows and given.rows.is_file():  # an earlier run was cut off
        told = given.rows.read_text()
        ways = [w for w in ways if f"| {w.what} |" not in told]
    if given.list:
        print("\n".join(f"{w.group}: {w.what}" for w in ways))
        return 0
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with tempfile.TemporaryDirectory() as name:
        root = given.root or Path(name)
        root.mkdir(parents=True, exist_ok=True)
        set_up(root)
        found = []
        warm_up(root)
        with Progress(*columns, TimeRemainingColumn()) as bar:
            for one in bar.track(ways, description="ways"):
                outcome = play_once(root, one)
                found.append((one, outcome))
                if given.rows:
                    (row,) = rows([(one, outcome)])
                    with given.rows.open("a") as file:
                        file.write(f"{row}\n")
                if given.verbose or not outcome.deserved:
                    bar.console.print(
                        f"{one.what}: {outcome.outcome}, {outcome.seconds:.0f} s\n"
                        + "\n".join(outcome.said)[-6000:],
                        markup=False,
                    )
    print("\n".join(table(found)))
    undeserved = sum(not outcome.deserved for _, outcome in found)
    groups = Counter(one.group for one, _ in found)
    print(f"\n{len(found)} ways, {undeserved} undeserved; {dict(groups)}")
    return int(undeserved > 0)


if __name__ == "__main__":
    sys.modules["unearned"] = sys.modules["__main__"]
    sys.exit(main())
