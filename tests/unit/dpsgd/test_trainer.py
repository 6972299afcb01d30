import dataclasses
import math

import numpy as np
import pytest
import torch

from dptune.dpsgd import trainer
from dptune.dpsgd.factorization import band_coefficients
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.trainer import train_stage
from dptune.errors import (
    ArtifactError,
    BudgetExceededError,
    ConfigError,
    ModelError,
    PrivacyError,
)
from tests.support import models, oracles

DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
SGD = OptimizerSettings(name="sgd", learning_rate=0.5, momentum=0.5)
ADAMW = OptimizerSettings(learning_rate=0.01, warmup_steps=2, schedule="cosine")
PLAIN = PlainPlan(batch_size=3)


def private(**changes):
    numbers = {
        "noise_multiplier": 1.0,
        "sample_rate": 0.5,
        "max_grad_norm": 0.3,
        "expected_batch_size": 3.0,
    }
    return GradientPlan(**numbers | changes)


NOISE_ONLY = private(sample_rate=1e-12)


def run(model=None, **changes):
    """Train a tiny model; returns weights and outcome."""
    model = model or models.tiny_gpt2()
    settings = {
        "data": DATA,
        "plan": private(),
        "num_steps": 6,
        "optimizer": SGD,
        "physical_batch_size": 16,
        "pad_token_id": 0,
        "loss_normalizer": 8.0,
        "checkpoint_dir": None,
        "block_size": 2,
        "charge": lambda first, count: None,
        "seed": 7,
    } | changes
    outcome = train_stage(model, settings.pop("data"), **settings)
    return {n: p.detach().clone() for n, p in model.named_parameters()}, outcome


def stop_at(block_start):
    """A charge that refuses the block starting at some step."""

    def charge(first, count):
        if first == block_start:
            raise BudgetExceededError("no budget left")

    return charge


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


# Not plain AdamW: without noise it blows up rounding where a gradient should be 0.
@pytest.mark.parametrize(
    ("plan", "optimizer"), [(private(), SGD), (private(), ADAMW), (PLAIN, SGD)]
)
def test_physical_batch_size_never_changes_the_result(plan, optimizer):
    whole, _ = run(plan=plan, optimizer=optimizer)
    pieces, _ = run(plan=plan, optimizer=optimizer, physical_batch_size=3)
    assert oracles.distance(whole, pieces) <= 1e-5 * oracles.norm(whole)


def test_all_units_without_noise_or_clip_equal_plain_training():
    plan = private(
        noise_multiplier=0.0,
        sample_rate=1.0,
        max_grad_norm=1e6,
        expected_batch_size=6.0,
    )
    mine, _ = run(plan=plan)
    plain, _ = run(plan=PlainPlan(batch_size=6))
    assert oracles.distance(mine, plain) <= 1e-5 * oracles.norm(plain)


def test_noise_differs_between_runs_without_seed():
    first, _ = run(plan=NOISE_ONLY, seed=None, num_steps=1)
    second, _ = run(plan=NOISE_ONLY, seed=None, num_steps=1)
    assert not equal(first, second)


def test_blocks_are_charged_before_their_noise_is_drawn(monkeypatch):
    events = []
    honest = GradientPlan.release

    def release(self, sums, *, step, noise):
        events.append(("noise", step))
        honest(self, sums, step=step, noise=noise)

    monkeypatch.setattr(GradientPlan, "release", release)
    run(num_steps=5, charge=lambda first, count: events.append((first, count)))
    assert events == [
        (0, 2),
        ("noise", 0),
        ("noise", 1),
        (2, 2),
        ("noise", 2),
        ("noise", 3),
        (4, 1),
        ("noise", 4),
    ]


def test_refused_charge_draws_nothing_and_passes_through(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        GradientPlan,
        "release",
        lambda self, sums, *, step, noise: drawn.append(step),
    )
    with pytest.raises(BudgetExceededError):
        run(charge=stop_at(2))
    assert drawn == [0, 1]


