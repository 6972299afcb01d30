"""How much memory a piece of work took at most, where the platform can tell."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from dptune.config import PerformanceSettings
from dptune.workflow.device import place_processes

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class PeakMemory:
    """Filled in at the end; None where it cannot be told.

    Args:
        num_bytes: above what was held at the start.
    """

    num_bytes: int | None = None


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
        before: int | None = torch.cuda.memory_allocated()
        yield found
        found.num_bytes = torch.cuda.max_memory_allocated() - (before or 0)
        return
    before = _reset()
    yield found
    peak = _resident("VmHWM")
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
        file.write_text(str(found.num_bytes), encoding="ascii")


def _reset() -> int | None:
    """Give free memory back, set the high-water mark back, and return what is held."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(name: str) -> int | None:
    """Read a figure of this process in bytes."""
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
