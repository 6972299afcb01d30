"""Ways to a PASS that lead over what was before: a refusal, a champion, a registration.

A later decision under another policy hides a refusal; a trail or evidence that was
edited names another champion; a version that is registered once more is listed anew.
"""

import json
import re
import shutil
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

import mlflow
import pytest
from mlflow import MlflowClient
from sqlalchemy import MetaData, Table, create_engine, select, update
from zenml.client import Client
from zenml.enums import ModelStages

from dptune.errors import ArtifactError, GateFailedError
from dptune.gates.signing import open_unverified
from steps import (
    _champions,
    _deciding,
    _evidence,
    _files,
    _promoting,
    _registry,
    _tracking,
)
from steps._deciding import ENVELOPE
from tests.integration.test_unearned_pass import (
    LAX,
    MODEL,
    STRICT,
    register,
    registered,
    stored,
    tiny_model,
    versions,
    write,
)

__all__ = ["registered", "stored", "versions"]  # fixtures

ADAPTER = write("model/adapter_config.json", b'{"peft_type": "LORA"}')


def refused_since(first, second):
    """The first champion, followed by the second, is refused under its own policy."""
    second.promote()
    first.tag(digest="0" * 64)
    assert first.decide()[0] == "INVALID"
    first.tag(digest=first.version.model_digest)


def back_to(version, **options):
    return _promoting.roll_back(MODEL, to=version.number, reason="back", **options)


# a refusal


def test_pass_under_another_policy_takes_no_refusal_back(versions):
    first, second = versions
    refused_since(first, second)
    assert first.decide(LAX) == ("PASS", {})
    with pytest.raises(GateFailedError, match="refused since"):
        back_to(first)
    assert _champions.alias(MODEL, "champion") == second.number


def test_twin_that_reads_the_newest_decision_alone_goes_back_to_a_refused_version(
    versions, monkeypatch
):
    first, second = versions
    refused_since(first, second)
    assert first.decide(LAX) == ("PASS", {})
    monkeypatch.setattr(_promoting, "refuse_superseded", lambda *_, **__: None)
    assert back_to(first)[0] == first.number


def test_pass_under_the_same_policy_takes_a_refusal_back(versions):
    first, second = versions
    refused_since(first, second)
    assert first.decide() == ("PASS", {})
    assert back_to(first)[0] == first.number


def test_pass_laid_over_a_refusal_is_not_the_newest_decision(versions):
    first, second = versions
    before = (first.beside / ENVELOPE).read_text()
    refused_since(first, second)
    (first.beside / ENVELOPE).write_text(before)
    for file in (first.beside / "decisions").glob(f"{hash_of(first)}*"):
        file.unlink()
    with pytest.raises(GateFailedError, match="refused since"):
        back_to(first)


def hash_of(version):
    return _tracking.decision_hash_of(version.known)


def test_status_says_that_the_champion_was_refused_since(versions):
    first, _ = versions
    assert first.decide(STRICT)[0] == "BLOCK"  # another policy's question
    assert look(first) == ""
    first.tag(digest="0" * 64)
    assert first.decide()[0] == "INVALID"
    first.tag(digest=first.version.model_digest)
    assert "was refused since" in look(first)


def look(version):
    return _promoting.look_at_champion(MODEL, version.number, weights=False)[0]


# what a registry shows


def test_status_shows_the_noted_verdict_and_no_tag(versions, project):
    _, second = versions
    assert second.decide(STRICT)[0] == "BLOCK"
    second.tag(gate="PASS\x1b[2J\u202e", reason="every criterion met")
    said = " ".join(project.run("status")[1].split())
    assert r"noted was BLOCK, its tag says PASS\x1b[2J\u202e." in said
    assert second.decide(LAX) == ("PASS", {})
    second.tag(gate="pending")  # MLflow gives numbers again, of models that it deleted
    said = " ".join(project.run("status")[1].split())
    assert f" {second.number} jft pending noted was PASS" in said


@pytest.mark.parametrize("alone", [False, True])
def test_challenger_that_is_the_champion_is_shown_as_the_champion(
    alone, versions, project
):
    first, second = versions
    at = second if alone else first
    _champions.drop_alias(MODEL, _champions.CHALLENGER)
    others = project.run("status")[1].count("challenger")  # of other models
    _champions.set_alias(MODEL, _champions.CHALLENGER, at.number)
    said = project.run("status")[1]
    champion = re.search(r"^ *\d+ +champion ", said, re.MULTILINE)
    assert (said.count("challenger") - others, champion is not None) == (alone, True)


