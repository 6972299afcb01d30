"""One process at a time, among all that share a budget store or a project folder."""

import hashlib
import sqlite3
from collections.abc import Iterator, Set
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Dialect, Engine, event
from sqlalchemy.exc import OperationalError

from dptune.accounting.store.database import (
    connecting,
    lock_file,
    lock_postgresql,
    open_engine,
    refuse_gone,
)
from dptune.errors import ArtifactError
from dptune.files import locked

_PATIENCE = 600


@contextmanager
def one_at_a_time(url: str, name: str) -> Iterator[None]:
    """Hold a lock that goes with the process: nobody must free it after a kill.

    Whoever shares budgets shares registries, so that the budget store's database is a
    place that all of them reach. No charge waits for this lock.

    Args:
        url: of the budget store; on SQLite, a file beside it is locked.
        name: of what is done one at a time.

    Raises:
        ArtifactError: the database cannot be reached, or somebody held on too long.
    """
    engine = open_engine(url)
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
    try:
        if engine.dialect.name == "sqlite":
            database = Path(str(engine.url.database)).resolve()  # links lead to one
            file = Path(f"{database}.{number & 0xFFFF_FFFF:08x}.lock")
            file.parent.mkdir(parents=True, exist_ok=True)
            with lock_file(file, patience=_PATIENCE):
                yield
        else:
            with connecting(engine) as connection, connection.begin():
                lock_postgresql(connection, number, patience=_PATIENCE)
                yield
    finally:
        engine.dispose()


@contextmanager
def made_whole(database: Path) -> Iterator[None]:
    """Hold a database of somebody else's program while it is made.

    ZenML and MLflow make their tables one by one, and can go on with none of a part of
    them. A mark stands beside the file while that lasts; where a process that was
    killed, or met a full disk, has left it, they are made anew: there was no run yet.

    Another mark stays when they are made, so that they are never made twice.

    Args:
        database: an SQLite file; one that is there without the mark is left alone.

    Raises:
        ArtifactError: the file was there, and has gone.
    """
    mark = database.with_name(f"{database.name}.making")
    made = database.with_name(f"{database.name}.made")
    if database.exists() and not mark.exists():
        if not made.exists():  # it is from before
            with suppress(OSError):
                made.touch()
        yield
        return
    if not mark.exists():
        refuse_gone(database, mark=made)
    database.parent.mkdir(parents=True, exist_ok=True)
    with locked(database.with_name(f"{database.name}.lock")):
        if mark.exists():
            for part in ("", "-wal", "-shm", "-journal"):
                database.with_name(database.name + part).unlink(missing_ok=True)
        if not database.exists():
            mark.touch()
        yield
        made.touch()
        mark.unlink(missing_ok=True)


@contextmanager
def half_made_told(database: Path, *, filled: Set[str]) -> Iterator[None]:
    """Say what helps where tables were left half made without a mark of `made_whole`.

    Args:
        database: an SQLite file that is opened meanwhile.
        filled: tables that hold something from the beginning.

    Raises:
        ArtifactError: they were; those that hold nothing more are made anew next time.
    """
    try:
        yield
    except OperationalError as error:
        if "already exists" not in str(error.orig):
            raise
        told = f"{database.name} must have all its tables, but a command was killed "
        told += "while it made them. "
        if _tables_with_rows(database) - filled:
            told += f"It holds records: restore {database} from a backup."
            raise ArtifactError(told) from None
        database.with_name(f"{database.name}.made").unlink(missing_ok=True)
        database.with_name(f"{database.name}.making").touch()
        told += "Nothing is recorded in it: run the same command again, which makes "
        told += "it anew."
        raise ArtifactError(told) from None


def _tables_with_rows(database: Path) -> set[str]:
    """Name the tables that hold something."""
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        return {
            name
            for (name,) in tables.fetchall()
            if connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()  # noqa: S608 - a table's name
        }


def never_made_twice() -> None:
    """Let no connection of this process make a database that `made_whole` has made.

    SQLite makes a file where none is: a database that goes while a command runs would
    be followed by an empty one, in which ZenML and MLflow make themselves a new home.
    """
    if not event.contains(Engine, "do_connect", _open_only):
        event.listen(Engine, "do_connect", _open_only)


def _open_only(
    dialect: Dialect, _: object, arguments: list[Any], keywords: dict[str, Any]
) -> None:
    """Ask SQLite to open the file, or to fail."""
    file = str(arguments[0]) if arguments else ""
    if dialect.name == "sqlite" and Path(f"{file}.made").is_file():
        arguments[0] = f"{Path(file).absolute().as_uri()}?mode=rw"
        keywords["uri"] = True
