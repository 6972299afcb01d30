"""Ways to a PASS by evidence that is not the run's own: none leads there."""

import json
import shutil
import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mlflow import MlflowClient

from dptune.accounting.store.attempts import Attempt, record_attempt
from dptune.accounting.store.store import BudgetStore
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import EvidenceStatement, seal
from dptune.workflow import assess
from dptune.workflow.dossier import Dossier
from infra.workspace import current_workspace
from steps import _champions, _deciding, _evidence, _tracking
from tests.unit.gates.test_signing import PEM, pem_of

from .conftest import TINY

MODEL = "tiny-assistant"
DATA_SET = "default"
VERSION = "1"


@pytest.fixture(scope="module")
def policy(project):
    file = project.outside / "tiny-policy.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(TINY.read_text())["gate"]))
    return file


@pytest.fixture
def gate(trained, project, policy):
    """Decide on the version that passes; returns exit code and words on one line."""

    def run(version=VERSION):
        command = ("gate", MODEL, "--version", version, "--policy", policy)
        code, output = project.run(*command)
        return code, " ".join(output.split())

    return run


class Stored:
    """What is kept of a version, and how somebody who may write there changes it."""

    def __init__(self, project):
        _tracking.connect()
        self.run = str(_tracking.get_version(MODEL, VERSION).run_id)
        self.evidence, self.envelope = (
            next(f for f in project.home.rglob(name) if self.run in str(f))
            for name in (_tracking.EVIDENCE, _tracking.SIGNED_EVIDENCE)
        )

    def read(self):
        return json.loads(self.evidence.read_text())

    def write(self, values):
        self.evidence.write_text(json.dumps(values))

    def tag(self, digest):
        MlflowClient().set_model_version_tag(MODEL, VERSION, "dptune.evidence", digest)

    def digest(self):
        return _evidence.digest_of(self.evidence.read_text())

    def seal(self, key=None, **changes):
        dossier = Dossier.model_validate_json(self.evidence.read_text())
        values = {
            "model_name": MODEL,
            "model_version": VERSION,
            "model_digest": dossier.model_digest,
            "evidence_digest": self.digest(),
            "data_set": DATA_SET,
            "run": "r",
            "measured_at": dossier.measured_at,
            "registered_at": datetime.now(tz=UTC),
        }
        statement = EvidenceStatement(**{**values, **changes})
        self.envelope.write_text(seal(statement, private_key=key))

    def enter(self, digest=None):
        store = BudgetStore.find(current_workspace().budget_url)
        record_attempt(
            store,
            data_set=DATA_SET,
            kind=Attempt.REGISTRATION,
            subject=digest or self.digest(),
            about=f"version {VERSION} of {MODEL}",
        )
        store.engine.dispose()

    def forge(self, values):
        """Change evidence and all that was written down of it, unsigned."""
        self.write(values)
        self.tag(self.digest())
        self.seal()
        self.enter()


@contextmanager
def kept(*files):
    before = {file: file.read_bytes() for file in files}
    try:
        yield
    finally:
        for file, content in before.items():
            file.write_bytes(content)


@pytest.fixture(scope="module")
def passes(trained, project, policy):
    """The version passes as it is: what is refused below is refused for its change."""
    command = ("gate", MODEL, "--version", VERSION, "--policy", policy)
    assert project.run(*command)[0] == 0


@pytest.fixture
def stored(passes, project):
    """The version's files, tag and budget store; all of it is put back."""
    found = Stored(project)
    store = project.home / "budget.db"
    copies = [f for f in project.home.glob("budget.db*") if "lock" not in f.name]
    with kept(found.evidence, found.envelope, *copies):
        digest = found.digest()
        yield found
    found.tag(digest)
    for file in project.home.glob("budget.db-*"):
        if file not in copies and store.is_file():
            file.unlink()


def faults(stored):
    """What the gate finds of the evidence, before it decides."""
    text = stored.evidence.read_text()
    origin, _ = _evidence.examine(
        Dossier.model_validate_json(text),
        text,
        _tracking.describe(MODEL, VERSION),
        policy=policy_of(),
        now=datetime.now(tz=UTC),
    )
    return " ".join(origin.faults)


def test_evidence_as_it_was_written_has_no_fault(stored):
    assert faults(stored) == ""


def test_log_that_was_cut_makes_no_pass(stored, project, gate):
    store = sqlite3.connect(project.home / "budget.db")
    with closing(store) as connection, connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM log WHERE content LIKE '%\"evaluation\"%'")
    assert "of the budget store's log" in faults(stored)
    code, said = gate()
    assert (code, "INVALID" in said) == (1, True), said


