"""Ways to a PASS that is not earned, each tried on a registered version.

A tiny version is registered once, with evidence that passes its own policy, and decided
on with a key. Every case then changes what somebody with that access could change, and
asks for a PASS, a promotion or a deployment; the folder is put back afterwards.
"""

import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import mlflow
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mlflow import MlflowClient

from dptune.accounting.store.store import BudgetStore
from dptune.errors import GateFailedError
from dptune.gates.decision import GateOutcome, decide
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import open_unverified, seal
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource
from dptune.results import RegisteredVersion
from dptune.workflow.dossier import Dossier, RunResults
from infra.workspace import current_workspace
from steps import (
    _champions,
    _deciding,
    _evidence,
    _figures,
    _files,
    _promoting,
    _registry,
    _tracking,
)
from steps._deciding import ENVELOPE, decide_on, read_dossier
from steps._registering import _registered_before
from tests.integration.conftest import TINY
from tests.unit.gates.conftest import Make
from tests.unit.gates.test_signing import PEM, PUBLIC, pem_of
from tests.unit.reports import samples

MODEL = "earned"
POLICY = GatePolicy.model_validate(
    yaml.safe_load(TINY.read_text())["gate"]
    | {
        "name": "earned",
        "max_epsilon": 1000.0,
        "max_delta": 0.5,
        "require_step_audit": False,
    }
)
STRICT = POLICY.model_copy(update={"name": "strict", "max_epsilon": 0.001})
LAX = POLICY.model_copy(update={"name": "lax", "max_epsilon": 1e6})


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A registered version, where somebody could reach it.

    Args:
        version: as it was registered.
        files: its folder in MLflow's store.
        beside: the folder of the run's own files: evidence and decisions.
    """

    version: RegisteredVersion
    files: Path
    beside: Path

    @property
    def number(self):
        return self.version.version

    @property
    def known(self):
        """What the registry says of it now."""
        return _tracking.get_version(MODEL, self.number)

    @property
    def now(self):
        return _tracking.describe(MODEL, self.number)

    def tag(self, **tags):
        for key, value in tags.items():
            MlflowClient().set_model_version_tag(
                MODEL, self.number, f"dptune.{key}", value
            )

    def decide(self, policy=POLICY):
        """Return outcome and reasons."""
        decision, _ = decide_on(MODEL, self.number, policy=policy)
        return decision.outcome, {c.name: c.reason for c in decision.failed()}

    def promote(self, **options):
        given = {"policy": None, "override": None} | options
        return _promoting.promote_by_hand(MODEL, self.number, **given)


def tiny_model(folder, *, seed=0):
    source = ArchitectureSource(
        kind="architecture",
        num_layers=1,
        num_heads=2,
        hidden_size=16,
        max_tokens=32,
        vocab_size=258,
        tokenizer={"kind": "trained"},
        seed=seed,
    )
    loaded = load_model(source)
    save_model(loaded.model, loaded.tokenizer, folder)
    return folder


def dossier_of(digest):
    own = {"model_digest": digest, "measured_at": datetime.now(tz=UTC)}
    results = RunResults(
        plan=samples.run_plan(),
        ledger=samples.jft_ledger(),
        corpus=samples.corpus_report(),
        detection=Make.detection(),
        redaction=samples.redaction_report(),
        exposure=Make.exposure(**own),
        membership=Make.membership(**own),
        utility=Make.utility(**own),
    )
    return Dossier.of(
        results,
        model_digest=digest,
        base_model="tiny",
        recipe=samples.recipe(),
        planned_for=POLICY.reference,
    )


def register(folder):
    """What the step does, without a run of ZenML around it."""
    dossier = dossier_of(model_digest(folder))
    client = _tracking.connect()
    found = client.get_experiment_by_name(MODEL)
    place = found.experiment_id if found else _figures._experiment(client, MODEL)
    with mlflow.start_run(experiment_id=place):
        version = _tracking.register_model(
            folder,
            model_name=MODEL,
            digest=dossier.model_digest,
            recipe="jft",
            params={},
            metrics={},
        )
    files = _files.register_files(version, folder, known=_registered_before(version))
    dossier = dossier.model_copy(update={"manifest": files})
    _tracking.record_files(version, files.digest)
    text = dossier.model_dump_json()
    _tracking.keep_evidence(
        version, text, signed="", digest=_evidence.digest_of(text), paid=""
    )
    with _tracking.version_folder(MODEL, version.version) as place:
        run = _tracking.get_version(MODEL, version.version).run_id
        uri = MlflowClient().get_run(run).info.artifact_uri
        beside = Path(uri.removeprefix("file://").removeprefix("file:"))
        return Stored(version=version, files=place, beside=beside)


def believed(_, text, *__, **___):
    """No run made these versions; `test_unearned_evidence.py` asks where one did."""
    return Make.origin(digest=_evidence.digest_of(text)), Make.attempts()


@pytest.fixture(scope="module")
def registered(project, tmp_path_factory):
    """Two versions of one model, decided on with a key; the first is the champion."""
    examine, _deciding.examine = _deciding.examine, believed
    before = os.environ.get("DPTUNE_SIGNING_KEY")
    os.environ["DPTUNE_SIGNING_KEY"] = PEM.decode()
    _tracking.connect()
    BudgetStore.open(current_workspace().budget_url).engine.dispose()  # notes verdicts
    home = tmp_path_factory.mktemp("models")
    first, second = (
        register(tiny_model(home / f"m{seed}", seed=seed)) for seed in (1, 2)
    )
    assert first.decide() == ("PASS", {})
    first.promote()
    assert second.decide() == ("PASS", {})
    yield first, second
    _deciding.examine = examine
    os.environ.pop("DPTUNE_SIGNING_KEY")
    if before is not None:
        os.environ["DPTUNE_SIGNING_KEY"] = before


def logs(project):
    """The budget store, with what SQLite keeps beside it."""
    files = project.home.glob("budget.db*")
    return [file for file in files if "lock" not in file.name]


@pytest.fixture
def versions(registered, project, tmp_path):
    """Both, put back afterwards: files, evidence, tags, trail, log and aliases."""
    client = MlflowClient()
    for file in logs(project):
        shutil.copy(file, tmp_path / file.name)
    places = [p for one in registered for p in (one.files, one.beside)]
    for index, place in enumerate(places):
        shutil.copytree(place, tmp_path / str(index), symlinks=True)
    tags = [_tracking.get_version(MODEL, one.number).tags for one in registered]
    trail = dict(client.get_registered_model(MODEL).tags)
    yield registered
    for file in logs(project):
        file.unlink()
    for file in tmp_path.glob("budget.db*"):
        shutil.copy(file, project.home / file.name)
    for index, place in enumerate(places):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / str(index), place, symlinks=True)
    for one, had in zip(registered, tags, strict=True):
        now = _tracking.get_version(MODEL, one.number).tags
        for key in now.keys() - had.keys():
            client.delete_model_version_tag(MODEL, one.number, key)
        for key, value in had.items():
            if now.get(key) != value:
                client.set_model_version_tag(MODEL, one.number, key, value)
    for key in client.get_registered_model(MODEL).tags.keys() - trail.keys():
        client.delete_registered_model_tag(MODEL, key)
    _champions.set_alias(MODEL, _champions.CHAMPION, registered[0].number)
    _registry.mend(MODEL)


@pytest.fixture
def stored(versions):
    return versions[1]


# the files of the version: the gate reads them, and so does every promotion


def write(name, body=b"{}"):
    def change(stored, _):
        (stored.files / name).parent.mkdir(parents=True, exist_ok=True)
        (stored.files / name).write_bytes(body)

    return change


def truncated(stored, _):
    file = stored.files / "model" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 4)


def one_bit(stored, _):
    file = stored.files / "model" / "model.safetensors"
    body = bytearray(file.read_bytes())
    body[-3] ^= 1
    file.write_bytes(body)


def of_the_other(part):
    """A file or folder of the other version in the place of its own."""

    def change(stored, other):
        there, here = other.files / part, stored.files / part
        if there.is_dir():
            shutil.rmtree(here)
            shutil.copytree(there, here)
        else:
            shutil.copy(there, here)

    return change


def two_tokens_swapped(stored, _):
    file = stored.files / "components" / "tokenizer" / "tokenizer.json"
    values = json.loads(file.read_text())
    vocabulary = values["model"]["vocab"]
    one, two = sorted(vocabulary)[:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    file.write_text(json.dumps(values))


def renamed(stored, _):
    weights = stored.files / "model" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.safetensors"))


def linked(stored, other):
    weights = stored.files / "model" / "model.safetensors"
    weights.unlink()
    weights.symlink_to(other.files / "model" / "model.safetensors")


def linked_to_itself(stored, _):
    weights = stored.files / "model" / "model.safetensors"
    weights.rename(stored.beside / "weights")
    weights.symlink_to(stored.beside / "weights")


def everything_of_the_other(stored, other):
    """Weights, tag and evidence: another model under this version's number."""
    of_the_other("model")(stored, other)
    stored.tag(digest=other.version.model_digest)


