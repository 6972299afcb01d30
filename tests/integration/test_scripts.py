"""Pipelines and scripts that are not ours, at our gate."""

import json
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Annotated

import mlflow
import pytest
from zenml import Model, pipeline, step
from zenml.client import Client

import dptune
from dptune.accounting.certificates import Certificate
from dptune.accounting.store.store import BudgetStore
from dptune.errors import GateFailedError, PrivacyError
from dptune.files import replacing
from dptune.gates.decision import GateOutcome
from dptune.gates.manifest import read_manifest
from dptune.integrations import zenml
from dptune.integrations.transformers import ScriptBudget
from dptune.integrations.zenml import certified, gate
from dptune.reports.formatting import epsilon
from dptune.workflow.dossier import Dossier
from infra.workspace import Workspace, ensure_budget_key
from steps import _champions, _deciding, _registry, _tracking
from steps._tracking import connect, evidence_digest_of, find_version
from tests.budgets import grant
from tests.support.scripts import POLICY, measured, trained_script

CLAIM = "epsilon, record (add or remove one record)"


@step(enable_cache=False)
@certified
def fine_tune(home: str, url: str, key: str) -> Annotated[Dossier, "dossier"]:
    """A step of somebody's pipeline."""
    budget = ScriptBudget(url=url, data_set="notes", key=bytes.fromhex(key))
    script = trained_script(Path(home, "out"), budget=budget)
    return measured(script, Path(home, "model"))


@step(enable_cache=False)
@certified
def by_hand() -> Annotated[Certificate, "certificate"]:
    """A loop of one's own returns what it may claim."""
    return dptune.account(
        noise_multiplier=1.0, sample_rate=0.1, num_steps=9, delta=1e-5
    )


@pipeline(enable_cache=False, model=Model(name="theirs"))
def theirs(home: str, url: str, key: str, max_epsilon: float) -> None:
    by_hand()
    dossier = fine_tune(home, url, key)
    policy = POLICY.model_copy(update={"max_epsilon": max_epsilon})
    measured_for = POLICY if max_epsilon == POLICY.max_epsilon else policy
    gate(dossier, f"{home}/model", policy=measured_for, budget_url=url)


@pytest.fixture
def store(project):
    """The project's budget store, which grants enough to notes."""
    workspace = Workspace(root=project.home)
    BudgetStore.open(workspace.budget_url).grant(grant(60, data_set="notes"))
    return workspace.budget_url, ensure_budget_key(workspace)


@pytest.fixture
def scripted(project, store, tmp_path):
    """A model of a script that the project's store paid for, with its evidence."""
    url, key = store
    budget = ScriptBudget(url=url, data_set="notes", key=key)
    script = trained_script(tmp_path / "out", budget=budget)
    dossier = measured(script, tmp_path / "model")
    with replacing(tmp_path / "evidence.json") as half:
        half.write_text(dossier.model_dump_json())
    with replacing(tmp_path / "policy.yaml") as half:
        half.write_text(POLICY.model_dump_json())
    return tmp_path, dossier


def register(project, home, *, name="scripted"):
    return project.run(
        *("register", home / "model", "--as", name),
        *("--evidence", home / "evidence.json", "--policy", home / "policy.yaml"),
    )


def test_script_is_registered_decided_on_and_promoted(project, scripted):
    home, dossier = scripted
    code, output = register(project, home)
    assert code == 0, output
    assert "scripted version 1: PASS" in output
    again = f"dptune gate scripted --policy {home / 'policy.yaml'} (decide again)"
    assert again in " ".join(output.split())
    version = connect().get_model_version_by_alias("scripted", "champion")
    assert version.tags["dptune.gate"] == "PASS"
    found = dossier.certificates[0]
    run = connect().get_logged_model(version.source.removeprefix("models:/"))
    metrics = {metric.key: metric.value for metric in run.metrics}
    assert metrics[found.metric] == pytest.approx(found.epsilon)
    code, output = project.run(
        *("gate", "scripted", "--version", "1", "--policy", home / "policy.yaml")
    )
    assert code == 0, output
    code, output = project.run("gate", "scripted", "--version", "1")
    assert code == 1, output  # the default policy asks for an audit of steps