def edited(change):
    def edit(stored):
        values = stored.read()
        change(values)
        return values

    return edit


def lower_membership(values):
    for signal in values["membership"]["signals"]:
        signal["auc"] = 0.5


def lower_epsilon(values):
    for certificate in values["certificates"]:
        if certificate["notion"] == "selective":
            certificate["epsilon"] = 0.5


def drop_noise(values):
    values["ledger"]["entries"] = values["ledger"]["entries"][:1]


def keep_alone(values):
    entry = values["ledger"]["entries"][0]
    values["ledger"]["entries"] = [
        e for e in values["ledger"]["entries"] if e["stage"] == entry["stage"]
    ]


def move_audit(values):
    values["step_audits"][1]["num_steps"] += 1


def raise_bound(values):
    for audit in values["audits"]:
        audit["epsilon_lower_bound"] = 0.0
        audit["capacity"] = 99.0


def rename_stage(values):
    for entry in values["ledger"]["entries"]:
        entry["stage"] = "another"


def other_corpus(values):
    for entry in values["ledger"]["entries"]:
        entry["data_fingerprint"] = "0" * 64


def other_reservation(values):
    values["budget"]["reservation"] = "0" * 32


def other_head(values):
    values["budget"]["head_hash"] = "0" * 64


def no_budget(values):
    values["budget"] = None


def later(values):
    at = (datetime.now(tz=UTC) + timedelta(days=1)).isoformat()
    for part in ("exposure", "membership", "extraction", "utility"):
        values[part]["measured_at"] = at
    values["measured_at"] = at


def wider_unit(values):
    for part in (values["corpus"], *values["ledger"]["entries"]):
        part["privacy_unit"] = "user"
    for certificate in values["certificates"]:
        certificate["privacy_unit"] = "user"


def certified(values):
    for entry in values["ledger"]["entries"]:
        entry["assumptions"] = []


def renamed_data(values):
    values["budget"]["data_set"] = "fresh"


def over_another_version(values):
    for part in ("exposure", "membership"):
        values[part]["base_model_digest"] = _tracking.describe(MODEL, "2").model_digest


WHAT = (lower_membership, lower_epsilon, drop_noise)
CONTRADICTIONS = {
    lower_epsilon: "not those that follow",
    drop_noise: "ledger",
    keep_alone: "ledger",
    move_audit: "audited over",
    raise_bound: "audits",
    rename_stage: "ledger",
    other_corpus: "another corpus",
    other_reservation: "reserved",
    other_head: "budget store",
    no_budget: "reservation",
    renamed_data: "data set",
    wider_unit: "another privacy unit",
    certified: "does not say that stage",
    over_another_version: f"trained over version 2 of {MODEL}",
}


def test_edited_evidence_is_invalid(stored, gate):
    stored.write(edited(lower_epsilon)(stored))
    code, said = gate()
    assert (code, "INVALID" in said) == (1, True), said
    assert "digest" in said


@pytest.mark.parametrize("change", WHAT)
def test_edited_evidence_has_another_digest_than_was_noted(stored, change):
    stored.write(edited(change)(stored))
    assert "digest" in faults(stored)
    stored.tag(stored.digest())
    stored.seal()
    assert "budget store noted last" in faults(stored)


@pytest.mark.parametrize(("change", "words"), CONTRADICTIONS.items())
def test_evidence_that_contradicts_itself_has_a_fault_however_well_it_is_noted(
    stored, change, words
):
    stored.forge(edited(change)(stored))
    assert words in faults(stored)


@pytest.mark.parametrize("change", [drop_noise, later])
def test_evidence_that_contradicts_itself_is_invalid(stored, gate, change):
    stored.forge(edited(change)(stored))
    code, said = gate()
    assert (code, "INVALID" in said) == (1, True), said


def test_twin_that_asks_nobody_passes_a_leaker(stored, gate, monkeypatch):
    """What was there before: whatever the store holds is believed."""
    stored.write(edited(lower_epsilon)(stored))
    origin, attempts = _evidence.examine(
        Dossier.model_validate_json(stored.evidence.read_text()),
        stored.evidence.read_text(),
        _tracking.describe(MODEL, VERSION),
        policy=policy_of(),
        now=datetime.now(tz=UTC),
    )
    assert len(origin.faults) >= 3
    believed = origin.model_copy(update={"faults": ()})
    monkeypatch.setattr(_deciding, "examine", lambda *_, **__: (believed, attempts))
    assert gate()[0] == 0


def policy_of():
    return GatePolicy.model_validate(yaml.safe_load(TINY.read_text())["gate"])


def test_earlier_evidence_of_the_same_version_is_a_replay(stored, gate):
    stored.enter("f" * 64)  # the version was registered anew, and this laid back
    code, said = gate()
    assert (code, "noted last" in said) == (1, True), said


