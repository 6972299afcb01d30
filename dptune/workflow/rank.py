"""One rank of a training stage, as an agent of torch starts it.

On one machine the stage itself is the agent (`dptune.workflow.ranks`). Over several
`torchrun` is one on each of them; `write_job` makes a folder that all of them see:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id JOB \
        --rdzv-endpoint HOST:29400 --log-dir FOLDER/logs \
        -m dptune.workflow.rank FOLDER

The first rank pays: it opens the journal, and the budget store at `DPTUNE_BUDGET_URL`.
A rank that is lost takes the others with it. Started again they go on from the last
checkpoint, and charge again what they draw again, from fresh randomness.
"""

import json
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record

from dptune.dpsgd.distributed import describe_error
from dptune.errors import DptuneError
from dptune.files import replacing
from dptune.workflow.job import only_one
from dptune.workflow.shared_job import BUDGET_URL, read_job, train_share

AGENT: Final = "DPTUNE_AGENT"
"""Environment variable with the process that a rank must not outlive."""
_PATIENCE: Final = timedelta(hours=1)
"""How long a rank waits for another, or for a charge, before it gives up."""


class _Errors(ErrorHandler):
    """Tells the agent kind and message of an error, and nothing of its traceback."""

    def record_exception(self, e: BaseException) -> None:
        """Write torch's error file, if the agent wants one."""
        if file := self._get_error_file_path():
            when = {"extraInfo": {"timestamp": str(int(time.time()))}}
            content = json.dumps({"message": {**describe_error(e), **when}})
            with replacing(Path(file)) as half:  # the agent may end this meanwhile
                half.write_text(content, encoding="utf-8")


@partial(record, error_handler=_Errors())
def main(folder: Path) -> None:
    """Train this rank's share of the job in a folder."""
    os.umask(0o077)  # also where another machine's agent started this
    agent = int(os.environ.get(AGENT, os.getppid()))
    threading.Thread(target=_end_with, args=(agent,), daemon=True).start()
    shared = read_job(folder)
    with ExitStack() as stack:
        if os.environ["RANK"] == "0":
            stack.enter_context(only_one(shared.job.journal.parent))
        device = _join(folder, shared.device)
        stack.callback(dist.destroy_process_group)
        url = os.environ.get(BUDGET_URL)
        train_share(
            shared,
            folder,
            device=device,
            budget_url=url,
            ranks_per_node=int(os.environ["LOCAL_WORLD_SIZE"]),
        )


def _end_with(agent: int) -> None:
    """End this process when the agent that started it is gone."""
    while os.getppid() == agent:
        time.sleep(0.2)
    os._exit(1)


def _join(folder: Path, kind: str) -> str:
    """Meet the others, on one machine without a port; return this rank's device."""
    env, store = os.environ, None
    share = torch.get_num_threads() // int(env["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(max(1, share))
    if env["GROUP_WORLD_SIZE"] == "1":
        loopback = next(n for _, n in socket.if_nameindex() if n.startswith("lo"))
        env |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
        start = f"{env['TORCHELASTIC_RUN_ID']}-{env['TORCHELASTIC_RESTART_COUNT']}"
        store = dist.FileStore(  # type: ignore[attr-defined]  # documented
            str(folder / f"meeting-{start}"), int(env["WORLD_SIZE"])
        )
    if kind == "cuda":
        torch.cuda.set_device(int(env["LOCAL_RANK"]))
    dist.init_process_group(
        "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=int(env["RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        timeout=_PATIENCE,
    )
    return kind if kind == "cpu" else f"{kind}:{env['LOCAL_RANK']}"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except DptuneError:
        sys.exit(1)  # the agent tells
