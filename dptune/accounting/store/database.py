"""Open a store and order its transactions: one writer at a time, on any database.

| | SQLite | PostgreSQL |
|---|---|---|
| write lock | `flock` beside the file, then `BEGIN IMMEDIATE` | advisory lock |
| readers see | a snapshot (WAL) | a snapshot (repeatable read) |
| durable | `synchronous = FULL` | `synchronous_commit`, on if the server has it off |

One connection is kept and tried before it is used again, so that a server may restart
during hours of training. A process that forks opens the store afterwards.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from dptune.accounting.store.schema import VERSION
from dptune.errors import ArtifactError, ConfigError, DependencyError
from dptune.files import locked

_LOCK: Final = 0x6470_7475_6E65  # "dptune"
_PATIENCE: Final = 120
_IN_QUEUE: Final = 600  # many units take minutes to enter
_WRITES: Final = "dptune_writes"
_WAL_ATTEMPTS: Final = 100
_UNHURRIED: Final = (
    "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN "
    "('statement_timeout', 'idle_in_transaction_session_timeout', "
    "'transaction_timeout')"
)
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


def open_engine(url: str) -> Engine:
    """Make an engine; nothing is connected yet.

    Args:
        url: `sqlite:///file` or `postgresql://user@host/name`; other databases are
            refused.

    Raises:
        ConfigError: the URL names no database that a store can live in. The message
            never quotes it: it may hold a password.
        DependencyError: the PostgreSQL driver is not installed.
    """
    parsed = _parse(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    options = {"timeout": _PATIENCE} if is_sqlite else {"connect_timeout": 10}
    try:
        engine = create_engine(
            parsed,
            poolclass=QueuePool,
            pool_size=1,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=options,
        )
    except ModuleNotFoundError:
        raise DependencyError(
            "PostgreSQL needs psycopg, which is not installed. Run "
            "`pip install 'dptune[postgres]'`."
        ) from None
    if is_sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "begin", _begin_postgresql)
    return engine


@contextmanager
def connecting(engine: Engine) -> Iterator[Connection]:
    """Hold a connection; a database that is gone is an error of ours.

    Raises:
        ArtifactError: the database cannot be reached, is full, or stayed locked.
    """
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise ArtifactError(
            f"the budget store must answer, got {type(error.orig).__name__}. Check "
            "that its database is there, writable and not locked; nothing is drawn "
            "until it is."
        ) from error


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """Run one transaction on a snapshot."""
    connection.execution_options(**{_WRITES: False})
    with connection.begin():
        yield


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """Run one transaction as the only writer of the store."""
    connection.execution_options(**{_WRITES: True})
    with _queue(connection), connection.begin():
        yield


@contextmanager
def _queue(connection: Connection) -> Iterator[None]:
    """Line up behind other writers of an SQLite file, whose own lock knows no queue."""
    name = connection.engine.url.database
    if connection.dialect.name != "sqlite" or not name:
        yield
        return
    with lock_file(Path(f"{name}.lock"), patience=_IN_QUEUE):
        yield


@contextmanager
def lock_file(file: Path, *, patience: int) -> Iterator[None]:
    """Hold a lock beside an SQLite file.

    Args:
        file: of the lock.
        patience: seconds to wait for whoever holds it.

    Raises:
        ArtifactError: it is held still, such as by a process that was stopped.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(file, patience=patience))
        except BlockingIOError:
            raise ArtifactError(
                f"{file.name} must be let go within {patience} seconds, but another "
                "process holds it. Let that go on, if it was stopped, or end it; "
                "nothing was written meanwhile."
            ) from None
        yield


def prepare(engine: Engine) -> None:
    """Create the tables, or bring them up to date; cheap when they are.

    Raises:
        ArtifactError: the store was written by a newer program.
    """
    with connecting(engine) as connection:
        with reading(connection):
            found = version(connection)
        if found == VERSION:
            return
        from dptune.accounting.store.migrations import (  # noqa: PLC0415 - slow, rare
            knows,
            migrate,
        )

        if found is not None and not knows(found):
            raise ArtifactError(
                f"the budget store must be of version {VERSION} or older, got a newer "
                "one. Upgrade dptune to use it."
            )
        with writing(connection):
            migrate(connection)


def refuse_lost(engine: Engine) -> None:
    """Refuse a store whose file has gone: it would begin anew, with nothing spent.

    Its lock file, which every writer leaves beside it, says that it was there.

    Raises:
        ArtifactError: from what SQLite says of it.
    """
    name = engine.url.database
    if engine.dialect.name == "sqlite" and name:
        refuse_gone(Path(name), mark=Path(f"{name}.lock"))


def refuse_gone(file: Path, *, mark: Path) -> None:
    """Refuse an SQLite file that is not there, although a mark says that it was.

    Raises:
        ArtifactError: from what SQLite says of it.
    """
    if file.is_file() or not mark.is_file():
        return
    try:
        sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True).close()
    except sqlite3.OperationalError as error:
        raise ArtifactError(
            f"the database {file.name} must be where it was, but its file has gone. "
            f"Put it back; if it is lost for good, remove {mark.name} as well: what it "
            "held is forgotten then (`dptune budget admit-loss` for budgets)."
        ) from error


def exists(engine: Engine) -> bool:
    """Whether there is a store; creates no file."""
    name = engine.url.database
    if engine.dialect.name == "sqlite" and not (name and Path(name).is_file()):
        return False
    with connecting(engine) as connection, reading(connection):
        return version(connection) is not None


def version(connection: Connection) -> str | None:
    """Return the version of the tables, None where there are none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version"))
    value = found.scalar_one_or_none()
    return None if value is None else str(value)


def _parse(url: str) -> URL:
    """Read a URL without ever quoting it."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    kind = parsed.get_backend_name() if parsed is not None else ""
    if parsed is None or kind not in {"sqlite", "postgresql"}:
        raise ConfigError(
            "the budget store's URL must begin with sqlite:/// or postgresql://, got "
            "something else. It may hold a password, so it is not shown."
        )
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.database in {None, "", ":memory:"} or parsed.query:
        raise ConfigError(
            "the budget store's URL must name a file, as sqlite:///budget.db does, and "
            "no options: a store in memory forgets what was spent."
        )
    return parsed


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    """Leave transactions to us, wait for locks, and survive a power cut."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
    connection.execute("PRAGMA synchronous = FULL")
    for attempt in range(_WAL_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:  # others switch at this moment
            time.sleep(0.01 * (1 + attempt % 10))
    raise sqlite3.OperationalError("database is locked")


def _begin_sqlite(connection: Connection) -> None:
    """Begin, taking the write lock at once where we will write."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_postgresql(connection: Connection) -> None:
    """Begin, taking the write lock or a snapshot, whatever the server does by itself.

    A writer that waited for the lock must see what was written meanwhile; what it wrote
    must outlive the server, before anything is drawn. A server that ends what takes
    long, or waits between two statements, would end locks that somebody relies on.
    """
    writes = connection.get_execution_options().get(_WRITES)
    level = "READ COMMITTED" if writes else "REPEATABLE READ"
    connection.exec_driver_sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
    connection.exec_driver_sql(_UNHURRIED)
    if writes:
        connection.exec_driver_sql(_DURABLE)
        lock_postgresql(connection, _LOCK, patience=_PATIENCE)


def lock_postgresql(connection: Connection, number: int, *, patience: int) -> None:
    """Take an advisory lock until the open transaction ends.

    Args:
        connection: in a transaction.
        number: of the lock.
        patience: seconds to wait for whoever holds it.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{patience}s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")