def test_evidence_without_a_tag_or_envelope_is_invalid(stored, gate):
    stored.tag("")
    assert "INVALID" in gate()[1]
    stored.tag(stored.digest())
    envelope = stored.envelope.read_bytes()
    stored.envelope.unlink()
    code, said = gate()
    stored.envelope.write_bytes(envelope)
    assert (code, "which run measured" in said) == (1, True), said


@pytest.mark.parametrize(
    "changes",
    [
        {"model_name": "another"},
        {"model_version": "2"},
        {"model_digest": "0" * 64},
        {"data_set": "another"},
        {"evidence_digest": "0" * 64},
        {"measured_at": datetime(2020, 1, 1, tzinfo=UTC)},
    ],
)
def test_statement_about_something_else_is_a_fault(stored, changes):
    stored.seal(**changes)
    assert "written down with another" in faults(stored)


def test_evidence_of_another_version_laid_over_is_refused(stored, gate, project):
    other = _tracking.read_evidence(MODEL, "2")
    stored.evidence.write_text(other)
    assert gate()[0] == 1  # of other weights
    values = json.loads(other)
    digest = _tracking.describe(MODEL, VERSION).model_digest
    values["model_digest"] = digest
    for part in ("exposure", "membership", "extraction", "utility"):
        values[part]["model_digest"] = digest
    for audit in values["audits"]:
        audit["model_digest"] = digest
    stored.write(values)
    code, said = gate()
    assert (code, "INVALID" in said) == (1, True), said


# signatures


@pytest.fixture
def key(monkeypatch, tmp_path):
    file = tmp_path / "signing.pem"
    file.write_bytes(PEM)
    file.chmod(0o600)
    monkeypatch.setenv("DPTUNE_SIGNING_KEY_FILE", str(file))
    yield PEM
    monkeypatch.delenv("DPTUNE_SIGNING_KEY_FILE")


def test_where_there_is_a_key_evidence_must_be_signed_with_it(stored, gate, key):
    stored.seal()
    code, said = gate()
    assert (code, "must be signed" in said) == (1, True), said
    stored.seal(pem_of(Ed25519PrivateKey.generate()))
    code, said = gate()
    assert (code, "must be signed with key" in said) == (1, True), said
    stored.seal(key)
    code, said = gate()
    assert (code, "signed it when it was registered" in said) == (0, True), said
    stored.envelope.write_text(_tracking.read_file(MODEL, VERSION, _deciding.ENVELOPE))
    code, said = gate()
    assert (code, "another kind" in said) == (1, True), said


# time


def test_evidence_from_a_cache_keeps_its_age(trained):
    first, again = trained["jft"].run, trained["again"].run
    exposure = again.steps["attack"].outputs["exposure"][0].load()
    dossier = Dossier.model_validate_json(_tracking.read_evidence(MODEL, VERSION))
    assert dossier.measured_at == exposure.measured_at
    start = again.start_time.replace(tzinfo=UTC)
    assert first.start_time.replace(tzinfo=UTC) < dossier.measured_at < start


def test_clock_that_was_set_back_is_invalid(stored, gate, monkeypatch):
    class Early(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz=tz) - timedelta(days=300)

    monkeypatch.setattr(_deciding, "datetime", Early)
    code, said = gate()
    assert (code, "clock" in said) == (1, True), said


def test_artifact_that_was_edited_is_not_registered(trained, project):
    """An answer of the cache is a file, and may lie there for months."""
    artifact = trained["jft"].run.steps["attack"].outputs["membership"][0]
    file = next(f for f in project.home.rglob("report.json") if artifact.uri in str(f))
    values = json.loads(file.read_text())
    values["blind"]["auc"] = 0.4
    with kept(file):
        file.write_text(json.dumps(values))
        code, output = project.run("train", TINY)
    said = " ".join(output.split())
    assert (code, "artifact attack/membership must be" in said) == (2, True), said
    _tracking.connect()  # the run that failed has let go of it
    assert _tracking.evidence_digest_of(
        _tracking.get_version(MODEL, VERSION)
    ) == _evidence.digest_of(_tracking.read_evidence(MODEL, VERSION))


# the budget store


@pytest.fixture
def without_store(trained, project):
    """Move the budget store away, and back."""
    aside = project.outside / "aside"
    aside.mkdir()
    for file in project.home.glob("budget.db*"):
        shutil.move(file, aside / file.name)
    yield
    for file in project.home.glob("budget.db*"):
        file.unlink()
    for file in aside.iterdir():
        shutil.move(file, project.home / file.name)
    aside.rmdir()