FILES = {
    "weights of another version": of_the_other("model/model.safetensors"),
    "model folder of another version": of_the_other("model"),
    "weights and tag of another version": everything_of_the_other,
    "two tokens swapped": two_tokens_swapped,
    "tokenizer changed": write("components/tokenizer/tokenizer_config.json"),
    "weights truncated": truncated,
    "one bit of the weights": one_bit,
    "weights renamed": renamed,
    "weights linked elsewhere": linked,
    "weights linked to the same bytes": linked_to_itself,
    "weights gone": lambda stored, _: shutil.rmtree(stored.files / "model"),
    "all files gone": lambda stored, _: shutil.rmtree(stored.files),
    "adapter beside": write("model/adapter_config.json", b'{"peft_type": "LORA"}'),
    "adapter's weights beside": write("model/adapter_model.safetensors"),
    "adapter in the first folder": write("adapter_config.json"),
    "generation settings": write("model/generation_config.json"),
    "other settings": write("model/config.json"),
    "code beside": write("model/modeling_gpt2.py", b"import os"),
    "pickle beside": write("model/pytorch_model.bin", b"x"),
    "loader of MLflow": write("MLmodel", b"flavors: {}"),
    "requirements": write("requirements.txt", b"evil"),
    "forged note of a download": write("registered_model_meta", b"model_name: x\n"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_were_not_registered_are_invalid_and_not_promoted(case, versions):
    other, stored = versions
    FILES[case](stored, other)
    with pytest.raises(GateFailedError, match="byte for byte"):
        stored.promote()
    with pytest.raises(GateFailedError, match="byte for byte"):
        stored.promote(override="it must be")
    dossier = read_dossier(MODEL, stored.number)
    evidence = dossier.evidence(None, files=_files.look_at_files(stored.now))
    (found,) = (c for c in decide(evidence, POLICY).criteria if c.name == "weights")
    assert found.verdict == "INVALID"
    assert str(stored.files.parent) not in found.reason
    assert _champions.alias(MODEL, "champion") == other.number


@pytest.mark.parametrize(
    "case", ["weights and tag of another version", "all files gone", "adapter beside"]
)
def test_gate_reads_the_files(case, versions):
    other, stored = versions
    FILES[case](stored, other)
    outcome, why = stored.decide()
    assert (outcome, "weights" in why) == ("INVALID", True), why
    with pytest.raises(GateFailedError, match="INVALID"):
        stored.promote()
    assert "weights" in _tracking.reason_of(stored.known)


@pytest.mark.parametrize("case", ["one bit of the weights", "adapter beside"])
def test_champion_whose_files_changed_is_no_place_to_go_back_to(case, versions):
    first, second = versions
    second.promote()
    FILES[case](first, second)
    with pytest.raises(GateFailedError, match="byte for byte"):
        _promoting.roll_back(MODEL, to=None, reason="leak")
    assert _champions.alias(MODEL, "champion") == second.number


def test_deployed_files_are_the_version_whichever_way_they_were_fetched(
    stored, project, tmp_path
):
    public = tmp_path / "public.pem"
    public.write_bytes(PUBLIC)
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY.model_dump(mode="json")))
    verify = ("verify-decision", stored.beside / ENVELOPE, "--key", public)
    verify = (*verify, "--policy", policy, "--model")
    source = stored.known.source
    by_name = f"models:/{MODEL}/{stored.number}"
    for number, uri in enumerate((source, by_name)):
        folder = tmp_path / f"fetched-{number}"
        folder.mkdir()
        fetched = mlflow.artifacts.download_artifacts(uri, dst_path=str(folder))
        assert project.run(*verify, fetched)[0] == 0
    with _files.fetched_bundle(MODEL, stored.number) as bundle:
        assert project.run(*verify, bundle.path)[0] == 0
        (bundle.path / "adapter_config.json").touch()
        code, said = project.run(*verify, bundle.path)
        assert (code, "adapter_config.json" in said) == (1, True)
    assert project.run(*verify, stored.files)[0] == 0


