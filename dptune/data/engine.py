"""What needs a whole column is asked of DuckDB, which spills to disk."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dptune.files import owner_only, private_folder

Engine = duckdb.DuckDBPyConnection
EngineError = duckdb.Error

_FULL: Final = ("No space left", "max_temp_directory_size")
"""What it says of a full disk, and of one that it would fill but for a tenth."""
_MEMORY_LIMIT: Final = "256MiB"
"""What columns may hold in memory before they are written to the folder."""


@contextmanager
def scratch_folder(folder: Path | None) -> Iterator[Path | None]:
    """Make a private folder for work files inside of another; None keeps to memory."""
    if folder is None:
        yield None
        return
    with owner_only(), private_folder(folder, purpose="corpus") as made:
        yield made


@contextmanager
def open_engine(folder: Path | None) -> Iterator[Engine]:
    """Open a database of this process alone, which reaches no network and no file.

    Privacy: its tables may hold ids and units. They stay in memory, or beyond
    256 MiB in files of `folder`, which go with it.

    Args:
        folder: private folder to spill to; None lets all stay in memory, in a database
            that all share who have no folder.

    Raises:
        OSError: the disk is full.
        MemoryError: so is the memory.
    """
    try:
        if folder is None:
            with own_tables(None) as engine:
                yield engine
        else:
            with closing(_database(folder)) as engine:
                yield engine
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        said = str(error)
        if any(words in said for words in _FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        if isinstance(error, duckdb.OutOfMemoryException):
            raise MemoryError from None
        raise


@contextmanager
def own_tables(engine: Engine | None) -> Iterator[Engine]:
    """Open a connection whose temporary tables go with it.

    Args:
        engine: whose database it is to; None for the one that stays in memory.
    """
    database = _in_memory() if engine is None else engine
    with closing(database.cursor()) as connection:
        yield connection


@cache
def _in_memory() -> Engine:
    """Open the database of those who have no folder: that takes a while each time."""
    return _database(None)


def _database(folder: Path | None) -> Engine:
    """Open a database, and let nobody open it to anything else."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": "1",  # the program around it is busier than its queries
        "temp_directory": "" if folder is None else str(folder / "spilled"),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    if folder is not None:
        settings["memory_limit"] = _MEMORY_LIMIT
    root = duckdb.connect(":memory:", config=settings)
    root.execute("SET enable_external_access = false")
    root.execute("SET lock_configuration = true")
    return root


@contextmanager
def given(
    engine: Engine, columns: Mapping[str, object] | pa.RecordBatchReader
) -> Iterator[None]:
    """Let queries name arrays of one length, or a stream, as the table `given`.

    Args:
        engine: that is asked.
        columns: arrays of Arrow or numpy, or a stream that one query reads once.
    """
    is_stream = isinstance(columns, pa.RecordBatchReader)
    engine.register("given", columns if is_stream else pa.table(dict(columns)))
    try:
        yield
    finally:
        engine.unregister("given")


def load(engine: Engine, table: str, columns: Mapping[str, object]) -> None:
    """Make a temporary table of arrays of one length.

    Args:
        engine: without the table.
        table: its name, one of ours.
        columns: arrays of Arrow or numpy.
    """
    with given(engine, columns):
        engine.execute(f"CREATE TEMP TABLE {table} AS FROM given")


def append(engine: Engine, table: str, columns: Mapping[str, object]) -> None:
    """Append arrays to a table, in the order of its columns."""
    engine.from_arrow(pa.table(dict(columns))).insert_into(table)


def fetch(engine: Engine, query: str) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the columns of a query as whole numbers."""
    found = engine.execute(query).fetchnumpy()
    return tuple(np.asarray(column, dtype=np.int64) for column in found.values())


def count(engine: Engine, query: str) -> int:
    """Return the one whole number that a query yields."""
    (row,) = engine.execute(query).fetchall()
    return int(row[0] or 0)