def test_weights_are_registered_by_one_process_at_a_time(
    project, scripted, monkeypatch
):
    """They became two versions, both promoted: a rollback led to the same weights."""
    home, dossier = scripted
    seen, others = [], []
    write = _tracking._log_and_register

    def look():
        with _registry.registering("raced", dossier.model_digest):
            found = find_version("raced", digest=dossier.model_digest)
            seen.append(evidence_digest_of(found) if found else "")

    def meeting(*arguments):
        others.append(Thread(target=look))
        others[0].start()
        others[0].join(timeout=1.0)
        return write(*arguments)

    monkeypatch.setattr(_tracking, "_log_and_register", meeting)
    code, output = register(project, home, name="raced")
    assert code == 0, output
    others[0].join(timeout=60)
    assert seen == [evidence_digest_of(connect().get_model_version("raced", "1"))]


def test_refusal_beside_a_champion_that_came_between_is_told(
    project, scripted, monkeypatch
):
    """The command said PASS, and ended with 0."""
    home, _ = scripted
    monkeypatch.setattr(
        _deciding,
        "decide_beside_champion",
        lambda _, made: made.model_copy(update={"outcome": GateOutcome.BLOCK}),
    )
    code, output = register(project, home, name="second")
    assert code == 1, output
    assert "second version 1: BLOCK" in output
    assert _champions.champion("second") is None


def test_bytes_that_nobody_measured_are_not_registered(project, scripted):
    home, _ = scripted
    (home / "model" / "generation_config.json").write_text("{}")
    before = [model.name for model in connect().search_registered_models()]
    code, output = register(project, home)
    assert code == 2, output
    assert "byte for byte" in output
    after = [model.name for model in connect().search_registered_models()]
    assert after == before


def test_evidence_that_was_edited_is_not_registered(project, scripted):
    home, dossier = scripted
    (home / "model" / "adapter_model.safetensors").write_bytes(b"x")
    found = dossier.model_copy(update={"manifest": read_manifest(home / "model")})
    (home / "evidence.json").write_text(found.model_dump_json())
    before = len(connect().search_model_versions("name='scripted'"))
    code, output = register(project, home)
    assert code == 2, output
    assert "not what was noted" in output
    assert len(connect().search_model_versions("name='scripted'")) == before


def test_evidence_that_this_project_did_not_pay_for_is_refused(
    project, store, tmp_path
):
    script = trained_script(tmp_path / "out")
    text = measured(script, tmp_path / "model").model_dump_json()
    (tmp_path / "evidence.json").write_text(text)
    (tmp_path / "policy.yaml").write_text(POLICY.model_dump_json())
    code, output = register(project, tmp_path)
    assert code == 2, output
    assert "ScriptBudget" in output


def test_registration_whose_experiment_was_deleted_does_not_start(
    project, scripted, tmp_path
):
    """It ended in a crash, with a failed run in ZenML."""
    home, _ = scripted
    client = connect()
    found = client.get_experiment_by_name("register")
    place = found.experiment_id if found else client.create_experiment("register")
    before = Client().list_pipeline_runs(size=1).total
    client.delete_experiment(place)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/others.db")  # as a new process has
    code, output = register(project, home, name="unlogged")
    client.restore_experiment(place)
    assert code == 2, output
    assert f"restore --experiment-id {place}" in " ".join(output.split())
    assert Client().list_pipeline_runs(size=1).total == before