def test_note_that_mlflow_leaves_in_the_store_is_no_change(stored):
    """`mlflow.pyfunc.load_model` writes it where the files lie on this machine."""
    mlflow.artifacts.download_artifacts(f"models:/{MODEL}/{stored.number}")
    assert (stored.files / "registered_model_meta").is_file()
    assert stored.decide() == ("PASS", {})
    stored.promote()


def test_weights_that_are_registered_again_must_be_there(versions, tmp_path):
    _, stored = versions
    assert register(tiny_model(tmp_path / "same", seed=2)).number == stored.number
    write("model/adapter_config.json")(stored, None)
    with pytest.raises(Exception, match="adapter_config"):
        register(tiny_model(tmp_path / "again", seed=2))


# decisions and tags: what lies in the store or the registry proves nothing


def forged(stored, **changes):
    """A decision that says what somebody would like, and its envelope."""
    held = open_unverified((stored.beside / ENVELOPE).read_text())
    decision = held.decision.model_copy(update=changes)
    return held.model_copy(
        update={"decision": decision, "decision_hash": decision.decision_hash}
    )


def put(stored, text):
    (stored.beside / ENVELOPE).write_text(text)
    held = open_unverified(text)
    stored.tag(decision_hash=held.decision_hash, gate="PASS")