def test_alias_past_the_trail_brings_nothing_into_production(versions):
    """Any command did so, `status` too, with a version that the gate had refused."""
    first, second = versions
    _registry.mend(MODEL)
    _champions.set_alias(MODEL, _champions.CHAMPION, second.number)
    assert _registry.mend(MODEL) == []
    assert in_production() == {f"v{first.number}"}
    _champions.drop_alias(MODEL, _champions.CHAMPION)
    assert len(_registry.mend(MODEL)) == 1
    assert in_production() == set()


def test_twin_that_follows_the_alias_brings_it_into_production(versions, monkeypatch):
    _, second = versions
    _champions.set_alias(MODEL, _champions.CHAMPION, second.number)
    monkeypatch.setattr(_champions, "misplaced_champion", lambda _: "")
    _registry.mend(MODEL)
    assert in_production() == {f"v{second.number}"}


def in_production():
    found = Client().list_model_versions(model=MODEL, stage=ModelStages.PRODUCTION)
    return {twin.name for twin in found.items}


# the trail


def never_promoted(second):
    """A genuine PASS under a lax policy, and an entry of the trail that names it."""
    assert second.decide(STRICT)[0] == "BLOCK"
    assert second.decide(LAX) == ("PASS", {})
    at = datetime(2020, 1, 1, tzinfo=UTC).isoformat()
    entry = {"at": at, "version": second.number, "decision": hash_of(second)}
    key = f"dptune.champion.2020.{second.number}"
    MlflowClient().set_registered_model_tag(MODEL, key, json.dumps(entry))


def test_rollback_asks_for_the_policy_of_the_run(versions):
    first, second = versions
    never_promoted(second)
    with pytest.raises(GateFailedError, match="must have passed under policy"):
        back_to(second)
    assert _champions.alias(MODEL, "champion") == first.number
    assert back_to(second, policy=LAX)[0] == second.number  # who names it, wants it


def test_twin_that_asks_for_no_policy_goes_back_to_what_never_was_champion(
    versions, monkeypatch
):
    _, second = versions
    never_promoted(second)
    monkeypatch.setattr(_promoting, "_refuse_other_policy", lambda *_: None)
    assert back_to(second)[0] == second.number


# the list of files


@pytest.mark.parametrize("how", ["gone", "nonsense", "edited"])
def test_adapter_is_not_listed_when_a_version_is_registered_again(
    how, versions, tmp_path
):
    _, second = versions
    list_adapter(second, how)
    with pytest.raises(ArtifactError, match="another list of files"):
        register(tiny_model(tmp_path / "again", seed=2))
    assert hash_of(second) != "none"


def test_twin_that_believes_the_evidence_lists_an_adapter(
    versions, tmp_path, monkeypatch
):
    _, second = versions
    list_adapter(second, "gone")
    look = _files.look_at_files
    monkeypatch.setattr(_files, "_unlike_written", lambda *_: "")
    forgets = {"registry_manifest": ""}
    monkeypatch.setattr(
        _files,
        "look_at_files",
        lambda one: look(one).model_copy(update=forgets),
    )
    register(tiny_model(tmp_path / "again", seed=2))
    assert second.decide() == ("PASS", {})


def list_adapter(second, how):
    """Lay an adapter beside weights, and let the evidence not speak against it."""
    ADAPTER(second, None)
    evidence = second.beside / _tracking.EVIDENCE
    if how == "gone":
        evidence.unlink()
    elif how == "nonsense":
        evidence.write_text("{")
    else:
        values = json.loads(evidence.read_text())
        found = _files.read_manifest(second.files)
        values["manifest"] = found.model_dump(mode="json")
        evidence.write_text(json.dumps(values))


# the champion's evidence, whose loss is the bar


@pytest.fixture
def without_store(monkeypatch):
    """Whatever another test of this process has left: registry alone is asked."""
    monkeypatch.setattr(_evidence, "budget_store", lambda: nullcontext(None))
    monkeypatch.setattr(_evidence, "lost_heads", dict)


