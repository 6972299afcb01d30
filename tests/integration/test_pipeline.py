"""The real pipeline on the real local stack, from text to promoted and refused."""

import json
import math

import mlflow
import pytest
import yaml
from zenml.client import Client
from zenml.enums import ExecutionStatus, ModelStages

from cli.runs import read_config
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySet
from dptune.audits.step_report import StepAudit
from dptune.data.records import Corpus
from dptune.gates.decision import GateDecision
from dptune.gates.signing import open_evidence, seal, signer_of
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan
from dptune.privacy import Notion
from dptune.reports.card.statements import PrivacyCard
from dptune.results import (
    BudgetReport,
    BudgetReservation,
    ChampionReport,
    CorpusReport,
    DetectionReport,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    RedactionReport,
    RegisteredVersion,
    SamplesReport,
    StageReport,
    TrainedCanaries,
    UtilityReport,
)
from dptune.workflow.expectation import expected_ledger
from steps import _champions, _files, _registry, _tracking
from tests.unit.gates.test_signing import PEM, PUBLIC

from .conftest import TINY
from .scanning import (
    Needles,
    canary_strings,
    files,
    is_pickle,
    is_restricted,
    leaks,
    personal_strings,
)

MODEL = "tiny-assistant"
OUTPUTS = {
    "ingest": {"corpus": Corpus, "corpus_report": CorpusReport},
    "plant_canaries": {"planted_corpus": Corpus, "canaries": CanarySet},
    "detect": {"labelled_corpus": Corpus, "detection": DetectionReport},
    "score": {"sensitivity": None, "scored_ledger": PrivacyLedger},
    "redact": {"redacted_corpus": Corpus, "redaction": RedactionReport},
    "prepare_model": {"base_model": ModelBundle},
    "calibrate": {"plan": RunPlan, "empty_ledger": PrivacyLedger},
    "reserve_budget": {"reservation": BudgetReservation},
    "settle_budget": {"budget": BudgetReport},
    "attack": {
        "exposure": ExposureReport,
        "membership": MembershipReport,
        "extraction": ExtractionReport,
        "utility": UtilityReport,
        "samples": SamplesReport,
    },
    "register": {"version": RegisteredVersion},
    "measure_champion": {"champion": ChampionReport},
    "gate": {"decision": GateDecision, "privacy_card": PrivacyCard},
    "promote": {"promoted": bool, "decision": GateDecision},
}
STAGE = {
    "model": ModelBundle,
    "ledger": PrivacyLedger,
    "stage_report": StageReport,
    "step_audit": StepAudit,
    "trained_canaries": TrainedCanaries,
}
STAGES = {
    "jft": ("redacted_finetune", "private_finetune"),
    "no_dp": ("finetune",),
}
CACHED = {
    "ingest",
    "plant_canaries",
    "detect",
    "redact",
    "prepare_model",
    "calibrate",
    "attack",
}


def output(run, step, name):
    return run.steps[step].outputs[name][0].load()


@pytest.fixture(scope="module")
def needles(trained):
    data = yaml.safe_load(TINY.read_text())["data"]["source"]
    canaries = output(trained["jft"].run, "plant_canaries", "canaries")
    strings = personal_strings(num_records=data["num_records"], seed=data["seed"])
    assert len(strings) > 500
    return Needles(strings | canary_strings(canaries))


# what ran


@pytest.mark.parametrize("recipe", STAGES)
def test_every_step_ran_and_left_what_its_type_says(trained, recipe):
    run = trained[recipe].run
    expected = OUTPUTS | {f"train_{stage}": STAGE for stage in STAGES[recipe]}
    assert run.status is ExecutionStatus.COMPLETED
    assert set(run.steps) == set(expected)
    for step, outputs in expected.items():
        assert set(run.steps[step].outputs) == set(outputs)
        for name, kind in outputs.items():
            value = output(run, step, name)
            assert kind is None or type(value) is kind


def test_verdicts_follow_from_the_claims(trained):
    codes = {name: one.code for name, one in trained.items()}
    assert codes == {"jft": 0, "no_dp": 1, "again": 0}
    decision = output(trained["no_dp"].run, "gate", "decision")
    assert decision.outcome == "BLOCK"
    assert {"budget", "claim_status"} <= {c.name for c in decision.failed()}


def test_outputs_tell_the_verdict_and_what_to_do_next(trained, project):
    assert "refused" in trained["no_dp"].output
    for name in ("jft", "no_dp"):
        assert "dptune status" in trained[name].output
        assert "Traceback" not in trained[name].output
    assert len(list((project.home / "reports").glob("tiny-*.html"))) == 2