def by_another_key(stored, _):
    other = pem_of(Ed25519PrivateKey.generate())
    put(stored, seal(forged(stored), private_key=other))


def of_the_other_version(stored, other):
    put(stored, (other.beside / ENVELOPE).read_text())


def refused(stored, _):
    assert stored.decide(STRICT)[0] == "BLOCK"


def cleared_tags(stored, _):
    refused(stored, None)
    stored.tag(gate="PASS", reason="every criterion met")


def lax(stored, _):
    """A strict decision first, then a lax one: the newest says PASS."""
    assert stored.decide(STRICT)[0] == "BLOCK"
    assert stored.decide(LAX) == ("PASS", {})


def replayed(stored, _):
    """The pass from before a refusal, put back beside it."""
    before = (stored.beside / ENVELOPE).read_text()
    assert stored.decide(STRICT)[0] == "BLOCK"
    (stored.beside / ENVELOPE).write_text(before)
    stored.tag(gate="PASS")


def edited(stored, _):
    text = (stored.beside / ENVELOPE).read_text()
    (stored.beside / ENVELOPE).write_text(text.replace('"sig": "', '"sig": "A'))


DECISIONS = {
    "tag by hand, without a decision": (
        lambda stored, _: (
            (stored.beside / ENVELOPE).unlink(),
            stored.tag(gate="PASS"),
        ),
        "has none",
    ),
    "tag by hand, over a refusal": (cleared_tags, "BLOCK"),
    "pass from before a refusal": (replayed, "registry names"),
    "unsigned": (
        lambda stored, _: put(stored, seal(forged(stored), private_key=None)),
        "must be signed",
    ),
    "signed with another key": (by_another_key, "must be signed with key"),
    "of another version": (of_the_other_version, "of its own"),
    "signature edited": (edited, "changed since"),
    "no envelope": (
        lambda stored, _: (stored.beside / ENVELOPE).write_bytes(b"\xff\x00"),
        "envelope",
    ),
    "policy's name edited in the tags": (
        lambda stored, _: stored.tag(policy="earned", decision_hash="0" * 64),
        "registry names",
    ),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_promotion_relies_on_no_tag_and_no_forged_decision(case, versions):
    other, stored = versions
    change, says = DECISIONS[case]
    change(stored, other)
    with pytest.raises(GateFailedError, match=says):
        stored.promote()
    assert _champions.alias(MODEL, "champion") == other.number


@pytest.mark.parametrize("reason", ["", "  ", " \u200b\u2060 ", "..."])
def test_reason_that_says_nothing_is_none(reason, versions):
    other, stored = versions
    refused(stored, None)
    with pytest.raises(GateFailedError, match="--override 'reason'"):
        stored.promote(override=reason)
    assert _champions.alias(MODEL, "champion") == other.number


def test_twin_that_believes_the_tag_promotes_a_refused_version(versions, monkeypatch):
    """What `promote` did before: the tag decided."""
    _, stored = versions
    cleared_tags(stored, None)
    held = _promoting.open_unverified((stored.beside / ENVELOPE).read_text())
    wanted = GateOutcome(_tracking.outcome_of(stored.known))
    believed = held.model_copy(
        update={"decision": held.decision.model_copy(update={"outcome": wanted})}
    )
    monkeypatch.setattr(_promoting, "_open", lambda *_: (believed, ()))
    monkeypatch.setattr(_promoting, "_refuse_other_policy", lambda *_: None)
    monkeypatch.setattr(_promoting, "refuse_superseded", lambda *_: None)
    stored.promote()
    assert _champions.alias(MODEL, "champion") == stored.number


def test_lax_policy_promotes_where_it_is_named_and_the_trail_names_it(stored):
    lax(stored, None)
    with pytest.raises(GateFailedError, match="sha256:"):
        stored.promote()
    stored.promote(policy=LAX)
    entry = _champions.history(MODEL)[-1]
    assert entry["policy"] == LAX.reference.title
    decision = stored.known.tags["dptune.decision_hash"]
    assert entry["decision"] == decision
    assert len(entry["files"]) == 64
    assert entry["unchecked"] == "nothing"


def test_decision_names_policy_and_files_wherever_it_is_told(stored):
    stored.decide()
    tags = stored.known.tags
    assert tags["dptune.policy"] == POLICY.reference.title
    card = _tracking.read_file(MODEL, stored.number, "privacy_card.md")
    assert POLICY.digest in card
    assert tags["dptune.files"] in card


def test_without_a_key_it_is_said_that_the_signature_was_not_checked(
    stored, monkeypatch
):
    monkeypatch.delenv("DPTUNE_SIGNING_KEY")
    relied = stored.promote()
    assert "no key is configured" in relied.trail["unchecked"]
    assert _champions.history(MODEL)[-1]["unchecked"] == relied.trail["unchecked"]


def test_rollback_refuses_a_version_that_was_refused_since(versions):
    first, second = versions
    second.promote()
    text = (first.beside / "evidence.json").read_text()
    values = json.loads(text) | {"measured_at": "2020-01-01T00:00:00Z"}
    (first.beside / "evidence.json").write_text(json.dumps(values))
    assert first.decide()[0] != "PASS"
    with pytest.raises(GateFailedError, match="refused since"):
        _promoting.roll_back(MODEL, to=first.number, reason="leak")


def test_rollback_takes_the_decision_that_the_trail_names(versions):
    first, second = versions
    second.promote()
    assert first.decide(STRICT)[0] == "BLOCK"  # another policy's question
    version, relied = _promoting.roll_back(MODEL, to=None, reason="leak")
    assert (version, relied.unchecked) == (first.number, ())
    assert _champions.history(MODEL)[-1]["action"] == "rollback"


def test_rollback_to_a_version_that_was_promoted_past_the_gate_is_refused(versions):
    first, second = versions
    assert second.decide(STRICT)[0] == "BLOCK"
    assert second.promote(override="it must be").decision is None
    _promoting.roll_back(MODEL, to=first.number, reason="leak")
    with pytest.raises(GateFailedError, match="has none"):
        _promoting.roll_back(MODEL, to=second.number, reason="and back")


# aliases


def test_status_says_what_a_champion_relies_on(versions, project):
    first, second = versions
    look = _promoting.look_at_champion
    wrong, unchecked = look(MODEL, first.number, weights=False)
    assert wrong == ""
    assert "names and sizes" in " ".join(unchecked)
    assert look(MODEL, first.number, weights=True) == ("", ())
    evidence = first.beside / "evidence.json"
    text = evidence.read_bytes()
    for change, told in ((evidence.unlink, "is gone"), (evidence.touch, "was changed")):
        change()  # it said `as it was promoted`
        assert told in look(MODEL, first.number, weights=False)[0]
    evidence.write_bytes(text)
    one_bit(first, None)
    assert look(MODEL, first.number, weights=False)[0] == ""
    assert "model.safetensors" in look(MODEL, first.number, weights=True)[0]
    write("model/adapter_config.json")(first, None)
    assert "adapter_config" in look(MODEL, first.number, weights=False)[0]
    code, said = project.run("status", "--weights")
    assert code == 0
    assert "adapter_config.json" in " ".join(said.split())
    _champions.set_alias(MODEL, _champions.CHAMPION, second.number)
    assert "by hand" in look(MODEL, second.number, weights=False)[0]
    second.promote()  # what the alias says is in the trail now
    assert look(MODEL, second.number, weights=True) == ("", ())
