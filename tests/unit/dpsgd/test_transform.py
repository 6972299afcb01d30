"""Clipping in a transformed space: sensitivity C there, whatever the transform is."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dptune.dpsgd import trainer
from dptune.dpsgd.checkpoint import load_checkpoint
from dptune.dpsgd.factorization import band_coefficients
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.trainer import train_stage
from dptune.dpsgd.transform import check_transform
from dptune.errors import BudgetExceededError, ConfigError
from dptune.mechanisms.clip_rules import QuantileClip
from dptune.mechanisms.transforms import AdaClip
from tests.support import models, oracles

DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
LOSS = CausalLoss(loss_normalizer=8.0)
C, B = 0.3, 4.0


@dataclass(frozen=True)
class Stretched:
    """A transform that was drawn from public coins, and stays."""

    name: str = "stretched"
    size: float = 1.0

    def start(self, num_parameters):
        coins = torch.Generator().manual_seed(5)
        return {
            "mean": 0.1 * torch.randn(num_parameters, generator=coins),
            "scale": self.size * torch.rand(num_parameters, generator=coins) + 0.01,
        }

    def forward(self, gradients, state):
        return (gradients - state["mean"]) / state["scale"]

    def back(self, mean, state):
        return state["scale"] * mean + state["mean"]

    def follow(self, released, state, *, noise_stddev):
        return state


PLAN = GradientPlan(
    noise_multiplier=0.0,
    sample_rate=0.5,
    max_grad_norm=C,
    expected_batch_size=B,
    transform=Stretched(),
)


def feed(**changes):
    values = {
        "data": DATA,
        "record_loss": LOSS,
        "physical_batch_size": 100,
        "pad_token_id": 0,
        "device": torch.device("cpu"),
        "autocast": False,
    }
    return Feed(**values | changes)


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients])


def release(indices, *, plan=PLAN, model=None, **changes):
    """Return one released mean gradient, as it is."""
    model = model or models.tiny_gpt2()
    with gradient_source(
        model, plan=plan, feed=feed(**changes), seed=0, attempt=0
    ) as source:
        source.compute(np.array(indices, np.int64), step=0)
        return flat(p.grad for p in model.parameters())


def transformed_sum(indices, *, plan=PLAN, **changes):
    """Undo the last steps of a release."""
    released = release(indices, plan=plan, **changes)
    state = plan.transform.start(len(released))
    return plan.transform.forward(released[None], state)[0] * B


def naive_rows(state):
    """Return M (g - a) of every unit, by one backward pass per row."""
    model = models.tiny_gpt2()
    units = oracles.naive_unit_gradients(model, LOSS, DATA, pad_token_id=0)
    names = [name for name, _ in model.named_parameters()]
    rows = torch.stack([flat(unit[name] for name in names) for unit in units])
    return PLAN.transform.forward(rows, {k: v.double() for k, v in state.items()})


def test_sum_is_that_of_clipped_transforms_of_single_units():
    model = models.tiny_gpt2()
    state = PLAN.transform.start(sum(p.numel() for p in model.parameters()))
    rows = naive_rows(state)
    norms = rows.norm(dim=1, keepdim=True)
    expected = (rows * (C / norms).clamp(max=1)).sum(0)
    found = transformed_sum(range(6)).double()
    assert float((found - expected).norm()) <= 1e-4 * float(expected.norm())


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("unit", [0, 3])
def test_unit_that_joins_moves_the_sum_by_at_most_c(size, unit):
    plan = replace(PLAN, transform=Stretched(size=size))
    without = transformed_sum([1, 2, 4], plan=plan)
    moved = transformed_sum(sorted([1, 2, 4, unit]), plan=plan) - without
    assert 0 < float(moved.norm()) <= C * (1 + 1e-4)


def test_twin_that_clips_before_the_transform_moves_the_sum_by_more():
    model = models.tiny_gpt2()
    state = PLAN.transform.start(sum(p.numel() for p in model.parameters()))
    gradient = naive_rows(state)[3] * state["scale"] + state["mean"]
    clipped = gradient * min(1.0, C / float(gradient.norm()))
    assert float(PLAN.transform.forward(clipped[None], state)[0].norm()) > 2 * C


@pytest.mark.parametrize("physical_batch_size", [3, 4, 100])
def test_result_does_not_depend_on_the_physical_batch(physical_batch_size):
    pieces = release(range(6), physical_batch_size=physical_batch_size)
    filled = release(
        range(6), physical_batch_size=physical_batch_size, fixed_shapes=True
    )
    whole = release(range(6))
    assert float((pieces - whole).norm()) <= 1e-5 * float(whole.norm())
    assert float((filled - whole).norm()) <= 1e-5 * float(whole.norm())


def test_empty_batch_releases_the_centre():
    model = models.tiny_gpt2()
    released = release([], model=model)
    torch.testing.assert_close(released, PLAN.transform.start(len(released))["mean"])


class Poisoned:
    """A record loss that is NaN for the longest row of a piece."""

    def __call__(self, model, batch):
        lengths = batch.attention_mask.sum(1)
        factors = torch.where(lengths == lengths.max(), torch.nan, 1.0)
        return LOSS(model, batch) * factors

    def total_nll(self, losses, batch):
        return LOSS.total_nll(losses, batch)


def test_unit_that_is_not_finite_adds_nothing_not_even_the_centre():
    longest = max(len(sequence) for sequence in DATA.sequences)
    is_spoilt = [
        any(len(DATA.sequences[row]) == longest for row in rows) for rows in DATA.units
    ]
    others = [unit for unit, spoilt in enumerate(is_spoilt) if not spoilt]
    assert 0 < len(others) < len(DATA.units)
    alone = transformed_sum(others)
    joined = transformed_sum(range(len(DATA.units)), record_loss=Poisoned())
    torch.testing.assert_close(joined, alone, rtol=1e-3, atol=1e-4)


def test_event_is_that_of_a_plan_without_a_transform():
    noisy = replace(PLAN, noise_multiplier=1.1)
    assert noisy.dp_event(7) == replace(noisy, transform=None).dp_event(7)
    assert noisy.noise_stddev() == replace(noisy, transform=None).noise_stddev()


@pytest.mark.parametrize(
    "changes",
    [
        {"grouping": Grouping.PER_LAYER},
        {"norm_rule": QuantileClip(), "count_share": 0.1},
        {
            "sampling": SamplingKind.CYCLIC_POISSON,
            "noise_coefficients": band_coefficients(num_bands=2, num_steps=4),
        },
    ],
)
def test_what_lives_in_one_space_is_refused(changes):
    with pytest.raises(ConfigError, match="transformed"):
        replace(PLAN, **changes)


def test_what_does_not_fit_is_refused_with_what_would():
    model = models.tiny_gpt2()
    entries = sum(p.numel() for p in model.parameters())
    limits = {"streams": False, "num_processes": 1, "max_bytes": 8 * entries * 5}
    check_transform(model, physical_batch_size=5, **limits)
    with pytest.raises(ConfigError, match=r"at most 5 .*adapters"):
        check_transform(model, physical_batch_size=6, **limits)
    for changes in ({"streams": True}, {"num_processes": 2}):
        with pytest.raises(ConfigError, match="where gradients are transformed"):
            check_transform(model, physical_batch_size=5, **limits | changes)


def test_checkpointed_model_is_refused_before_anything_is_charged():
    with pytest.raises(ConfigError, match="gradient_checkpointing"):
        train(charge=charged_nothing, gradient_checkpointing=True)


def charged_nothing(first, count):
    raise AssertionError


def train(folder=None, **changes):
    settings = {
        "plan": replace(
            PLAN,
            sample_rate=1.0,
            expected_batch_size=6.0,
            transform=AdaClip(initial_norm=C, mean_decay=0.5, variance_decay=0.5),
        ),
        "num_steps": 6,
        "optimizer": OptimizerSettings(name="sgd", learning_rate=0.5),
        "physical_batch_size": 4,
        "pad_token_id": 0,
        "loss_normalizer": 8.0,
        "checkpoint_dir": folder,
        "block_size": 2,
        "charge": lambda first, count: None,
        "seed": 7,
    } | changes
    model = models.tiny_gpt2()
    train_stage(model, DATA, **settings)
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def test_resumed_run_goes_on_with_what_its_transform_learned(tmp_path, monkeypatch):
    def stop(first, count):
        if first == 4:
            raise BudgetExceededError("no budget left")

    whole = train()
    with pytest.raises(BudgetExceededError):
        train(tmp_path, charge=stop)
    (kept,) = tmp_path.glob("step-*")
    resumed = train(tmp_path)
    assert oracles.distance(whole, resumed) <= 1e-6 * oracles.norm(whole)
    assert not kept.exists()
    forgetful = tmp_path / "forgetful"
    with pytest.raises(BudgetExceededError):
        train(forgetful, charge=stop)

    def without(*arguments, **keywords):
        return replace(load_checkpoint(*arguments, **keywords), transform={})

    monkeypatch.setattr(trainer, "load_checkpoint", without)
    assert oracles.distance(whole, train(forgetful)) > 1e-5 * oracles.norm(whole)
