"""A script of transformers that trains privately: charges, certificate, what stays."""

import functools
import json
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import DefaultFlowCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets, history
from dptune.dpsgd import steps as engine_steps
from dptune.dpsgd.noise import IndependentNoise
from dptune.errors import (
    ArtifactError,
    BudgetExceededError,
    ConfigError,
    PrivacyError,
)
from dptune.integrations import script_run
from dptune.integrations.transformers import ScriptBudget
from dptune.privacy import Notion
from tests.budgets import DELTA, grant
from tests.support import models
from tests.unit.integrations.conftest import asked, make_rows

KEY = b"k" * 32


class Killed(BaseException):
    """What no handler catches."""


class KillAt(TrainerCallback):
    """Ends the process, as far as a test can, before a step's optimizer acts."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


class Told(TrainerCallback):
    """Keeps what a script's callbacks are told."""

    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses.append(logs.get("loss"))


def test_script_trains_pays_and_leaves_its_certificate_beside_the_model(
    script, paid, tmp_path
):
    told = Told()
    trainer = script(parts={"callbacks": [told]})
    before = {n: p.clone() for n, p in trainer.model.named_parameters()}
    done = trainer.train()
    assert done.global_step == 15
    assert paid() == [4, 4, 4, 3]
    home = tmp_path / "out" / "privacy"
    stored = Certificate.model_validate_json((home / "certificate.json").read_text())
    assert stored == trainer.certificate
    assert 0 < stored.epsilon < math.inf
    assert f"{stored.epsilon:.2g}" in (home / "CARD.md").read_text()
    assert any((p != before[n]).any() for n, p in trainer.model.named_parameters())
    assert len([loss for loss in told.losses if loss is not None]) == 15


def test_loss_of_private_rows_is_in_no_file_beside_the_model(script, tmp_path):
    done = script().train()
    assert "train_loss" not in done.metrics
    files = [f for f in (tmp_path / "out").rglob("*.json") if f.is_file()]
    states = [
        json.loads(f.read_text()) for f in files if f.name == "trainer_state.json"
    ]
    assert len(states) == 3
    logged = [entry for state in states for entry in state["log_history"]]
    assert logged
    assert not any({"loss", "train_loss"} & set(entry) for entry in logged)
    assert all(state["total_flos"] == 0 for state in states)


def test_resumed_script_pays_again_for_what_it_draws_again(script, paid, tmp_path):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    assert paid() == [4, 4]
    trainer = script()
    done = trainer.train(resume_from_checkpoint=True)
    assert done.global_step == 15
    assert paid() == [4, 4, 4, 4, 2]  # from step 5 on in blocks of its own
    whole = script(folder="other")
    whole.train()
    assert trainer.certificate.epsilon > whole.certificate.epsilon


def test_script_that_was_killed_before_a_checkpoint_pays_for_both_starts(script, paid):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(2)]}).train()
    trainer = script()
    trainer.train()
    assert paid() == [4, 4, 4, 4, 3]


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_training_computes_gradients_whatever_a_script_has_around_it(
    script, paid, around
):
    trainer = script(max_steps=2)
    with around():
        trainer.train()
    assert trainer.state.global_step == 2
    assert paid() == [2]


def test_training_under_autocast_computes_in_float32(script):
    """Its self-check once told of a wrong gradient rule; here it is as without."""

    def train(around, folder):
        model = models.tiny_gpt2(num_layers=1)
        trainer = script(model=model, privacy=asked(seed=1), max_steps=2, folder=folder)
        with around:
            trainer.train()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    narrow = torch.autocast("cpu", dtype=torch.bfloat16)
    assert train(narrow, "narrow").equal(train(nullcontext(), "out"))


def test_restart_under_another_unit_is_refused_before_it_pays(script, paid):
    """It once paid for steps of both, and no certificate could be made of them."""
    rows = [row | {"who": f"person {i % 20}"} for i, row in enumerate(make_rows())]

    def start(unit, **parts):
        privacy = asked(privacy_unit=unit, unit_column="who", max_rows_per_unit=2)
        script(rows=rows, privacy=privacy, max_steps=8, parts=parts).train()

    with pytest.raises(Killed):
        start("user", callbacks=[KillAt(2)])
    with pytest.raises(PrivacyError, match="must stay user"):
        start("document")
    assert paid() == [4]
    start("user")
    assert paid() == [4, 4, 4]


