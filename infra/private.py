"""What a project leaves on a machine is for its owner alone, temporary copies too.

The project folder holds record text, canaries and weights: 0700, and its files 0600,
whatever the umask was. ZenML, MLflow, SQLite and child processes write in it as well,
so that the mode is the process's and not that of one call.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.workspace import Workspace

OWNER_ONLY: Final = 0o077
"""The umask of every process that writes in a project folder."""
_OTHERS: Final = 0o077


@dataclass(frozen=True, kw_only=True)
class Closed:
    """What was open to other users of the machine.

    Args:
        changed: folders and files that were closed.
        left: those that could not be, since they are somebody else's.
    """

    changed: int = 0
    left: int = 0


def write_for_owner_only() -> None:
    """Let what this process and its children make be readable by their owner only."""
    os.umask(OWNER_ONLY)


def close_to_others(root: Path) -> Closed:
    """Close a project folder that an earlier version left open.

    The folder itself is closed last: killed in between, the next command goes on. In a
    folder that is closed nobody can reach anything, so that nothing is walked through.

    Args:
        root: the project folder; need not be there.
    """
    if not root.is_dir() or not _is_open(root):
        return Closed()
    changed = left = 0
    for path in (*_below(root), root):
        if not _is_open(path):
            continue
        try:
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
            changed += 1
        except OSError:  # somebody else's, or gone by now
            left += path.exists()
    return Closed(changed=changed, left=left)


def _below(root: Path) -> Iterator[Path]:
    """List what is in a folder, the deepest first; links are not followed."""
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            yield Path(folder, name)


def _is_open(path: Path) -> bool:
    """Whether others may read, write or enter; a link's own mode means nothing."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        return not stat.S_ISLNK(mode) and bool(mode & _OTHERS)
    return False


@dataclass(frozen=True, kw_only=True)
class _Moved:
    """Where temporary files of this process go, and went before."""

    folder: Path
    handle: int
    before: tuple[str | None, str | None]


_moved: list[_Moved] = []
"""At most one: the temporary folder belongs to the process."""


def keep_temporary_files_in(workspace: Workspace) -> None:
    """Let temporary files of this process, and its children, lie in the project folder.

    Those of processes that are gone, killed ones for instance, are removed. Idempotent.
    """
    if _moved:
        return
    home = workspace.temporary
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with_all = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(with_all, fcntl.LOCK_EX)  # nobody sweeps what is being made
        _sweep(home)
        folder = Path(tempfile.mkdtemp(dir=home))
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    finally:
        os.close(with_all)
    before = (tempfile.tempdir, os.environ.get("TMPDIR"))
    _moved.append(_Moved(folder=folder, handle=handle, before=before))
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def is_project_open() -> bool:
    """Whether this process has opened a project folder, and so may have written."""
    return bool(_moved)


def drop_temporary_files() -> None:
    """Remove the temporary files of this process, and let new ones go elsewhere."""
    while _moved:
        moved = _moved.pop()
        tempfile.tempdir, variable = moved.before
        if variable is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = variable
        shutil.rmtree(moved.folder, ignore_errors=True)
        os.close(moved.handle)


def _sweep(home: Path) -> None:
    """Remove the folders of processes that are gone: theirs are locked by nobody."""
    for folder in home.iterdir():
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:  # its process has just ended, and removed it
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)
