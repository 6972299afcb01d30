"""A moving clip norm: counts and gradients are one mechanism, and C is a release."""

import math
from dataclasses import dataclass, replace

import dp_accounting
import numpy as np
import pytest
import torch

from dptune.dpsgd import adaptive_clipping
from dptune.dpsgd.adaptive_clipping import MovingClip, shares
from dptune.dpsgd.distributed import ALONE
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.noise import noise_stream
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.trainer import train_stage
from dptune.errors import BudgetExceededError, ConfigError, PrivacyError
from dptune.mechanisms.clip_rules import DcSgd, QuantileClip
from tests.support import models, oracles

DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
RULE = QuantileClip(quantile=0.5, rate=0.2)
PLAN = GradientPlan(
    noise_multiplier=1.0,
    sample_rate=0.5,
    max_grad_norm=0.3,
    expected_batch_size=3.0,
    norm_rule=RULE,
    count_share=0.1,
)
FIXED = replace(PLAN, norm_rule=None, count_share=0.0)


@dataclass(frozen=True)
class Loud:
    """A rule whose counts are far above norm 1, or not finite."""

    name: str = "loud"
    num_counts: int = 2

    def counts(self, norms, *, max_norm):
        rows = torch.full((len(norms), 2), 100.0)
        rows[0] = torch.nan
        return rows

    def next_norm(self, counts, figures):
        return counts[0]


def moving(rule=RULE, *, initial=1.0):
    return MovingClip(
        rule,
        initial=initial,
        num_parameters=10,
        expected_batch_size=4.0,
        ranks=ALONE,
        stream=noise_stream(fixed_seed=0),
        device=torch.device("cpu"),
    )


def feed():
    return Feed(
        data=DATA,
        record_loss=CausalLoss(loss_normalizer=8.0),
        physical_batch_size=3,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )


def train(folder=None, **changes):
    charges = []
    settings = {
        "plan": PLAN,
        "num_steps": 6,
        "optimizer": OptimizerSettings(name="sgd", learning_rate=0.5),
        "physical_batch_size": 4,
        "pad_token_id": 0,
        "loss_normalizer": 8.0,
        "checkpoint_dir": folder,
        "block_size": 2,
        "charge": lambda first, count: charges.append((first, count)),
        "seed": 7,
    } | changes
    model = models.tiny_gpt2()
    train_stage(model, DATA, **settings)
    return {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_gradients_and_counts_together_have_the_multiplier_of_the_step(share):
    gradients, counts = shares(1.3, share)
    assert 1 / gradients**2 + 1 / counts**2 == pytest.approx(1 / 1.3**2)


def test_event_is_that_of_a_fixed_clip():
    assert PLAN.dp_event(5) == FIXED.dp_event(5)


def test_twin_that_noises_gradients_as_if_alone_spends_more():
    """z for the gradients and z for the counts would be z / sqrt(2) together."""
    assert PLAN.noise_stddev() > FIXED.noise_stddev()
    twin = 1 / math.sqrt(1 / 1.0**2 + 1 / shares(1.0, 0.1)[1] ** 2)
    assert twin < 1.0


def test_raw_counts_are_no_private_mechanism():
    raw = replace(PLAN, count_share=0.0)
    assert isinstance(raw.dp_event(3), dp_accounting.NonPrivateDpEvent)
    assert isinstance(raw.dp_event(0), dp_accounting.NoOpDpEvent)


def test_no_unit_counts_for_more_than_one():
    clip = moving(Loud())
    clip.count(torch.ones(1, 3))
    assert float(torch.linalg.vector_norm(clip._counts)) == pytest.approx(2.0)


def test_units_that_are_not_finite_do_not_count():
    clip = moving()
    clip.count(torch.tensor([[0.5, torch.nan, torch.inf, 2.0]]))
    assert clip._counts.tolist() == [0.0]


def test_groups_count_by_their_joint_norm():
    clip = moving()
    clip.count(torch.tensor([[0.8, 0.6], [0.8, 0.6]]))
    assert clip._counts.tolist() == [0.0]


@pytest.mark.parametrize("initial", [1e-7, 1e-11])
def test_norm_that_falls_leaves_every_group_a_share(initial):
    """A share below what a clip can enforce ended a run whose block was paid."""
    clip = moving(QuantileClip(quantile=0.001, rate=10.0), initial=initial)
    for _ in range(5):
        clip.count(torch.zeros(1, 4))
        clip.release(gradient_multiplier=1.0, stddev=1e-6)
    assert clip.max_grad_norm == min(1e-9, initial)
    PLAN.clip_policy(num_groups=90, max_grad_norm=clip.max_grad_norm)


def test_counts_get_the_noise_of_their_share():
    drawn = []
    for seed in range(4000):
        clip = moving(Loud())
        clip._stream = noise_stream(fixed_seed=seed)
        clip.release(gradient_multiplier=1.0, stddev=3.0)
        drawn.append(clip.released[0])
    assert np.std(drawn) == pytest.approx(3.0, rel=0.05)


def test_noise_of_a_step_is_scaled_to_its_own_clip_norm(monkeypatch):
    seen = []
    honest = adaptive_clipping.MovingClip.release

    def release(self, **figures):
        seen.append(self.max_grad_norm)
        honest(self, **figures)

    monkeypatch.setattr(adaptive_clipping.MovingClip, "release", release)
    model = models.tiny_gpt2(vocabulary=500, width=64, num_heads=2)
    plan = replace(PLAN, norm_rule=replace(RULE, rate=3.0))
    spreads = []
    with gradient_source(model, plan=plan, feed=feed(), seed=0, attempt=0) as source:
        for step in range(4):
            source.compute(np.array([], np.int64), step=step)
            values = torch.cat([p.grad.flatten() for p in model.parameters()])
            spreads.append(float(values.std()) * plan.expected_batch_size)
    expected = [shares(1.0, 0.1)[0] * bound for bound in seen]
    assert len(set(seen)) > 1
    np.testing.assert_allclose(spreads, expected, rtol=0.03)


def test_plan_with_a_norm_rule_refuses_noise_that_does_not_know_it():
    with pytest.raises(PrivacyError, match="clip norm of its step"):
        PLAN.noise(noise_stream(fixed_seed=0), sums={})


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_rule": None},
        {"count_share": 1.0},
        {"count_share": -0.1},
    ],
)
def test_contradicting_plans_are_refused(changes):
    with pytest.raises(ConfigError, match="count_share"):
        replace(PLAN, **changes)