def draws(script, monkeypatch, *, kill, **changes):
    """Noise and units of every step of a script that is killed and resumed."""
    noise, units = [], []
    add, draw = IndependentNoise.add, engine_steps.ChargedSteps.draw

    def seen_noise(self, sums, *, step):
        before = {n: v.clone() for n, v in sums.items()}
        add(self, sums, step=step)
        name = next(iter(sums))
        noise.append(float((sums[name] - before[name]).flatten()[0]))

    def seen_units(self, step):
        found = draw(self, step)
        units.append(tuple(found))
        return found

    monkeypatch.setattr(IndependentNoise, "add", seen_noise)
    monkeypatch.setattr(engine_steps.ChargedSteps, "draw", seen_units)
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(kill)]}, **changes).train()
    script(**changes).train(resume_from_checkpoint=True)
    return noise, units


def test_resuming_draws_other_noise_and_other_units(script, monkeypatch):
    known = asked(seed=3)  # the worst case: randomness that would repeat itself
    noise, units = draws(script, monkeypatch, kill=9, privacy=known)
    assert len(noise) == len(set(noise)) == 20
    assert units[5:10] != units[10:15]


def test_resuming_with_the_noise_of_before_would_be_seen(script, monkeypatch):
    monkeypatch.setattr(script_run, "claim_attempt", lambda folder: 0)
    known = asked(seed=3)
    noise, _ = draws(script, monkeypatch, kill=9, privacy=known)
    assert len(set(noise)) < len(noise)


def test_forgetting_charged_steps_would_be_seen(script, paid, monkeypatch):
    honest = engine_steps.ChargedSteps.__init__

    def forgetful(self, *, charge, first_step, **named):
        def skip(first, count):
            if first != first_step:
                charge(first, count)

        honest(
            self, charge=skip if first_step else charge, first_step=first_step, **named
        )

    monkeypatch.setattr(engine_steps.ChargedSteps, "__init__", forgetful)
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    script().train(resume_from_checkpoint=True)
    assert sum(paid()) < 8 + 10  # steps that noise was drawn for: 8, and 10 after


def test_checkpoint_without_its_ledger_is_refused(script, paid, tmp_path):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    checkpoint = get_last_checkpoint(str(tmp_path / "out"))
    with pytest.raises(ArtifactError, match="what it has paid"):
        script(folder="other").train(resume_from_checkpoint=checkpoint)
    assert paid("other") == []


@pytest.mark.parametrize("resume", [True, "checkpoint-15"])
def test_half_a_checkpoint_is_passed_over_or_named(script, paid, tmp_path, resume):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(12)]}).train()
    half = tmp_path / "out" / "checkpoint-15"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / "out" / "checkpoint-20-copy").mkdir()
    before = paid()
    trainer = script()
    if resume is True:
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 15
        assert sum(paid()) > sum(before)
    else:
        with pytest.raises(ConfigError, match=r"whole checkpoint.*trainer_state"):
            trainer.train(resume_from_checkpoint=str(half))
        assert paid() == before


class KillAtEnd(TrainerCallback):
    """Ends the process, as far as a test can, behind the last checkpoint."""

    def on_train_end(self, args, state, control, **kwargs):
        raise Killed


def test_training_that_was_cut_off_behind_its_last_step_is_ended(
    script, paid, tmp_path
):
    budget = make_budget(tmp_path, 50)
    cut = script(budget=budget, parts={"callbacks": [KillAtEnd()]})
    with pytest.raises(Killed):
        cut.train()
    assert sum(paid()) == 15
    trainer = script(budget=budget)
    done = trainer.train(resume_from_checkpoint=True)
    assert done.global_step == 15
    assert sum(paid()) == 15
    assert (tmp_path / "out" / "privacy" / "certificate.json").exists()
    ours, theirs = trainer.model.parameters(), cut.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    script(budget=budget).train(resume_from_checkpoint=True)
    runs = history(BudgetStore.open(budget.url), data_set="notes")
    assert not any(run.is_open for run in runs)
    assert sum(run.spent.count(Notion.RECORD) for run in runs) == 15


class KillAtBegin(TrainerCallback):
    """Ends the process, as far as a test can, before the first step is paid."""

    def on_train_begin(self, args, state, control, **kwargs):
        raise Killed


