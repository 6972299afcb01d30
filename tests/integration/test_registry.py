"""A version belongs to the model of its name; the registry is made whole, or anew."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from zenml.client import Client

from cli.faults import fault_of
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError
from dptune.results import RegisteredVersion
from dptune.workflow.attempts import attempts_on
from steps import _champions, _deleted, _figures, _tracking
from steps._registry import ensure_zenml_version, show_decision, twin_name
from tests.unit.reports.samples import gate_decision

GONE = "not by the newest decision"
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


def shown(twin):
    found = Client().get_model_version(twin.model.id, twin.name).run_metadata
    return {key: value for key, value in found.items() if value != GONE}


def test_version_is_said_to_be_refused_by_its_newest_decision_alone(twins):
    """Metadata cannot be taken back: a PASS stood beside what had refused it before."""
    first = {
        "verdict": "BLOCK",
        "refused by budget": "8.1 of 8.",
        "epsilon, record": "8",
    }
    second = {"verdict": "PASS", "epsilon, record": "8", "exposure": "1 bit"}
    unreadable = {"verdict": "INVALID", "refused by evidence": "It cannot be read."}
    show_decision(twins[0], first)
    for page in (second, first, unreadable):
        twin = Client().get_model_version(twins[0].model.id, twins[0].name)
        show_decision(twin, page)
        kept = {key for key in shown(twin) if key.startswith(("refused", "epsilon"))}
        assert kept == {key for key in page if key.startswith(("refused", "epsilon"))}
        assert shown(twin)["verdict"] == page["verdict"]


@pytest.fixture
def version(project, tmp_path):
    """A version in a registry of its own."""
    before = _tracking.mlflow.get_tracking_uri()
    _tracking.mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = MlflowClient()
    place = client.create_experiment("e", artifact_location=str(tmp_path / "files"))
    run = client.create_run(place).info.run_id
    client.create_registered_model("bot")
    client.create_model_version("bot", "file:///nowhere", run_id=run)
    made = RegisteredVersion(
        model_name="bot", version="1", model_digest="d", model_uri="u", recipe="jft"
    )
    _tracking.record_run(made, name="the-run", url=None)
    yield made
    _tracking.mlflow.set_tracking_uri(before)


def record(version, epsilons, summary="**verdict**: BLOCK\n\n"):
    _tracking.record_decision(
        version,
        decision=gate_decision(),
        reasons="why",
        signer="unsigned",
        epsilons=epsilons,
        summary=summary,
        beside=None,
        files={"decision.json": "{}"},
    )
    return _tracking.get_version("bot", "1")


def test_claims_of_an_earlier_card_are_no_tags_of_a_version_without_one(version):
    tag = "dptune.epsilon.record.replace_one"
    assert tag in record(version, {"record.replace_one": "8 at δ 10⁻⁵"}).tags
    tags = record(version, {}).tags
    assert tag not in tags
    assert tags["dptune.decision_hash"]


def test_description_and_trail_fit_into_a_server(version):
    """PostgreSQL refuses more: the champion had moved, and no card said by whom."""
    description = record(version, {}, summary="x" * 9000).description
    assert len(description) == _champions.LONGEST
    assert description.endswith("**ZenML run**: the-run")
    reason = "override: " + "\N{HEBREW LETTER ALEF}" * 9000
    _champions.append_history("bot", {"version": "1", "reason": reason, "files": "f"})
    tags = MlflowClient().get_registered_model("bot").tags
    assert max(map(len, tags.values())) <= _champions.LONGEST
    (entry,) = _champions.history("bot")
    assert reason.startswith(entry["reason"])
    assert len(entry["reason"]) >= 500


def test_run_whose_experiment_was_deleted_does_not_start(version):
    """Its first training step ended in a crash, and so did the same command again."""
    client = MlflowClient()
    place = client.get_experiment_by_name("e").experiment_id
    _deleted.refuse_deleted_experiment(client, "e")
    _deleted.refuse_deleted_experiment(client, "none yet")
    client.delete_experiment(place)
    with pytest.raises(ArtifactError, match=f"restore --experiment-id {place}"):
        _deleted.refuse_deleted_experiment(client, "e")


def test_comparison_whose_experiment_was_deleted_does_not_start(project):
    client = _tracking.connect()
    place = client.create_experiment("gone")
    client.delete_experiment(place)
    with pytest.raises(ArtifactError, match=f"restore --experiment-id {place}"):
        _figures.comparison_run("gone", "its key")


@pytest.fixture
def away(version, tmp_path):
    """A champion, in a registry that does not answer: its tables are gone."""
    _champions.append_history("bot", {"version": "1", "reason": "r"})
    _champions.set_alias("bot", _champions.CHAMPION, "1")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("DROP TABLE model_versions")
        database.execute("DROP TABLE registered_models")


ASKED = {
    "trail": lambda: _champions.champion("bot"),
    "alias": lambda: _champions.alias("bot", _champions.CHAMPION),
    "version": lambda: _tracking.get_version("bot", "1"),
}


@pytest.mark.parametrize("what", ASKED)
def test_champion_that_cannot_be_read_is_not_taken_for_none(what, away):
    """Of a locked one too; the gate compared with the base model, and passed worse."""
    with pytest.raises(MlflowException) as raised:
        ASKED[what]()
    assert "does not answer" in fault_of(raised.value).what


@pytest.mark.parametrize("spelt", ["2", "x", "", "9" * 25])
def test_version_that_is_not_there_is_said(spelt, version):
    with pytest.raises(ArtifactError, match="must be a registered version of bot"):
        _tracking.get_version("bot", spelt)
    assert _champions.alias("bot", spelt) is None
    assert _champions.champion("none") is None


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


def test_step_enters_measurements_under_its_reservation(
    project, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    from steps.train_stage import _tracer  # noqa: PLC0415 - needs a stack

    url = f"sqlite:///{tmp_path}/budget.db"
    monkeypatch.setenv("DPTUNE_BUDGET_URL", url)
    BudgetStore.open(url).engine.dispose()
    for run in ("a", "a", "b"):
        tracer = _tracer(
            SimpleNamespace(plan=None, max_tokens=8, key=lambda: "key"),
            labelled=None,
            canaries=SimpleNamespace(digest="canaries"),
            attacks=None,
            performance=None,
            reservation=SimpleNamespace(id=run, data_set="people"),
        )
        tracer.enter()
    with BudgetStore.find(url) as store:
        assert attempts_on(store, "people").evaluations == 2
