"""A throwaway MariaDB server: found or installed, run by an ordinary user."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_USERS = ("mysql", "nobody")
_SECONDS = 120
_PASSWORD = "only-for-tests"


@contextmanager
def running_mariadb() -> Iterator[str | None]:
    """Run a server with an empty database; its URL, None where there can be none."""
    if not _is_there():
        _install()
    if not _is_there():
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="dptune-my-"))
    try:
        yield from _serve(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: Path) -> Iterator[str]:
    user = _ordinary_user()
    if user:
        shutil.chown(folder, user)
    as_user = [f"--user={user}"] if user else []
    data = folder / "data"
    common = ["--no-defaults", *as_user, f"--datadir={data}"]
    subprocess.run(
        ["mariadb-install-db", *common, "--auth-root-authentication-method=normal"],
        check=True,
        capture_output=True,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            *(_program(), *common, f"--socket={folder / 'socket'}"),
            *(f"--port={port}", "--bind-address=127.0.0.1"),
            f"--pid-file={folder / 'pid'}",
            "--skip-name-resolve",  # else nobody at localhost goes before everybody
            "--innodb-flush-log-at-trx-commit=0",  # nobody pulls the plug of a test
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _make_database(port, server)
        yield f"mysql://zenml:{_PASSWORD}@127.0.0.1:{port}/zenml"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=_SECONDS)


def _make_database(port: int, server: subprocess.Popen[bytes]) -> None:
    import pymysql  # noqa: PLC0415 - rare

    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and server.poll() is None:
        with suppress(pymysql.err.OperationalError):
            found = pymysql.connect(host="127.0.0.1", port=port, user="root")
            with found, found.cursor() as cursor:
                cursor.execute("CREATE DATABASE zenml")
                cursor.execute(f"CREATE USER zenml IDENTIFIED BY '{_PASSWORD}'")
                cursor.execute("GRANT ALL ON zenml.* TO zenml")
            return
        time.sleep(0.2)
    raise RuntimeError("MariaDB did not start")


def _program() -> str:
    """Outside the path of ordinary users on Debian."""
    return shutil.which("mariadbd") or "/usr/sbin/mariadbd"


def _is_there() -> bool:
    return bool(shutil.which("mariadb-install-db")) and Path(_program()).exists()


def _install() -> None:
    """Install the distribution's package, where that is ours to do."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", "mariadb-server"],
    ):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                check=False,
                timeout=300,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )


def _ordinary_user() -> str | None:
    """MariaDB refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _USERS if name in known)
