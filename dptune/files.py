"""Files that are there as a whole or not at all, whatever ends the process."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Hold the name of a file that takes the place of another one once it is written.

    **Formal guarantee**: whoever reads `file` finds what was there before or all of
    what is there now, also after a kill, a full disk or a power cut in between. A file
    that is read back later and cannot be mended must be written like this: half of one
    would stand in the way of every run that follows.

    Args:
        file: its folder is made if absent.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f".{file.name}.{secrets.token_hex(4)}.half")
    try:
        yield half
        handle = os.open(half, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)
