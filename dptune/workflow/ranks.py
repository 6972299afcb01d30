"""Train a stage on several processes of this machine, one for each accelerator.

Ranks are children of this process. They compute; this process charges, shows progress,
and stops all of them when one fails, when a charge is refused, or on Ctrl-C. When it is
killed itself they end by themselves. They meet through a file and talk over the
loopback interface: no port is open to other machines.
"""

import json
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors.numpy import load, save

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import describe_error, revive_error
from dptune.dpsgd.steps import Charge
from dptune.dpsgd.trainer import StepProgress
from dptune.errors import ConfigError, DptuneError
from dptune.settings import Settings
from dptune.workflow.device import Placement
from dptune.workflow.job import TrainingJob, load_start, run_job

Message = dict[str, Any]


class Channel:
    """One end of a socket that carries one line of JSON per message.

    Args:
        end: of a connected pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lines = end.makefile("rb")

    def send(self, message: Message) -> None:
        """Send a message; figures may be NaN."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """Wait for a message; None when the other end is closed or its process gone."""
        try:
            line = self._lines.readline()
        except (OSError, ValueError):  # hung up, at the other end or here
            return None
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Hang up; whoever waits at either end is woken."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()


def write_units(data: UnitDataset, file: BinaryIO) -> None:
    """Write a data set as safetensors. Private: it holds the tokens.

    Args:
        data: sequences, with or without classes.
        file: empty.

    Raises:
        ConfigError: the units are parts.
    """
    if data.kinds is not None or data.unnoised is not None:
        raise ConfigError(
            "performance.num_processes must be 1 for a recipe that trains units in "
            "parts."
        )
    bounds = [data.max_sequences_per_unit, data.num_dropped_sequences]
    tensors: dict[str, NDArray[Any]] = {"bounds": np.asarray(bounds, np.int64)}
    columns: dict[str, Sequence[NDArray[Any]]] = {
        "sequences": data.sequences,
        "loss_weights": data.loss_weights,
        "units": data.units,
    }
    for name, arrays in columns.items():
        tensors[name] = np.concatenate(arrays)
        tensors[f"{name}.lengths"] = np.asarray([len(a) for a in arrays], np.int64)
    if data.labels is not None:
        tensors["labels"] = data.labels
    file.write(save(tensors))
    file.flush()


def read_units(descriptor: int) -> UnitDataset:
    """Read what `write_units` wrote; the descriptor may be shared with others."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        tensors = load(content[:])
    max_sequences, num_dropped = tensors["bounds"].tolist()
    return UnitDataset(
        sequences=_split(tensors, "sequences"),
        loss_weights=_split(tensors, "loss_weights"),
        units=_split(tensors, "units"),
        labels=tensors.get("labels"),
        max_sequences_per_unit=max_sequences,
        num_dropped_sequences=num_dropped,
    )


def _split(tensors: dict[str, NDArray[Any]], name: str) -> tuple[NDArray[Any], ...]:
    """Cut a column into its arrays."""
    ends = np.cumsum(tensors[f"{name}.lengths"])
    return tuple(np.split(tensors[name], ends[:-1]))


# The modules of this process, whatever lies in the working directory.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from dptune.workflow.ranks import main; main()"
)
_GRACE_SECONDS: Final = 5.0

Inbox = queue.SimpleQueue[tuple[int, Message | None]]


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """A child and the line to it."""

    process: subprocess.Popen[bytes]
    channel: Channel


