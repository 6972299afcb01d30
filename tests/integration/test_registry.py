"""A version belongs to the model of its name; the registry is made whole, or anew."""

import sqlite3
from contextlib import closing

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from zenml.client import Client

from steps import _tracking
from steps._registry import ensure_zenml_version, twin_name

LONGER, SHORTER = "prefix-and-more", "prefix"


@pytest.fixture
def twins(project):
    made = [
        ensure_zenml_version(name, version, metadata={})
        for name, version in ((LONGER, "1"), (LONGER, "2"), (SHORTER, "1"))
    ]
    yield made
    for twin in made[::2]:
        Client().delete_model(twin.model.id)


def test_model_whose_name_begins_another_is_a_model_of_its_own(twins):
    assert [twin.model.name for twin in twins] == [LONGER, LONGER, SHORTER]
    again = ensure_zenml_version(SHORTER, "1", metadata={})
    assert (again.id, again.name) == (twins[2].id, twin_name("1"))


@pytest.fixture
def crowded(project, tmp_path):
    """A registry of more models than a page holds, one with a mark in its name."""
    before = _tracking.mlflow.get_tracking_uri()
    _tracking.mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    client, names = MlflowClient(), [*(f"model-{n:03}" for n in range(100)), "owner's"]
    for name in names:
        client.create_registered_model(name)
    client.create_model_version("owner's", "file:///nowhere")
    yield names
    _tracking.mlflow.set_tracking_uri(before)


def test_every_model_of_a_large_registry_is_known(crowded):
    """Of a lost budget store the versions of the first hundred models spoke."""
    assert _tracking.model_names() == sorted(crowded)
    assert [str(v.version) for v in _tracking.versions("owner's")] == ["1"]
    assert _tracking.heads_paid() == {}


class Killed(BaseException):
    """The end of a process."""


def test_registry_that_was_cut_off_while_its_tables_were_made_is_made_anew(
    project, tmp_path, monkeypatch
):
    """Its first client makes them; half of them stood in the way of every command."""
    file = tmp_path / "mlflow.db"
    before = _tracking.mlflow.get_tracking_uri()
    monkeypatch.setattr(
        "zenml.integrations.mlflow.experiment_trackers.MLFlowExperimentTracker"
        ".configure_mlflow",
        lambda _: _tracking.mlflow.set_tracking_uri(f"sqlite:///{file}"),
    )
    make = SqlAlchemyStore.__init__

    def cut_off(*_, **__):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE experiments (x)")
        raise Killed

    try:
        monkeypatch.setattr(SqlAlchemyStore, "__init__", cut_off)
        with pytest.raises(Killed):
            _tracking.connect()
        assert file.exists()
        monkeypatch.setattr(SqlAlchemyStore, "__init__", make)
        assert _tracking.connect().search_registered_models() == []
    finally:
        _tracking.mlflow.set_tracking_uri(before)
