"""Turn files and data sets of the hub into rows of columns; no code of theirs is run.

Faults become problems with row numbers and byte offsets, never text.
"""

import csv
import difflib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from dptune.data.records import ProblemLog
from dptune.data.source import HubSource, TextUnit, describe_source
from dptune.data.textfile import check_file, too_large
from dptune.errors import DependencyError
from dptune.jsons import RepeatedKeyError, parse_json


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


Row = tuple[int, Mapping[str, object]]
_ROWS_AT_ONCE = 1024
"""A page of one long value, repeated, unpacks to this many of it before it is seen."""
_LONGEST_FIELD = 1 << 26
"""Characters; what a quote that is never closed may fill the memory with."""


_OF_CHATS = frozenset(
    [
        *("tools", "functions", "documents"),
        *("system", "system_prompt", "input", "history"),
    ]
)
"""Columns that belong to conversations by custom, and that nothing reads.

Templates could write the first three; ShareGPT and Alpaca keep what stands before or
behind a question in the others.
"""


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
        if (mark := _parting_mark(present, missing)) is not None:
            hint = f"Set data.source.delimiter to {mark!r}."
        log.add(
            name,
            f"must have the column {column!r}, got {len(present)} other columns.",
            hint,
        )
    repeated = {column for column in wanted if list(present).count(column) > 1}
    for column in sorted(repeated):
        log.add(name, f"must have one column {column!r}, got several.", "Rename one.")
    return not missing and not repeated


def _parting_mark(present: Sequence[str], missing: Sequence[str]) -> str | None:
    """What parts the columns of a header that was read as one, if anything usual does.

    >>> _parting_mark(["id;text"], ["text"])
    ';'
    """
    for mark in ";\t|," if len(present) == 1 else "":
        if {*missing} & {name.strip(' "') for name in present[0].split(mark)}:
            return mark
    return None


def parse_jsonl(lines: Iterable[str], *, name: str, log: ProblemLog) -> Iterator[Row]:
    """Yield one object a line; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except RepeatedKeyError:
            log.add_row(
                f"{name} row {number}",
                "must name every key of an object once, got one twice.",
                "Leave one of the two values.",
            )
            continue
        except ValueError:
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
    lines: Iterable[str],
    *,
    name: str,
    delimiter: str,
    quote_character: str | None,
    columns: Sequence[str],
    log: ProblemLog,
) -> Iterator[Row]:
    """Yield the rows below the header, by the line that each begins on."""
    reader = csv.reader(
        lines,
        delimiter=delimiter,
        quotechar=quote_character,
        quoting=csv.QUOTE_MINIMAL if quote_character else csv.QUOTE_NONE,
        strict=True,
    )
    usual = csv.field_size_limit(_LONGEST_FIELD)  # of the process
    first = 1
    try:
        header = next(reader, [])
        if not check_columns(header, columns, name=name, log=log):
            return
        first = reader.line_num + 1
        for values in reader:
            number, first = first, reader.line_num + 1
            if not values:
                continue
            if len(values) == len(header):
                yield number, dict(zip(header, values, strict=True))
                continue
            log.add_row(
                f"{name} row {number}",
                f"must have {len(header)} fields like the header, got more or fewer.",
                "Quote fields that hold the delimiter, or set delimiter.",
            )
    except csv.Error:
        log.add(
            f"{name} row {first}",
            "must be well-formed CSV, got an open or stray quote or a field that is "
            f"longer than {csv.field_size_limit()} characters.",
            "Repair it, set delimiter if no comma parts the columns, or set "
            "quote_character to null if the file does not quote.",
        )
    finally:
        csv.field_size_limit(usual)


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


def parse_text(lines: Iterable[str], *, record: TextUnit) -> Iterator[tuple[int, str]]:
    """Yield records of plain text with the number of their first line.

    Args:
        lines: with their ends.
        record: a line, a paragraph, or all of them.
    """
    match record:
        case "document":
            yield 1, "".join(lines).strip("\r\n")
        case "line":
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line.strip()
        case "paragraph":
            yield from _parse_paragraphs(lines)


def _parse_paragraphs(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield blocks of lines between blank lines."""
    first, block = 0, list[str]()
    for number, line in enumerate(chain(lines, [""]), start=1):
        if line.strip():
            first = first if block else number
            block.append(line.strip())
        elif block:
            yield first, "\n".join(block)
            block = []


T = TypeVar("T")
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
    local, cache = _directory(source, data_root), None
    if local is not None:
        files = _files_inside(source, local, data_root=data_root, log=log)
        if files is None:
            return
        cache = _cache_of(files)
    for split, name in source.splits():
        load = partial(datasets.load_dataset, split=name, cache_dir=cache)
        dataset = _tried(load, source, local, split=name)
        location = f"{describe_source(source)} split {name}"
        wanted = source.columns()
        if not check_columns(dataset.column_names, wanted, name=location, log=log):
            continue
        if dataset.num_rows == 0:
            log.add(location, "must not be empty, got 0 rows.", "Choose another split.")
        number = 0
        for columns in dataset.select_columns(list(wanted)).iter(_ROWS_AT_ONCE):
            for values in zip(*(columns[name] for name in wanted), strict=True):
                number += 1
                yield split, number, dict(zip(wanted, values, strict=True))


def _directory(source: HubSource, data_root: Path | None) -> Path | None:
    """Return the local directory that a data set's name is, None for one of the hub."""
    local = Path(source.name) if data_root is None else data_root / source.name
    return local if local.is_dir() else None


def _files_inside(
    source: HubSource, local: Path, *, data_root: Path | None, log: ProblemLog
) -> list[str] | None:
    """List the files that a local data set is read from, None where one lies outside.

    Links lead to files, and a README may name some.
    """
    name = describe_source(source)
    if locate(Path(source.name), data_root, name=name, log=log) is None:
        return None
    split = source.splits()[0][1]
    builder = _tried(datasets.load_dataset_builder, source, local, split=split)
    listed = (builder.config.data_files or {}).values()
    files = sorted({str(file) for named in listed for file in named})
    root = Path("/")  # an address is nowhere here
    places = [
        locate(root if "://" in file else Path(file), data_root, name=name, log=log)
        for file in files
    ]
    return None if None in places else files


def _cache_of(files: Sequence[str]) -> str:
    """Name the cache of a local data set by what its files hold.

    `datasets` knows files by their times, and unpacked ones by their names alone: what
    was written since under the same would never be read.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(file) + b"\0")
        if Path(file).is_file():
            with Path(file).open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    return str(cache / "local" / digest.hexdigest()[:32])


def _tried(
    load: Callable[..., T], source: HubSource, local: Path | None, *, split: str
) -> T:
    """Load something; the cause of a failure is dropped since it may quote rows."""
    name = source.name if local is None else str(local)
    try:
        return load(name, name=source.config, revision=source.revision)
    except _FAILURES as error:
        failure = type(error).__name__
    raise DependencyError(
        f"data.name must be a data set that can be loaded, got {source.name!r} "
        f"(config {source.config}, split {split}, revision {source.revision}): "
        f"{failure}. Check name, config and split; without a network, download it "
        f"elsewhere with `hf download {source.name} --repo-type dataset --local-dir "
        "DIR` and set data.name to that directory."
    )
