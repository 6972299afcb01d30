"""Chains: JSON values on disk that a crash cannot shorten, one a line; the journal.

A file holds one JSON object per line, each with the hash of the line before it:

    {"entry": {...}, "hash": "...", "previous": "...", "sequence": 0}

A second small file, `<name>.head`, holds the number of lines and the last hash, and is
replaced after every line, so that missing lines at the end are noticed too. Both
together make tampering evident, not impossible: they are no signature.

What a reader finds, and what it means:

| found | means | then |
|---|---|---|
| no file | nothing was written | empty |
| a last line without newline | `append` was cut short: it never returned, so nothing
  was done for it | dropped, cut off at the next line |
| one line more than the head says | killed between the two writes | counted |
| a line that does not follow from the one before | edited, moved or deleted | refused |
| fewer lines than the head says | deleted at the end | refused |
| not what this process wrote or read | deleted or exchanged while it ran | refused |

Several processes may write to one chain: a lock on a third file, `<name>.lock`, orders
them.

A run's journal is a chain of ledger entries. **Spend before you draw**: `charge`
returns only when the entry is on durable storage; the caller draws its noise after
that. A killed run can have charged for noise that it never drew, never the other way
round.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.errors import ArtifactError
from dptune.files import locked

_GENESIS: Final = "0" * 64


@dataclass(frozen=True, kw_only=True)
class _Tip:
    """Where a chain ends: its size in bytes, its lines, the hash of the last."""

    size: int = 0
    count: int = 0
    digest: str = _GENESIS


class Chain:
    """An append-only file of JSON objects.

    Args:
        path: of the file; it and its folder are made by the first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._known: _Tip | None = None
        self._seen = _Tip()

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line to durable storage.

        **Formal guarantee**: when this returns, every later `read`, also after a kill
        or a power cut, has the line. When it raises, or the process is killed in it,
        the line may or may not be there.

        Raises:
            ArtifactError: the chain was tampered with.
            OSError: the disk is full or gone.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with locked(_beside(self._path, "lock")):
            tip = self._tip()
            self._known = None
            line, digest = _line(tip, entry)
            _append(self._path, tip.size, line)
            after = _Tip(size=tip.size + len(line), count=tip.count + 1, digest=digest)
            _write_head(self._path, after)
            self._known = self._seen = after

    def read(self) -> tuple[Any, ...]:
        """Read all entries and check the chain.

        Raises:
            ArtifactError: a line was edited, moved or deleted; names the first bad one.
        """
        entries, self._seen = _read(self._path, self._seen)
        return entries

    @property
    def end(self) -> tuple[int, int, str]:
        """Where it ended when this process last wrote or read it."""
        return astuple(self._seen)

    def goes_on_from(self, end: tuple[int, int, str]) -> bool:
        """Whether all that lay before an `end` is still there, as it was."""
        size, count, digest = end
        try:
            _read(self._path, _Tip(size=size, count=count, digest=digest))
        except ArtifactError:
            return False
        return True

    def _tip(self) -> _Tip:
        """Where the next line goes; reads the file again if another process wrote.

        The head is brought up to date first, so that it never lags by two lines.
        """
        size = self._path.stat().st_size if self._path.exists() else 0
        if self._known is not None and self._known.size == size:
            return self._known
        _, tip = _read(self._path, self._seen)
        if tip.count:
            _write_head(self._path, tip)
        return tip


def _line(tip: _Tip, entry: object) -> tuple[bytes, str]:
    """Render the next line, and its hash."""
    body = {"entry": entry, "previous": tip.digest, "sequence": tip.count}
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical({**body, "hash": digest}) + b"\n", digest


def _append(path: Path, size: int, line: bytes) -> None:
    """Write a line behind the last good one, down to the disk."""
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(handle, size)
        os.lseek(handle, size, os.SEEK_SET)
        _write(handle, line)
    finally:
        os.close(handle)
    if is_new:
        _sync_folder(path)


def _write_head(path: Path, tip: _Tip) -> None:
    """Replace the head in one step, so that it is never half written."""
    target = _beside(path, "head")
    half = _beside(path, "head.half")
    handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write(handle, _canonical({"count": tip.count, "hash": tip.digest}))
    finally:
        os.close(handle)
    half.replace(target)
    _sync_folder(path)


def _write(handle: int, data: bytes) -> None:
    """Write all of it, down to the disk: one call may take less, on a full one."""
    written = 0
    while written < len(data):
        written += os.write(handle, data[written:])
    os.fsync(handle)


