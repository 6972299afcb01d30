"""Train a stage on several processes of this machine, one for each accelerator.

Ranks are children of this process. They compute; this process charges, shows progress,
and stops all of them when one fails, when a charge is refused, or on Ctrl-C. When it is
killed itself they end by themselves. They meet through a file and talk over the
loopback interface: no port is open to other machines.
"""

import json
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import torch

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import revive_error
from dptune.dpsgd.trainer import Charge, StepProgress
from dptune.errors import DptuneError
from dptune.workflow.device import Placement
from dptune.workflow.handover import Channel, Message, write_units
from dptune.workflow.job import TrainingJob

# The modules of this process, whatever lies in the working directory.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from dptune.workflow.rank import main; main()"
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
        return DptuneError(
            f"rank {number} ended without a word ({_ending(code)}). If it ran out of "
            "memory, lower performance.physical_batch_size or num_processes."
        )
    return revived[0]


def _ending(code: int) -> str:
    """Name an exit code."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