def test_resumed_run_goes_on_with_the_clip_norm_it_released(tmp_path):
    quiet = replace(PLAN, noise_multiplier=0.0)

    def stop(first, count):
        del count
        if first == 4:
            raise BudgetExceededError("no budget left")

    whole = train(plan=replace(quiet, sample_rate=1.0, expected_batch_size=6.0))
    plan = replace(quiet, sample_rate=1.0, expected_batch_size=6.0)
    with pytest.raises(BudgetExceededError):
        train(tmp_path, plan=plan, charge=stop)
    resumed = train(tmp_path, plan=plan)
    assert oracles.distance(whole, resumed) <= 1e-6 * oracles.norm(whole)
    forgetful = train(plan=replace(plan, norm_rule=replace(RULE, rate=1e-9)))
    assert oracles.distance(whole, forgetful) > 1e-4 * oracles.norm(whole)


def test_quantile_finds_the_median():
    norms = torch.linspace(0.1, 10.0, 101)[None]
    clip = moving(QuantileClip(quantile=0.5, rate=0.5), initial=0.1)
    clip._expected_batch_size = 101.0
    for _ in range(60):
        clip.count(norms)
        clip.release(gradient_multiplier=1.0, stddev=0.0)
    assert clip.max_grad_norm == pytest.approx(5.05, rel=0.05)


def test_percentile_takes_the_bin_of_the_percentile():
    rule = DcSgd(initial=1.0, choice="percentile", percentile=0.5)
    clip = moving(rule)
    clip.count(torch.tensor([[0.01, 3.0, 3.0, 3.0, 50.0]]))
    clip.release(gradient_multiplier=1.0, stddev=0.0)
    edges = rule.edges
    assert clip.max_grad_norm == pytest.approx(float(edges[edges >= 3.0][0]))


def test_least_error_falls_with_the_noise_and_keeps_c_when_nobody_counts():
    def chosen(multiplier):
        clip = moving(DcSgd(initial=1.0, choice="error"))
        clip.count(torch.tensor([[4.0, 4.0, 4.0, 4.0]]))
        clip.release(gradient_multiplier=multiplier, stddev=0.0)
        return clip.max_grad_norm

    assert chosen(0.01) >= 4.0 > chosen(10.0)
    clip = moving(DcSgd(initial=1.0, choice="error"))
    clip.release(gradient_multiplier=1.0, stddev=0.0)
    assert clip.max_grad_norm == 1.0