@pytest.mark.parametrize(
    "name", ["", "it's", "a b", "a/b", "-x", "\xfc", "a" * 82, "a\n"]
)
def test_name_that_no_registry_takes_creates_nothing(project, scripted, name):
    """It ended in a crash, or in a model that no configuration could name."""
    home, _ = scripted
    code, output = project.run(
        *("register", home / "model", "--as", name),
        *("--evidence", home / "evidence.json", "--policy", home / "policy.yaml"),
    )
    assert code == 2, output
    assert "--as" in output
    assert "Traceback" not in output


def test_policy_that_nobody_measured_for_is_refused_first(project, scripted):
    """It was registered, passed, and then was not promoted."""
    home, _ = scripted
    other = POLICY.model_copy(update={"name": "other"})
    with replacing(home / "policy.yaml") as half:
        half.write_text(other.model_dump_json())
    before = len(connect().search_model_versions("name='scripted'"))
    code, output = register(project, home)
    assert code == 2, output
    assert "measured for, tiny-script, version 1" in " ".join(output.split())
    assert len(connect().search_model_versions("name='scripted'")) == before


def test_figure_that_no_database_holds_is_no_evidence(project, scripted):
    """It ended in a crash."""
    home, dossier = scripted
    values = json.loads(dossier.model_dump_json())
    values["budget"]["head_sequence"] = 10**30
    with replacing(home / "evidence.json") as half:
        half.write_text(json.dumps(values))
    code, output = register(project, home)
    assert code == 2, output
    assert "budget.head_sequence" in output


@pytest.mark.parametrize("text", ["", "{}", '{"plan": 1}', "\ud800"])
def test_evidence_that_cannot_be_read_is_refused(project, tmp_path, text):
    (tmp_path / "model").mkdir()
    (tmp_path / "evidence.json").write_bytes(text.encode(errors="replace"))
    (tmp_path / "policy.yaml").write_text(POLICY.model_dump_json())
    code, output = register(project, tmp_path)
    assert code == 2, output
    assert "Traceback" not in output


def test_pipeline_of_others_shows_the_claim_and_passes_the_gate(
    project, store, tmp_path
):
    url, key = store
    theirs(str(tmp_path), url, key.hex(), POLICY.max_epsilon)
    run = Client().list_pipeline_runs(pipeline="theirs", sort_by="desc:created")[0]
    assert "certified" in run.run_metadata[CLAIM]
    steps = run.steps
    for name in ("fine_tune", "by_hand"):
        assert "certified" in steps[name].run_metadata[CLAIM]
    assert "certified" in run.model_version.run_metadata[CLAIM]
    assert steps["gate"].run_metadata["gate"] == "PASS"
    page = steps["gate"].outputs["privacy_card"][0].load()
    assert "<html" in page.lower()


def test_gate_ends_a_pipeline_of_others(project, store, tmp_path):
    url, key = store
    with pytest.raises((GateFailedError, RuntimeError)):
        theirs(str(tmp_path), url, key.hex(), 0.001)
    run = Client().list_pipeline_runs(pipeline="theirs", sort_by="desc:created")[0]
    assert run.status == "failed"
    assert run.steps["gate"].run_metadata["gate"] != "PASS"


def test_step_with_two_trainings_says_the_lesser_guarantee(monkeypatch):
    told = []
    context = SimpleNamespace(
        pipeline_run=SimpleNamespace(id="run"), model_version=None
    )
    monkeypatch.setattr(zenml, "get_step_context", lambda: context)
    monkeypatch.setattr(zenml, "log_metadata", lambda *a, **k: told.append((a, k)))
    claims = [
        dptune.account(noise_multiplier=noise, sample_rate=0.1, num_steps=9, delta=1e-5)
        for noise in (1.0, 9.0)
    ]
    for order in (claims, claims[::-1]):
        told.clear()
        certified(lambda order=order: tuple(order))()
        words = told[0][0][0][CLAIM]
        assert words.startswith(epsilon(claims[0].epsilon))


def test_step_without_a_claim_fails():
    with pytest.raises(PrivacyError, match="must end with a certificate"):
        certified(lambda: 1)()
