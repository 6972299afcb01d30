"""What a script trained, in the form that the gate decides on."""

import json
import shutil
from types import SimpleNamespace
from unittest import mock

import pytest

import dptune
from dptune.accounting.store.attempts import Attempt, count_attempts
from dptune.accounting.store.store import BudgetStore
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import ArtifactError, ConfigError, DataError, PrivacyError
from dptune.gates.criterion import Verdict
from dptune.integrations.evidence import decide_on, measure
from dptune.integrations.script_run import ScriptRun
from dptune.integrations.transformers import ScriptBudget
from dptune.models.digest import weights_digest
from dptune.testing import tiny_tokenizer
from dptune.workflow.dossier import Dossier
from dptune.workflow.trained import opens_with_bos
from tests.budgets import grant
from tests.support.scripts import (
    ATTACKS,
    POLICY,
    encoded,
    measured,
    trained_script,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One script with a budget, measured once."""
    home = tmp_path_factory.mktemp("script")
    url = f"sqlite:///{home}/budget.db"
    BudgetStore.open(url).grant(grant(60, data_set="notes"))
    budget = ScriptBudget(url=url, data_set="notes", key=b"k" * 32)
    script = trained_script(home / "out", budget=budget)
    dossier = measured(script, home / "model")
    return SimpleNamespace(
        script=script, dossier=dossier, folder=home / "model", url=url
    )


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the model that may be changed."""
    return shutil.copytree(made.folder, tmp_path / "model")


def decide(made, folder, **changes):
    asked = {"policy": POLICY, "budget_url": made.url}
    return decide_on(made.dossier, folder, **(asked | changes))


def verdicts(decision):
    return {c.name: c.verdict for c in decision.criteria}


def test_script_passes_a_policy_that_it_meets(made):
    decision, card = decide(made, made.folder)
    assert decision.failed() == ()
    assert decision.outcome == "PASS"
    (claim,) = [
        c
        for c in made.dossier.certificates
        if c.metric.startswith("epsilon_record_add")
    ]
    assert claim == made.script.trainer.certificate
    assert claim in card.certificates


def test_evidence_is_read_back_as_it_was_written(made):
    again = Dossier.model_validate_json(made.dossier.model_dump_json())
    assert again == made.dossier


def test_evaluation_is_counted_by_the_store_that_paid(made):
    store = BudgetStore.open(made.url)
    kind = Attempt.EVALUATION
    assert count_attempts(store, data_set="notes", kind=kind) == 1


def test_nobody_passes_where_nobody_counted(made):
    decision, _ = decide(made, made.folder, budget_url=None)
    assert decision.outcome == "INCONCLUSIVE"
    assert [c.name for c in decision.failed()] == ["attempts"]


def test_canaries_are_counted_in_the_tokens_that_trained(made):
    planted = made.dossier.exposure.planted()
    assert len(planted) == 10
    assert all(one.trained == 1 for one in planted)
    assert made.dossier.exposure.planted_found == 10


def test_members_hold_no_canary(made):
    assert made.dossier.membership.num_members == 100
    assert made.dossier.membership.num_non_members == 100


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "generation_config.json").write_text("{}"),
        lambda f: (f / "adapter_config.json").write_text("{}"),
        lambda f: (f / "config.json").unlink(),
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-1] + b"\x01"
        ),
    ],
)
def test_other_bytes_are_invalid(made, folder, change):
    change(folder)
    decision, _ = decide(made, folder)
    assert decision.outcome == "INVALID"
    assert verdicts(decision)["weights"] is Verdict.INVALID


def edited(dossier, edit):
    values = json.loads(dossier.model_dump_json())
    edit(values)
    return Dossier.model_validate_json(json.dumps(values))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["certificates"][0].update(epsilon=0.1),
        lambda d: d["ledger"]["entries"].pop(),
        lambda d: d["corpus"].update(fingerprint="0" * 64),
        lambda d: d["budget"].update(reservation=""),
        lambda d: d["exposure"].update(model_digest="0" * 64),
        lambda d: d["membership"].update(num_members=99),
        lambda d: d["utility"].update(base_perplexity=1e6),
        lambda d: d["exposure"]["canaries"][0].update(nll=1.0),
        lambda d: d["exposure"].update(measured_at="2030-01-01T00:00:00Z"),
    ],
)
def test_edited_evidence_is_invalid(made, edit):
    other = edited(made.dossier, edit)
    decision, _ = decide_on(other, made.folder, policy=POLICY, budget_url=made.url)
    assert decision.outcome == "INVALID"


