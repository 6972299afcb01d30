"""Torchrun whose ranks are forked from its own process, which has imported all.

    python -m tests.forked_agents 1 --standalone --nproc-per-node 2 -m MODULE FOLDER

The number says how many agents do so at once, as on so many machines. Importing takes
longer than what the ranks of most tests do: here it is done once, also for those that
are started again. All else is torchrun: its arguments, agents, meetings and restarts.
What a module names in `LATER` is imported too. A rank calls the module's `main`.
"""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from torch import multiprocessing
from torch.distributed import run as torchrun
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def _main(*command: str) -> None:
    """Do as `python -u -m MODULE FOLDER ...` would, in this process."""
    torch.set_num_threads(1)
    module, folder, *names = command[command.index("-m") + 1 :]
    import_module(module).main(Path(folder), *names)


def _launch(config: LaunchConfig, entrypoint: str) -> elastic_launch:
    """Fork ranks where torchrun would start a program."""
    config.start_method = "fork"
    return elastic_launch(config, _main)


def _agent(_number: int, line: list[str]) -> None:
    torchrun.elastic_launch = _launch
    torchrun.main(line)


def main(agents: int, line: list[str]) -> None:
    """Import what the ranks need, and fork agents."""
    torch.set_num_threads(1)  # a process with threads must not be forked
    module = import_module(line[line.index("-m") + 1])
    for name in getattr(module, "LATER", ()):
        import_module(name)
    start = partial(multiprocessing.start_processes, start_method="fork")
    start(_agent, (line,), nprocs=agents)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
