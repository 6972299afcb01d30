"""Files whole or absent, folders that leave no trace, locks that a kill frees."""

import fcntl
import hashlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from importlib import resources
from pathlib import Path

from dptune.errors import PrivacyError

_SETTLED = 2_000_000_000
"""Nanoseconds after which another write to a file gives it another time."""
_POLL = 0.005


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


@contextmanager
def private_folder(parent: Path, *, purpose: str) -> Iterator[Path]:
    """Make a folder that only its owner may enter, and remove it with all it holds.

    Folders of the same purpose that a killed process left behind go first: nobody holds
    their lock. What is memory-mapped from a file in it may be read on after that file
    is gone, as long as the process lives.

    Args:
        parent: folder that it is made in; made if absent.
        purpose: how its name begins.
    """
    handle = None
    while handle is None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = parent / f"{purpose}-{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):  # who found the parent empty removed it
            handle = _made_and_locked(folder, purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


@contextmanager
def owner_only() -> Iterator[None]:
    """Let what libraries write in the meantime be readable by its owner only.

    The mask belongs to the process: another thread's files are closed to others too.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _made_and_locked(folder: Path, purpose: str) -> int:
    """Make a folder beside others, of which those go that nobody holds; lock it."""
    with_all = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(with_all, fcntl.LOCK_EX)  # nobody sweeps what is being made
        for left in folder.parent.glob(f"{purpose}-*"):
            _remove_unlocked(left)
        folder.mkdir(mode=0o700)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    finally:
        os.close(with_all)
    return handle


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder whose process is gone."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # its process has just removed it, or it is none of ours
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


@contextmanager
def locked(file: Path, *, patience: float = math.inf) -> Iterator[None]:
    """Hold a lock that goes with the process: nobody must free it after a kill.

    A process that was stopped keeps it, as one does that works.

    Args:
        file: made if absent, for its owner alone, and never removed.
        patience: seconds to wait for whoever holds it.

    Raises:
        BlockingIOError: somebody held it all the time.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(handle, patience)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, patience: float) -> None:
    """Take the lock of an open file; who waits without end is in a queue."""
    if math.isinf(patience):
        fcntl.flock(handle, fcntl.LOCK_EX)
        return
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(_POLL)
        else:
            return


@contextmanager
def alone_in(folder: Path, *, name: str) -> Iterator[None]:
    """Keep others from training in a folder, until this process ends or is killed.

    Two would both pay, and overwrite each other's checkpoints.

    Args:
        folder: made if absent.
        name: what a script calls it.

    Raises:
        PrivacyError: another one trains there; nothing was charged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder / "running.lock", patience=0))
        except BlockingIOError:
            raise PrivacyError(
                f"{name} must be trained in by one process at a time, but another one "
                f"is at it. Wait for its end, or choose another {name}."
            ) from None
        yield


def contents_digest(files: Iterable[Path]) -> str:
    """Digest names and contents of files, in their order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n".encode())
        state = file.stat()
        age = time.time_ns() - state.st_ctime_ns
        hashed = _hashed if age > _SETTLED else _hashed.__wrapped__
        written = state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
        digest.update(hashed(file, written))
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _hashed(file: Path, written: tuple[int, ...]) -> bytes:  # noqa: ARG001 - of the cache
    """Hash a large file once in a process, as long as nobody writes to it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


@lru_cache(maxsize=1)
def program_digest() -> str:
    """Digest every file of the library: no result of another program is taken."""
    digest = hashlib.sha256()
    root = Path(str(resources.files("dptune")))
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            digest.update(f"{file.relative_to(root)}".encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
