"""Read any source into records, or into a data set with `id, text, unit_id`."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dptune.data.checks import SPLIT_NAMES
from dptune.data.messages import read_conversation
from dptune.data.parsers import (
    check_columns,
    locate,
    parse_csv,
    parse_jsonl,
    parse_parquet,
    parse_text,
    read_hub,
)
from dptune.data.records import MISSING, ProblemLog, RawRecord
from dptune.data.source import (
    CsvSource,
    DataSource,
    FileSource,
    FolderSource,
    HubSource,
    JsonlSource,
    ParquetSource,
    SyntheticSource,
    TabularFileSource,
    TextSource,
    describe_source,
    display_name,
    learnt_roles,
    template_parts,
)
from dptune.data.synthetic import iter_dialogues
from dptune.data.textfile import TextFile, open_text

_FILE_FIELDS = {"text_column", "text_template", "encoding", "max_bytes"}
_COLUMN_FIELDS = {
    *("messages_column", "prompt_column", "completion_column", "tools_column"),
    "train_on",
    *("id_column", "unit_column", "split_column", "label_column", "known_columns"),
}
_TABLE_KINDS: dict[str, type[JsonlSource | CsvSource | ParquetSource]] = {
    "jsonl": JsonlSource,
    "csv": CsvSource,
    "parquet": ParquetSource,
}


def read_records(
    source: DataSource, *, data_root: Path | None, log: ProblemLog
) -> Iterator[RawRecord]:
    """Read record after record, checking files but not values.

    All faults of files are known when the last record was read.

    Raises:
        DependencyError: a hub data set cannot be fetched.
    """
    match source:
        case SyntheticSource():
            yield from _read_synthetic(source)
        case HubSource():
            name = describe_source(source)
            for split, row, values in read_hub(source, data_root=data_root, log=log):
                yield _to_record(values, source, file=name, row=row, split=split)
        case FolderSource():
            yield from _read_folder(source, data_root=data_root, log=log)
        case _:
            read = set[str]()
            located = [
                (split, name, locate(path, data_root, name=name, log=log))
                for split, path in source.files()
                for name in (display_name(path),)
            ]
            for split, name, place in located:
                places = [] if place is None else [place]
                for file in _not_read(places, read, name=name, log=log):
                    yield from _read_file(source, file, name=name, split=split, log=log)


def _not_read(
    files: Sequence[Path], read: set[str], *, name: str, log: ProblemLog
) -> list[Path]:
    """Return files that were not read before, and report the others.

    A file that two paths, links or splits name would be there twice: each of its
    records as two units, and perhaps on two sides.

    Args:
        files: to be read now.
        read: what files really are that were read before; those of now are added.
        name: of what lists them, in messages.
        log: where the others are reported.
    """
    found, again = list[Path](), 0
    for file in files:
        place = os.path.realpath(file)
        again += place in read
        if place not in read:
            found.append(file)
        read.add(place)
    if again:
        log.add(
            name,
            "must name each file once, got "
            f"{again:,} that another path, link or split names too.",
            "Remove the links, or give each split files of its own.",
        )
    return found


def source_files(source: DataSource, *, data_root: Path | None) -> list[Path] | None:
    """List every file that records are read from, in order; None if some cannot be.

    Args:
        source: one without files has none.
        data_root: folder that relative paths start from.
    """
    if isinstance(source, HubSource):
        return None
    found, log = list[Path](), ProblemLog()
    if isinstance(source, SyntheticSource):
        return found
    for _, path in source.files():
        place = locate(path, data_root, name="", log=log)
        if place is None:
            return None
        if isinstance(source, FolderSource):
            found += _list_files(place, source.pattern)
        else:
            found.append(place)
    return found


def _read_synthetic(source: SyntheticSource) -> Iterator[RawRecord]:
    """Generate dialogues."""
    dialogues = iter_dialogues(
        num_records=source.num_records, private=source.private, seed=source.seed
    )
    for row, dialogue in enumerate(dialogues, start=1):
        yield RawRecord(
            file="synthetic",
            row=row,
            text=dialogue.text,
            id=dialogue.id,
            unit=dialogue.unit_id,
        )


def _read_file(
    source: FileSource, path: Path, *, name: str, split: str | None, log: ProblemLog
) -> Iterator[RawRecord]:
    """Read one file of a known format."""
    if isinstance(source, TextSource):
        text = _text_of(source, path, name=name, log=log)
        if text is None:
            return
        document = name if split is None else f"{split}/{name}"
        for row, value in parse_text(text.lines(), record=source.record):
            yield RawRecord(
                file=name,
                row=row,
                text=value,
                id=_text_id(source, document, row),
                document=document,
                split=split,
            )
        return
    for row, values in _rows(source, path, name=name, log=log):
        yield _to_record(values, source, file=name, row=row, split=split)


def _text_of(
    source: FileSource, path: Path, *, name: str, log: ProblemLog
) -> TextFile | None:
    """Look through a file's text as its source says."""
    return open_text(
        path,
        name=name,
        encoding=source.encoding,
        max_bytes=source.max_bytes,
        log=log,
    )


def _text_id(source: TextSource, document: str, row: int) -> object:
    """Name a record of plain text, if the source lets it have a name."""
    if source.record == "document":
        return document
    return f"{document}:{row}" if source.position_ids else MISSING