def test_ledger_pays_for_every_noisy_step_of_the_plan(trained):
    run = trained["jft"].run
    plan = output(run, "calibrate", "plan")
    ledger = output(run, "train_private_finetune", "ledger")
    paid = sum(e.num_steps for e in ledger.entries if e.noise_multiplier)
    assert paid == plan.stages[1].num_steps
    (selective,) = (
        c for c in ledger.certificates(1e-4) if c.notion is Notion.SELECTIVE
    )
    assert selective.epsilon == pytest.approx(plan.epsilon, rel=1e-6)
    assert selective.epsilon <= plan.target_epsilon
    assert selective.status == "conditional"


def test_planned_ledger_claims_what_the_run_does(trained):
    """Whoever decides by `calibrate` is told the status that the claim will have."""
    run = trained["jft"].run
    config = read_config(TINY)
    report = output(run, "ingest", "corpus_report")
    planned = expected_ledger(config, output(run, "calibrate", "plan"), report)
    ledger = output(run, "train_private_finetune", "ledger")
    for claim, said in zip(
        ledger.certificates(1e-4), planned.certificates(1e-4), strict=True
    ):
        assert claim.epsilon == pytest.approx(said.epsilon, rel=1e-6)
        assert (claim.status, claim.assumptions) == (said.status, said.assumptions)


def test_ledger_artifact_is_what_the_journals_hold(trained, project):
    ledger = output(trained["jft"].run, "train_private_finetune", "ledger")
    (corpus,) = {entry.data_fingerprint for entry in ledger.entries}
    journals = [
        entries
        for path in (project.home / "runs").glob("*/ledger.jsonl")
        if (entries := LedgerJournal(path).read().entries)
        and entries[0].data_fingerprint == corpus
    ]
    assert len(journals) == 3
    jft = [e for entries in journals for e in entries if e.recipe == "jft"]
    assert sorted(e.model_dump_json() for e in jft) == sorted(
        e.model_dump_json() for e in ledger.entries
    )


# run again


def test_second_run_trains_nothing_and_is_charged_nothing(trained):
    first, second = trained["jft"].run, trained["again"].run
    for stage in STAGES["jft"]:
        step = f"train_{stage}"
        assert output(first, step, "ledger") == output(second, step, "ledger")
        assert (
            output(first, step, "model").digest == output(second, step, "model").digest
        )
        assert second.steps[step].status is ExecutionStatus.COMPLETED


def test_preflight_and_steps_read_the_source_once(trained, project):
    assert [run.times_read for run in trained.values()] == [1, 1, 1]
    assert not (project.home / "work" / "read.arrow").exists()


def test_second_run_answers_from_the_cache_all_but_verdicts(trained):
    steps = trained["again"].run.steps
    cached = {n for n, s in steps.items() if s.status is ExecutionStatus.CACHED}
    assert cached == CACHED


def test_recipes_meet_the_same_corpus_canaries_and_base_model(trained):
    steps = trained["no_dp"].run.steps
    for name in ("ingest", "plant_canaries", "detect", "prepare_model"):
        assert steps[name].status is ExecutionStatus.CACHED


def test_second_run_keeps_the_version(trained):
    first = output(trained["jft"].run, "register", "version")
    second = output(trained["again"].run, "register", "version")
    assert first == second
    assert set(_versions()) == {"1", "2"}


def _versions():
    _tracking.connect()
    return {str(version.version): version for version in _tracking.versions(MODEL)}


# registries and metadata


def test_registries_agree_after_the_runs(trained):
    assert {n: _tracking.outcome_of(v) for n, v in _versions().items()} == {
        "1": "PASS",
        "2": "BLOCK",
    }
    assert _champions.alias(MODEL, "champion") == "1"
    assert _champions.alias(MODEL, "challenger") == "2"
    assert _production() == {"v1"}
    assert _registry.mend(MODEL) == []


def _production():
    return {
        twin.name
        for twin in Client()
        .list_model_versions(model=MODEL, stage=ModelStages.PRODUCTION)
        .items
    }


def test_refused_version_keeps_the_reason(trained):
    assert "epsilon" in _tracking.reason_of(_versions()["2"])


@pytest.mark.parametrize(
    ("wish", "recipes"),
    [
        ("metrics.epsilon_selective_replace_one <= 8", {"jft"}),
        ("metrics.epsilon_selective_replace_one > 8", set()),
        ("params.epsilon_selective_replace_one = 'inf'", {"no_dp"}),
        ("metrics.delta <= 0.0001", {"jft", "no_dp"}),
        ("metrics.perplexity < 100000", {"jft", "no_dp"}),
    ],
)
def test_epsilon_can_be_searched_in_mlflow(trained, wish, recipes):
    _tracking.connect()
    experiments = [e.experiment_id for e in mlflow.search_experiments()]
    found = mlflow.search_logged_models(
        experiments,
        filter_string=f"{wish} AND name = '{MODEL}'",
        output_format="list",
    )
    assert {model.params["recipe"] for model in found} == recipes