def faults_beside(first, second):
    """What examining the second version finds, the first being the champion."""
    text = _tracking.read_evidence(MODEL, second.number)
    dossier = _deciding.parse_dossier(text, second.number)
    origin, _ = _evidence.examine(
        dossier,
        text,
        second.now,
        policy=LAX,
        now=datetime.now(tz=UTC),
        champion=first.number,
    )
    return " ".join(origin.faults)


def raise_champions_loss(first):
    """Its measured loss, three times as high: a worse version passes beside it."""
    file = first.beside / _tracking.EVIDENCE
    values = json.loads(file.read_text())
    losses = values["utility"]["record_nll"]
    values["utility"]["record_nll"] = [3 * nats for nats in losses]
    values["utility"]["nll_per_token"] *= 3
    file.write_text(json.dumps(values))


def test_edited_evidence_of_the_champion_lowers_no_bar(versions, without_store):
    first, second = versions
    assert "champion's evidence" not in faults_beside(first, second)
    raise_champions_loss(first)
    assert "champion's evidence is not what was noted" in faults_beside(first, second)


def test_champion_whose_evidence_is_gone_makes_its_rivals_invalid(versions):
    """The command ended without a decision, and sent the reader to an audit."""
    first, second = versions
    (first.beside / _tracking.EVIDENCE).unlink()
    outcome, reasons = second.decide()
    assert outcome == "INVALID"
    assert f"version {first.number}, the champion" in reasons["evidence"]


def test_gate_examines_the_champion_too(versions, monkeypatch):
    first, second = versions
    asked, believed = [], _deciding.examine

    def examine(*given, champion, **rest):
        asked.append(champion)
        return believed(*given, **rest)

    monkeypatch.setattr(_deciding, "examine", examine)
    assert second.decide() == ("PASS", {})
    assert first.decide() == ("PASS", {})
    assert asked == [first.number, None]


def test_twin_that_believes_the_champion_takes_an_edited_bar(
    versions, without_store, monkeypatch
):
    first, second = versions
    raise_champions_loss(first)
    monkeypatch.setattr(_evidence, "_unlike_noted", lambda *_: ("", ""))
    assert "champion's evidence" not in faults_beside(first, second)


def test_store_that_does_not_hold_what_paid_for_another_version_is_refused(
    versions, without_store, monkeypatch
):
    """A copy from before it knows fewer evaluations, and corrects for fewer."""
    lost = {"version 7 of another": None}
    monkeypatch.setattr(_evidence, "lost_heads", lambda: lost)
    assert "what paid for version 7 of another" in faults_beside(*versions)


# the reason of an override


def test_override_needs_a_reason(versions):
    _, second = versions
    assert second.decide(STRICT)[0] == "BLOCK"
    with pytest.raises(GateFailedError, match="stays on record"):
        second.promote(override=" \t")


# the place of the files


@pytest.fixture
def moved(versions, tmp_path):
    """MLflow's database names another place for who loads the version by its name."""
    first, second = versions
    shutil.copytree(first.files, tmp_path / "another")
    uri = f"file://{tmp_path / 'another'}"
    with edited_row(second.number, uri):
        yield second


@contextmanager
def edited_row(number, value):
    engine = create_engine(mlflow.get_registry_uri())
    table = Table("model_versions", MetaData(), autoload_with=engine)
    row = (table.c.name == MODEL) & (table.c.version == int(number))
    place = table.c.storage_location
    with engine.begin() as connection:
        before = connection.execute(select(place).where(row)).scalar_one()
        connection.execute(update(table).where(row).values(storage_location=value))
    yield
    with engine.begin() as connection:
        connection.execute(update(table).where(row).values(storage_location=before))
    engine.dispose()


def test_version_whose_name_leads_elsewhere_is_refused(moved):
    for act in (moved.decide, moved.promote):
        with pytest.raises(ArtifactError, match="in one place"):
            act()


@pytest.fixture
def unlogged(registered, tmp_path_factory):
    """A third version, whose logged model somebody deleted in MLflow."""
    third = register(tiny_model(tmp_path_factory.mktemp("third") / "m", seed=3))
    logged = third.known.source.removeprefix("models:/")
    MlflowClient().delete_logged_model(logged)
    yield third
    MlflowClient().delete_model_version(MODEL, third.number)