def _rows(
    source: TabularFileSource, path: Path, *, name: str, log: ProblemLog
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Read rows of columns."""
    if isinstance(source, ParquetSource):
        yield from parse_parquet(
            path,
            name=name,
            columns=source.columns(),
            max_bytes=source.max_bytes,
            log=log,
        )
        return
    text = _text_of(source, path, name=name, log=log)
    if text is None:
        return
    if isinstance(source, JsonlSource):
        yield from _checked_jsonl(text.lines(), source, name=name, log=log)
        return
    is_tsv = ".tsv" in path.suffixes
    yield from parse_csv(
        text.lines(newline=""),
        name=name,
        delimiter=source.delimiter or ("\t" if is_tsv else ","),
        quote_character=source.quote_character,
        columns=source.columns(),
        log=log,
    )


def _checked_jsonl(
    lines: Iterable[str], source: JsonlSource, *, name: str, log: ProblemLog
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Read JSON lines; a column that no row has is one fault, not one a row."""
    wanted, present, incomplete = source.columns(), dict[str, None](), ProblemLog()
    has_rows = False
    for number, values in parse_jsonl(lines, name=name, log=log):
        has_rows = True
        if not present.keys() >= values.keys():
            present.update(dict.fromkeys(values))
        absent = [c for c in wanted if c not in values and c != source.tools_column]
        for column in absent:
            incomplete.add_row(
                f"{name} row {number}",
                f"must have the column {column!r}, got none.",
                "Give every record the same columns.",
            )
        if not absent:  # then no column is absent everywhere
            yield number, values
    if has_rows and check_columns(list(present), wanted, name=name, log=log):
        log.take_rows(incomplete)


def _read_folder(
    source: FolderSource, *, data_root: Path | None, log: ProblemLog
) -> Iterator[RawRecord]:
    """Read the files of one folder, or of one folder a split."""
    read = set[str]()
    for split, path in source.files():
        name = display_name(path)
        folder = locate(path, data_root, name=name, log=log)
        if folder is None:
            continue
        try:
            is_folder = folder.is_dir()
            files = _list_files(folder, source.pattern)
        except OSError as error:
            log.add(name, f"must be readable, got: {error.strerror}.")
            continue
        if not is_folder:
            log.add(name, "must be a folder, got none.", "Check path and data root.")
            continue
        if not files:
            log.add(
                name,
                f"must hold a file that matches {source.pattern!r}, got 0.",
                "Check pattern.",
            )
        for file in _not_read(files, read, name=name, log=log):
            relative = file.relative_to(folder).as_posix()
            if locate(file, data_root, name=relative, log=log) is None:
                continue
            part = _file_source(source, file)
            yield from _read_file(part, file, name=relative, split=split, log=log)


def _list_files(folder: Path, pattern: str) -> list[Path]:
    """List files below a folder in the order of their names, without hidden ones."""
    return sorted(
        path
        for path in folder.glob(pattern)
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _file_source(source: FolderSource, file: Path) -> FileSource:
    """Describe one file of a folder as a source of its own."""
    if source.format == "text":
        return TextSource(
            path=file,
            encoding=source.encoding,
            record=source.record,
            max_bytes=source.max_bytes,
        )
    shared = source.model_dump(include=_COLUMN_FIELDS | _FILE_FIELDS)
    if source.format == "csv":
        shared |= source.model_dump(include={"delimiter", "quote_character"})
    return _TABLE_KINDS[source.format].model_validate(shared | {"path": file})


def _to_record(
    values: Mapping[str, object],
    source: TabularFileSource | HubSource,
    *,
    file: str,
    row: int,
    split: str | None,
) -> RawRecord:
    """Pick the columns of one row."""

    def pick(column: str | None) -> object:
        return MISSING if column is None else values[column]

    chosen: object = split
    if source.split_column is not None:  # where null is a fault, not no split
        value = values[source.split_column]
        chosen = MISSING if value is None else value
    identifier = pick(source.id_column)
    if source.ids_are_per_split and isinstance(chosen, str) and _is_id(identifier):
        identifier = f"{SPLIT_NAMES.get(chosen, chosen)}/{identifier}"
    return RawRecord(
        file=file,
        row=row,
        text=_compose(values, source),
        id=identifier,
        unit=pick(source.unit_column),
        split=chosen,
        label=pick(source.label_column),
        known=tuple(
            (kind, values[name]) for name, kind in source.known_columns.items()
        ),
    )


def _is_id(value: object) -> bool:
    """Tell usable ids, so that checks still see null ones."""
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _compose(
    values: Mapping[str, object], source: TabularFileSource | HubSource
) -> object:
    """Take the text column, or fill the template.

    A part that is null, or neither text nor a number, stands for all: it is refused.
    """
    if source.is_chat:
        given = [values[column] for column in source.text_columns()]
        tools = values.get(source.tools_column or "")
        return read_conversation(*given, learnt=learnt_roles(source), tools=tools)
    if source.text_template is None:
        return values[source.text_column]
    text = ""
    for literal, column in template_parts(source.text_template):
        value = "" if column is None else values[column]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if not isinstance(value, str | int | float):  # how Python writes it is no text
            return value
        text += f"{literal}{value}"
    return text
