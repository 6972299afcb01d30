"""A rank: one of several processes that train a stage together, started by `launch`.

It is charged for nothing by itself: the first rank asks the process that started it for
every block, and waits until the block is paid. When that process is gone, so is this.
"""

import os
import queue
import socket
import sys
import threading
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict

from dptune.dpsgd.distributed import describe_error
from dptune.dpsgd.trainer import StepProgress
from dptune.errors import DptuneError
from dptune.workflow.handover import Channel, Message, read_units
from dptune.workflow.job import TrainingJob, load_start, run_job

_PATIENCE: Final = timedelta(hours=1)
"""How long a rank waits for another, or for a charge, before it gives up."""


class RankOrder(BaseModel):
    """What one rank is told.

    Args:
        job: what all ranks compute together.
        rank: of this process, from 0.
        num_ranks: how many there are.
        device: `cpu`, or the accelerator of this rank.
        num_threads: of this process on the CPU.
        meeting_file: absent at first; ranks find each other through it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: TrainingJob
    rank: int
    num_ranks: int
    device: str
    num_threads: int
    meeting_file: Path


def main() -> None:
    """Train a share of a stage; the arguments are two inherited descriptors."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    try:
        order = RankOrder.model_validate(inbox.get())
        end: Message = {"done": _train(order, int(sys.argv[2]), channel, inbox)}
    except Exception as error:  # noqa: BLE001 - it is raised where we were started
        if not isinstance(error, DptuneError):
            traceback.print_exc()
        end = {"error": describe_error(error)}
    channel.send(end)
    sys.stderr.flush()
    os._exit(0)  # the listening thread holds a lock that an ordinary exit waits for


def _listen(channel: Channel, inbox: queue.SimpleQueue[Message]) -> None:
    """Pass messages on; end the process when nobody is there to send any."""
    while (message := channel.receive()) is not None:
        inbox.put(message)
    os._exit(1)


def _train(
    order: RankOrder,
    descriptor: int,
    channel: Channel,
    inbox: queue.SimpleQueue[Message],
) -> int | None:
    """Train with the others; return the step that the run went on from."""

    def charge(first_step: int, num_steps: int) -> None:
        channel.send({"charge": [first_step, num_steps]})
        inbox.get()  # whoever refuses ends this process instead

    def on_step(progress: StepProgress) -> None:
        channel.send({"progress": asdict(progress)})

    _join(order)
    try:
        loaded, _ = load_start(order.job)
        outcome = run_job(
            order.job,
            loaded,
            read_units(descriptor),
            device=order.device,
            charge=charge,
            on_step=on_step,
        )
    finally:
        dist.destroy_process_group()
    return outcome.resumed_from_step


def _join(order: RankOrder) -> None:
    """Meet the other ranks, over this machine's own interface only."""
    torch.set_num_threads(order.num_threads)
    loopback = next(n for _, n in socket.if_nameindex() if n.startswith("lo"))
    os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    device = torch.device(order.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=dist.FileStore(  # type: ignore[attr-defined]  # documented, not exported
            str(order.meeting_file), order.num_ranks
        ),
        rank=order.rank,
        world_size=order.num_ranks,
        timeout=_PATIENCE,
    )