def train_on_ranks(
    job: TrainingJob,
    data: UnitDataset,
    placement: Placement,
    *,
    charge: Charge,
    on_step: Callable[[StepProgress], None] | None = None,
) -> int | None:
    """Run a job on several processes; its checkpoint is complete afterwards.

    **Formal guarantee**: that of `train_stage`; `charge` is called here, once for each
    block, and the ranks wait for it before they draw.

    | case | what happens |
    |---|---|
    | `charge` raises | nothing of the block is drawn; the error passes through |
    | a rank fails | its error is raised here |
    | a rank is killed | the error names the signal |
    | this process is killed | the ranks notice and end by themselves |

    In all of them no rank is left behind.

    Args:
        job: what to compute.
        data: sequences by privacy unit, not in parts.
        placement: how many processes, on what.
        charge: see `train_stage`.
        on_step: see `train_stage`.

    Returns:
        The step that the run went on from; None for a fresh one.

    Raises:
        DptuneError: a rank failed; of the rank's own kind where it is one of ours.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dptune-"))
        home = job.checkpoint_dir.parent
        file = stack.enter_context(tempfile.TemporaryFile(dir=home))
        write_units(data, file)
        ranks = stack.enter_context(_started(placement.num_processes, file))
        threads = max(1, torch.get_num_threads() // placement.num_processes)
        for number, rank in enumerate(ranks):
            order = {
                "job": job.model_dump(mode="json"),
                "rank": number,
                "num_ranks": placement.num_processes,
                "device": placement.device_of(number),
                "num_threads": threads,
                "meeting_file": str(Path(folder) / "meeting"),
            }
            rank.channel.send(order)
        return _serve(ranks, charge=charge, on_step=on_step)


@contextmanager
def _started(count: int, data: BinaryIO) -> Iterator[Sequence[_Rank]]:
    """Start processes that know nothing yet; on leaving none of them is left."""
    ranks: list[_Rank] = []
    try:
        for _ in range(count):
            ranks.append(_start(data))  # noqa: PERF401 - each must be stopped
        yield ranks
    finally:
        _stop(ranks)


def _start(data: BinaryIO) -> _Rank:
    """Start one process, out of reach of the terminal's Ctrl-C: we stop it."""
    ours, theirs = socket.socketpair()
    descriptors = (theirs.fileno(), data.fileno())
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
            [
                sys.executable,
                "-c",
                _PROGRAM,
                *map(str, descriptors),
                json.dumps(sys.path),
            ],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return _Rank(process=process, channel=Channel(ours))


def _stop(ranks: Sequence[_Rank]) -> None:
    """End what still runs, and wait for it."""
    for rank in ranks:
        rank.process.terminate()
    for rank in ranks:
        try:
            rank.process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()
        rank.channel.close()


def _serve(
    ranks: Sequence[_Rank],
    *,
    charge: Charge,
    on_step: Callable[[StepProgress], None] | None,
) -> int | None:
    """Charge and report for the ranks until all are done or one has failed."""
    inbox: Inbox = queue.SimpleQueue()
    for number, rank in enumerate(ranks):
        arguments = (number, rank.channel, inbox)
        threading.Thread(target=_forward, args=arguments, daemon=True).start()
    results: dict[int, int | None] = {}
    while len(results) < len(ranks):
        number, message = inbox.get()
        match message:
            case {"charge": [first_step, num_steps]}:
                charge(first_step, num_steps)
                ranks[number].channel.send({})
            case {"progress": figures}:
                if on_step is not None:
                    on_step(StepProgress(**figures))
            case {"done": step}:
                results[number] = step
            case _ if number not in results:
                raise _failure(ranks, {number: message}, inbox)
    return results[0]


def _forward(number: int, channel: Channel, inbox: Inbox) -> None:
    """Pass on what a rank says; None is its end."""
    while (message := channel.receive()) is not None:
        inbox.put((number, message))
    inbox.put((number, None))


def _failure(
    ranks: Sequence[_Rank], ends: dict[int, Message | None], inbox: Inbox
) -> DptuneError:
    """Hear the others, who often fail in its wake, and name the cause."""
    try:
        while len(ends) < len(ranks):
            number, message = inbox.get(timeout=_GRACE_SECONDS)
            if message is None or "error" in message:
                ends.setdefault(number, message)
    except queue.Empty:
        pass  # they wait for the one that failed
    codes = {
        number: ranks[number].process.wait()
        for number, message in ends.items()
        if message is None
    }
    errors = {number: end["error"] for number, end in ends.items() if end is not None}
    return cause_of_failure(errors, codes)


def cause_of_failure(
    errors: dict[int, dict[str, str]], codes: dict[int, int]
) -> DptuneError:
    """Choose among the ends of several ranks the one that explains the others.

    Args:
        errors: by rank, see `describe_error`.
        codes: exit codes of ranks that ended without a word.
    """
    revived = [
        revive_error(error, who=f"rank {number}")
        for number, error in sorted(errors.items())
    ]
    for error, (_, description) in zip(revived, sorted(errors.items()), strict=True):
        if type(error).__name__ == description["kind"]:
            return error  # one of ours: it says what to do
    for number, code in sorted(codes.items()):
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return DptuneError(
            f"rank {number} ended without a word ({ending}). If it ran out of "
            "memory, lower performance.physical_batch_size or num_processes."
        )
    return revived[0]


_PATIENCE: Final = timedelta(hours=1)
"""How long a rank waits for another, or for a charge, before it gives up."""


class RankOrder(Settings):
    """What one rank is told.

    Args:
        job: what all ranks compute together.
        rank: of this process, from 0.
        num_ranks: how many there are.
        device: `cpu`, or the accelerator of this rank.
        num_threads: of this process on the CPU.
        meeting_file: absent at first; ranks find each other through it.
    """

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
