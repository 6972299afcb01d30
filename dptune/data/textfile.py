"""Text files that are looked through once and then read line by line.

What is wrong with a file is known before its first line is used, and none of it is held
in memory: not by its size, nor by what a small archive unpacks to.
"""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from dptune.data.records import ProblemLog

_GZIP_MAGIC: Final = b"\x1f\x8b"
_MAX_OFFSETS: Final = 5
_PIECE: Final = 1 << 20
_BY_LINE: Final = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252"})
"""Encodings that can be decoded from the middle; others are decoded in one go."""

_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)


class _TooLongError(Exception):
    """A stream holds more than it may."""


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """A text file without faults.

    Args:
        path: plain, or `.gz`.
        name: in messages.
        encoding: of the text.
        log: where a change is reported that happens while the file is read.
    """

    path: Path
    name: str
    encoding: str
    log: ProblemLog = field(repr=False)

    def lines(self, *, newline: str = "\n") -> Iterator[str]:
        r"""Yield lines with their ends, without a byte order mark.

        Args:
            newline: what ends a line: `"\n"`, or `""` for that, `"\r"` and `"\r\n"`.
        """
        try:
            with self._text(newline) as stream:
                yield next(stream, "").removeprefix("\ufeff")
                yield from stream
        except (OSError, UnicodeError, *_DAMAGED):
            changed = True
        else:
            changed = False
        if changed:
            self.log.add(self.name, "must not change while it is read, but did.")

    def _text(self, newline: str) -> io.TextIOBase:
        stream = _opened(self.path)
        if codecs.lookup(self.encoding).name in _BY_LINE:
            return io.TextIOWrapper(stream, self.encoding, newline=newline)
        with stream:
            return io.StringIO(stream.read().decode(self.encoding), newline=newline)


def open_text(
    path: Path, *, name: str, encoding: str, max_bytes: int, log: ProblemLog
) -> TextFile | None:
    """Look through a text file, plain or `.gz`; None if it cannot be read at all.

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
    check = _Decoding(encoding)
    is_blank, head = True, b""
    try:
        with _opened(path) as stream:
            for piece in pieces(stream, max_bytes):
                head = head or piece[:2]
                is_blank = is_blank and not piece.strip()
                check.feed(piece)
        check.end()
    except _DAMAGED:
        log.add(
            name,
            "must be a complete gzip file, got a damaged or cut one.",
            "Copy it again, or drop the .gz suffix if it is not compressed.",
        )
    except OSError as error:
        log.add(name, f"must be readable, got: {error.strerror}.", "Check its rights.")
    except _TooLongError:
        too_large(name, max_bytes=max_bytes, log=log)
    else:
        if path.suffix != ".gz" and head == _GZIP_MAGIC:
            log.add(name, "must be plain text, got gzip data.", "Add the suffix .gz.")
        elif is_blank:
            log.add(
                name, "must hold text, got white space only.", "Remove it or fill it."
            )
        elif check.places:
            log.add(
                name,
                f"must be valid {encoding}, got undecodable bytes at "
                f"{'; '.join(check.places)}.",
                "Convert the file, or set encoding to what it is.",
            )
        else:
            return TextFile(path=path, name=name, encoding=encoding, log=log)
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


def too_large(name: str, *, max_bytes: int, log: ProblemLog) -> None:
    """Report a file that is larger than anybody said it would be."""
    log.add(
        name,
        f"must hold at most max_bytes ({max_bytes:,}) when unpacked, got more.",
        "Set data.source.max_bytes if the file is what you think, or split it.",
    )


def pieces(stream: BinaryIO | gzip.GzipFile, limit: int) -> Iterator[bytes]:
    """Read a stream in pieces, and stop with an error once it is longer than a limit.

    Raises:
        _TooLongError: it is.
    """
    size = 0
    while piece := stream.read(_PIECE):
        size += len(piece)
        if size > limit:
            raise _TooLongError
        yield piece


def read_up_to(stream: BinaryIO | gzip.GzipFile, limit: int) -> bytes | None:
    """Read all of a stream, or return None as soon as it is longer than a limit."""
    try:
        return b"".join(pieces(stream, limit))
    except _TooLongError:
        return None


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


class _Decoding:
    """Names the first undecodable bytes of a stream by row and offset.

    Only UTF-8 can be read on from the middle of a file: of other encodings the first
    place is named alone.
    """

    def __init__(self, encoding: str) -> None:
        self.places: list[str] = []
        self._encoding = encoding
        self._name = codecs.lookup(encoding).name
        self._waiting = bytearray()
        self._offset = 0
        self._rows = 0
        self._is_done = False

    def feed(self, piece: bytes) -> None:
        """Decode what follows."""
        if self._is_done:
            return
        if self._name not in _BY_LINE:
            self._waiting += piece
        elif self._name == "utf-8":
            self._utf8(bytes(self._waiting) + piece, is_last=False)
        else:
            self._whole(piece)

    def end(self) -> None:
        """Decode what waited for more."""
        if self._is_done:
            return
        if self._name == "utf-8":
            self._utf8(bytes(self._waiting), is_last=True)
        elif self._waiting:
            self._whole(bytes(self._waiting))

    def _utf8(self, data: bytes, *, is_last: bool) -> None:
        """Decode as far as it goes, past what cannot be decoded."""
        start = 0
        while not self._is_done:
            try:
                rest = data[start:] if start else data
                _, used = codecs.utf_8_decode(rest, "strict", is_last)
            except UnicodeDecodeError as error:
                self._found(data, start + error.start)
                start += max(error.end, 1)
            else:
                start += used
                break
        self._pass(data[:start] if start < len(data) else data)
        self._waiting = bytearray(data[start:])

    def _whole(self, data: bytes) -> None:
        """Decode in one go."""
        try:
            data.decode(self._encoding)
        except UnicodeDecodeError as error:
            self._found(data, error.start)
            self._is_done = True
        except UnicodeError:  # codecs such as utf-16 may not say where
            self.places.append("an unknown place")
            self._is_done = True
        self._pass(data)

    def _found(self, data: bytes, place: int) -> None:
        if len(self.places) == _MAX_OFFSETS:
            self.places.append("and more")
            self._is_done = True
            return
        row = self._rows + data.count(b"\n", 0, place) + 1
        self.places.append(f"row {row} (byte {self._offset + place})")

    def _pass(self, data: bytes) -> None:
        self._offset += len(data)
        self._rows += data.count(b"\n")
