"""Turn one file into rows of columns: JSON lines, CSV, Parquet, plain text."""

import csv
import difflib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dptune.data.files import check_file, too_large
from dptune.data.problems import ProblemLog
from dptune.data.source import TextUnit

Row = tuple[int, Mapping[str, object]]
_ROWS_AT_ONCE = 1024
"""A page of one long value, repeated, unpacks to this many of it before it is seen."""


def check_columns(
    present: Sequence[str], wanted: Sequence[str], *, name: str, log: ProblemLog
) -> bool:
    """Report columns that a file lacks.

    Names of other columns are not listed: without a header they are record text.
    """
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
