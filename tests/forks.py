"""Programs in processes forked from one that has imported what most of them need.

Importing torch and transformers takes longer than what most programs of tests do. The
fork server of a test process does so once, for all files.
"""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from unittest import mock

from dptune.errors import DptuneError

REPOSITORY = Path(__file__).resolve().parents[1]
PRELOADED = (
    "pytest",
    "torch.distributed.run",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "dptune.integrations.transformers",
    "dptune.workflow.rank",
    "dptune.workflow.train_stage",
    "dptune.accounting.store.store",
)
ALL_HAVE = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
FORKS = multiprocessing.get_context("forkserver")


def serve() -> None:
    """Start this process' fork server, unless it is there."""
    with mock.patch.dict(os.environ, ALL_HAVE):
        FORKS.set_forkserver_preload(list(PRELOADED))
        ensure_running()


def run_forked(*command, timeout=600, **environment) -> subprocess.CompletedProcess:
    """Do as `python COMMAND` would: `-m MODULE ...` or `FILE ...`, in the repository.

    One that does not end in time is killed; its exit code is then that of a kill.
    """
    serve()
    environment = os.environ | ALL_HAVE | environment
    with tempfile.TemporaryDirectory() as name:
        printed = [Path(name, stream) for stream in ("out", "err")]
        arguments = (list(map(str, command)), environment, printed)
        process = FORKS.Process(target=_run, args=arguments)
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        told = [file.read_text("utf8", errors="replace") for file in printed]
    return subprocess.CompletedProcess(command, process.exitcode, *told)


def _run(command: list[str], environment: dict[str, str], printed: list[Path]) -> None:
    """Be that Python."""
    gc.freeze()  # what is shared with the server is not looked at
    _print_to(*printed)
    os.chdir(REPOSITORY)
    os.environ.clear()
    os.environ.update(environment)
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


def _print_to(out: Path, err: Path) -> None:
    """Send both streams to files, below Python too."""
    for number, file in ((1, out), (2, err)):
        with file.open("w") as opened:
            os.dup2(opened.fileno(), number)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1)


def be_rank(folder: str) -> None:
    """Be what torch's agent started as `python -m dptune.workflow.rank FOLDER`."""
    from dptune.workflow import rank  # noqa: PLC0415 - only forks have imported torch

    os.environ[rank.AGENT] = str(os.getppid())
    try:
        rank.main(Path(folder))
    except DptuneError:
        sys.exit(1)