def test_zenml_metadata_tells_verdict_and_epsilon(trained):
    for name, verdict in (("jft", "PASS"), ("no_dp", "BLOCK")):
        steps = trained[name].run.steps
        assert steps["gate"].run_metadata["gate"] == verdict
        claims = [k for k in steps["register"].run_metadata if k.startswith("epsilon")]
        assert len(claims) >= 3
        shown = trained[name].run.run_metadata
        assert shown["verdict"] == verdict
        assert "epsilon, selective" in shown
        assert ("refused by budget" in shown) == (verdict != "PASS")
        assert f"verdict:{verdict}" in {tag.name for tag in trained[name].run.tags}
    twin = Client().get_model_version(MODEL, "v1")
    assert twin.run_metadata["verdict"] == "PASS"
    assert "verdict:PASS" in {tag.name for tag in twin.tags}


def test_mlflow_shows_a_version_at_a_glance_and_the_run_that_made_it(trained):
    for version, name, verdict in (("1", "jft", "PASS"), ("2", "no_dp", "BLOCK")):
        shown = _versions()[version]
        assert shown.description.startswith(f"**verdict**: {verdict}")
        assert shown.tags["zenml.run"] in shown.description
        assert shown.tags["zenml.run"].startswith(f"tiny-{name}-")
        assert shown.tags["dptune.epsilon.selective.replace_one"]


def test_every_public_report_has_a_page_and_no_restricted_one_has(trained):
    for step in trained["jft"].run.steps.values():
        for name, (artifact,) in step.outputs.items():
            restricted = name == "canaries" or name.split("_")[-1] == "corpus"
            if restricted or "model" in name:
                assert not artifact.visualizations, name
            else:
                assert artifact.visualizations, name


def test_evidence_of_a_version_is_of_its_own_weights(trained):
    for number, version in _versions().items():
        dossier = json.loads(_tracking.read_evidence(MODEL, number))
        assert dossier["model_digest"] == version.tags["dptune.digest"]
        kept = _tracking.read_file(MODEL, number, "decision.json")
        decision = GateDecision.model_validate_json(kept)
        assert decision.decision_hash == version.tags["dptune.decision_hash"]
        assert MODEL in _tracking.read_file(MODEL, number, "privacy_card.md")


# what lies on the disk


def test_no_file_is_a_pickle(trained, project):
    found = list(files(project.home))
    assert len(found) > 80
    assert [str(path) for path in found if is_pickle(path)] == []


def test_personal_data_lie_in_the_restricted_artifacts_only(trained, project, needles):
    project.run("status")
    assert leaks(needles, project.home, project.outside) == {}


def test_restricted_artifacts_are_where_the_scan_looks_away(trained, project, needles):
    restricted = [path for path in files(project.home) if is_restricted(path)]
    assert len(restricted) >= 8
    assert any(needles.found_in(path.read_bytes()) for path in restricted)


# commands on the finished project


def test_status_shows_champion_spending_and_runs(trained, project):
    code, text = project.run("status")
    assert code == 0
    for words in (MODEL, "champion", "challenger", "jft", "no_dp", "∞", "completed"):
        assert words in text


def test_gate_decides_again_from_the_evidence(trained, project):
    policy = project.outside / "policy.yaml"
    policy.write_text(yaml.safe_dump(yaml.safe_load(TINY.read_text())["gate"]))
    for version, expected in (("1", 0), ("2", 1)):
        command = ("gate", MODEL, "--version", version, "--policy", policy)
        assert project.run(*command)[0] == expected
    assert _champions.alias(MODEL, "champion") == "1"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("gate", "nobody"), "tiny-assistant"),
        (("gate", MODEL, "--version", "77"), "registered version"),
        (("gate", MODEL, "--policy", "lax"), "must be one of"),
        (("promote", MODEL, "--version", "77"), "registered version"),
        (("promote", "nobody", "--version", "1"), "registered version"),
        (("rollback", MODEL), "earlier champion"),
        (("rollback", MODEL, "--to", "2"), "earlier champion"),
        (("rollback", "nobody"), "tiny-assistant"),
    ],
)
def test_impossible_registry_commands_exit_2_and_move_nothing(
    trained, project, command, says
):
    code, text = project.run(*command)
    assert (code, _champions.alias(MODEL, "champion")) == (2, "1")
    assert says in " ".join(text.split())
    assert "Traceback" not in text


def sign_evidence(version):
    """What a run that has the key does when it registers."""
    envelope = _tracking.read_file(MODEL, version, _tracking.SIGNED_EVIDENCE)
    statement = open_evidence(envelope, private_key=None)
    signed = {_tracking.SIGNED_EVIDENCE: seal(statement, private_key=PEM)}
    _tracking._keep_files(_tracking.describe(MODEL, version), signed)