def test_start_that_was_killed_before_it_paid_is_taken_up(script, paid, tmp_path):
    budget = make_budget(tmp_path, 50)
    with pytest.raises(Killed):
        script(budget=budget, parts={"callbacks": [KillAtBegin()]}).train()
    assert paid() == []
    script(budget=budget).train()
    (run,) = history(BudgetStore.open(budget.url), data_set="notes")
    assert not run.is_open


def test_training_goes_on_with_the_budget_that_it_began_with(script, paid, tmp_path):
    """Else a data set's budget counts a part of what its model has learnt."""
    budget = make_budget(tmp_path, 90)
    cut = {"parts": {"callbacks": [KillAt(7)]}}
    others = {"none": (None, budget, "must be None"), "kept": (budget, None, "given")}
    for folder, (first, then, words) in others.items():
        with pytest.raises(Killed):
            script(folder=folder, budget=first, **cut).train()
        before = paid(folder)
        for resumes in (True, False):
            with pytest.raises(PrivacyError, match=words):
                script(folder=folder, budget=then).train(resume_from_checkpoint=resumes)
        assert paid(folder) == before
        script(folder=folder, budget=first).train(resume_from_checkpoint=True)
    (run,) = history(BudgetStore.open(budget.url), data_set="notes")
    assert run.spent.count(Notion.RECORD) == sum(paid("kept"))
    trainer = script(folder="kept")  # what has ended pays for nothing
    trainer.train(resume_from_checkpoint=True)
    assert trainer.certificate is not None


@pytest.mark.parametrize("by", ["this training", "another"])
def test_a_store_set_back_to_an_older_copy_is_refused(script, tmp_path, by):
    budget, kept = make_budget(tmp_path, 90), tmp_path / "kept"
    kept.mkdir()
    for part in tmp_path.glob("budget.db*"):
        shutil.copy(part, kept)
    with pytest.raises(Killed):
        script(budget=budget, parts={"callbacks": [KillAtEnd()]}).train()
    for part in tmp_path.glob("budget.db*"):
        part.unlink()
    for part in kept.iterdir():
        shutil.copy(part, tmp_path)
    if by == "another":  # pays for equal blocks
        script(budget=budget, folder="other").train()
    with pytest.raises(ArtifactError, match=r"older copy.*another\noutput_dir|older"):
        script(budget=budget).train(resume_from_checkpoint=True)
    before = history(BudgetStore.open(budget.url), data_set="notes")
    assert len(before) == (by == "another")


def test_ledger_of_before_the_checkpoint_is_refused(script, tmp_path):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    for file in (tmp_path / "out" / "privacy").glob("ledger.jsonl*"):
        file.unlink()
    with pytest.raises(ArtifactError, match="2 blocks"):
        script().train(resume_from_checkpoint=True)


def test_ledger_of_other_blocks_is_refused_with_a_checkpoint(script, tmp_path):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    for file in (tmp_path / "out" / "privacy").glob("ledger.jsonl*"):
        file.unlink()
    small = {"privacy": asked(block_size=1)}  # as many blocks, and fewer steps
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(3)]}, **small).train()
    with pytest.raises(ArtifactError, match="2 blocks"):
        script(**small).train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-5"))


@pytest.mark.parametrize("change", ["deleted", "exchanged"])
def test_certificate_of_a_journal_that_lost_what_it_held_is_none(
    script, tmp_path, change
):
    trainer = script()
    trainer.train()
    cheap = script(folder="cheap", privacy=asked(noise_multiplier=9.0))
    cheap.train()
    home = tmp_path / "out" / "privacy"
    for file in home.glob("ledger.jsonl*"):
        file.unlink()
    if change == "exchanged":
        for file in (tmp_path / "cheap" / "privacy").glob("ledger.jsonl*"):
            shutil.copy(file, home)
    with pytest.raises(ArtifactError, match="go on from the 4 lines"):
        _ = trainer.certificate
    blind = LedgerJournal(home / "ledger.jsonl")
    twin = replace(trainer.script_run)
    vars(twin)["journal"] = blind  # that remembers nothing
    assert twin.certificate().epsilon <= cheap.certificate.epsilon


