"""Pods that are forked from a process that has imported libraries: quick, and no less
killable. ZenML's settings and state, and our steps, are a pod's own.
"""

import multiprocessing
import os
import runpy
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from .witness import die_once, watch

FORKS = multiprocessing.get_context("forkserver")
# An exit code can be read once, and whoever starts a process reads those of all that
# ended: the thread that waits for one would find nothing, which counts as 255.
_EXIT_CODES = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Forked:
    """A pod's process."""

    process: ForkServerProcess

    def wait(self) -> int:
        """Wait for its end."""
        wait([self.process.sentinel])
        with _EXIT_CODES:
            return self.process.exitcode

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()


def start_forked(
    command: Sequence[str], variables: Mapping[str, str], log: Path
) -> Forked:
    """Run `python -m MODULE ...` in a fork."""
    FORKS.set_forkserver_preload(["tests.cluster.preloaded"])  # for its first start
    process = FORKS.Process(target=_run, args=(command, dict(variables), log))
    with _EXIT_CODES:
        process.start()
    return Forked(process=process)


def _run(command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
    """Be a pod."""
    _print_to(log)
    os.environ.clear()
    os.environ.update(variables)
    for module in variables.get("ABSENT", "").split():  # not in the pod's image
        sys.modules[module] = None
    pod = variables.get("FAKE_POD")
    if pod:
        socket.gethostname = lambda: pod
    from zenml.client import Client  # noqa: PLC0415 - its environment is set now
    from zenml.config.global_config import GlobalConfiguration  # noqa: PLC0415

    GlobalConfiguration._reset_instance()
    Client._reset_instance()
    if "WITNESS" in variables:
        watch(Path(variables["WITNESS"]), twin=variables.get("TWIN", ""))
    python, dash_m, module, *arguments = command
    if (python, dash_m) != ("python", "-m"):
        raise SystemExit(f"a pod must run a module, got {command}")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    if "LOST" in variables:
        die_once(Path(variables["LOST"]))


def _print_to(log: Path) -> None:
    """Send both streams to a file, below Python too."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = sys.stderr = sys.__stdout__ = os.fdopen(1, "w", buffering=1)
