"""Open and decode files; faults become problems with byte offsets, never text."""

import codecs
import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

from dptune.data.problems import ProblemLog

_GZIP_MAGIC = b"\x1f\x8b"
_MAX_OFFSETS = 5
_PIECE = 1 << 20


def locate(
    path: Path, data_root: Path | None, *, name: str, log: ProblemLog
) -> Path | None:
    """Anchor a path at the data root; report one that leads out of it, by a link too.

    Args:
        path: as configured.
        data_root: folder that holds all data; None lets any path be read.
        name: of the path in messages.
        log: where a path outside is reported.
    """
    if data_root is None:
        return path
    place = data_root / path
    try:
        inside = place.resolve().is_relative_to(data_root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        inside = False
    if inside:
        return place
    log.add(
        name,
        "must lie inside the data root, got a path or link that leads out of it.",
        "Copy it there, or let DPTUNE_DATA_ROOT name a folder that holds it.",
    )
    return None


def check_file(path: Path, *, name: str, log: ProblemLog) -> bool:
    """Report a path that is not a readable, non-empty file."""
    try:
        if not path.exists():
            log.add(name, "must exist, got no such file.", "Check path and data root.")
        elif not path.is_file():
            log.add(name, "must be a file, got none.", "For a folder use kind: folder.")
        elif path.stat().st_size == 0:
            log.add(name, "must not be empty, got 0 bytes.", "Remove it or fill it.")
        else:
            return True
    except OSError as error:
        log.add(name, f"must be readable, got: {error.strerror}.", "Check its rights.")
    return False


def read_text(
    path: Path, *, name: str, encoding: str, max_bytes: int, log: ProblemLog
) -> str | None:
    """Read a text file, plain or `.gz`; None if it cannot be read at all.

    Args:
        path: of the file.
        name: of the file in messages.
        encoding: of the text.
        max_bytes: unpacked; a megabyte of gzip may hold a gigabyte, so that no more
            than this is ever unpacked.
        log: where faults are reported.
    """
    if not check_file(path, name=name, log=log):
        return None
    data = _read_bytes(path, name=name, max_bytes=max_bytes, log=log)
    if data is None:
        return None
    if not data.strip():
        log.add(name, "must hold text, got white space only.", "Remove it or fill it.")
        return None
    return _decode(data, name=name, encoding=encoding, log=log)


def too_large(name: str, *, max_bytes: int, log: ProblemLog) -> None:
    """Report a file that would fill the memory."""
    log.add(
        name,
        f"must hold at most max_bytes ({max_bytes:,}) when unpacked, got more.",
        "Set data.source.max_bytes if the file is what you think, or split it.",
    )


def _read_bytes(
    path: Path, *, name: str, max_bytes: int, log: ProblemLog
) -> bytes | None:
    """Read and unpack bytes, up to a limit."""
    is_packed = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if is_packed else path.open("rb") as stream:
            data = read_up_to(stream, max_bytes)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        log.add(
            name,
            "must be a complete gzip file, got a damaged or cut one.",
            "Copy it again, or drop the .gz suffix if it is not compressed.",
        )
        return None
    except OSError as error:
        log.add(name, f"must be readable, got: {error.strerror}.", "Check its rights.")
        return None
    if data is None:
        too_large(name, max_bytes=max_bytes, log=log)
        return None
    if not is_packed and data.startswith(_GZIP_MAGIC):
        log.add(name, "must be plain text, got gzip data.", "Add the suffix .gz.")
        return None
    return data


def read_up_to(stream: BinaryIO | gzip.GzipFile, limit: int) -> bytes | None:
    """Read all of a stream, or return None as soon as it is longer than a limit."""
    pieces, size = [], 0
    while piece := stream.read(_PIECE):
        size += len(piece)
        if size > limit:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _decode(data: bytes, *, name: str, encoding: str, log: ProblemLog) -> str | None:
    """Decode all of a file, or report the places where that fails."""
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeError:
        places = "; ".join(_bad_places(data, encoding))
    log.add(
        name,
        f"must be valid {encoding}, got undecodable bytes at {places}.",
        "Convert the file, or set encoding to what it is.",
    )
    return None


def _bad_places(data: bytes, encoding: str) -> list[str]:
    """Name the first undecodable bytes by row and offset."""
    places: list[str] = []
    start = 0
    while start < len(data):
        try:
            data[start:].decode(encoding)
        except UnicodeDecodeError as error:
            if len(places) == _MAX_OFFSETS:
                return [*places, "and more"]
            is_utf8 = codecs.lookup(encoding).name == "utf-8"
            offset = start + error.start
            row = data.count(b"\n", 0, offset) + 1
            places.append(f"row {row} (byte {offset})")
            # Only UTF-8 can be read on from the middle of a file.
            start = start + max(error.end, 1) if is_utf8 else len(data)
        except UnicodeError:  # codecs such as utf-16 may not say where
            return places or ["an unknown place"]
        else:
            break
    return places
