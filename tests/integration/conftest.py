"""One fresh project per test process: the real stack, the real command line."""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from sqlalchemy import Engine, event
from zenml.client import Client
from zenml.config.global_config import GlobalConfiguration
from zenml.utils import source_utils

from cli.main import main
from dptune.workflow import ingest as reading
from infra.stacks.local import ensure_local_stack, isolate
from infra.workspace import REPOSITORY, Workspace

TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
source_utils.set_custom_source_root(str(REPOSITORY))  # tests import steps


@event.listens_for(Engine, "connect")
def _need_not_survive_a_power_cut(connection, _):
    """Let ZenML and MLflow commit without waiting for the disk; our store waits."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def pytest_collection_modifyitems(items):
    """Third-party warnings pass here; ours stay errors."""
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            ours = r"error:::(dptune|steps|materializers|pipelines|cli|infra)\b"
            item.add_marker(pytest.mark.filterwarnings(ours))


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project folder, and what commands on it printed.

    Args:
        home: the project folder.
        outside: beside it: temporary files and everything that was printed.
    """

    home: Path
    outside: Path

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command as a user would; returns exit code and all output."""
        log = self.outside / f"output-{len(list(self.outside.iterdir()))}.txt"
        argv = sys.argv
        sys.argv = ["run.py", *map(str, arguments)]
        try:
            with _printed_to(log):
                try:
                    code = main()
                except SystemExit as end:
                    code = end.code or 0
        finally:
            sys.argv = argv
        return code, log.read_text()


@contextmanager
def _printed_to(file: Path) -> Iterator[None]:
    """Send both streams to a file, below Python too: progress goes there."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    streams = sys.stdout, sys.stderr, sys.__stdout__
    with file.open("w", encoding="utf-8") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        sys.stdout = sys.stderr = sys.__stdout__ = sink
        try:
            yield
        finally:
            sink.flush()
            sys.stdout, sys.stderr, sys.__stdout__ = streams
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Iterator[Project]:
    """A fresh project folder with its local stack, for this process."""
    root = tmp_path_factory.mktemp("project")
    made = Project(home=root / "home", outside=root / "outside")
    made.outside.mkdir()
    before, temporary = dict(os.environ), tempfile.tempdir
    umask = os.umask(0o022)
    os.environ["DPTUNE_HOME"] = str(made.home)
    os.environ["COLUMNS"] = "160"
    tempfile.tempdir = str(made.outside)
    workspace = Workspace(root=made.home)
    isolate(workspace)
    _forget_other_projects()
    ensure_local_stack(workspace)
    yield made
    tempfile.tempdir = temporary
    os.umask(umask)
    os.environ.clear()
    os.environ.update(before)


def _forget_other_projects() -> None:
    """ZenML keeps one configuration per process; an earlier test may have made it."""
    GlobalConfiguration._reset_instance()
    Client._reset_instance()
    source_utils.set_custom_source_root(str(REPOSITORY))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One `train` command: exit code, output, and the pipeline run it left.

    Args:
        copies: weights that it left outside of the project folder.
        times_read: how often the corpus was made from its source.
    """

    code: int
    output: str
    run: object
    copies: frozenset[Path]
    times_read: int


@pytest.fixture(scope="session")
def trained(project) -> dict[str, Trained]:
    """JFT, no protection, and JFT again, in this order."""
    return {
        "jft": _train(project, "jft"),
        "no_dp": _train(project, "no_dp"),
        "again": _train(project, "jft"),
    }


def _train(project: Project, recipe: str) -> Trained:
    before = frozenset(project.outside.rglob("*.safetensors"))
    with patch.object(reading, "_built", wraps=reading._built) as built:
        code, output = project.run("train", TINY, "--set", f"recipe={recipe}")
    (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    return Trained(
        code=code,
        output=output,
        run=Client().get_pipeline_run(run.id),
        copies=frozenset(project.outside.rglob("*.safetensors")) - before,
        times_read=built.call_count,
    )