def test_model_that_has_learnt_is_not_trained_under_another_journal(
    script, paid, tmp_path
):
    trainer = script()
    trainer.train()
    trainer.args.output_dir = str(tmp_path / "other")
    with pytest.raises(PrivacyError, match="output_dir must stay"):
        trainer.train()
    assert paid("other") == []
    trainer.args.output_dir = str(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "privacy")
    with pytest.raises(ArtifactError, match="go on from"):
        trainer.train()
    assert paid() == []


def test_checkpoint_with_other_weights_is_not_what_training_ended_with(
    script, tmp_path
):
    script().train()
    other = script(folder="other")
    other.train()
    name = "checkpoint-15/model.safetensors"
    shutil.copy(tmp_path / "other" / name, tmp_path / "out" / name)
    with pytest.raises(ArtifactError, match="holds others"):
        script().train(resume_from_checkpoint=True)


@pytest.mark.parametrize("text", ["{}", "[]", '{"run": "a"}', "\udcff"])
def test_file_of_a_run_that_somebody_else_wrote_is_refused(script, tmp_path, text):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    file = tmp_path / "out" / "privacy" / "run.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match="as it was written"):
        script().train(resume_from_checkpoint=True)


def test_shortened_ledger_is_refused(script, tmp_path):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    ledger = tmp_path / "out" / "privacy" / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))
    with pytest.raises(ArtifactError, match="edited, moved or deleted"):
        script().train(resume_from_checkpoint=True)


def test_checkpoint_of_a_plain_trainer_is_refused(script, paid, tmp_path):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    (tmp_path / "out" / "checkpoint-5" / "privacy.json").unlink()
    with pytest.raises(ArtifactError, match="not written by a private training"):
        script().train(resume_from_checkpoint=True)
    assert paid() == [4, 4]


def test_data_of_another_length_are_refused_on_resume(script, paid):
    with pytest.raises(Killed):
        script(parts={"callbacks": [KillAt(7)]}).train()
    with pytest.raises(PrivacyError, match="40 units"):
        script(rows=make_rows(41)).train(resume_from_checkpoint=True)
    with pytest.raises(PrivacyError, match="another training"):
        script(rows=make_rows(40, seed=1)).train(resume_from_checkpoint=True)
    assert paid() == [4, 4]