@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
def test_plain_run_resumes_exactly_even_with_dropout(tmp_path, optimizer):
    def options():
        return {
            "model": models.tiny_gpt2(dropout=0.2),
            "plan": PLAIN,
            "optimizer": optimizer,
        }

    whole, outcome = run(**options(), checkpoint_dir=None)
    with pytest.raises(BudgetExceededError):
        run(**options(), checkpoint_dir=tmp_path, charge=stop_at(4))
    resumed, after = run(**options(), checkpoint_dir=tmp_path)
    assert equal(whole, resumed)
    assert after.resumed_from_step == 4
    assert outcome.resumed_from_step is None
    assert after.curve == outcome.curve
    assert after.num_tokens == outcome.num_tokens


def noise_of_repeated_step(tmp_path):
    """Kill a run inside its second block; return step 2's update in both attempts."""
    seen = []

    def watch(kill):
        model = models.tiny_gpt2()

        def on_step(progress):
            seen.append((progress.step, model.lm_head.weight.detach().clone()))
            if kill and progress.step == 3:
                raise KeyboardInterrupt

        return {"model": model, "on_step": on_step}

    charges = []
    options = {
        "plan": NOISE_ONLY,
        "checkpoint_dir": tmp_path,
        "charge": lambda first, count: charges.append((first, count)),
        "num_steps": 4,
        "optimizer": OptimizerSettings(name="sgd", learning_rate=0.5),
    }
    with pytest.raises(KeyboardInterrupt):
        run(**watch(kill=True), **options)
    run(**watch(kill=False), **options)
    assert [step for step, _ in seen] == [1, 2, 3, 3, 4]
    assert charges == [(0, 2), (2, 2), (2, 2)]
    weights = [value for _, value in seen]
    return weights[2] - weights[1], weights[3] - weights[1], weights[0]


