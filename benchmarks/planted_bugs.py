"""Are privacy bugs caught, by the tests and by a run's own audit?

    PYTHONPATH=. python benchmarks/planted_bugs.py [--jobs 2] [--only NAME ...]
    PYTHONPATH=. python benchmarks/planted_bugs.py --write     the list in docs

Every mutation of `planted_bugs.yaml` is planted in a throwaway copy of the tree. Its
tests run there until one fails, and, where the bug acts in a run, tiny stages are
trained and audited as the pipeline does it. Text that is not there is told as stale.
Results are kept under `benchmarks/results/` and taken up by the next start; without any
mutation, tests and audit must pass.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pytest
import yaml

REPOSITORY: Final = Path(__file__).parents[1]
BUGS: Final = REPOSITORY / "benchmarks" / "planted_bugs.yaml"
RESULTS: Final = REPOSITORY / "benchmarks" / "results" / "planted_bugs.json"
LIST: Final = REPOSITORY / "docs" / "PLANTED_BUGS.md"
START, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"
SECONDS: Final = 1800
LIBRARIES: Final = ["torch", "transformers", "dp_accounting", "datasets", "scipy.stats"]
_times: Final = itertools.count(2_000_000_000)

STAGE_KINDS: Final = (
    "plain", "banded", "capped", "moving", "layers", "rising", "transformed", "tiers",
    "steered",
)  # fmt: skip
"""What `audited_stages.py` can train."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One planted bug; `planted_bugs.yaml` says what the fields are."""

    name: str
    room: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    stages: tuple[str, ...] = ()
    unseen: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Read one entry; exactly one of `stages` and `unseen` must be given."""
        made = cls(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        )
        if bool(made.stages) == bool(made.unseen) or {*made.stages} - {*STAGE_KINDS}:
            raise ValueError(f"{made.name} must have stages or say why it is unseen.")
        return made


MUTATIONS: Final = tuple(
    map(Mutation.of, yaml.safe_load(BUGS.read_text(encoding="utf-8")))
)


Task = tuple[Mutation | None, str]


def key_of(mutation: Mutation | None) -> str:
    """Name a mutation as it is now, so that a changed one runs again."""
    return hashlib.sha256(repr(mutation).encode()).hexdigest()[:12]


@contextmanager
def copied() -> Iterator[Path]:
    """Copy what git knows, as it lies here, into a folder of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        for name in names.stdout.decode().split("\0"):
            source = REPOSITORY / name
            if name and source.is_file() and not source.is_symlink():
                target = tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        shared = REPOSITORY.parent / "shared"
        if shared.exists():
            (Path(folder) / "shared").symlink_to(shared.resolve())
        yield tree


def plant(tree: Path, mutation: Mutation) -> str | None:
    """Plant a bug in a copy; returns the source as it was, None if it has no place."""
    text = (tree / mutation.file).read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        return None
    _write(tree / mutation.file, text.replace(mutation.old, mutation.new))
    return text


