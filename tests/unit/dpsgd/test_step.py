"""One private step: physical batches, empty batches, NaN, precision, LoRA."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from dptune.dpsgd.clipping import FlatClip
from dptune.dpsgd.feed import Feed, StepTotals
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.step import gradient_source
from tests.support import models, oracles

LOSS = CausalLoss(loss_normalizer=8.0)
PLAN = GradientPlan(
    noise_multiplier=0.0, sample_rate=0.5, max_grad_norm=0.3, expected_batch_size=3.0
)
DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)


def gradients(
    plan=PLAN, *, indices=range(6), size=100, data=DATA, loss=LOSS, **options
):
    """Gradients and totals that one step leaves."""
    model = options.pop("model", None) or models.tiny_gpt2()
    feed = Feed(
        data=data,
        record_loss=loss,
        physical_batch_size=size,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=options.pop("autocast", False),
        fixed_shapes=options.pop("fixed_shapes", False),
    )
    with gradient_source(
        model,
        plan=plan,
        feed=feed,
        seed=options.pop("seed", 0),
        attempt=options.pop("attempt", 0),
    ) as source:
        totals = source.compute(np.array(list(indices), np.int64), step=0)
        result = {n: p.grad.clone() for n, p in model.named_parameters()}
    assert all(p.grad is None for p in model.parameters())
    return result, totals


@pytest.mark.parametrize("plan", [PLAN, PlainPlan(batch_size=3)])
@pytest.mark.parametrize("size", [3, 4, 5, 6])
@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_physical_batch_size_never_changes_the_result(plan, size, fixed_shapes):
    whole, totals = gradients(plan)
    pieces, piece_totals = gradients(plan, size=size, fixed_shapes=fixed_shapes)
    error = oracles.distance(whole, pieces) / oracles.norm(whole)
    assert error <= 1e-5
    assert piece_totals.num_tokens == totals.num_tokens
    assert piece_totals.loss == pytest.approx(totals.loss, rel=1e-5)


def test_step_is_the_clipped_sum_over_the_expected_batch_size():
    released, _ = gradients()
    naive = oracles.naive_unit_gradients(models.tiny_gpt2(), LOSS, DATA, pad_token_id=0)
    expected = oracles.naive_clipped_sum(naive, max_grad_norm=0.3)
    scaled = {name: value / 3.0 for name, value in expected.items()}
    assert oracles.distance(released, scaled) <= 1e-5 * oracles.norm(scaled)


def test_attempts_under_one_seed_draw_noise_of_their_own():
    """A resumed run would else release old noise again, on another sum."""
    plan = replace(PLAN, noise_multiplier=2.0)
    first, again, resumed = (
        gradients(plan, indices=[], attempt=attempt)[0] for attempt in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], resumed[name]) for name in first)


def test_weight_that_is_not_contiguous_is_trained_like_one_that_is():
    """Adding noise once failed there, after the step was paid for."""
    plan = replace(PLAN, noise_multiplier=1.0)
    expected, _ = gradients(plan, model=models.tiny_llama())
    turned = models.tiny_llama()
    for parameter in turned.parameters():
        parameter.data = parameter.data.t().contiguous().t()
    found, _ = gradients(plan, model=turned)
    assert not turned.lm_head.weight.is_contiguous()
    assert oracles.distance(expected, found) <= 1e-5 * oracles.norm(expected)


def test_empty_batch_is_noise_only():
    plan = GradientPlan(
        noise_multiplier=2.0,
        sample_rate=0.5,
        max_grad_norm=0.3,
        expected_batch_size=3.0,
    )
    first, totals = gradients(plan, indices=[])
    assert totals.num_tokens == 0
    assert np.isnan(totals.loss)
    assert all((value != 0).all() for value in first.values())
    silent, _ = gradients(PLAN, indices=[])
    assert not any(value.any() for value in silent.values())


class NanWhereLong(CausalLoss):
    """A record loss that is NaN for rows of eight tokens or more."""

    def __call__(self, model, batch):
        losses = super().__call__(model, batch)
        long = batch.attention_mask.sum(1) >= 8
        return losses * torch.where(long, torch.nan, 1.0)


def test_unit_with_nan_gradient_contributes_zero():
    broken, totals = gradients(loss=NanWhereLong(loss_normalizer=8.0), size=3)
    is_long = [
        max(len(DATA.sequences[row]) for row in rows) >= 8 for rows in DATA.units
    ]
    assert 0 < sum(is_long) < 6
    whole = [unit for unit in range(6) if not is_long[unit]]
    expected, _ = gradients(indices=whole)
    assert oracles.distance(broken, expected) <= 1e-5 * oracles.norm(expected)
    assert np.isfinite(totals.loss)


def test_totals_of_nothing_are_nan():
    assert np.isnan(StepTotals().loss)


def test_bfloat16_gradients_stay_float32_and_close():
    exact, _ = gradients()
    coarse, _ = gradients(autocast=True)
    assert all(value.dtype == torch.float32 for value in coarse.values())
    error = oracles.distance(exact, coarse) / oracles.norm(exact)
    assert 0 < error < 0.1


def test_bfloat16_sum_stays_within_the_bound():
    for unit in range(6):
        alone, _ = gradients(indices=[unit], autocast=True)
        assert oracles.norm(alone) * 3.0 <= 0.3 * (1 + 1e-6)


def bfloat16_gradients(model, data, units):
    """Every unit's gradient as a bfloat16 backward pass leaves it."""
    batch = data.collate(units, 0)
    with PerUnitGradients(model) as engine:
        with engine.record(batch.rows_of_unit) as tape:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = LOSS(model, batch)
            losses.sum().backward()
        norms = tape.norms()
        written = [value.flatten(1) for value in tape.unit_gradients().values()]
    return norms, torch.cat(written, 1)