def test_resumed_run_charges_again_and_draws_fresh_noise(tmp_path):
    first, again, _ = noise_of_repeated_step(tmp_path)
    assert not (first == again).all()
    correlation = torch.corrcoef(torch.stack([first.flatten(), again.flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.3


def test_resumed_run_that_reuses_noise_is_caught(tmp_path, monkeypatch):
    """The twin whose attempts all have one number: a fresh seed per step, say."""
    monkeypatch.setattr(trainer, "claim_attempt", lambda folder: 0)
    honest = trainer.gradient_source
    draws = []

    def source(*args, **options):
        draws.append(options["attempt"])
        return honest(*args, **options)

    monkeypatch.setattr(trainer, "gradient_source", source)
    _, again, start = noise_of_repeated_step(tmp_path)
    assert draws == [0, 0]
    initial = models.tiny_gpt2().lm_head.weight.detach()
    # The second attempt begins with the noise that the first one began with.
    torch.testing.assert_close(again, start - initial, rtol=0, atol=1e-6)


def test_completed_stage_returns_its_weights_at_once(tmp_path):
    done, outcome = run(checkpoint_dir=tmp_path)
    again, after = run(checkpoint_dir=tmp_path, charge=stop_at(0))
    assert equal(done, again)
    assert after.resumed_from_step == 6
    assert after.curve == outcome.curve
    assert len(list((tmp_path / "attempts").iterdir())) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": private(noise_multiplier=2.0)},
        {"plan": PLAIN},
        {"num_steps": 8},
        {"optimizer": ADAMW},
        {"loss_normalizer": 4.0},
        {"data": oracles.random_data(seed=4)},
        {"run_digest": "another"},
        {"model": models.tiny_gpt2(tied=False)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_checkpoint_of_another_run_is_refused(tmp_path, changes):
    run(checkpoint_dir=tmp_path, num_steps=2)
    with pytest.raises(ArtifactError, match="made by another"):
        run(**{"checkpoint_dir": tmp_path, "num_steps": 2} | changes)


def test_checkpoint_with_another_frozen_base_is_refused(tmp_path):
    def half_frozen(seed):
        model = models.tiny_gpt2(seed=seed)
        model.transformer.requires_grad_(False)
        model.transformer.h[0].ln_1.requires_grad_(True)
        return model

    run(half_frozen(0), checkpoint_dir=tmp_path)
    run(half_frozen(0), checkpoint_dir=tmp_path)
    with pytest.raises(ArtifactError, match="made by another"):
        run(half_frozen(1), checkpoint_dir=tmp_path)


def test_physical_batch_size_and_block_size_may_change_on_resume(tmp_path):
    with pytest.raises(BudgetExceededError):
        run(checkpoint_dir=tmp_path, charge=stop_at(2))
    charges = []
    run(
        checkpoint_dir=tmp_path,
        physical_batch_size=3,
        block_size=3,
        charge=lambda first, count: charges.append((first, count)),
    )
    assert charges == [(2, 3), (5, 1)]


def test_outcome_and_progress_report_the_run():
    seen = []
    _, outcome = run(plan=PLAIN, on_step=seen.append, optimizer=ADAMW, num_steps=30)
    assert [progress.step for progress in seen] == list(range(1, 31))
    assert seen[-1].tokens == outcome.num_tokens > 0
    assert seen[-1].num_steps == outcome.num_steps == 30
    assert all(progress.tokens_per_second > 0 for progress in seen)
    assert [step for step, _ in outcome.curve] == list(range(1, 31))
    losses = [loss for _, loss in outcome.curve]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert "curve" not in repr(outcome)


def test_empty_batches_report_no_loss():
    _, outcome = run(plan=NOISE_ONLY, num_steps=2)
    assert all(math.isnan(loss) for _, loss in outcome.curve)
    assert outcome.num_tokens == 0


def test_model_keeps_its_mode_and_loses_its_hooks():
    model = models.tiny_gpt2().eval()
    run(model, num_steps=1)
    assert not model.training
    assert not any(m._forward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_bfloat16_keeps_weights_in_float32():
    weights, outcome = run(dtype="bfloat16", num_steps=2, max_tokens=16)
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert all(value.isfinite().all() for value in weights.values())
    assert outcome.num_steps == 2


def test_private_bfloat16_without_a_public_length_is_refused():
    with pytest.raises(ConfigError, match="max_tokens must be given"):
        run(dtype="bfloat16", num_steps=1)


def test_global_randomness_is_left_alone():
    before = torch.get_rng_state()
    run(models.tiny_gpt2(dropout=0.1), num_steps=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_unsound_loss_is_refused_before_anything_is_charged():
    class BatchMean(CausalLoss):
        def __call__(self, model, batch):
            return super().__call__(model, batch) / batch.num_rows

    charges = []
    with pytest.raises(ModelError, match="must not depend"):
        run(
            record_loss=BatchMean(loss_normalizer=1.0),
            charge=lambda first, count: charges.append(first),
        )
    assert charges == []


def test_coarse_matrix_products_are_refused():
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(PrivacyError, match="set_float32_matmul_precision"):
            run()
    finally:
        torch.set_float32_matmul_precision("highest")


def test_faults_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        run(num_steps=0, block_size=0, physical_batch_size=0)
    assert {p.path for p in caught.value.problems} == {
        "num_steps",
        "block_size",
        "physical_batch_size",
    }


def banded(num_bands=2, **changes):
    return private(
        sampling=SamplingKind.CYCLIC_POISSON,
        noise_coefficients=band_coefficients(num_bands=num_bands, num_steps=7),
        **changes,
    )


def test_one_band_trains_as_independent_noise_does():
    cyclic, _ = run(plan=banded(1))
    independent, _ = run(plan=private())
    assert equal(cyclic, independent)


def test_banded_run_is_not_the_independent_run():
    correlated, _ = run(plan=banded(2))
    independent, _ = run(plan=private())
    assert not equal(correlated, independent)


def turns_charged(plan, **options):
    """Charges of a run, and the mechanisms that they pay for."""
    charges = []
    run(plan=plan, charge=lambda f, n: charges.append((f, n)), **options)
    return charges, sum(plan.num_mechanisms(count) for _, count in charges)


def test_blocks_of_a_banded_run_are_whole_turns():
    plan = banded(2)
    charges, paid = turns_charged(plan, num_steps=7, block_size=3)
    assert charges == [(0, 4), (4, 3)]
    assert paid == 4 == plan.num_mechanisms(7)


def test_banded_run_resumes_at_a_block_and_pays_for_a_new_segment(
    tmp_path, monkeypatch
):
    """Killed in its second block: two blocks are paid, then the rest once more."""
    starts = []
    honest_noise, honest_sampler = GradientPlan.noise, GradientPlan.sampler

    def noise(self, generator, **options):
        starts.append("noise")
        return honest_noise(self, generator, **options)

    def sampler(self, num_units):
        starts.append("groups")
        return honest_sampler(self, num_units)

    monkeypatch.setattr(GradientPlan, "noise", noise)
    monkeypatch.setattr(GradientPlan, "sampler", sampler)

    def kill(progress):
        if progress.step == 6:
            raise KeyboardInterrupt

    charges = []
    options = {
        "plan": banded(2),
        "checkpoint_dir": tmp_path,
        "num_steps": 7,
        "block_size": 4,
        "charge": lambda first, count: charges.append((first, count)),
    }
    with pytest.raises(KeyboardInterrupt):
        run(**options, on_step=kill)
    assert not [f for f in tmp_path.rglob("*") if "noise" in f.name]
    _, outcome = run(**options)
    assert outcome.resumed_from_step == 4
    assert charges == [(0, 4), (4, 3), (4, 3)]
    assert sum(options["plan"].num_mechanisms(count) for _, count in charges) == 6
    assert sorted(starts) == ["groups", "groups", "noise", "noise"]


def test_past_noise_that_does_not_fit_is_refused_before_anything_is_charged():
    charges = []
    with pytest.raises(ConfigError, match="max_noise_bytes"):
        run(
            plan=banded(2),
            max_noise_bytes=1000,
            charge=lambda first, count: charges.append(first),
        )
    assert charges == []


def test_truncated_run_never_exceeds_its_cap(monkeypatch):
    plan = private(
        sample_rate=0.9,
        sampling=SamplingKind.TRUNCATED_POISSON,
        max_batch_size=2,
        num_units=6,
    )
    drawn = []
    honest = trainer._Run._step

    def step(self, state, source, indices):
        drawn.append(len(indices))
        return honest(self, state, source, indices)

    monkeypatch.setattr(trainer._Run, "_step", step)
    run(plan=plan)
    assert max(drawn) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_checkpointing": True},
        {"fixed_shapes": True},
        {"gradient_checkpointing": True, "fixed_shapes": True},
    ],
)
@pytest.mark.parametrize("plan", [private(), PLAIN])
def test_memory_and_shape_settings_never_change_the_result(plan, changes):
    expected, _ = run(plan=plan)
    model = models.tiny_gpt2()
    weights, _ = run(model, plan=plan, **changes)
    assert not any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


def test_checkpointing_is_refused_where_a_model_cannot_do_it(monkeypatch):
    model = models.tiny_gpt2()
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(ModelError, match="support gradient checkpointing"):
        run(model, gradient_checkpointing=True)


@pytest.mark.parametrize("plan", [private(), private(grouping=Grouping.PER_LAYER)])
def test_classifier_trains_privately(plan):
    labels = np.arange(len(DATA.sequences)) % 3
    weights, outcome = run(
        models.tiny_bert_classifier(),
        data=dataclasses.replace(DATA, labels=labels),
        plan=plan,
        record_loss=ClassificationLoss(),
        pad_token_id=1,
    )
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert outcome.num_tokens > 0