def _write(path: Path, text: str) -> None:
    """Write a source at a time of its own: no stale bytecode is taken for it."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (now := next(_times), now))


def forked(tree: Path, program: str, arguments: tuple[str, ...], output: Path) -> int:
    """Run a program, or pytest, in a copy, in a fork of this process; returns its id.

    The libraries are loaded by then, which would take most of the time, and modules of
    the copy are not.
    """
    if process := os.fork():
        return process
    with output.open("w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.setsid()
    signal.alarm(SECONDS)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(p for p in sys.path if Path(p).resolve() != REPOSITORY)]
    code = 0
    try:
        if program == "pytest":
            code = int(pytest.main(list(arguments)))
        else:
            sys.argv = [program, *arguments]
            runpy.run_path(program, run_name="__main__")
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
        code = 3
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def started(tree: Path, mutation: Mutation | None, part: str, output: Path) -> int:
    """Start the tests, or the audit, of one bug, or of none."""
    if part == "audit":
        stages = mutation.stages if mutation else STAGE_KINDS
        return forked(tree, "benchmarks/audited_stages.py", stages, output)
    tests = tuple(dict.fromkeys(t for m in MUTATIONS for t in m.tests))
    flags = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tb=line")
    loaded = ("-W", "ignore:Module already imported")  # by the process we fork
    return forked(
        tree,
        "pytest",
        (*flags, *loaded, *(mutation.tests if mutation else tests)),
        output,
    )


def read(part: str, code: int, output: str) -> dict[str, Any]:
    """Read what was found: the first test that failed, or failed checks by stage."""
    if part == "tests":
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        if code == 1 and failed:
            return {"caught_by": failed[1]}
        return {} if code == 0 else {"broken": f"{code}: {output[-400:]}"}
    line = output.rpartition("AUDIT ")[2].partition("\n")[0]
    if code or "AUDIT " not in output:
        return {"broken": f"{code}: {output[-400:]}"}
    found: dict[str, Any] = json.loads(line)
    return found


def summary(results: dict[str, Any]) -> str:
    """Say what was caught, and name what was not."""
    lines, caught, seen, acting = [], 0, 0, 0
    for mutation in MUTATIONS:
        tests = results.get(f"{mutation.name} tests", {}).get("found", {})
        audit = results.get(f"{mutation.name} audit", {}).get("found", {})
        caught += (is_caught := "caught_by" in tests)
        acting += (acts := bool(mutation.stages))
        seen += (is_seen := acts and all(audit.get(s) for s in mutation.stages))
        if not is_caught:
            lines.append(f"{mutation.name}: not caught by tests {tests}")
        if acts and not is_seen:
            lines.append(f"{mutation.name}: not seen by the audit {audit}")
    lines.append(
        f"tests {caught} of {len(MUTATIONS)}, audit {seen} of {acting} that act in runs"
    )
    return "\n".join(lines)


def table(results: dict[str, Any]) -> str:
    """Write the list for the docs, of what the tests caught."""
    lines = ["| room | planted bug | the audit | caught by |", "|---|---|---|---|"]
    for mutation in MUTATIONS:
        tests = results.get(f"{mutation.name} tests", {}).get("found", {})
        test = tests.get("caught_by", "")
        if not test:
            continue  # the summary names it
        audit = results.get(f"{mutation.name} audit", {}).get("found", {})
        checks = {check for found in audit.values() for check in found}
        told = ", ".join(sorted({"an error" if " " in c else f"`{c}`" for c in checks}))
        if mutation.stages and not audit:
            told = "not measured"
        told = told or ("nothing" if mutation.stages else mutation.unseen)
        test = test.partition("[")[0]
        lines.append(f"| {mutation.room} | {mutation.what} | {told} | `{test}` |")
    return "\n".join(lines)


def waiting(names: list[str], parts: list[str], results: dict[str, Any]) -> list[Task]:
    """List what is asked for, or all that has no result yet."""
    tasks = []
    for part in parts:
        for mutation in (*MUTATIONS, None):
            if part == "audit" and mutation and not mutation.stages:
                continue
            name = mutation.name if mutation else "none"
            done = results.get(f"{name} {part}", {}).get("key") == key_of(mutation)
            if name in names or not (names or done):
                tasks.append((mutation, part))
    return tasks


def plant_all(names: list[str], parts: list[str], jobs: int) -> dict[str, Any]:
    """Plant bugs, several at a time, and keep what was found."""
    results: dict[str, Any] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text(encoding="utf-8"))

    def keep(task: Task, found: dict[str, Any]) -> None:
        mutation, part = task
        name = f"{mutation.name if mutation else 'none'} {part}"
        results[name] = {"key": key_of(mutation), "found": found}
        text = json.dumps(results, indent=1, sort_keys=True)
        RESULTS.write_text(text + "\n", encoding="utf-8")
        print(name, json.dumps(found), flush=True)

    tasks = waiting(names, parts, results)[::-1]
    running: dict[int, tuple[Task, Path, str]] = {}
    with ExitStack() as stack:
        free = [stack.enter_context(copied()) for _ in range(jobs)]
        while tasks or running:
            while tasks and free:
                mutation, part = task = tasks.pop()
                source = plant(free[-1], mutation) if mutation else ""
                if source is None:
                    keep(task, {"stale": True})
                else:
                    tree = free.pop()
                    process = started(tree, mutation, part, tree.parent / "output")
                    running[process] = (task, tree, source)
            if running:
                process, status = os.wait()
                task, tree, source = running.pop(process)
                output = (tree.parent / "output").read_text(encoding="utf-8")
                keep(task, read(task[1], os.waitstatus_to_exitcode(status), output))
                if task[0] is not None:
                    _write(tree / task[0].file, source)
                free.append(tree)
    return results


def main() -> int:
    """Plant bugs, or write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=["tests", "audit"])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        head, _, rest = LIST.read_text(encoding="utf-8").partition(START)
        tail = rest.partition(END)[2]
        text = f"{head}{START}\n{table(results)}\n{END}{tail}"
        LIST.write_text(text, encoding="utf-8")
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    for library in LIBRARIES:
        importlib.import_module(library)
    report = summary(plant_all(options.only, options.parts, options.jobs))
    print(report)
    return 1 if report.count("\n") else 0


if __name__ == "__main__":
    sys.exit(main())