def test_deleted_store_says_nowhere_that_nothing_was_spent(
    without_store, project, gate
):
    paid = list(_tracking.heads_paid())
    assert f"version {VERSION} of {MODEL}" in paid
    for command in (("budget", "show"), ("status",)):
        code, output = project.run(*command)
        said = " ".join(output.split())
        assert code == 0
        assert "nothing was spent" not in said
        assert "are not in the budget store" in said
        assert f"what paid for {', '.join(paid[:3])}" in said
    code, output = project.run("train", TINY)
    assert (code, "admit-loss" in output) == (2, True), output
    code, said = gate()
    assert (code, "no budget store" in said) == (1, True), said


def test_empty_store_in_its_place_is_refused_too(without_store, project, gate):
    project.run("budget", "grant", DATA_SET, "--epsilon", "9", "--delta", "1e-4")
    code, output = project.run("train", TINY)
    assert (code, "admit-loss" in output) == (2, True), output
    assert project.run("budget", "admit-loss", "--reason", "the disk broke")[0] == 0
    code, output = project.run("budget", "show")
    assert (code, "are not in" in output) == (0, False), output
    assert gate()[0] == 1  # what paid for the version stays unknown


def test_model_of_another_registry_on_the_same_store_is_refused_before_it_pays(
    trained, project
):
    """Each took the other's evidence and champion for its own: all were INVALID."""
    name, kind = "a-neighbors", Attempt.REGISTRATION
    with BudgetStore.find(current_workspace().budget_url) as store:
        about = f"version 1 of {name}"
        record_attempt(store, data_set="", kind=kind, subject="f" * 64, about=about)
        before = store.head()
        code, output = project.run(
            "train", TINY, "--set", f"registry.model_name={name}"
        )
        assert store.head() == before
    said = " ".join(output.split())
    assert (code, "shares the store and not MLflow" in said) == (2, True), said


def test_attempts_are_counted_and_said(trained, project, gate):
    code, output = project.run("status")
    said = " ".join(output.split())
    assert code == 0
    assert f"Data set {DATA_SET} has seen 2 trainings, 2 evaluations" in said
    assert "2 evaluations" in gate()[1]
    assert "2 evaluations" in _tracking.read_file(MODEL, VERSION, "privacy_card.md")


# the champion


def test_alias_that_was_moved_by_hand_is_named_and_not_believed(trained, project, gate):
    MlflowClient().set_registered_model_alias(MODEL, "champion", "2")
    try:
        code, output = project.run("status")
        said = " ".join(output.split())
        assert code == 0
        assert "points at version 2" in said
        assert "version 1 was promoted last" in said
        code, said = gate()
        assert "points at version 2" in said
        gate("2")
        beside = _tracking.decided_beside(_tracking.get_version(MODEL, "2"))
        assert beside == "1"
        reason = ("--reason", "set back", "--to", "1")
        assert project.run("rollback", MODEL, *reason)[0] == 0
        assert _champions.misplaced_champion(MODEL) == ""
    finally:
        MlflowClient().set_registered_model_alias(MODEL, "champion", "1")


def test_promoting_where_the_alias_points_already_is_on_the_trail(trained, project):
    MlflowClient().set_registered_model_alias(MODEL, "champion", "2")
    override = ("--override", "it was moved by hand")
    assert project.run("promote", MODEL, "--version", "2", *override)[0] == 0
    assert _champions.champion(MODEL) == "2"
    assert project.run("rollback", MODEL, "--to", "1")[0] == 0
    assert (_champions.champion(MODEL), _champions.misplaced_champion(MODEL)) == (
        "1",
        "",
    )


def test_decision_on_evidence_that_changed_since_is_not_acted_on(stored):
    decision = _deciding.GateDecision.model_validate_json(
        _tracking.read_file(MODEL, VERSION, "decision.json")
    )
    version = _tracking.describe(MODEL, VERSION)
    _evidence.refuse_changed_evidence(version, decision)
    stored.write(edited(lower_membership)(stored))
    with pytest.raises(_evidence.GateFailedError, match="gate"):
        _evidence.refuse_changed_evidence(version, decision)


# mutants


def test_twin_without_the_ledgers_check_takes_a_ledger_that_lost_its_noise(
    stored, gate, monkeypatch
):
    values = edited(keep_alone)(stored)
    stored.forge(values)
    assert gate()[0] == 1
    dossier = Dossier.model_validate(values)
    assert assess.contradictions(dossier)
    monkeypatch.setattr(_evidence, "contradictions", lambda _: ())
    monkeypatch.setattr(_evidence, "unpaid", lambda *_: ())
    assert "evidence_origin INVALID" not in gate()[1]