def test_version_whose_logged_model_was_deleted_is_no_crash(unlogged):
    for act in (unlogged.decide, lambda: unlogged.promote(override="it must be")):
        with pytest.raises(ArtifactError, match="logged model was deleted"):
            act()


# what was deleted in MLflow


@pytest.fixture(params=["run", "experiment"])
def in_trash(request, versions):
    """The second version, whose run somebody deleted, alone or with its experiment."""
    _, second = versions
    client, run = MlflowClient(), second.known.run_id
    act = {
        "run": (client.delete_run, client.restore_run, run),
        "experiment": (
            client.delete_experiment,
            client.restore_experiment,
            client.get_run(run).info.experiment_id,
        ),
    }
    delete, restore, what = act[request.param]
    delete(what)
    yield second, f"mlflow {request.param}s restore --{request.param}-id {what}"
    restore(what)


def test_version_whose_run_lies_in_the_trash_is_neither_judged_nor_promoted(in_trash):
    second, way = in_trash
    for act in (second.decide, lambda: second.promote(override="it must be")):
        with pytest.raises(ArtifactError, match=way):
            act()
    assert way in look(second)


def test_twin_that_reads_what_lies_in_the_trash_passes_it(in_trash, monkeypatch):
    second, _ = in_trash
    run = MlflowClient().get_run(second.known.run_id)
    monkeypatch.setattr(_tracking, "keeping_run", lambda version: run)
    assert second.decide() == ("PASS", {})
    second.promote()


@pytest.fixture
def without_champion(versions, tmp_path):
    """A third version was promoted last, and somebody deleted it in MLflow."""
    third = register(tiny_model(tmp_path / "third", seed=4))
    assert third.decide() == ("PASS", {})
    third.promote()
    MlflowClient().delete_model_version(MODEL, third.number)
    return versions


def test_deleted_champion_leaves_the_others_to_be_judged(without_champion):
    """They were INVALID, with no word of anything else."""
    first, second = without_champion
    outcome, why = second.decide()
    assert (outcome, list(why)) == ("INCONCLUSIVE", ["utility"])
    with pytest.raises(GateFailedError, match="INCONCLUSIVE"):
        second.promote()
    assert "was deleted from the registry" in look(first)
    back_to(first)
    assert second.decide() == ("PASS", {})
    second.promote()


def test_twin_that_looks_past_a_deleted_champion_takes_the_base_for_the_bar(
    without_champion, monkeypatch
):
    """Who deletes the champion would choose what others are held to."""
    _, second = without_champion
    made = _deciding.Dossier.evidence

    def blind(*parts, champion_deleted, **named):
        return made(*parts, **named)

    monkeypatch.setattr(_deciding.Dossier, "evidence", blind)
    assert second.decide() == ("PASS", {})


def test_status_says_so_of_a_place_that_leads_elsewhere(versions, tmp_path):
    first, _ = versions
    with edited_row(first.number, f"file://{tmp_path}"):
        assert "in one place" in look(first)


def test_twin_that_reads_the_source_alone_promotes_what_nobody_read(moved, monkeypatch):
    source = str(moved.known.source)
    place = _tracking.get_artifact_repository(source)
    monkeypatch.setattr(_tracking, "_store_of", lambda *_: place.repo)
    assert moved.decide() == ("PASS", {})
    moved.promote()


# the order of what happened, by the log of the budget store


def put_back(version, envelope):
    """Lay an earlier decision back, with the tags that it had: store and registry."""
    for file in (version.beside / "decisions").iterdir():
        file.unlink()
    (version.beside / ENVELOPE).write_text(envelope)
    held = open_unverified(envelope)
    version.tag(gate="PASS", decision_hash=held.decision_hash)


def test_pass_that_was_put_back_with_all_its_tags_is_not_the_newest(versions):
    first, second = versions
    envelope = (second.beside / ENVELOPE).read_text()
    second.tag(digest="0" * 64)
    assert second.decide()[0] == "INVALID"
    second.tag(digest=second.version.model_digest)
    put_back(second, envelope)
    with pytest.raises(GateFailedError, match="newest decision under its policy"):
        second.promote()
    assert _champions.alias(MODEL, "champion") == first.number


