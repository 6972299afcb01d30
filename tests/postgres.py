"""A throwaway PostgreSQL server: found or installed, run by an ordinary user."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

SHARED = "DPTUNE_TEST_POSTGRES"
"""Variable that names the folder of a server that runs already, for many processes."""

_USERS = ("postgres", "nobody")
_SECONDS = 60
_PLACE = tempfile.gettempdir()  # before a test has one that only its owner may enter
_SETTINGS = (
    "-clisten_addresses=",
    "-cmax_connections=200",
    "-cfsync=off",  # nobody pulls the plug of a test
)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server that listens on a socket in its own folder only."""

    folder: Path

    def fresh(self, name: str) -> str:
        """Make an empty schema, which is quicker than a database."""
        import psycopg  # noqa: PLC0415 - may be absent

        name = f"{name}_{secrets.token_hex(4)}"  # others may use the server
        address = f"dbname=postgres user=dptune host={self.folder}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        options = f"options=-csearch_path%3D{name}"
        return f"postgresql://dptune@/postgres?host={self.folder}&{options}"


@contextmanager
def running_server() -> Iterator[Server]:
    """Run a server, or skip with the reason why there is none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if SHARED in os.environ:
        yield Server(folder=Path(os.environ[SHARED]))
        return
    programs = _find() or _install()
    if programs is None:
        pytest.skip("PostgreSQL is not installed and cannot be: needs root and apt-get")
    folder = Path(tempfile.mkdtemp(prefix="dptune-pg-", dir=_PLACE))
    try:
        yield from _serve(programs, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(programs: Path, folder: Path) -> Iterator[Server]:
    user = _ordinary_user()
    if user:
        shutil.chown(folder, user)
    run = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL} if user else {}
    data = folder / "data"
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", "dptune", "-A", "trust", "--no-sync"],
        check=False,
        stderr=subprocess.DEVNULL,
        **({"stdout": subprocess.DEVNULL} | run),
    )
    if made.returncode:
        pytest.skip(f"initdb failed with code {made.returncode}")
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-k", folder, *_SETTINGS],
        stderr=subprocess.DEVNULL,
        **({"stdout": subprocess.DEVNULL} | run),
    )
    try:
        _await(folder, server)
        yield Server(folder=folder)
    finally:
        server.send_signal(signal.SIGQUIT)
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=_SECONDS)


def _find() -> Path | None:
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(found).resolve().parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return packaged[-1] if packaged else None


def _install() -> Path | None:
    """Install the distribution's package, where that is ours to do."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"],
    ):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=False, timeout=300, env=environment, **quiet)
    return _find()


def _ordinary_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in _USERS if name in known), None)
    return user or pytest.skip("no ordinary user to run PostgreSQL as")


def _await(folder: Path, server: subprocess.Popen) -> None:
    import psycopg  # noqa: PLC0415 - may be absent

    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and server.poll() is None:
        with suppress(psycopg.OperationalError):
            psycopg.connect(f"dbname=postgres user=dptune host={folder}").close()
            return
        time.sleep(0.1)
    pytest.skip("PostgreSQL did not start")
