"""Turn files and data sets of the hub into rows of columns; no code of theirs is run.

Faults become problems with row numbers and byte offsets, never text.
"""

import codecs
import csv
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from dptune.data.records import ProblemLog
from dptune.data.source import HubSource, TextUnit, describe_source
from dptune.errors import DependencyError

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


Row = tuple[int, Mapping[str, object]]
_ROWS_AT_ONCE = 1024
"""A page of one long value, repeated, unpacks to this many of it before it is seen."""


_OF_CHATS = frozenset(["tools", "functions", "documents"])
"""Columns that templates could write beside messages, and that nothing reads."""


def check_columns(
    present: Sequence[str], wanted: Sequence[str], *, name: str, log: ProblemLog
) -> bool:
    """Report columns that a file lacks.

    Names of other columns are not listed: without a header they are record text.
    """
    log.unread_columns.update(
        f"column {column}" for column in present if column in _OF_CHATS - {*wanted}
    )
    missing = [column for column in wanted if column not in present]
    for column in missing:
        near = difflib.get_close_matches(column, present, n=1, cutoff=0.8)
        hint = f"Did you mean {near[0]!r}?" if near else "Check header and config."
        log.add(
            name,
            f"must have the column {column!r}, got {len(present)} other columns.",
            hint,
        )
    repeated = {column for column in wanted if list(present).count(column) > 1}
    for column in sorted(repeated):
        log.add(name, f"must have one column {column!r}, got several.", "Rename one.")
    return not missing and not repeated


def parse_jsonl(text: str, *, name: str, log: ProblemLog) -> Iterator[Row]:
    """Yield one object a line; blank lines are skipped."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            log.add_row(
                f"{name} row {number}",
                "must be one JSON object, got malformed JSON.",
                "Write one object a line.",
            )
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            log.add_row(
                f"{name} row {number}",
                f"must be one JSON object, got a JSON {type(value).__name__}.",
                "Write one object a line.",
            )


def parse_csv(
    text: str,
    *,
    name: str,
    delimiter: str,
    quote_character: str | None,
    columns: Sequence[str],
    log: ProblemLog,
) -> Iterator[Row]:
    """Yield one row a line below the header."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quotechar=quote_character,
        quoting=csv.QUOTE_MINIMAL if quote_character else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        header = next(reader, [])
        if not check_columns(header, columns, name=name, log=log):
            return
        for values in reader:
            if not values:
                continue
            if len(values) == len(header):
                yield reader.line_num, dict(zip(header, values, strict=True))
                continue
            log.add_row(
                f"{name} row {reader.line_num}",
                f"must have {len(header)} fields like the header, got more or fewer.",
                "Quote fields that hold the delimiter, or set delimiter.",
            )
    except csv.Error:
        log.add(
            f"{name} row {reader.line_num}",
            "must be well-formed CSV, got an open or stray quote or a field that is "
            f"longer than {csv.field_size_limit()} characters.",
            "Repair it, or set quote_character to null if the file does not quote.",
        )


def parse_parquet(
    path: Path,
    *,
    name: str,
    columns: Sequence[str],
    max_bytes: int,
    log: ProblemLog,
) -> Iterator[Row]:
    """Yield one row of a Parquet file, with the wanted columns only.

    What they hold when unpacked is counted as it is read: a file may say anything.
    """
    if not check_file(path, name=name, log=log):
        return
    try:
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow.names
            if not check_columns(present, columns, name=name, log=log):
                return
            number = size = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
                size += batch.nbytes
                if size > max_bytes:
                    too_large(name, max_bytes=max_bytes, log=log)
                    return
                for values in batch.to_pylist():
                    number += 1
                    yield number, values
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        log.add(name, "must be a Parquet file, got another format or a damaged file.")


def parse_text(text: str, *, record: TextUnit) -> Iterator[tuple[int, str]]:
    """Yield records of plain text with the number of their first line."""
    match record:
        case "document":
            yield 1, text.strip("\r\n")
        case "line":
            for number, line in enumerate(text.split("\n"), start=1):
                if line.strip():
                    yield number, line.strip()
        case "paragraph":
            yield from _parse_paragraphs(text)


def _parse_paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield blocks of lines between blank lines."""
    first, block = 0, list[str]()
    for number, line in enumerate((*text.split("\n"), ""), start=1):
        if line.strip():
            first = first if block else number
            block.append(line.strip())
        elif block:
            yield first, "\n".join(block)
            block = []


_FAILURES = (
    OSError,  # ConnectionError, FileNotFoundError, hub HTTP errors
    ValueError,  # unknown configuration or split
    RuntimeError,  # data sets that need code
    datasets.exceptions.DatasetsError,
    datasets.exceptions.DatasetGenerationError,
)


def read_hub(
    source: HubSource, *, data_root: Path | None, log: ProblemLog
) -> Iterator[tuple[str | None, int, Mapping[str, object]]]:
    """Yield split, row number and columns of every row.

    Privacy: the Hugging Face cache keeps a copy of the data set on disk, in plain text;
    the command line lets it lie in the project folder (`HF_DATASETS_CACHE`).

    Raises:
        DependencyError: the data set cannot be fetched, here or now.
    """
    if not _stays_inside(source, data_root, log):
        return
    for split, name in source.splits():
        dataset = _load(source, split=name, data_root=data_root)
        location = f"{describe_source(source)} split {name}"
        wanted = source.columns()
        if not check_columns(dataset.column_names, wanted, name=location, log=log):
            continue
        if dataset.num_rows == 0:
            log.add(location, "must not be empty, got 0 rows.", "Choose another split.")
        for number, row in enumerate(dataset.select_columns(list(wanted)), start=1):
            yield split, number, row


def _stays_inside(source: HubSource, data_root: Path | None, log: ProblemLog) -> bool:
    """Whether a data set's name is no directory outside the data root."""
    local = Path(source.name) if data_root is None else data_root / source.name
    if not local.is_dir():
        return True
    name = describe_source(source)
    return locate(Path(source.name), data_root, name=name, log=log) is not None


def _load(source: HubSource, *, split: str, data_root: Path | None) -> datasets.Dataset:
    """Load one split; the cause of a failure is dropped since it may quote rows."""
    local = Path(source.name) if data_root is None else data_root / source.name
    try:
        return datasets.load_dataset(
            str(local) if local.is_dir() else source.name,
            name=source.config,
            revision=source.revision,
            split=split,
        )
    except _FAILURES as error:
        failure = type(error).__name__
    raise DependencyError(
        f"data.name must be a data set that can be loaded, got {source.name!r} "
        f"(config {source.config}, split {split}, revision {source.revision}): "
        f"{failure}. Check name, config and split; without a network, download it "
        f"elsewhere with `hf download {source.name} --repo-type dataset --local-dir "
        "DIR` and set data.name to that directory."
    )
