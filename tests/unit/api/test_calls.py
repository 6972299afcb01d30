"""Texts, claims and training by name: what they are made of, and what they refuse."""

import math
import shutil
from contextlib import nullcontext, suppress

import pytest
import torch

import dptune
from dptune.accounting.accountants import epsilon
from dptune.accounting.chain import LedgerJournal
from dptune.api import training
from dptune.api.private import LossOfScript
from dptune.dpsgd.guard import StepGuard
from dptune.dpsgd.plan import GradientPlan
from dptune.errors import (
    ArtifactError,
    ConfigError,
    InfeasibleBudgetError,
    PrivacyError,
)
from dptune.privacy import NeighboringRelation
from dptune.testing import tiny_model

ROWS = [{"input_ids": [1, 2, 3 + number % 7, number % 16]} for number in range(40)]
WANTED = {
    "target_epsilon": 8.0,
    "target_delta": 1e-3,
    "num_steps": 4,
    "expected_batch_size": 8,
    "max_grad_norm": 0.5,
    "max_tokens": 4,
    "pad_token_id": 0,
    "learning_rate": 0.1,
    "block_size": 2,
}
STEPS = {"sample_rate": 0.1, "num_steps": 50}


class Killed(Exception):
    pass


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_training_goes_on_where_it_was_cut_off_and_says_what_that_cost(tmp_path):
    def die(now):
        if now.step == 3:
            raise Killed

    with pytest.raises(Killed):
        dptune.train(tiny_model(), ROWS, folder=tmp_path, on_step=die, **WANTED)
    done = dptune.train(tiny_model(), ROWS, folder=tmp_path, **WANTED)
    assert done.outcome.resumed_from_step == 2
    assert [entry.num_steps for entry in done.ledger.entries] == [2, 2, 2]
    assert done.certificate.epsilon > 8.0  # a block was drawn twice


def test_training_under_autocast_computes_in_float32(tmp_path):
    def train(around, folder):
        model = tiny_model()
        with around:
            dptune.train(model, ROWS, folder=folder, seed=1, **WANTED)
        return weights(model)

    narrow = torch.autocast("cpu", dtype=torch.bfloat16)
    whole = train(nullcontext(), tmp_path / "whole")
    assert train(narrow, tmp_path / "narrow").equal(whole)


def write(model):
    with torch.no_grad():
        next(model.parameters()).add_(1.0)


def write_through_data(model):
    next(model.parameters()).data.add_(1.0)


def hook(model):
    model.transformer.h[0].register_forward_hook(lambda *_: None)


def freeze(model):
    next(model.parameters()).requires_grad_(False)


def told(folder, act):
    """Train with a function that acts behind the first step of two blocks."""
    model = tiny_model()

    def on_step(now):
        if now.step == 1:
            act(model)

    dptune.train(model, ROWS, folder=folder, on_step=on_step, seed=1, **WANTED)
    return weights(model)


@pytest.mark.parametrize("act", [write, write_through_data, hook, freeze])
def test_function_that_moves_the_model_between_steps_is_refused(
    tmp_path, act, monkeypatch
):
    """It is told the training loss; the twin asks nobody."""
    with pytest.raises(PrivacyError, match=r"must (be moved|stay)"):
        told(tmp_path / "refused", act)
    journal = LedgerJournal(tmp_path / "refused" / training.JOURNAL)
    assert [entry.num_steps for entry in journal.read().entries] == [2]
    monkeypatch.setattr(StepGuard, "left_alone", lambda _: nullcontext())
    told(tmp_path / "twin", act)


def test_function_that_looks_at_the_model_is_let(tmp_path):
    """Steps are computed in training mode, whatever mode it leaves."""

    def look(model):
        tokens = torch.tensor([[1, 2, 3]])
        model(input_ids=tokens, labels=tokens).loss.backward()
        model.eval()
        model.generate(tokens, max_new_tokens=2, pad_token_id=0)

    plain = told(tmp_path / "plain", lambda _: None)
    assert told(tmp_path / "looks", look).equal(plain)


def test_finished_training_is_answered_for_nothing(tmp_path):
    first = tiny_model()
    done = dptune.train(first, ROWS, folder=tmp_path, **WANTED)
    assert done.certificate.epsilon <= 8.0
    again = tiny_model()
    answered = dptune.train(again, ROWS, folder=tmp_path, **WANTED)
    assert answered.ledger == done.ledger
    assert torch.equal(weights(again), weights(first))


def test_folder_of_another_training_is_refused_before_anything_is_charged(tmp_path):
    done = dptune.train(tiny_model(), ROWS, folder=tmp_path, **WANTED)
    for change in ({"learning_rate": 0.2}, {"max_grad_norm": 1.0}):
        with pytest.raises(ArtifactError):
            dptune.train(tiny_model(), ROWS, folder=tmp_path, **{**WANTED, **change})
    with pytest.raises(PrivacyError, match="these rows and units only"):
        dptune.train(tiny_model(), ROWS[:30], folder=tmp_path, **WANTED)
    journal = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert len(journal) == len(done.ledger.entries)


def test_second_training_in_a_folder_is_refused_before_it_pays(tmp_path):
    def train_here(now):
        if now.step == 3:
            dptune.train(tiny_model(), ROWS, folder=tmp_path, **WANTED)

    one = "folder must be trained in by one process at a time"
    with pytest.raises(PrivacyError, match=one):
        dptune.train(tiny_model(), ROWS, folder=tmp_path, on_step=train_here, **WANTED)
    done = dptune.train(tiny_model(), ROWS, folder=tmp_path, **WANTED)  # it lets go
    assert [entry.num_steps for entry in done.ledger.entries] == [2, 2, 2]


