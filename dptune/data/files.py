"""Open and decode files; faults become problems with byte offsets, never text."""

import codecs
import gzip
import zlib
from pathlib import Path

from dptune.data.problems import ProblemLog

_GZIP_MAGIC = b"\x1f\x8b"
_MAX_OFFSETS = 5


def resolve(path: Path, data_root: Path | None) -> Path:
    """Anchor a relative path at the data root."""
    return path if data_root is None or path.is_absolute() else data_root / path


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


def read_text(path: Path, *, name: str, encoding: str, log: ProblemLog) -> str | None:
    """Read a text file, plain or `.gz`; None if it cannot be read at all."""
    if not check_file(path, name=name, log=log):
        return None
    data = _read_bytes(path, name=name, log=log)
    if data is None:
        return None
    if not data.strip():
        log.add(name, "must hold text, got white space only.", "Remove it or fill it.")
        return None
    return _decode(data, name=name, encoding=encoding, log=log)


def _read_bytes(path: Path, *, name: str, log: ProblemLog) -> bytes | None:
    """Read and unpack bytes."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream:
                return stream.read()
        data = path.read_bytes()
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
    if data.startswith(_GZIP_MAGIC):
        log.add(name, "must be plain text, got gzip data.", "Add the suffix .gz.")
        return None
    return data


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
