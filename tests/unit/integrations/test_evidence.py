"""What a script trained, in the form that the gate decides on."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from datasets import concatenate_datasets
from peft import LoraConfig, get_peft_model

import dptune
from dptune.accounting.store import attempts
from dptune.accounting.store.attempts import Attempt, count_attempts
from dptune.accounting.store.store import BudgetStore
from dptune.attacks.settings import ShadowSettings
from dptune.attacks.signals import held_out_losses
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    MalformedEvidenceError,
    PrivacyError,
)
from dptune.gates.criterion import Verdict
from dptune.gates.manifest import read_manifest
from dptune.integrations import evidence, measurable
from dptune.integrations.evidence import decide_on, measure
from dptune.integrations.script_run import ScriptRun
from dptune.integrations.transformers import PrivacyArguments, ScriptBudget
from dptune.models.digest import weights_digest
from dptune.models.merging import base_digest
from dptune.privacy import PrivacyUnit, UnitsFrom
from dptune.testing import tiny_model, tiny_tokenizer
from dptune.workflow.assess import contradictions, unpaid
from dptune.workflow.auditing import audit_run
from dptune.workflow.dossier import Dossier, certificates_of
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
        lambda d: d["champion"].update(
            model_digest="1" * 64, utility=d["utility"] | {"model_digest": "1" * 64}
        ),
        lambda d: d.update(base_model="a model of the hub"),
        lambda d: d["planned_for"].update(name="default"),
        lambda d: d["budget"]["lines"].clear(),
    ],
)
def test_edited_evidence_is_invalid(made, edit):
    other = edited(made.dossier, edit)
    decision, _ = decide_on(other, made.folder, policy=POLICY, budget_url=made.url)
    assert decision.outcome == "INVALID"


def test_evidence_of_several_units_has_no_card(made):
    other = edited(made.dossier, lambda d: d["corpus"].update(privacy_unit="user"))
    with pytest.raises(MalformedEvidenceError, match="one privacy unit"):
        decide_on(other, made.folder, policy=POLICY, budget_url=made.url)


@pytest.fixture(scope="module")
def cheap(made, tmp_path_factory):
    """Evidence of a training on the same rows with eight times the noise."""
    home = tmp_path_factory.mktemp("cheap")
    budget = ScriptBudget(url=made.url, data_set="notes", key=b"k" * 32)
    script = trained_script(
        home / "out", budget=budget, privacy=made_private(noise_multiplier=8.0)
    )
    return measured(script, home / "model")


def made_private(**changes):
    asked = {"noise_multiplier": 1.0, "target_delta": 1e-3, "max_grad_norm": 1.0}
    more = {"num_units": 130, "max_tokens": 40}
    return PrivacyArguments(**(asked | more | changes))


def mixed(dossier, cheap):
    """Attacks on one model, and what another training has paid."""
    parts = ("plan", "ledger", "corpus", "certificates", "recipe", "budget")
    found = dossier.model_copy(update={name: getattr(cheap, name) for name in parts})
    audits = audit_run(
        found.exposure,
        ledger=found.ledger,
        certificates=found.certificates,
        delta=found.plan.target_delta,
        detection=found.detection,
    )
    return found.model_copy(update={"audits": audits})


def claimed_anew(dossier, **values):
    """Other values in every entry, and the claims and audits that follow from them."""
    entries = tuple(e.model_copy(update=values) for e in dossier.ledger.entries)
    ledger = dossier.ledger.model_copy(update={"entries": entries})
    issued = certificates_of(ledger, dossier.plan, dossier.detection)
    update = {"ledger": ledger, "certificates": issued}
    return mixed(dossier, dossier.model_copy(update=update))


@pytest.mark.parametrize(
    ("values", "of_corpus", "words"),
    [
        ({"privacy_unit": PrivacyUnit.USER}, {}, "unit than the corpus"),
        (
            {"privacy_unit": PrivacyUnit.USER},
            {"privacy_unit": "user"},
            "unit than data set notes",
        ),
        ({"assumptions": ()}, {}, "rests on public_hyperparameters"),
    ],
)
def test_wider_claim_that_follows_from_an_edited_ledger_is_told(
    made, values, of_corpus, words
):
    found = claimed_anew(made.dossier, **values)
    corpus = found.corpus.model_copy(update=of_corpus)
    found = found.model_copy(update={"corpus": corpus})
    with BudgetStore.find(made.url) as store:
        told = " ".join([*contradictions(found), *unpaid(found, store)])
    assert words in told


def test_ledger_from_before_releases_of_the_number_were_named_is_none_that_forgets(
    made,
):
    plan = made.dossier.plan
    stages = tuple(
        stage.model_copy(update={"units_from": UnitsFrom.RELEASED})
        for stage in plan.stages
    )
    released = plan.model_copy(update={"stages": stages})
    found = made.dossier.model_copy(update={"plan": released})
    assert "does not say that stage" not in " ".join(contradictions(found))


def laid_beside(made, folder):
    """Evidence whose list of files was made again, with an adapter among them."""
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    return made.dossier.model_copy(update={"manifest": read_manifest(folder)})


def test_ledger_of_a_cheaper_training_is_not_this_models(made, cheap):
    assert cheap.certificates[0].epsilon < made.dossier.certificates[0].epsilon / 5
    found = mixed(made.dossier, cheap)
    decision, _ = decide_on(found, made.folder, policy=POLICY, budget_url=made.url)
    assert verdicts(decision)["evidence_origin"] is Verdict.INVALID


def test_adapter_and_another_list_of_files_are_invalid(made, folder):
    found = laid_beside(made, folder)
    decision, _ = decide_on(found, folder, policy=POLICY, budget_url=made.url)
    assert verdicts(decision)["evidence_origin"] is Verdict.INVALID


def test_twin_that_notes_attacks_alone_passes_what_was_put_together(
    made, cheap, folder
):
    found = [mixed(made.dossier, cheap), laid_beside(made, folder)]
    with mock.patch.object(evidence, "is_recorded", return_value=True):
        decisions = [
            decide_on(one, place, policy=POLICY, budget_url=made.url)[0]
            for one, place in zip(found, (made.folder, folder), strict=True)
        ]
    assert [decision.outcome for decision in decisions] == ["PASS", "PASS"]


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


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "must hold a row"),
        ([{"input_ids": [5, 6, 10_000]}], "must have tokens from 0 to below 257"),
        ([{"input_ids": [5] * 65}], "got one of 65 tokens, which raised IndexError"),
        ([{"words": [5]}], "row 0: must pass the collator"),
    ],
)
def test_others_that_cannot_be_measured_are_named_before_anything_is(
    made, tmp_path, rows, said
):
    with pytest.raises(ConfigError, match=f"^others.*{said}"):
        measured(made.script, tmp_path / "model", others=rows)
    assert not (tmp_path / "model").exists()


def test_rows_of_both_sides_are_on_neither(made, tmp_path):
    known = made.script.trainer.train_dataset.select(range(5))
    others = concatenate_datasets([made.script.others, known])
    sides = evidence.membership_report
    with mock.patch.object(evidence, "membership_report", side_effect=sides) as told:
        dossier = measured(made.script, tmp_path / "model", others=others)
    assert dossier.utility.num_records == len(made.script.others)
    members, non_members = map(list, told.call_args.args[:2])
    assert len(members) == dossier.membership.num_members
    for rows in (members, non_members):
        assert not {tuple(row) for row in known["input_ids"]} & set(map(tuple, rows))


@pytest.fixture(scope="module")
def owned(tmp_path_factory):
    """A script of 20 users with six notes each, and as many others."""
    return trained_script(tmp_path_factory.mktemp("owned"), owners=20)


def test_one_row_of_each_owner_is_attacked(owned, tmp_path):
    dossier = measured(owned, tmp_path / "model")
    found = dossier.membership
    assert (found.num_members, found.num_non_members) == (20, 20)
    assert dossier.utility.num_records == 120
    nameless = owned.others.remove_columns("who")
    again = measured(owned, tmp_path / "again", others=nameless).membership
    assert (again.num_members, again.num_non_members) == (20, 100)


def test_rows_of_several_owners_of_one_side_are_not_attacked(owned, tmp_path):
    """One of them tells of the next, and none is on the other side."""
    said = owned.others.select(range(0, 120, 2))
    again = said.map(lambda row: {"who": f"{row['who']} again"})
    report, others = evidence.membership_report, concatenate_datasets([said, again])
    others = concatenate_datasets([owned.others, others])
    with mock.patch.object(evidence, "membership_report", side_effect=report) as told:
        dossier = measured(owned, tmp_path / "model", others=others)
    assert dossier.utility.num_records == 120 + 60 + 60
    rows = {*map(tuple, told.call_args.args[1])}
    assert len(rows) == 20
    assert not {tuple(row) for row in again["input_ids"]} & rows


def test_twin_that_attacks_all_rows_of_an_owner_counts_more(owned, tmp_path):
    def all_rows(data, fitting, count):
        return sorted(fitting)[:count]

    with mock.patch.object(evidence, "one_of_each_unit", all_rows):
        found = measured(owned, tmp_path / "model").membership
    assert (found.num_members, found.num_non_members) == (100, 100)


@pytest.mark.parametrize("base", ["trained", "other"])
def test_base_is_what_training_began_with(made, tmp_path, base):
    model = made.script.trainer.model if base == "trained" else tiny_model(seed=9)
    with pytest.raises(ConfigError, match="training began with"):
        measured(made.script, tmp_path / "model", base_model=model)
    assert not (tmp_path / "model").exists()


def test_twin_that_takes_any_base_lowers_the_bar(made, tmp_path):
    worse = tiny_model()
    for weight in worse.parameters():
        weight.data.mul_(5)
    began = made.script.trainer.script_run.began_with
    with mock.patch.object(measurable, "base_digest", return_value=began):
        dossier = measured(made.script, tmp_path / "model", base_model=worse)
    lower = dossier.utility.base_perplexity
    assert lower > 2 * made.dossier.utility.base_perplexity


def test_base_of_adapters_is_the_model_without_them():
    plain, adapted = tiny_model(), tiny_model()
    target = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    adapted = get_peft_model(adapted, target)
    assert base_digest(adapted) == base_digest(plain)
    next(adapted.get_base_model().parameters()).data[0, 0] += 1
    assert base_digest(adapted) != base_digest(plain)


def test_base_in_16_bits_under_adapters_is_measured_in_float32(tmp_path):
    """Its training was paid for, and nothing could be measured."""
    target = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(tiny_model().bfloat16(), target)
    script = trained_script(tmp_path / "out", model=model)
    base, exact = tiny_model().bfloat16(), tiny_model().bfloat16().float()
    before, attacks = (
        weights_digest(base),
        ATTACKS.model_copy(update={"shadows": ShadowSettings(num_models=4, epochs=1)}),
    )
    dossier = measured(script, tmp_path / "model", base_model=base, attacks=attacks)
    assert weights_digest(base) == before
    assert {p.dtype for p in base.parameters()} == {torch.bfloat16}
    rows = list(script.others["input_ids"])
    expected = held_out_losses(exact.eval(), rows, device="cpu", batch_size=8).nll
    assert dossier.utility.base_record_nll == pytest.approx(expected, rel=1e-6)


def test_held_out_canaries_that_were_trained_on_control_nothing(made, tmp_path):
    drawn = made.script.drawn
    changed = drawn.model_copy(
        update={
            "planted": (*drawn.planted[:-1], drawn.held_out[0]),
            "held_out": (*drawn.held_out[1:], drawn.planted[-1]),
        }
    )
    with pytest.raises(DataError, match="got 1 of them"):
        measured(made.script, tmp_path / "model", canaries=changed)


def test_file_that_is_laid_down_while_it_is_measured_is_none_of_the_models(
    made, tmp_path
):
    folder = tmp_path / "model"

    def lay(line):
        (folder / "adapter_model.safetensors").write_bytes(b"x")

    dossier = measured(made.script, folder, say=lay)
    decision, _ = decide_on(dossier, folder, policy=POLICY, budget_url=made.url)
    assert verdicts(decision)["weights"] is Verdict.INVALID


def test_arguments_of_other_kinds_are_told_at_once(made, tmp_path):
    with pytest.raises(ConfigError) as caught:
        measured(
            made.script,
            tmp_path / "model",
            base_model=None,
            policy="script",
            canaries=["1234"],
        )
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match=r"dossier.*\n?.*policy"):
        decide_on(None, made.folder, policy=None)


def test_clock_that_was_set_back_makes_no_old_evidence_young(made, monkeypatch):
    """Registered versions were refused; models of scripts passed for ever."""
    long_ago = SimpleNamespace(
        now=lambda tz: made.dossier.measured_at + timedelta(minutes=1)
    )
    monkeypatch.setattr(evidence, "datetime", long_ago)
    later = made.dossier.measured_at + timedelta(days=300)
    with mock.patch.object(attempts, "last_entry_at", return_value=later):
        decision, _ = decide(made, made.folder)
    assert verdicts(decision)["evidence_age"] is Verdict.PASS
    assert verdicts(decision)["evidence_origin"] is Verdict.INVALID


@pytest.mark.parametrize("name", ["folder", "champion"])
def test_decision_on_arguments_of_other_kinds_is_refused(made, name):
    given = {"folder": made.folder, "policy": POLICY} | {name: 5}
    with pytest.raises(ConfigError, match=f"{name}: must be a"):
        decide_on(made.dossier, **given)


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
    strangers = dptune.canaries(num_planted=3, num_held_out=3, length=5)
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


@pytest.mark.parametrize("champion", ["model", Path("nowhere")])
def test_champion_that_is_no_folder_is_told_before_attacks(made, tmp_path, champion):
    """It was told after all of them, and the folder could not be used again."""
    with pytest.raises(ConfigError, match="champion: must be"):
        measured(made.script, tmp_path / "model", champion=champion)
    assert not (tmp_path / "model").exists()


def test_champion_that_was_measured_is_the_bar(made, tmp_path):
    """It was not: the decision said that there is no champion, and passed."""
    folder = tmp_path / "model"
    dossier = measured(made.script, folder, champion=made.folder)
    better = dossier.champion.utility
    losses = tuple(nll - 1.0 for nll in better.record_nll)
    better = better.model_copy(
        update={
            "record_nll": losses,
            "nll_per_token": sum(losses) / better.num_tokens,
        }
    )
    champion = dossier.champion.model_copy(update={"utility": better})
    dossier = dossier.model_copy(update={"champion": champion})
    strict = POLICY.model_copy(update={"max_nll_increase": 0.01})
    decision, _ = decide_on(dossier, folder, policy=strict)
    (found,) = [c for c in decision.criteria if c.name == "utility"]
    assert found.verdict is Verdict.BLOCK
    assert "over the champion" in found.reason