def test_twin_without_the_lock_pays_for_both(tmp_path, monkeypatch):
    def train_here(now):
        if now.step == 3:
            dptune.train(tiny_model(), ROWS, folder=tmp_path, **WANTED)

    monkeypatch.setattr(training, "alone_in", lambda *_, **__: nullcontext())
    with suppress(OSError):  # of a checkpoint that the other one has dropped
        dptune.train(tiny_model(), ROWS, folder=tmp_path, on_step=train_here, **WANTED)
    entries = LedgerJournal(tmp_path / training.JOURNAL).read().entries
    assert sum(entry.num_steps for entry in entries) > WANTED["num_steps"]


def without_its_journal(folder, *, other=None):
    """Take the journal of a training away, or put another one in its place."""
    for file in folder.glob("ledger.jsonl*"):
        file.unlink()
    for file in other.glob("ledger.jsonl*") if other else ():
        shutil.copy(file, folder)


def lost(tmp_path, change):
    """A training that has ended, without its journal or with a cheaper one."""
    home, cheap = tmp_path / "home", tmp_path / "cheap"
    dptune.train(tiny_model(), ROWS, folder=home, **WANTED)
    if change == "exchanged":
        asked = WANTED | {"target_epsilon": 0.5}
        dptune.train(tiny_model(), ROWS, folder=cheap, **asked)
    without_its_journal(home, other=cheap if change == "exchanged" else None)
    return home


@pytest.mark.parametrize("change", ["deleted", "exchanged"])
def test_checkpoint_without_what_paid_for_it_is_refused(tmp_path, change):
    home = lost(tmp_path, change)
    with pytest.raises(ArtifactError, match="4 steps"):
        dptune.train(tiny_model(), ROWS, folder=home, **WANTED)


@pytest.mark.parametrize("change", ["deleted", "exchanged"])
def test_twin_that_counts_no_steps_claims_less_than_was_drawn(
    tmp_path, monkeypatch, change
):
    home = lost(tmp_path, change)
    monkeypatch.setattr(training, "steps_taken", lambda _: 0)
    done = dptune.train(tiny_model(), ROWS, folder=home, **WANTED)
    assert done.outcome.num_steps == 4
    assert done.certificate.epsilon <= 0.5


def test_loss_of_a_script_is_known_by_its_name_in_every_process():
    losses = [
        LossOfScript(loss=lambda *_: None, name="mine", has_classes=False, beside=print)
    ] * 2
    assert repr(losses[0]) == repr(losses[1])
    assert "0x" not in repr(losses[0])


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_account_is_that_of_the_plan_that_trains(relation):
    plan = GradientPlan(
        noise_multiplier=1.2,
        sample_rate=0.1,
        max_grad_norm=1.0,
        expected_batch_size=10,
    )
    claim = dptune.account(noise_multiplier=1.2, delta=1e-5, relation=relation, **STEPS)
    own = epsilon(plan.dp_event(50), delta=1e-5, relation=relation)
    assert claim.epsilon == pytest.approx(own, rel=2e-3)
    assert claim.epsilon >= own


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_calibrated_noise_is_accounted_below_its_target(relation):
    asked = {"target_epsilon": 2.0, "target_delta": 1e-5, "relation": relation}
    noise = dptune.calibrate(**asked, **STEPS)
    claim = dptune.account(
        noise_multiplier=noise, delta=1e-5, relation=relation, **STEPS
    )
    assert 1.95 < claim.epsilon <= 2.0


@pytest.mark.parametrize(
    ("noise_multiplier", "num_steps", "epsilon"), [(0.0, 5, math.inf), (1.0, 0, 0.0)]
)
def test_edges_of_account(noise_multiplier, num_steps, epsilon):
    claim = dptune.account(
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        sample_rate=0.1,
        delta=1e-5,
    )
    assert claim.epsilon == epsilon


def test_impossible_numbers_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        dptune.account(
            noise_multiplier=math.nan, sample_rate=0.0, num_steps=-1, delta=1e-5
        )
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="num_steps"):
        dptune.calibrate(
            target_epsilon=1, target_delta=1e-5, sample_rate=0.1, num_steps=0
        )
    with pytest.raises(InfeasibleBudgetError):
        dptune.calibrate(
            target_epsilon=1e-9, target_delta=1e-12, sample_rate=1.0, num_steps=10**6
        )


def test_one_text_is_no_list_of_texts():
    for call in (dptune.detect, dptune.redact):
        with pytest.raises(ConfigError, match="Put it into a list"):
            call("grace.hill@example.org")


@pytest.mark.parametrize("operator", ["pseudonym", "encrypt", "partial", "blank"])
def test_operator_that_needs_a_key_is_refused(operator):
    with pytest.raises(ConfigError, match="operator: must be one of"):
        dptune.redact(["x"], operator=operator)


def test_tier_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="tier: must be one of"):
        dptune.detect(["x"], tier="all")


def test_values_of_personal_data_are_gone():
    text = "Mail grace.hill@example.org, or call +1 202 555 0143."
    for operator in ("mask", "typed", "numbered", "delete"):
        (redacted,) = dptune.redact([text], operator=operator)
        assert "grace" not in redacted
        assert "0143" not in redacted
