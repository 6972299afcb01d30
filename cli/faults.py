"""What the machine does to a command: signals, full disks, memory, lost servers.

None of them is a verdict or a wrong input, and none is a mistake of this program: each
is one sentence, without the text of the exception, which may quote data.
"""

import errno
import os
import re
import shutil
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PAGE: Final = 4096
_MOMENT: Final = 0.05  # seconds
_OS_ERROR: Final = re.compile(r"(?:os error|\[?Errno|errno[:=]?) ?(\d+)")


class Stopped(BaseException):
    """The process was told to end; no `except Exception` may take it for a failure."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells count."""
        return 128 + self.signal


@contextmanager
def signals_raised() -> Iterator[list[Stopped]]:
    """Raise `Stopped` for signals that ask a process to end; a second one ends it.

    Yields what was raised: where something else fails because of it, such as a
    database that a library left locked, the signal is why the command ended.

    Where Python drops what is raised (destructors, callbacks of libraries), the signal
    is sent once more a moment later, when other code runs.
    """
    before: dict[signal.Signals, object] = {}
    raised: list[Stopped] = []
    waiting: list[threading.Timer] = []
    usual_hook = sys.unraisablehook

    def stop(number: int, _: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        raised.append(Stopped(number))
        raise raised[-1]

    def ask_again(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, Stopped):
            usual_hook(dropped)
            return
        for one in before:
            signal.signal(one, stop)
        send = (os.getpid(), dropped.exc_value.signal)
        waiting.append(threading.Timer(_MOMENT, os.kill, send))
        waiting[-1].daemon = True
        waiting[-1].start()

    here = threading.current_thread() is threading.main_thread()
    for number in _SIGNALS if here else ():
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup keeps its meaning
            before[number] = signal.signal(number, stop)
    sys.unraisablehook = ask_again if here else usual_hook
    try:
        yield raised
    finally:
        for timer in waiting:
            timer.cancel()
            timer.join()
        sys.unraisablehook = usual_hook
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def take_signals() -> None:
    """Take signals that came while the program was loaded; `run.py` lets them wait."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def write_trace(folder: Path, error: BaseException) -> Path:
    """Save an exception for the person at this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"crash-{datetime.now(tz=UTC):%Y%m%dT%H%M%S%fZ}.txt"
    file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return file


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happened to a command, and what would help.

    Args:
        what: a clause without record text.
        advice: one sentence in the imperative.
    """

    what: str
    advice: str


_FULL = Fault(
    what="the disk is full",
    advice="Free some space on it.",
)
_READ_ONLY = Fault(
    what="the file system is read-only",
    advice="Mount it for writing, or let DPTUNE_HOME name a folder elsewhere.",
)
_NO_LOCKS = Fault(
    what="the file system cannot do what is asked of it, such as to lock files",
    advice="Let DPTUNE_HOME name a folder on a local disk.",
)
_DENIED = Fault(
    what="a file or folder may not be used",
    advice="Give this account its rights.",
)
_BROKEN_DISK = Fault(
    what="a disk does not answer",
    advice="Check it, and its cable or server, before anything else.",
)
_MEMORY = Fault(
    what="there is not enough memory",
    advice="Lower performance.physical_batch_size or detection.num_processes, or end "
    "other programs.",
)
_FILES = Fault(
    what="too many files are open",
    advice="Raise the limit (`ulimit -n`).",
)
_LOCKED = Fault(
    what="a database stayed locked",
    advice="Wait for the other program that uses it.",
)
_GARBAGE = Fault(
    what="a database is damaged, or is none",
    advice="Restore it from a backup. Nothing is decided or trained without it, and "
    "docs/OPERATIONS.md says how the budget store is restored.",
)
_AWAY = Fault(
    what="a database does not answer",
    advice="Check that it is there and may be written to.",
)
_NETWORK = Fault(
    what="a server cannot be reached",
    advice="Check the network, and that the server is up.",
)
_PIPE = Fault(
    what="nobody reads the output any more",
    advice="",
)

_BY_NUMBER: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    errno.EROFS: _READ_ONLY,
    **dict.fromkeys((errno.ENOLCK, errno.ENOTSUP), _NO_LOCKS),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _DENIED),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENXIO), _BROKEN_DISK),
    errno.ENOMEM: _MEMORY,
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    errno.EPIPE: _PIPE,
    **dict.fromkeys(
        (
            *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
            *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN),
        ),
        _NETWORK,
    ),
}
_BY_SQLITE: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: _BROKEN_DISK,
    sqlite3.SQLITE_NOMEM: _MEMORY,
    sqlite3.SQLITE_PERM: _DENIED,
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), _LOCKED),
    **dict.fromkeys((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT), _GARBAGE),
    sqlite3.SQLITE_CANTOPEN: _AWAY,
}
_MEMORY_NAMES: Final = {"OutOfMemoryError", "ArrowMemoryError", "MemoryError"}
_MEMORY_WORDS: Final = ("DefaultCPUAllocator", "CUDA out of memory", "bad_alloc")
_NETWORK_NAMES: Final = {
    *("ConnectError", "ConnectTimeout", "ReadTimeout", "MaxRetryError", "ProxyError"),
    *("NewConnectionError", "NameResolutionError", "EndpointConnectionError"),
    *("ConnectionError", "SSLError", "gaierror", "LocalEntryNotFoundError"),
}
"""Kinds of `httpx`, `urllib3`, `requests` and `botocore`, which need not be there."""


def fault_of(error: BaseException) -> Fault | None:
    """Find what the machine did behind an error, however it was wrapped.

    Returns:
        None where nothing says that the machine is to blame.
    """
    for one in _chain(error):
        fault = _fault(one)
        if fault is not None:
            return _at(fault, one)
    return None


def full_disk(folder: Path) -> Fault | None:
    """Tell a disk without room for a page: what fails on it fails for that reason."""
    with suppress(OSError):
        return _FULL if shutil.disk_usage(folder).free < _PAGE else None
    return None


def is_closed_pipe(error: BaseException | None) -> bool:
    """Whether the reader of our output has gone, as in `| head`."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _chain(error: BaseException) -> Iterator[BaseException]:
    """List an error, and what it was raised from or beside."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or any(one is known for known in seen):
            continue
        seen.append(one)
        context = None if one.__suppress_context__ else one.__context__
        waiting += [getattr(one, "orig", None), one.__cause__, context]
    yield from seen


_Finder = Callable[[BaseException], Fault | None]


def _fault(error: BaseException) -> Fault | None:
    """Ask every finder about one error."""
    finders: tuple[_Finder, ...] = (_of_sqlite, _of_memory, _of_network, _of_number)
    return next((fault for find in finders if (fault := find(error))), None)


def _of_sqlite(error: BaseException) -> Fault | None:
    """Read SQLite's own code; its lowest byte is the kind."""
    if isinstance(error, sqlite3.Error):
        if "no such table" in str(error):  # the file went, and SQLite made an empty one
            return _AWAY
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _BY_SQLITE.get(code & 0xFF)
    # Drivers of servers: a connection that was refused, or went away.
    is_database = type(error).__module__.split(".")[0] in {"psycopg", "pymysql"}
    return _AWAY if is_database and type(error).__name__ == "OperationalError" else None


def _of_memory(error: BaseException) -> Fault | None:
    """Tell memory by the error's kind, or by an allocator's name."""
    by_name = type(error).__name__ in _MEMORY_NAMES
    by_words = isinstance(error, RuntimeError) and any(
        words in str(error) for words in _MEMORY_WORDS
    )
    return _MEMORY if by_name or by_words else None


def _of_network(error: BaseException) -> Fault | None:
    """Tell a lost server by the error's kind, whichever client raised it."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    # A socket's timeout carries no number.
    is_timeout = isinstance(error, TimeoutError) and error.errno is None
    return _NETWORK if kinds & _NETWORK_NAMES or is_timeout else None


def _of_number(error: BaseException) -> Fault | None:
    """Read the system's number; libraries in other languages write it in words."""
    if isinstance(error, OSError) and error.errno is not None:
        return _BY_NUMBER.get(error.errno)
    found = _OS_ERROR.search(str(error))
    return _BY_NUMBER.get(int(found[1])) if found else None


def _at(fault: Fault, error: BaseException) -> Fault:
    """Name the file, by its last two parts: what lies above may tell of the machine."""
    name = getattr(error, "filename", None)
    if not isinstance(error, OSError) or not isinstance(name, str | bytes):
        return fault
    place = Path(*Path(os.fsdecode(name)).parts[-2:]).as_posix().lstrip("/")
    return Fault(what=f"{fault.what} ({place})", advice=fault.advice)
