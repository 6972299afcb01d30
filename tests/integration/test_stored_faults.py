"""What a run leaves is its owner's; evidence that cannot be read is INVALID."""

import errno
import gc
import json
import sqlite3
from pathlib import Path

import mlflow
import pytest
import yaml
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from sqlalchemy.exc import OperationalError
from zenml.orchestrators.step_launcher import StepLauncher

from steps import _tracking
from tests.integration.conftest import TINY

MODEL = "tiny-assistant"


@pytest.fixture
def evidence(trained, project):
    """The evidence of a version; what a test does to it is undone."""
    _tracking.connect()
    run = _tracking.get_version(MODEL, "2").run_id
    uri = mlflow.artifacts.download_artifacts(f"runs:/{run}/evidence.json")
    (file,) = (f for f in project.home.rglob("evidence.json") if str(run) in str(f))
    assert file.read_text() == Path(uri).read_text()
    before = file.read_bytes()
    yield file
    file.write_bytes(before)
    gate(project)


def gate(project):
    policy = project.outside / "policy.yaml"
    policy.write_text(yaml.safe_dump(yaml.safe_load(TINY.read_text())["gate"]))
    return project.run("gate", MODEL, "--version", "2", "--policy", policy)


def changed(path, value):
    """Evidence with one field that is nonsense."""

    def change(text):
        values = json.loads(text)
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return json.dumps(values).encode()

    return change


MALFORMED = {
    "empty": lambda text: b"",
    "no JSON": lambda text: text[:1000],
    "bytes": lambda text: bytes(range(256)) * 20,
    "another file": lambda text: b'{"a": 1}',
    "a list": lambda text: b"[1, 2]",
    "a figure in words": changed(("exposure", "canaries"), "Zebediah"),
    "a delta that only the card looks at": changed(("plan", "target_delta"), "NaN"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_evidence_is_invalid_and_no_crash(name, evidence, project):
    evidence.write_bytes(MALFORMED[name](evidence.read_bytes()))
    code, output = gate(project)
    assert (code, "INVALID" in output) == (1, True), output
    assert "Zebediah" not in output
    version = _tracking.get_version(MODEL, "2")
    assert _tracking.outcome_of(version) == "INVALID"
    assert "evidence" in _tracking.reason_of(version)
    card = _tracking.read_file(MODEL, "2", "privacy_card.md")
    assert "cannot be read" in card
    assert project.run("promote", MODEL, "--version", "2")[0] == 1


def test_database_that_goes_between_two_steps_is_a_fault(trained, project, monkeypatch):
    """ZenML meets it outside of any step, whose hook then never hears of it."""
    launch = StepLauncher.launch

    def gone(launcher):
        if not launcher._invocation_id.startswith("train_"):
            return launch(launcher)
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise OperationalError("SELECT 1", None, error)

    monkeypatch.setattr(StepLauncher, "launch", gone)
    code, output = project.run("train", TINY, "--set", "recipe=jft", "--retrain")
    assert code == 4, output
    assert "a database does not answer" in output
    assert "Nothing was spent" in output


def test_nothing_in_the_project_folder_is_open_to_others(trained, project):
    gc.collect()  # or a store that nobody holds closes its files meanwhile
    paths = [project.home, *project.home.rglob("*")]
    assert len(paths) > 100
    shut = [p for p in paths if p.is_symlink() or not p.lstat().st_mode & 0o077]
    assert set(paths) - set(shut) == set()


def test_no_temporary_copy_stays(trained, project):
    """The run after a promotion measured the champion from a copy of its weights."""
    assert list((project.home / "tmp").iterdir()) == []
    assert [run.copies for run in trained.values()] == [frozenset()] * 3


def test_file_on_a_full_disk_is_no_file_that_is_absent(evidence, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalArtifactRepository, "download_artifacts", full)
    with pytest.raises(OSError, match="space"):
        _tracking.read_file(MODEL, "2", "evidence.json")
    assert _tracking.read_file(MODEL, "2", "none/there.json") is None
    assert _tracking.read_file(MODEL, "2", "model") is None
