"""Where to compute, and on how many processes."""

import ctypes
import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from dptune.config import PerformanceSettings
from dptune.errors import ConfigError, Problem
from dptune.files import replacing


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The processes that train a stage.

    Args:
        device: `cpu` or `cuda`, of this machine.
        num_processes: at least 1; each has an accelerator of its own, if there are any.
    """

    device: str
    num_processes: int


def pick_device(wanted: str, *, accelerators: int | None = None) -> str:
    """Turn `auto` into what a machine has.

    Args:
        wanted: `auto`, `cpu` or `cuda`.
        accelerators: of the machine; None looks at this one.

    Raises:
        ConfigError: an accelerator was asked for and there is none.
    """
    is_this = accelerators is None
    available = torch.cuda.is_available() if is_this else bool(accelerators)
    if wanted == "cuda" and not available:
        where = "on this machine" if is_this else "where pods have no accelerator"
        raise ConfigError(
            f"performance.device must be auto or cpu {where}, got cuda"
            f"{': no accelerator is visible' if is_this else ''}."
        )
    return "cuda" if wanted == "cuda" or (wanted == "auto" and available) else "cpu"


def place_processes(
    performance: PerformanceSettings, *, accelerators: int | None = None
) -> Placement:
    """Decide how many processes train, and where.

    `auto` is one for each visible accelerator, and one on the CPU. Those of several
    nodes have accelerators of theirs.

    Args:
        performance: what is wished for.
        accelerators: of the machine that trains; None counts those of this one.

    Raises:
        ConfigError: with everything that the machine does not have.
    """
    problems: list[Problem] = []
    try:
        device = pick_device(performance.device, accelerators=accelerators)
    except ConfigError as error:
        problems.extend(error.problems)
        device = "cpu"
    if accelerators is None:
        accelerators = torch.cuda.device_count()
    visible = accelerators if device == "cuda" else 1
    wanted = performance.num_processes
    count = visible if wanted == "auto" else wanted
    if device == "cuda" and count > visible and performance.nodes == 1:
        problems.append(
            Problem(
                path="performance.num_processes",
                message=f"must be at most {visible}, the visible accelerators, got "
                f"{count}.",
                next_step='Say "auto", or device: cpu.',
            )
        )
    count *= performance.nodes
    if performance.sharding != "none" and count == 1:
        problems.append(
            Problem(
                path="performance.sharding",
                message="must be none with one process, got "
                f"{performance.sharding}: there is nobody to share with.",
                next_step="Set num_processes to 2 or more.",
            )
        )
    elif performance.sharding == "hsdp" and (performance.nodes == 1 or wanted == 1):
        problems.append(
            Problem(
                path="performance.sharding",
                message="must be none or fsdp unless there are several nodes of "
                f"several processes, got hsdp with nodes={performance.nodes} and "
                f"num_processes={wanted}.",
                next_step="Set it to fsdp.",
            )
        )
    if problems:
        raise ConfigError(problems)
    return Placement(device=device, num_processes=count)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MACHINE, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def memory_there(device: str) -> int | None:
    """Return how many bytes this process can hold, those that it holds included.

    Args:
        device: where the work is done; on a CPU what the machine, and the container,
            leave to it.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info()[0]) + torch.cuda.memory_reserved()
    free, held = _figure(_MACHINE, "MemAvailable"), _figure(_STATUS, "VmRSS")
    if free is None or held is None:
        return None
    limit = math.inf
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit = int(_GROUP.read_text(encoding="ascii"))
    return int(min(free + held, limit))


@dataclass
class PeakMemory:
    """Filled in at the end; None where it cannot be told.

    Args:
        num_bytes: above what was held at the start.
        held: at the start; 0 where it cannot be told.
    """

    num_bytes: int | None = None
    held: int = 0

    @property
    def most(self) -> int:
        """All that was held at most; 0 where it cannot be told."""
        return self.held + (self.num_bytes or 0)


@contextmanager
def peak_memory(device: str) -> Iterator[PeakMemory]:
    """Measure the peak of this process, or of its accelerator, inside the block.

    On a CPU the kernel's high-water mark is set back first, which Linux allows a
    process for itself. Memory that the allocator kept from earlier work would hide a
    part of the peak, so that it is given back before.

    Args:
        device: where the work is done.
    """
    found = PeakMemory()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        found.held = torch.cuda.memory_allocated()
        yield found
        found.num_bytes = torch.cuda.max_memory_allocated() - found.held
        return
    before = _reset()
    found.held = before or 0
    yield found
    peak = _figure(_STATUS, "VmHWM")
    if before is not None and peak is not None:
        found.num_bytes = max(peak - before, 0)


@contextmanager
def remembered_peak(
    file: Path, performance: PerformanceSettings
) -> Iterator[PeakMemory]:
    """Measure the peak of a stage that may be resumed: the largest of all its starts.

    Nothing is told of several processes, each of which has memory of its own.

    Args:
        file: keeps the figure; its folder must be there at the end.
        performance: says where the work is done.
    """
    placement = place_processes(performance)
    with peak_memory(placement.device) as found:
        yield found
    if placement.num_processes > 1:
        found.num_bytes = None
        return
    earlier = int(file.read_text(encoding="ascii")) if file.is_file() else None
    known = [peak for peak in (earlier, found.num_bytes) if peak is not None]
    found.num_bytes = max(known, default=None)
    if found.num_bytes is not None:
        with replacing(file) as half:
            half.write_text(str(found.num_bytes), encoding="ascii")


def _reset() -> int | None:
    """Give free memory back, set the high-water mark back, and return what is held."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return None
    return _figure(_STATUS, "VmRSS")


def _figure(file: Path, name: str) -> int | None:
    """Read a figure of the kernel in bytes."""
    with suppress(OSError):
        for line in file.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
