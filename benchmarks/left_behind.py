"""What a run leaves on a machine: can another account read it, does any lie elsewhere?

    PYTHONPATH=. python benchmarks/left_behind.py --kills 10

Runs the commands under umask 000 and 022, with a home and a temporary folder of their
own, on records and canaries that carry marks: whole, and then killed at random moments.
Needs root, to become somebody else, and strace. Counted are

- **readable**: files that another account could open at any moment: a process of that
  account walks through everything again and again while commands run;
- **elsewhere**: files that the commands wrote outside of the project folder (strace
  names them all, also those that went at once) and that hold a mark, a canary or a
  key, or that went before anybody could look and are on no list;
- **by name**: paths and command lines that hold one.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
NOBODY, MARK, NUM_RECORDS = "65534", "zqmark", 260
TRACED = "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink"
CANARY = re.compile(rb"My access code is [A-Za-z0-9]{3}")
WALKER = r"""
import os, sys, time
seen = set()
while not os.path.exists(sys.argv[1]):
    for top in sys.argv[2:]:
        for folder, _, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)
                try:
                    with open(path, "rb") as source:
                        source.read(1)
                except OSError:
                    continue
                if path not in seen:
                    seen.add(path)
                    print(path, flush=True)
    time.sleep(0.02)
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of one machine that is watched.

    Args:
        root: that other accounts may enter.
    """

    root: Path

    def __getattr__(self, name: str) -> Path:
        """Name a folder below: `project`, `user`, `scratch`, `data`."""
        return self.root / name


def main() -> int:
    """Run everything, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--umasks", nargs="*", default=["000", "022"])
    parser.add_argument("--commands", type=int, default=99, help="the first so many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    found = {}
    for umask in (int(digits, 8) for digits in options.umasks):
        with _place() as place, _walking(place) as readable:
            commands = _commands(place)[: options.commands]
            seconds = [_run(place, command, umask) for command in commands]
            for _ in range(options.kills):
                command = (*_train(place), "--retrain")
                _run(place, command, umask, moments.uniform(0, seconds[0]))
            found[f"{umask:03o}"] = {
                "seconds": [round(s, 1) for s in seconds],
                "readable": sorted(set(readable())),
                **_elsewhere(place),
            }
    print(json.dumps(found, indent=1))
    return 0


@contextmanager
def _place() -> Iterator[Place]:
    """Make folders that every account may enter, and marked records in one."""
    place = Place(root=Path(tempfile.mkdtemp(prefix="left-")))
    place.root.chmod(0o755)
    for name, mode in (("user", 0o755), ("scratch", 0o1777), ("data", 0o700)):
        folder = place.root / name
        folder.mkdir()
        folder.chmod(mode)
    rows = [
        {
            "id": f"r{n}",
            "text": f"Mr {MARK}{n:05d} wrote: call 0171 555 {n:04d} at noon",
        }
        for n in range(NUM_RECORDS)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (place.data / "a.jsonl").write_text(lines)
    (place.data / "folder").mkdir()
    (place.data / "folder" / "train.jsonl").write_text(lines)
    values = yaml.safe_load(TINY.read_text())
    values["data"]["source"] = {"kind": "jsonl", "path": "a.jsonl", "id_column": "id"}
    values["data"]["public_units"] = 140
    values["detection"] = {"num_processes": 2}
    (place.data / "jsonl.yaml").write_text(yaml.safe_dump(values))
    values["data"]["source"] = {"kind": "hub", "name": "folder", "id_column": "id"}
    (place.data / "hub.yaml").write_text(yaml.safe_dump(values))
    try:
        yield place
    finally:
        shutil.rmtree(place.root)


def _train(place: Place) -> tuple[str, ...]:
    """Train on the marked records."""
    return ("train", str(place.data / "jsonl.yaml"))


def _commands(place: Place) -> list[tuple[str, ...]]:
    """Everything that reads records or versions."""
    model, version = "tiny-assistant", ("--version", "1")
    return [
        _train(place),
        ("calibrate", str(place.data / "hub.yaml")),
        ("gate", model, *version, "--policy", "default"),
        ("promote", model, *version, "--override", "to see"),
        (*_train(place), "--set", "performance.num_processes=2", "--retrain"),
        ("audit", str(place.data / "jsonl.yaml")),
        (
            "review",
            "sample",
            str(place.data / "jsonl.yaml"),
            "--size",
            "5",
            "--html",
            str(place.data / "page.html"),
        ),
        ("status", "--weights"),
        ("budget", "show"),
    ]


def _run(
    place: Place, arguments: tuple[str, ...], umask: int, moment: float | None = None
) -> float:
    """Run a command as a user would, or kill it; return the seconds it took."""
    number = len(list(place.data.glob("*.trace")))
    trace = place.data / f"{number}.trace"
    kept = ("PATH", "LANG", "PYTHONPATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {
        "HOME": str(place.user),
        "TMPDIR": str(place.scratch),
        "DPTUNE_HOME": str(place.project),
        "DPTUNE_DATA_ROOT": str(place.data),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "DPTUNE_LLM_KEY": "sk-zqkey-of-a-model",
    }
    strace = ["strace", "-f", "-qq", "--seccomp-bpf", "-y", "-e", f"trace={TRACED}"]
    command = [*strace, "-o", trace, sys.executable, "run.py", *arguments]
    began = time.monotonic()
    with (place.data / f"{number}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=log,
            umask=umask,
            start_new_session=True,
        )
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    print(
        umask,
        arguments[0],
        moment,
        code,
        round(time.monotonic() - began, 1),
        (place.data / f"{number}.log").read_text()[-300:]
        if code not in (0, -9)
        else "",
        file=sys.stderr,
        flush=True,
    )
    return time.monotonic() - began


@contextmanager
def _walking(place: Place) -> Iterator[object]:
    """Let another account read whatever it can; yields a function that lists it."""
    end, log = place.root / "end", place.root / "walked"
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    walk = ["/usr/bin/python3", "-c", WALKER, end, place.root, "/dev/shm"]  # noqa: S108
    with log.open("wb") as sink:
        walker = subprocess.Popen(["setpriv", *rights, *walk], stdout=sink)
        mine = {str(end), str(log)}
        (place.scratch / "twin").write_text("a file that must be found")
        (place.scratch / "twin").chmod(0o644)

        def readable() -> list[str]:
            time.sleep(1)
            lines = set(log.read_text().splitlines())
            if (twin := str(place.scratch / "twin")) not in lines:
                raise SystemExit("the other account does not see what it can read")
            return sorted(lines - mine - {twin})

        try:
            yield readable
        finally:
            end.touch()
            walker.wait()


def _elsewhere(place: Place) -> dict[str, object]:
    """Look at everything that was written outside of the project folder."""
    secrets = _secrets(place)
    written: set[str] = set()
    for trace in place.data.glob("*.trace"):
        written |= set(_written(trace.read_text(errors="replace")))
    inside = (f"{place.project}/", f"{place.data}/", "/dev/null", "/proc/", "/dev/tty")
    outside = {path for path in written if not path.startswith(inside)} - {
        str(place.project)
    }
    holding, gone = [], []
    for path in sorted(outside):
        if not Path(path).exists():
            gone.append(path)
        elif Path(path).is_file():
            content = Path(path).read_bytes()
            holding += [path for secret in secrets if secret in content][:1]
    for file in (*place.user.rglob("*"), *place.scratch.rglob("*")):
        with suppress(OSError):
            content = file.read_bytes()
            holding += [str(file) for secret in secrets if secret in content][:1]
    text = "\n".join(written).encode()
    return {
        "outside": sorted(path for path in outside if Path(path).exists()),
        "gone": gone,
        "elsewhere": sorted(set(holding)),
        "by name": [secret.decode() for secret in secrets if secret in text],
        "secrets looked for": len(secrets),
    }


def _secrets(place: Place) -> list[bytes]:
    """Collect marks, canaries as they stand in texts, and keys."""
    found = [MARK.encode(), b"sk-zqkey-of-a-model"]
    key = place.project / "budget.key"
    found += [key.read_bytes()] if key.is_file() else []
    texts: set[bytes] = set()
    for file in (*place.project.rglob("*.json"), *place.project.rglob("*.arrow")):
        with suppress(OSError):
            texts |= set(CANARY.findall(file.read_bytes()))
    return [*found, *sorted(texts)]


def _written(trace: str) -> Iterator[str]:
    """Name every path that was made or opened for writing."""
    for line in trace.splitlines():
        if " = -1 " in line:
            continue
        if re.search(r"open(at)?\(", line) and not re.search(
            r"O_(WRONLY|RDWR|CREAT|TMPFILE)", line
        ):
            continue
        yield from (
            re.findall(r"= \d+<([^>]*)>$", line)
            if "open" in line
            else re.findall(r'"([^"]*)"', line)
        )


if __name__ == "__main__":
    sys.exit(main())
