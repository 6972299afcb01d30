"""Commands that are cut off between two writes, and started again."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import mlflow
import pytest
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as TrackingStore

from dptune.errors import ArtifactError
from dptune.models.loading import model_digest
from infra.workspace import REPOSITORY
from steps import _champions, _promoting, _registry, _tracking
from tests.integration.test_unearned_pass import (
    MODEL,
    registered,
    stored,
    tiny_model,
    versions,
)

__all__ = ["registered", "stored", "versions"]  # fixtures


# a registration


def register(folder, name):
    """Register weights, and say how many versions there are."""
    place = _tracking.connect().get_experiment_by_name(MODEL).experiment_id
    with mlflow.start_run(experiment_id=place):
        _tracking.register_model(
            folder,
            model_name=name,
            digest=model_digest(folder),
            recipe="jft",
            params={},
            metrics={},
        )
    return len(_tracking.versions(name))


def cut_after_the_version(folder, name, monkeypatch):
    """End right after the registry has written the version down."""
    make = SqlAlchemyStore.create_model_version

    def cut(*arguments, **keywords):
        make(*arguments, **keywords)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SqlAlchemyStore, "create_model_version", cut)
        with pytest.raises(KeyboardInterrupt):
            register(folder, name)


def test_version_that_is_there_has_its_digest(registered, tmp_path, monkeypatch):
    folder = tiny_model(tmp_path / "model", seed=3)
    cut_after_the_version(folder, "cut", monkeypatch)
    assert _tracking.find_version("cut", digest=model_digest(folder)) is not None
    assert register(folder, "cut") == 1


def test_twin_that_writes_the_digest_later_registers_twice(
    registered, tmp_path, monkeypatch
):
    folder = tiny_model(tmp_path / "model", seed=4)
    make = mlflow.register_model
    monkeypatch.setattr(
        mlflow, "register_model", lambda uri, name, tags: make(uri, name)
    )
    cut_after_the_version(folder, "twice", monkeypatch)
    assert register(folder, "twice") == 2


# a rollback


def test_rollback_may_be_repeated(versions):
    first, second = versions
    second.promote()
    to = _promoting.earlier_champion(MODEL)
    for _ in range(2):
        assert _promoting.roll_back(MODEL, to=to, reason="leak")[0] == first.number
    assert [e["action"] for e in _champions.history(MODEL)].count("rollback") == 1
    with pytest.raises(ArtifactError, match=f"{second.number}.*Name one with --to"):
        _promoting.roll_back(MODEL, to=None, reason="leak")
    assert _champions.alias(MODEL, "champion") == first.number


def test_rollback_that_was_cut_off_goes_on(versions, monkeypatch):
    first, second = versions
    second.promote()
    with monkeypatch.context() as patch:
        patch.setattr(_champions, "set_alias", lambda *_: interrupted())
        with pytest.raises(KeyboardInterrupt):
            _promoting.roll_back(MODEL, to=None, reason="leak")
    assert _champions.alias(MODEL, "champion") == second.number
    _promoting.roll_back(MODEL, to=None, reason="leak")
    assert _champions.misplaced_champion(MODEL) == ""
    assert _champions.champion(MODEL) == first.number


def test_rollback_past_an_alias_that_was_moved_must_be_named(versions):
    """Without a name it went to the version that somebody had just left by hand."""
    first, second = versions
    second.promote()
    _champions.set_alias(MODEL, "champion", first.number)
    with pytest.raises(ArtifactError, match=f"version {second.number} was promoted"):
        _promoting.roll_back(MODEL, to=None, reason="leak")
    assert _champions.champion(MODEL) == second.number
    _promoting.roll_back(MODEL, to=first.number, reason="leak")
    assert _champions.champion(MODEL) == first.number
    assert _champions.misplaced_champion(MODEL) == ""


def test_twin_that_forgets_what_was_left_goes_back_to_it(versions, monkeypatch):
    _, second = versions
    second.promote()
    _promoting.roll_back(MODEL, to=None, reason="leak")
    monkeypatch.setattr(_promoting, "_BACK", "another action")
    assert _promoting.roll_back(MODEL, to=None, reason="again")[0] == second.number


def interrupted():
    raise KeyboardInterrupt


def test_rollback_that_is_stopped_names_what_completes_it(
    versions, project, monkeypatch
):
    first, second = versions
    second.promote()
    stop = partial(os.kill, os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(_registry, "_mend", lambda *_: stop())
    code, said = project.run("rollback", MODEL)
    assert code == 143
    assert f"rollback {MODEL} --to {first.number}` completes it" in said


# the first command of a project


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    """A database of MLflow whose making was cut off, by a program that left no mark."""
    database, before = tmp_path / "mlflow.db", mlflow.get_tracking_uri()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE assessments (x)")
        connection.commit()
    here = partial(mlflow.set_tracking_uri, f"sqlite:///{database}")
    stack = SimpleNamespace(experiment_tracker=SimpleNamespace(configure_mlflow=here))
    client = SimpleNamespace(active_stack=stack)
    monkeypatch.setattr(_tracking, "Client", lambda: client)
    yield database
    mlflow.set_tracking_uri(before)


def test_tables_of_mlflow_that_were_left_half_made_are_made_anew(tracker):
    """The project stayed broken for good: every command ended in a crash."""
    with pytest.raises(ArtifactError, match="run the same command again"):
        _tracking.connect()
    SqlAlchemyStore._engine_map.clear()  # the next command is another process
    TrackingStore._engine_map.clear()
    assert _tracking.connect().get_experiment_by_name("Default") is not None
    left = sorted(path.name for path in tracker.parent.iterdir())
    assert left == ["mlflow.db", "mlflow.db.lock", "mlflow.db.made"]


def test_half_made_tables_that_hold_something_are_left_alone(tracker):
    with closing(sqlite3.connect(tracker)) as connection:
        connection.execute("INSERT INTO assessments VALUES (1)")
        connection.commit()
    for _ in range(2):
        with pytest.raises(ArtifactError, match="from a backup"):
            _tracking.connect()


def test_project_whose_first_command_was_killed_is_made(tmp_path):
    """ZenML refuses tables that nobody gave a version."""
    database = tmp_path / "home" / "stores" / "default_zen_store" / "zenml.db"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE user (id CHAR(32))")
    database.with_name("zenml.db.making").touch()
    environment = os.environ | {"DPTUNE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "run.py", "stack", "up", "--profile", "local"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"ready" in done.stdout
