"""A version belongs to the model of its name; the registry is made whole, or anew."""

import sqlite3
from contextlib import closing

import pytest
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
