"""Freed memory stays with the process while a model works on a CPU.

Every step frees hundreds of megabytes and needs them again at once. glibc gives much of
that back to the operating system in between, which then clears every page anew: a tenth
to a quarter of a training step. PyTorch's guide to training on CPUs exchanges the
allocator for the same reason, which a library cannot do to a program that already runs.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# malloc.h
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_NEVER: Final = -1
# The largest that glibc takes: where it keeps its own, and twice it when to trim.
_LARGEST_MMAP_THRESHOLD: Final = 32 << 20


@contextmanager
def freed_memory_kept(device: str) -> Iterator[None]:
    """Keep freed memory for the next step; before and behind, give back what is free.

    Does nothing on an accelerator, without glibc, or where the user has set glibc's
    allocator by `MALLOC_*` or `GLIBC_TUNABLES`. The peak is that of the work, but kept
    memory has gaps: a process was seen to hold up to a tenth more.

    Args:
        device: where the model is; `cpu` is what this is for.
    """
    if device != "cpu" or not _is_ours_to_set():
        yield
        return
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_MMAP_THRESHOLD)
        libc.malloc_trim(0)


def _is_ours_to_set() -> bool:
    """Whether glibc allocates, by settings of its own."""
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return platform.libc_ver()[0] == "glibc" and not chosen and not tuned
