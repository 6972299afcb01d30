"""What `dashboard` and `mlflow` serve on one machine is for who knows the password."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.tracking_servers import free_port

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 120


@contextmanager
def serving(command, home):
    """Run a command until it answers; yields its URL and what it printed."""
    (home / "zenml").mkdir(parents=True)
    port, log = free_port(), home.parent / f"{command}.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "run.py", command, "--port", str(port)],
            cwd=REPOSITORY,
            env=os.environ | {"DPTUNE_HOME": str(home), "COLUMNS": "40"},
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/health", process)
        yield url, log.read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for(url, process):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(url, timeout=2):  # noqa: S310 - ours
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server did not start")


def status(url, *, data=None, **headers):
    """Status of the answer to one request, and its body."""
    body = urlencode(data).encode() if data else None
    try:
        request = Request(url, data=body, headers=headers)  # noqa: S310 - ours
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - ours
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, b""


def password_in(said):
    return re.search(r"password\s+(\S+),", said)[1]


def test_dashboard_asks_for_the_password_that_it_printed(tmp_path):
    with serving("dashboard", tmp_path / "home") as (url, said):
        runs, login = f"{url}/api/v1/runs", f"{url}/api/v1/login"
        assert status(runs)[0] == 401
        assert status(login, data={"username": "default", "password": ""})[0] == 401
        account = {"username": "default", "password": password_in(said)}
        code, body = status(login, data=account)
        assert code == 200
        token = json.loads(body)["access_token"]
        assert status(runs, Authorization=f"Bearer {token}")[0] == 200


def test_mlflow_asks_for_the_password_that_it_printed(tmp_path):
    with serving("mlflow", tmp_path / "home") as (url, said):
        runs = f"{url}/api/2.0/mlflow/experiments/search?max_results=1"
        assert status(runs)[0] == 401
        for password, code in (("wrong", 401), (password_in(said), 200)):
            account = b64encode(f"default:{password}".encode()).decode()
            assert status(runs, Authorization=f"Basic {account}")[0] == code