def test_another_store_paid_for_nothing(made, tmp_path):
    url = f"sqlite:///{tmp_path}/other.db"
    BudgetStore.open(url)
    decision, _ = decide(made, made.folder, budget_url=url)
    assert verdicts(decision)["evidence_origin"] is Verdict.INVALID


def test_training_without_a_budget_is_not_paid_by_any(made, tmp_path):
    script = trained_script(tmp_path / "out")
    dossier = measured(script, tmp_path / "model", canaries=None)
    assert dossier.budget is None
    assert dossier.exposure.planted() == ()
    decision, _ = decide_on(
        dossier, tmp_path / "model", policy=POLICY, budget_url=made.url
    )
    assert verdicts(decision)["evidence_origin"] is Verdict.INVALID


def test_canaries_of_another_set_are_refused_before_anything_is_written(made, tmp_path):
    others = dptune.canaries(num_planted=3, num_held_out=3, length=4)
    with pytest.raises(DataError, match="rows of their own"):
        measured(made.script, tmp_path / "model", canaries=others)
    assert not (tmp_path / "model").exists()


def test_training_rows_are_no_others(made, tmp_path):
    rows = made.script.trainer.train_dataset
    with pytest.raises(PrivacyError, match="others"):
        measured(made.script, tmp_path / "model", others=rows)
    assert not (tmp_path / "model").exists()


def test_folder_with_files_is_refused(made, folder):
    with pytest.raises(ArtifactError, match="absent or empty"):
        measured(made.script, folder)


def test_training_that_did_not_end_is_refused(made, tmp_path):
    trainer = made.script.trainer
    with pytest.raises(ConfigError, match="call train"):
        measure(
            SimpleNamespace(script_run=None, processing_class=trainer.processing_class),
            tmp_path / "model",
            base_model=made.script.base,
            others=encoded(["a note"]),
            policy=POLICY,
            attacks=ATTACKS,
        )


def test_weights_that_were_changed_after_training_are_refused(made, tmp_path):
    weight = next(made.script.trainer.model.parameters())
    before = weight.detach().clone()
    try:
        weight.data[0, 0] += 1.0  # no version counter moves
        with pytest.raises(ConfigError, match="changed since"):
            measured(made.script, tmp_path / "model")
    finally:
        weight.data.copy_(before)
    assert not (tmp_path / "model").exists()


def test_without_the_comparison_changed_weights_get_through(made, tmp_path):
    model = made.script.trainer.model
    weight = next(model.parameters())
    before = weight.detach().clone()
    blind = property(lambda _: weights_digest(model))
    strangers = dptune.canaries(num_planted=3, num_held_out=3, length=3)
    try:
        weight.data[0, 0] += 1.0
        with mock.patch.object(ScriptRun, "weights", blind), pytest.raises(DataError):
            measured(made.script, tmp_path / "model", canaries=strangers)
    finally:
        weight.data.copy_(before)


@pytest.mark.parametrize("opened", [True, False])
def test_canaries_are_ranked_behind_what_they_were_trained_behind(opened):
    tokenizer = tiny_tokenizer()
    drawn = dptune.canaries(num_planted=2, num_held_out=2, length=3)
    rows = [
        [tokenizer.bos_token_id] * opened + tokenizer(drawn.spec.record(s))["input_ids"]
        for s in drawn.planted
    ]
    data = UnitDataset.from_columns(
        rows, [[1.0] * len(row) for row in rows], ["a", "b"], max_sequences_per_unit=1
    )
    assert opens_with_bos(data, drawn, tokenizer) is opened


def test_decisions_are_counted_by_the_store_that_paid(made):
    decide(made, made.folder)
    store = BudgetStore.open(made.url)
    assert count_attempts(store, data_set="notes", kind=Attempt.DECISION) >= 1


def test_champion_is_measured_on_the_same_rows(made, tmp_path):
    dossier = measured(made.script, tmp_path / "model", champion=made.folder)
    assert dossier.champion.model_digest == made.dossier.model_digest
    assert dossier.champion.utility.record_nll == made.dossier.utility.record_nll
    decision, _ = decide_on(
        dossier,
        tmp_path / "model",
        policy=POLICY,
        budget_url=made.url,
        champion=made.dossier,
    )
    assert verdicts(decision)["utility"] is Verdict.PASS