def _read(path: Path, seen: _Tip) -> tuple[tuple[Any, ...], _Tip]:
    """Read and check a chain that goes on from where it was seen; say where it ends."""
    head = _read_head(path)
    data = path.read_bytes() if path.exists() else b""
    entries: list[Any] = []
    tip, matches_head = _Tip(), head is None or head["count"] == 0
    goes_on = seen.count == 0
    *lines, _torn = data.split(b"\n")
    for line in (text + b"\n" for text in lines):
        entry, digest = _check_line(path, line, tip)
        entries.append(entry)
        tip = _Tip(size=tip.size + len(line), count=tip.count + 1, digest=digest)
        if head is not None and tip.count == head["count"]:
            matches_head = tip.digest == head["hash"]
        goes_on = goes_on or tip == seen
    if not goes_on:
        raise ArtifactError(
            f"{path.name} must go on from the {seen.count} lines that this process has "
            "written or read, but they are gone, or others. Restore the file."
        )
    _check_end(path, tip, head, matches_head=matches_head)
    return tuple(entries), tip


def _check_line(path: Path, line: bytes, tip: _Tip) -> tuple[Any, str]:
    """Parse one line and compare it, byte for byte, with what must stand there."""
    try:
        data = json.loads(line)["entry"]
        expected, digest = _line(tip, data)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _tampered(path, tip.count + 1) from None
    if expected != line:
        raise _tampered(path, tip.count + 1)
    return data, digest


def _check_end(
    path: Path, tip: _Tip, head: dict[str, Any] | None, *, matches_head: bool
) -> None:
    """Compare the end of the file with the head."""
    expected = 0 if head is None else int(head["count"])
    if not matches_head or tip.count < expected:
        raise _tampered(path, min(tip.count + 1, max(expected, 1)))
    if tip.count > expected + 1:
        raise ArtifactError(
            f"{path.name}.head must say how many lines {path.name} has, got {expected} "
            f"for {tip.count} lines. Restore the file that was written with it."
        )


def _read_head(path: Path) -> dict[str, Any] | None:
    """Read the head, None if there is none yet."""
    target = _beside(path, "head")
    if not target.exists():
        return None
    try:
        head = json.loads(target.read_bytes())
        return {"count": int(head["count"]), "hash": str(head["hash"])}
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(
            f"{target.name} must be the head of a chain. Restore it from a backup."
        ) from None


def _tampered(path: Path, number: int) -> ArtifactError:
    """Name the first line that is not what was charged."""
    return ArtifactError(
        f"line {number} of {path.name} must follow from the line before it: it was "
        "edited, moved or deleted. Restore the file from a backup; until then what it "
        "was charged for is not known."
    )


def _sync_folder(path: Path) -> None:
    """Make a new name in a folder durable."""
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: Path, suffix: str) -> Path:
    """Name a file that belongs to the chain."""
    return path.with_name(f"{path.name}.{suffix}")


def _canonical(value: object) -> bytes:
    """Write JSON in the one form that is hashed."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


class LedgerJournal:
    """An append-only file of ledger entries.

    Args:
        path: of the file; it and its folder are made by the first charge.
    """

    def __init__(self, path: Path) -> None:
        self._chain = Chain(path)

    @property
    def path(self) -> Path:
        """Where the journal lies."""
        return self._chain.path

    @property
    def end(self) -> tuple[int, int, str]:
        """Where it ended when this process last charged or read it."""
        return self._chain.end

    def goes_on_from(self, end: tuple[int, int, str]) -> bool:
        """Whether it holds all that it held at an `end`."""
        return self._chain.goes_on_from(end)

    def charge(self, entry: LedgerEntry) -> None:
        """Write one entry to durable storage, before its noise is drawn.

        **Formal guarantee**: when this returns, every later `read`, also after a kill
        or a power cut, has the entry. When it raises, or the process is killed in it,
        no noise may be drawn; the entry may or may not be counted.

        Raises:
            ArtifactError: the journal was tampered with.
            OSError: the disk is full or gone.
        """
        self._chain.append(entry.model_dump(mode="json"))

    def read(self) -> PrivacyLedger:
        """Read all entries and check the chain.

        Raises:
            ArtifactError: a line was edited, moved or deleted; names the first bad one.
        """
        found = enumerate(self._chain.read(), start=1)
        return PrivacyLedger(entries=tuple(self._entry(n, data) for n, data in found))

    def _entry(self, number: int, data: object) -> LedgerEntry:
        """Read one line."""
        try:
            return LedgerEntry.model_validate(data)
        except ValidationError:
            raise ArtifactError(
                f"line {number} of {self.path.name} must be an entry that this version "
                "knows. Upgrade dptune to read it."
            ) from None
