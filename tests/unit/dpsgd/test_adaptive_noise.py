"""A controller wishes; only what the run's budget granted is ever drawn."""

import math

import pytest
import torch

from dptune.accounting.adaptive import AskedBudget, Card, DeckTerms
from dptune.dpsgd import schedule
from dptune.dpsgd.noise import IndependentNoise
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.dpsgd.trainer import train_stage
from dptune.errors import ConfigError, PrivacyError
from tests.support import models, oracles

DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
RATE, C = 0.5, 0.3


def deck(*counts, rate=RATE):
    """Cards of multiplier 1, 2, 3, ... and how many of each."""
    cards = [
        (Card(sample_rate=rate, noise_multiplier=float(noise)), count)
        for noise, count in enumerate(counts, start=1)
    ]
    return DeckTerms(cards=tuple(cards))


def plan(terms, **changes):
    numbers = {
        "noise_multiplier": 1.0,
        "sample_rate": RATE,
        "max_grad_norm": C,
        "expected_batch_size": 3.0,
        "adaptive": terms,
    }
    return GradientPlan(**numbers | changes)


class Follower:
    """Shaped like RLDP's controller: its wish follows from what was released."""

    def __init__(self):
        self.norms, self.steps = [], []

    def wish(self, step):
        self.steps.append(step)
        return 1.0 + (self.norms[-1] % 1.5 if self.norms else 0.0)

    def observe(self, released, *, step):
        total = sum(float(value.square().sum()) for value in released.values())
        self.norms.append(math.sqrt(total))


@pytest.fixture
def drawn(monkeypatch):
    """Multipliers of noise that was really drawn."""
    seen = []
    add = IndependentNoise.add

    def watched(self, sums, *, step):
        def noted(number):
            stddev = self_stddev(number)
            seen.append(stddev / C)
            return stddev

        self_stddev, self._noise_stddev = self._noise_stddev, noted
        try:
            add(self, sums, step=step)
        finally:
            self._noise_stddev = self_stddev

    monkeypatch.setattr(IndependentNoise, "add", watched)
    return seen


def run(terms, *, controller=None, charges=None, **changes):
    settings = {
        "plan": plan(terms),
        "num_steps": 6,
        "optimizer": OptimizerSettings(name="sgd", learning_rate=0.5),
        "physical_batch_size": 16,
        "pad_token_id": 0,
        "loss_normalizer": 8.0,
        "checkpoint_dir": None,
        "block_size": 2,
        "charge": lambda first, count: (charges or []).append((first, count)),
        "controller": controller or Follower(),
    } | changes
    return train_stage(models.tiny_gpt2(), DATA, **settings)


def test_what_is_drawn_is_what_was_granted(drawn, tmp_path):
    terms, charges = deck(4, 4), [()]
    controller = Follower()
    outcome = run(
        terms, controller=controller, charges=charges, checkpoint_dir=tmp_path
    )
    assert outcome.num_steps == 6
    assert charges == [(), (0, 6)]
    assert controller.steps == [0, 1, 2, 3, 4, 5]
    assert len(controller.norms) == 6
    grants = AskedBudget(terms, path=tmp_path / "grants.jsonl").grants
    assert drawn == pytest.approx(grants)
    assert len(set(grants)) > 1


def test_event_of_the_plan_is_that_of_the_terms():
    terms = deck(4, 4)
    assert plan(terms).dp_event(3) == terms.event == plan(terms).dp_event(8)


def test_twin_that_skips_the_ask_draws_nothing(drawn, monkeypatch):
    """The bug: a loop that lets the controller go on without a grant."""
    monkeypatch.setattr(AdaptiveNoise, "ask", lambda self, step, once: True)
    with pytest.raises(PrivacyError, match="granted before it is drawn"):
        run(deck(4, 4))
    assert drawn == []


def test_twin_that_takes_the_wish_is_caught(drawn, monkeypatch, tmp_path):
    """The bug: noise scaled to the wish and not to the grant."""
    monkeypatch.setattr(
        AdaptiveNoise, "take", lambda self, step: self._controller.wish(step)
    )
    terms = deck(4, 4)
    run(terms, checkpoint_dir=tmp_path)
    grants = AskedBudget(terms, path=tmp_path / "grants.jsonl").grants
    assert drawn != pytest.approx(grants)


def test_grant_is_good_for_one_draw():
    noise = AdaptiveNoise(Follower(), deck(4), sample_rate=RATE)
    with pytest.raises(PrivacyError, match="opened"):
        noise.ask(0)
    noise.open(None, lambda: None)
    assert noise.ask(0)
    assert noise.take(0) == 1.0
    for step in (0, 1):
        with pytest.raises(PrivacyError, match="one draw"):
            noise.take(step)


def test_stage_ends_where_the_budget_does(drawn, tmp_path):
    terms = deck(2, 1)
    outcome = run(terms, num_steps=50, checkpoint_dir=tmp_path)
    assert 0 < outcome.num_steps == len(drawn) < 50
    again = run(terms, num_steps=50, checkpoint_dir=tmp_path)
    assert again.num_steps == again.resumed_from_step == outcome.num_steps
    assert len(drawn) == outcome.num_steps


def killed_and_resumed(terms, folder):
    charges = [()]

    def kill(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(terms, charges=charges, checkpoint_dir=folder, on_step=kill)
    run(terms, charges=charges, checkpoint_dir=folder)
    return charges[1:]


def test_resumed_run_goes_on_with_what_is_left_and_is_charged_once(drawn, tmp_path):
    terms = deck(3, 4)
    assert killed_and_resumed(terms, tmp_path) == [(0, 6)]
    assert len(drawn) == 7  # step 2 was drawn twice, and took two cards
    assert drawn.count(1.0) <= 3
    assert drawn.count(2.0) <= 4
    grants = AskedBudget(terms, path=tmp_path / "grants.jsonl").grants
    assert drawn == pytest.approx(grants)


def test_twin_that_resumes_with_a_fresh_budget_is_caught(drawn, tmp_path, monkeypatch):
    """The bug: cards that a killed run had played are played again."""
    terms = deck(3, 3)

    class Forgetful(AskedBudget):
        def __init__(self, terms, *, path):
            super().__init__(terms, path=None)

    monkeypatch.setattr(schedule, "AskedBudget", Forgetful)
    killed_and_resumed(terms, tmp_path)
    assert max(drawn.count(1.0) - 3, drawn.count(2.0) - 3) > 0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"adaptive": deck(3, rate=0.25)}, "sample_rate=0.5 alone"),
        ({"sampling": SamplingKind.CYCLIC_POISSON}, "poisson sampling"),
    ],
)
def test_terms_of_other_steps_are_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        plan(deck(3), **changes)


def test_controller_and_terms_need_each_other():
    with pytest.raises(ConfigError, match="missing"):
        train_stage(
            models.tiny_gpt2(),
            DATA,
            plan=plan(deck(9)),
            num_steps=6,
            optimizer=OptimizerSettings(name="sgd", learning_rate=0.5),
            physical_batch_size=16,
            pad_token_id=0,
            loss_normalizer=8.0,
            checkpoint_dir=None,
            block_size=2,
            charge=lambda first, count: None,
        )
    with pytest.raises(ConfigError, match="without terms"):
        run(None)


def test_noise_of_other_terms_is_refused():
    granted = AdaptiveNoise(Follower(), deck(9), sample_rate=RATE)
    sums = {"w": torch.zeros(2)}
    for terms, given in ((deck(3), granted), (deck(3), None), (None, granted)):
        with pytest.raises(PrivacyError, match="its own terms"):
            plan(terms).noise(None, sums=sums, granted=given)