def test_decision_is_signed_for_deploy_jobs_that_check_it_offline(
    trained, project, monkeypatch, tmp_path
):
    signing, public = tmp_path / "signing.pem", tmp_path / "signing.pub.pem"
    decision, policy = tmp_path / "decision.signed.json", tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(yaml.safe_load(TINY.read_text())["gate"]))
    public.write_bytes(PUBLIC)
    version = _champions.alias(MODEL, "champion")
    digest = _versions()[version].tags["dptune.digest"]
    gate = ("gate", MODEL, "--version", version, "--policy", policy, "-o", decision)
    verify = ("verify-decision", decision, "--key", public)
    assert _versions()[version].tags["dptune.decision_signed_by"] == "unsigned"
    code, output = project.run(*gate)
    assert (code, "unsigned" in output) == (0, True)
    assert project.run(*verify, "--digest", digest)[0] == 1
    signing.write_bytes(PEM)
    signing.chmod(0o600)
    monkeypatch.setenv("DPTUNE_SIGNING_KEY_FILE", str(signing))
    assert project.run(*gate)[0] == 1  # the evidence was registered without a key
    sign_evidence(version)
    assert project.run(*gate)[0] == 0
    assert project.run(*verify, "--digest", digest)[0] == 0
    with _files.fetched_bundle(MODEL, version) as bundle:
        assert project.run(*verify, "--model", bundle.path)[0] == 0
    assert not bundle.path.exists()
    tag = _versions()[version].tags["dptune.decision_signed_by"]
    assert tag == signer_of(decision.read_text())


def test_promoting_a_refused_version_needs_a_reason_that_is_kept(trained, project):
    assert project.run("promote", MODEL, "--version", "2")[0] == 1
    assert _champions.alias(MODEL, "champion") == "1"
    reason = "release manager accepts it"
    command = ("promote", MODEL, "--version", "2", "--override", reason)
    assert project.run(*command)[0] == 0
    assert (_champions.alias(MODEL, "champion"), _production()) == ("2", {"v2"})
    assert f"override: {reason}" in _champions.history(MODEL)[-1]["reason"]
    assert _tracking.override_of(_versions()["2"]) == reason
    assert reason in _tracking.read_file(MODEL, "2", "privacy_card.md")
    assert Client().get_model_version(MODEL, "v2").run_metadata["override"] == reason


def test_rollback_returns_to_the_last_champion_in_both_registries(trained, project):
    assert project.run("rollback", MODEL, "--reason", "leak")[0] == 0
    assert (_champions.alias(MODEL, "champion"), _production()) == ("1", {"v1"})
    last = _champions.history(MODEL)[-1]
    assert (last["action"], last["version"], last["reason"]) == (
        "rollback",
        "1",
        "leak",
    )


def test_registries_that_disagree_are_mended(trained, project):
    twin = Client().get_model_version(MODEL, "v2")
    Client().update_model_version(
        twin.model.id, twin.id, stage=ModelStages.PRODUCTION.value, force=True
    )
    assert _production() == {"v2"}
    assert len(_registry.mend(MODEL)) == 2
    assert _production() == {"v1"}
    assert _registry.mend(MODEL) == []


def test_refusal_of_the_champion_itself_moves_nothing(trained, project):
    assert project.run("gate", MODEL, "--version", "1", "--policy", "default")[0] == 1
    assert _champions.alias(MODEL, "champion") == "1"


def test_infinite_numbers_are_no_metric(trained):
    client = _tracking.connect()
    for version in _versions().values():
        run = client.get_run(version.run_id)
        assert all(math.isfinite(value) for value in run.data.metrics.values())


# a run that fails in the middle


def test_failed_step_says_that_the_run_had_started_and_quotes_no_text(
    trained, project, monkeypatch
):
    monkeypatch.setenv("DPTUNE_DATA_ROOT", str(project.outside))
    words = ("quiet", "meadow", "lantern", "harbour", "pebble", "willow")
    rows = [
        {"id": f"r{i}", "text": f"unquotable {words[i % 6]} {words[i % 5]} {'so ' * i}"}
        for i in range(260)
    ]
    data = project.outside / "corpus.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"data.source={{kind: jsonl, path: {data.name}, id_column: id}}"
    only = "detection={recognizers: [patterns]}"
    plain = "canaries.template=so {secret} so"  # no code, which patterns may mark
    own = "budget.data_set=failing"  # others count what is drawn on the default
    sets = (source, only, plain, own)
    changes = [word for change in sets for word in ("--set", change)]
    code, text = project.run("train", TINY, *changes)
    data.unlink()
    assert code == 2, text
    assert "had started" in text
    assert "Traceback" not in text
    told = leaks(Needles({"unquotable"}), project.home, project.outside)
    assert told == {}
    assert _champions.alias(MODEL, "champion") == "1"
