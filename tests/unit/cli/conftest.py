"""The real command line, in this process, on a project folder of its own."""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cli.main import main

TESTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left: exit code, both streams, and its project folder."""

    code: int
    out: str
    err: str
    home: Path

    @property
    def created(self) -> list[str]:
        """Every file and folder below the project folder."""
        return sorted(str(p.relative_to(self.home)) for p in self.home.rglob("*"))

    def assert_refused(self, *says: str) -> None:
        """Bad input: exit 2, helpful words, no trace, nothing created."""
        assert self.code == 2, self.err
        for words in says:
            assert words in self.err, self.err
        assert "Traceback" not in self.out + self.err
        assert not re.search(r"^  • \w+Error", self.err, re.MULTILINE), self.err
        assert not self.home.exists(), self.created


RunCli = Callable[..., Outcome]


@pytest.fixture
def keep_process() -> Iterator[None]:
    """Give environment, umask and log levels back as they were."""
    environment = dict(os.environ)
    names = ("", "alembic", "mlflow", "great_expectations", "datasets", "zenml")
    levels = {name: logging.getLogger(name).level for name in names}
    umask = os.umask(0o022)
    yield
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def run_cli(tmp_path, monkeypatch, capsys, keep_process) -> RunCli:
    """Run `run.py` with arguments; the project folder does not exist before."""
    home = tmp_path / "home"

    def run(*arguments: str, data_root: Path = tmp_path) -> Outcome:
        monkeypatch.setenv("DPTUNE_HOME", str(home))
        monkeypatch.setenv("DPTUNE_DATA_ROOT", str(data_root))
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err, home=home)

    return run


@pytest.fixture
def values() -> dict:
    """A small training configuration that works, as plain values."""
    return yaml.safe_load((TESTS / "configs" / "tiny.yaml").read_text())


@pytest.fixture
def write_config(tmp_path) -> Callable[[object], Path]:
    """Write values as YAML, or text or bytes as they are."""

    def write(content: object) -> Path:
        path = tmp_path / "config.yaml"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write
