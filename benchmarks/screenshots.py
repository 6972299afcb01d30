"""Take the pictures of docs/DASHBOARD.md anew: real servers, real runs, a real browser.

    PYTHONPATH=. python benchmarks/screenshots.py

Starts a ZenML and an MLflow server, trains `tests/configs/tiny.yaml` twice on them (no
protection, which the gate refuses, then JFT, which it promotes), and photographs what
the two dashboards show in headless Chromium (`apt-get install chromium`). The servers
listen on this machine alone, on free ports, and end with it. The DevTools protocol goes
over the web socket package that the Kubernetes client brings.
"""

import argparse
import base64
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websocket import WebSocket, create_connection

from infra.workspace import REPOSITORY
from tests.tracking_servers import PASSWORD, USER, Servers, running_servers

_PATIENCE = 90.0
_SETTLE = 2.0
"""Seconds for what moves into place after its text is there."""
_WIDTH, _HEIGHT = 1440, 1060
_RECIPES = ("no_dp", "jft")
_MODEL = "assistant"


class Browser:
    """One page."""

    def __init__(self, socket: WebSocket) -> None:
        """Take over a page whose socket is open."""
        self._socket, self._calls = socket, 0
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: object) -> dict[str, Any]:
        """Call the protocol and wait for its answer; events are passed over."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": values}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def run(self, script: str) -> Any:  # noqa: ANN401 - any JSON
        """Run JavaScript in the page, awaiting a promise."""
        found = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def open(self, url: str, *, wait_for: str) -> None:
        """Open a page and wait until it shows a text."""
        self.call("Page.navigate", url=url)
        shown = f"document.body?.innerText.includes({json.dumps(wait_for)})"
        self.wait_until(shown, what=wait_for)

    def wait_until(self, condition: str, *, what: str) -> None:
        """Wait until JavaScript is true."""
        end = time.monotonic() + _PATIENCE
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                shown = self.run("document.body?.innerText")
                raise RuntimeError(f"no {what!r} on the page, but {shown!r}")
            time.sleep(0.25)

    def type(self, field: str, text: str) -> None:
        """Type into the field of a form."""
        self.run(f"document.querySelector('input[name={field}]').focus()")
        self.call("Input.insertText", text=text)

    def click(self, text: str, *, tag: str) -> None:
        """Click the last element of a kind that shows exactly this text."""
        script = (
            f"[...document.querySelectorAll({json.dumps(tag)})]"
            f".findLast(e => e.innerText?.trim() === {json.dumps(text)})"
        )
        self.wait_until(script, what=text)
        self.run(f"{script}.click()")

    def picture(self, file: Path, *, shown: int = _WIDTH) -> None:
        """Take a picture of what the page shows when all is in place.

        Args:
            file: PNG.
            shown: how many pixels of its width, from the left.
        """
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=_WIDTH,
            height=_HEIGHT,
            deviceScaleFactor=1,
            mobile=False,
        )
        time.sleep(_SETTLE)
        clip = {"x": 0, "y": 0, "width": shown, "height": _HEIGHT, "scale": 1}
        taken = self.call("Page.captureScreenshot", format="png", clip=clip)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """Run Chromium with an empty profile."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise RuntimeError("Chromium must be installed: apt-get install chromium")
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-3d-apis",  # animations that software draws for seconds
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "--window-size=1440,1000",
        "--remote-debugging-port=0",
        "--remote-allow-origins=*",
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen(
        [program, *options, "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Browser(create_connection(_page(profile), timeout=_PATIENCE))
    finally:
        process.terminate()
        process.wait(timeout=30)


def _page(profile: Path) -> str:
    """Return the socket of the one page."""
    end, port = time.monotonic() + _PATIENCE, profile / "DevToolsActivePort"
    while not (port.is_file() and port.read_text().strip()):
        if time.monotonic() > end:
            raise RuntimeError("Chromium did not start")
        time.sleep(0.2)
    place = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
    with urlopen(place, timeout=10) as answer:
        pages = json.load(answer)
    return next(str(p["webSocketDebuggerUrl"]) for p in pages if p["type"] == "page")


def train(servers: Servers, folder: Path) -> None:
    """Train twice; the first is refused."""
    names = [f"name={_MODEL}", f"registry.model_name={_MODEL}"]
    for recipe in _RECIPES:
        settings = [*names, f"recipe={recipe}"]
        subprocess.run(
            [
                *(sys.executable, "run.py", "train", "tests/configs/tiny.yaml"),
                *(part for setting in settings for part in ("--set", setting)),
            ],
            cwd=REPOSITORY,
            env=servers.environment(folder / "home"),
            check=recipe != "no_dp",
        )


def answer_survey(database: Path) -> None:
    """Answer the server's first-use survey, which its own client cannot."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE user SET email_opted_in = 0")


def photograph(browser: Browser, servers: Servers, images: Path) -> None:
    """Take every picture."""
    browser.open(f"{servers.zenml}/login", wait_for="Log in to your account")
    browser.type("username", USER)
    browser.type("password", PASSWORD)
    browser.click("Login", tag="button")
    browser.wait_until("location.pathname != '/login'", what="a page behind the login")
    runs = browser.run(
        "fetch('/api/v1/runs').then(r => r.json())"
        ".then(d => Object.fromEntries(d.items.map(i => [i.name, i.id])))"
    )
    for recipe in _RECIPES:
        run = next(i for n, i in runs.items() if n.startswith(f"{_MODEL}-{recipe}-"))
        place = f"{servers.zenml}/projects/default/runs/{run}"
        browser.open(f"{place}?tab=metadata", wait_for="verdict")
        browser.wait_until("document.querySelector('.react-flow__node')", what="steps")
        browser.picture(images / f"zenml-{recipe}.png")
    for version, recipe in enumerate(_RECIPES, start=1):
        place = f"{servers.mlflow}/#/models/{_MODEL}/versions/{version}"
        browser.open(place, wait_for="verdict")
        # MLflow keeps its assistant open on the right.
        browser.picture(images / f"mlflow-{recipe}.png", shown=1068)


def main() -> None:
    """Start, train, photograph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    images = REPOSITORY / "docs" / "images"
    parser.add_argument("--output", type=Path, default=images, help="folder for PNG")
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory(prefix="dptune-pictures-") as name:
        folder = Path(name)
        database = f"sqlite:///{folder}/mlflow.db"
        with running_servers(folder, mlflow_database=database) as servers:
            train(servers, folder)
            answer_survey(folder / "zenml.db")
            with running_browser(folder / "browser") as browser:
                photograph(browser, servers, output)


if __name__ == "__main__":
    main()