@pytest.mark.parametrize("spelt", ["0{}", " {}", "{} ", "\u0661"])
def test_version_that_is_spelt_otherwise_is_none(versions, spelt):
    """The log noted its verdicts of another version, and the newest was not seen."""
    first, _ = versions
    with pytest.raises(ArtifactError, match="must be a registered version"):
        _deciding.decide_on(MODEL, spelt.format(first.number), policy=STRICT)


def test_pass_that_the_log_does_not_hold_is_refused(versions):
    _, second = versions
    envelope = (second.beside / ENVELOPE).read_text()
    assert second.decide() == ("PASS", {})
    put_back(second, envelope)
    with pytest.raises(GateFailedError, match="newest decision"):
        second.promote()


def test_pass_beside_an_earlier_champion_is_decided_again(versions):
    first, second = versions
    assert first.decide() == ("PASS", {})
    second.promote()
    with pytest.raises(GateFailedError, match="champion since"):
        first.promote()
    assert first.decide() == ("PASS", {})
    assert first.promote().decision is not None


def test_twin_that_asks_no_log_promotes_what_was_put_back(versions, monkeypatch):
    _, second = versions
    envelope = (second.beside / ENVELOPE).read_text()
    second.tag(digest="0" * 64)
    assert second.decide()[0] == "INVALID"
    second.tag(digest=second.version.model_digest)
    put_back(second, envelope)
    monkeypatch.setattr(_promoting, "refuse_superseded", lambda *_, **__: None)
    second.promote()
    assert _champions.alias(MODEL, "champion") == second.number


def cut(how):
    client = MlflowClient()
    names = [n for n in client.get_registered_model(MODEL).tags if "champion." in n]
    for name in names if how == "all" else [max(names)]:
        client.delete_registered_model_tag(MODEL, name)


@pytest.mark.parametrize("how", ["all", "last"])
def test_trail_that_was_cut_is_told_by_the_log(how, versions, without_lost):
    first, second = versions
    second.promote()
    assert "ends with" not in faults_beside(first, second)
    cut(how)
    _champions.drop_alias(MODEL, "champion")
    assert "was promoted last" in faults_beside(first, second)


@pytest.fixture
def without_lost(monkeypatch):
    monkeypatch.setattr(_evidence, "lost_heads", dict)


def test_twin_that_reads_the_trail_alone_is_blind_to_a_cut(
    versions, without_lost, monkeypatch
):
    first, second = versions
    second.promote()
    cut("last")
    monkeypatch.setattr(_evidence, "cut_trail", lambda _: "")
    assert "was promoted last" not in faults_beside(first, second)


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"at": 1, "version": "2"}'])
def test_trail_of_nonsense_is_named(text, versions):
    _, second = versions
    MlflowClient().set_registered_model_tag(MODEL, "dptune.champion.x", text)
    for act in (second.decide, second.promote, lambda: back_to(second)):
        with pytest.raises(ArtifactError, match="trail of promotions"):
            act()


def test_entry_of_the_trail_without_an_action_is_no_crash(versions):
    """`rollback` ended in a KeyError."""
    _, second = versions
    entry = json.dumps({"at": "2999-01-01T00:00:00+00:00", "version": "99"})
    MlflowClient().set_registered_model_tag(MODEL, "dptune.champion.2999", entry)
    with pytest.raises(ArtifactError, match="Name the version"):
        _promoting.roll_back(MODEL, to=None, reason="back")
    with pytest.raises(ArtifactError, match="needs an earlier champion"):
        back_to(second)


def test_promotion_ends_the_trail_whatever_clocks_said_before(versions):
    first, second = versions
    at = datetime(2999, 1, 1, tzinfo=UTC).isoformat()
    entry = {"at": at, "version": first.number, "decision": hash_of(first)}
    MlflowClient().set_registered_model_tag(
        MODEL, f"dptune.champion.2999.{first.number}", json.dumps(entry)
    )
    second.promote()
    assert _champions.champion(MODEL) == second.number


@pytest.mark.parametrize("listed", ["", "forged"])
def test_adapter_is_not_listed_though_nothing_is_left_of_the_list(
    listed, versions, tmp_path
):
    """Who may write to store and registry deletes the list, or writes another."""
    _, second = versions
    list_adapter(second, "gone")
    found = _files.read_manifest(second.files).digest
    second.tag(files=found if listed else "")
    with pytest.raises(ArtifactError, match="adapter_config"):
        register(tiny_model(tmp_path / "again", seed=2))