def test_ten_thousand_bfloat16_units_stay_within_the_bound():
    """Each clipped gradient is measured in float64; norms in bfloat16 are the twin."""
    model = models.tiny_gpt2(vocabulary=13, width=8, num_layers=1)
    data = oracles.random_data(rows_per_unit=(1,) * 10_000, vocabulary=13, seed=5)
    violations = twin_violations = clipped_units = 0
    for start in range(0, 10_000, 1000):
        norms, written = bfloat16_gradients(model, data, range(start, start + 1000))
        bound = float(norms.median())
        factors = FlatClip(bound).factors(norms)[0]
        sizes = (written * factors[:, None]).double().norm(dim=1)
        violations += int((sizes > bound * (1 + 1e-6)).sum())
        violations += int((norms[0] * factors > bound).sum())
        coarse = norms.bfloat16().float()
        twin = (written * FlatClip(bound).factors(coarse)[0][:, None]).double()
        twin_violations += int((twin.norm(dim=1) > bound * (1 + 1e-6)).sum())
        clipped_units += int((factors < 1).sum())
    assert clipped_units > 4000
    assert violations == 0
    assert twin_violations > 1000


def test_clip_after_the_sum_is_caught():
    """The twin clips the batch: one unit can turn its sum around, a move of 2C."""

    def clip_of_the_sum(gradients):
        total = torch.stack(gradients).sum(0)
        return total * min(1.0, 0.3 / float(total.norm()))

    def sum_of_clips(gradients):
        return torch.stack([g * min(1.0, 0.3 / float(g.norm())) for g in gradients])

    small, large = torch.tensor([0.31, 0.0]), torch.tensor([-5.0, 0.0])
    turned = clip_of_the_sum([small]) - clip_of_the_sum([small, large])
    assert float(turned.norm()) > 0.3 * 1.9
    kept = sum_of_clips([small]).sum(0) - sum_of_clips([small, large]).sum(0)
    assert float(kept.norm()) <= 0.3 * (1 + 1e-6)
    everyone, _ = gradients()
    for absent in range(6):
        rest, _ = gradients(indices=[unit for unit in range(6) if unit != absent])
        assert 3.0 * oracles.distance(everyone, rest) <= 0.3 * (1 + 1e-6)


def test_lora_trains_the_adapter_alone():
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        model = get_peft_model(models.tiny_llama(), config)
    feed = Feed(
        data=DATA,
        record_loss=LOSS,
        physical_batch_size=8,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )
    with gradient_source(model, plan=PLAN, feed=feed, seed=0, attempt=0) as source:
        source.compute(np.arange(6), step=0)
        trained = {n for n, p in model.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)