def test_training_that_has_ended_is_not_started_again(script, paid):
    trainer = script()
    trainer.train()
    with pytest.raises(PrivacyError, match="has ended"):
        trainer.train()
    with pytest.raises(PrivacyError, match="has ended"):
        script().train()
    again = script()
    assert again.train(resume_from_checkpoint=True).global_step == 15
    for ours, theirs in zip(
        again.model.parameters(), trainer.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert paid() == [4, 4, 4, 3]


def make_budget(tmp_path, epsilon):
    url = f"sqlite:///{tmp_path}/budget.db"
    if epsilon:
        BudgetStore.open(url).grant(grant(epsilon, data_set="notes"))
    return ScriptBudget(url=url, data_set="notes", key=KEY)


def test_budget_is_charged_block_by_block_and_settled(script, tmp_path):
    budget = make_budget(tmp_path, 50)
    trainer = script(budget=budget)
    trainer.train()
    (run,) = history(BudgetStore.open(budget.url), data_set="notes")
    assert run.spent.count(Notion.RECORD) == 15
    assert not run.is_open
    script(budget=budget, folder="again").train()
    runs = history(BudgetStore.open(budget.url), data_set="notes")
    assert [run.spent.count(Notion.RECORD) for run in runs] == [15, 15]


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_budget_that_cannot_pay_refuses_before_anything_is_drawn(
    script, paid, tmp_path, epsilon
):
    trainer = script(budget=make_budget(tmp_path, epsilon))
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(BudgetExceededError):
        trainer.train()
    assert paid() == []
    after = trainer.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rows_without_owners_share_a_budget_however_they_are_cut(script, tmp_path):
    """Mutant: units that are named by a hash of their tokens."""
    budget = make_budget(tmp_path, 50)

    def spent():
        (report,) = budgets(BudgetStore.open(budget.url), delta=DELTA, only="notes")
        return max(line.spent for line in report.lines)

    script(budget=budget).train()
    once = spent()
    short = [{k: v[:4] for k, v in row.items()} for row in reversed(make_rows())]
    privacy = asked(rows_are_single_units=True)
    script(budget=budget, rows=short, privacy=privacy, folder="short").train()
    assert spent() > 1.2 * once


def test_start_that_was_refused_leaves_the_folder_free(script, paid, tmp_path):
    with pytest.raises(BudgetExceededError):
        script(budget=make_budget(tmp_path, 0.5)).train()
    privacy = asked(noise_multiplier=40.0)
    script(budget=make_budget(tmp_path, 0.5), privacy=privacy, max_steps=2).train()
    assert paid() == [2]


def test_owners_of_rows_are_the_units(script, paid):
    rows = [row | {"who": f"person {i % 12}"} for i, row in enumerate(make_rows(36))]
    privacy = asked(privacy_unit="user", unit_column="who", max_rows_per_unit=2)
    trainer = script(rows=rows, privacy=privacy, max_steps=3, num_train_epochs=1)
    trainer.train()
    assert trainer.certificate.privacy_unit == "user"
    assert trainer.script_run.stage.sample_rate == 8 / 12
    assert paid() == [3]


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_owners_may_be_numbers_of_another_library(script, form):
    rows = [row | {"who": i % 12} for i, row in enumerate(make_rows(36))]
    privacy = asked(privacy_unit="user", unit_column="who", max_rows_per_unit=2)
    data = Dataset.from_list(rows)
    trainer = script(
        train_dataset=data.with_format(form, columns=["who"], output_all_columns=True),
        privacy=privacy,
        max_steps=1,
    )
    trainer.train()
    assert trainer.script_run.rows.unit_ids == tuple(map(str, range(12)))


def test_public_number_of_units_takes_an_assumption_away(script):
    trainer = script(privacy=asked(num_units=40), max_steps=2)
    trainer.train()
    assert trainer.certificate.status == "certified"


def test_model_is_trained_in_pieces_that_fit(script, monkeypatch):
    sizes = []
    forward = torch.nn.Module.__call__
    model = models.tiny_gpt2()

    def seen(self, *args, **named):
        if self is model and "input_ids" in named:
            sizes.append(len(named["input_ids"]))
        return forward(self, *args, **named)

    trainer = script(model=model, max_steps=3)
    open_engine = trainer._opened

    def opened(*args):
        monkeypatch.setattr(torch.nn.Module, "__call__", seen)
        return open_engine(*args)

    monkeypatch.setattr(trainer, "_opened", opened)
    trainer.train()
    assert max(sizes) <= 4


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({"bf16": True}, {"max_tokens": 12}),
        ({"activation_checkpointing": True}, {}),
    ],
)
def test_memory_and_precision_are_the_engines(script, changes, asks):
    trainer = script(privacy=asked(**asks), max_steps=2, **changes)
    assert trainer.accelerator.mixed_precision == "no"
    forward = trainer.model.forward
    trainer.train()
    assert trainer.model.forward == forward
    modules = trainer.model.modules()
    assert not any(getattr(m, "gradient_checkpointing", False) for m in modules)


class Wrap(TrainerCallback):
    """Puts a forward pass of its own around the model, after it was checked."""

    def on_train_begin(self, args, state, control, model=None, **named):
        forward = model.forward
        model.forward = functools.partial(forward)


def test_model_that_is_wrapped_after_its_check_is_refused(script, paid):
    with pytest.raises(PrivacyError, match="as it was checked"):
        script(parts={"callbacks": [Wrap()]}).train()
    assert paid() == []


def test_precision_of_the_environment_is_refused(script, paid, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trainer = script()
    trainer.accelerator.state._mixed_precision = "bf16"
    with pytest.raises(ConfigError, match="accelerator"):
        trainer.train()
    assert paid() == []


def test_rows_longer_than_the_public_length_are_refused(script, paid):
    with pytest.raises(ConfigError, match="max_tokens"):
        script(privacy=asked(max_tokens=5)).train()
    assert paid() == []


def test_known_seed_is_no_guarantee(script):
    trainer = script(privacy=asked(seed=1), max_steps=1)
    trainer.train()
    assert trainer.certificate.status == "none"


def test_step_beyond_the_plan_is_refused_before_it_is_drawn(script, paid):
    trainer = script(max_steps=3, save_strategy="no")
    trainer.remove_callback(DefaultFlowCallback)  # which ends the loop
    with pytest.raises(PrivacyError, match="3 steps"):
        trainer.train()
    assert paid() == [3]
