"""A run looked at from inside: a sound one passes, every planted bug shows."""

import gc
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dptune.audits.recorder import StepRecorder
from dptune.audits.rehearsal import rehearse
from dptune.audits.sampling_checks import SamplingTally, check_sampling
from dptune.audits.step_checks import check_sensitivity, probe_units
from dptune.audits.step_report import count_steps, merged_checks, read_segments
from dptune.dpsgd import (
    adaptive_clipping,
    clipping,
    noise,
    randomness,
    sampling,
    step,
    trainer,
)
from dptune.dpsgd.checkpoint import TrainingState
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.mechanisms.rldp import deck_terms
from tests.support import models, oracles

from .test_step_checks import (
    BANDS,
    CAPPED,
    FLAT,
    MOVING,
    PARTS,
    RISING,
    SCALED,
    STEERED,
    plan_of,
)

ADAM = OptimizerSettings(learning_rate=0.01, weight_decay=0.1, schedule="cosine")
DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1, 1, 1), seed=3)
FEED = Feed(
    data=DATA,
    record_loss=CausalLoss(loss_normalizer=8.0),
    physical_batch_size=3,
    pad_token_id=0,
    device=torch.device("cpu"),
    autocast=False,
)


@pytest.fixture(scope="module")
def tiny():
    """One model for all: its weights are no matter."""
    return models.tiny_gpt2()


def again(tiny, feed=FEED, **changes):
    checks = rehearse(
        tiny,
        plan_of(**changes),
        feed,
        units=probe_units(feed.data),
        num_steps=6,
        optimizer=ADAM,
    )
    return {c.name.removeprefix("again_") for c in checks if not c.passed}


def recorded(tiny, folder, *, num_steps=4, data=DATA, **changes):
    plan = plan_of(**changes)
    recorder = StepRecorder(
        plan,
        settings=ADAM,
        num_steps=num_steps,
        num_units=data.num_units,
        file=folder / "record.json",
    )
    trainer.train_stage(
        tiny,
        data,
        plan=plan,
        num_steps=num_steps,
        optimizer=ADAM,
        physical_batch_size=3,
        pad_token_id=0,
        loss_normalizer=8.0,
        checkpoint_dir=folder,
        block_size=2,
        charge=lambda *_: None,
        witness=recorder,
    )
    return read_segments(folder / "record.json")


def names(segments):
    return {
        c.name.removeprefix("run_") for c in merged_checks(segments) if not c.passed
    }


@pytest.mark.parametrize(
    "changes",
    [{}, BANDS, RISING, MOVING, SCALED, STEERED, {"sample_rate": 1.0}],
    ids=["flat", "bands", "rising", "moving", "scaled", "steered", "everybody"],
)
def test_rehearsal_of_a_sound_engine_passes(changes, tiny):
    assert again(tiny, **changes) == set()


def test_rehearsal_in_parts_passes(tiny):
    beside = oracles.random_data(rows_per_unit=(1, 1, 1), seed=4)
    data = replace(DATA, kinds=np.arange(8) % 2, unnoised=beside)
    assert again(tiny, replace(FEED, data=data), **PARTS) == set()


def test_record_of_a_resumed_run_covers_it_and_leaks_nothing(tiny, tmp_path):
    recorded(tiny, tmp_path, num_steps=4)
    stopped = json.loads((tmp_path / "record.json").read_text())
    assert [s["num_steps"] for s in stopped] == [4]
    segments = read_segments(tmp_path / "record.json")
    assert (names(segments), count_steps(segments)) == (set(), 4)
    halves = [
        segments[0].model_copy(update={"num_steps": 2}),
        segments[0].model_copy(update={"first_step": 2, "num_steps": 2}),
    ]
    assert count_steps(halves) == 4
    assert count_steps(halves[1:]) == 0
    assert {c.measured for c in segments[0].checks if c.name[:8] == "sampling"} == {
        None
    }


def kept_noise(lag):
    """Planted: what was drawn `lag` asks ago is drawn again."""
    past = []

    def add_to(self, *sums, stddev):
        for values in sums:
            before = values.clone()
            HONEST(self, values, stddev=stddev)
            past.append(((values - before) / stddev).clone())
            if len(past) > lag and len(past[-lag - 1]) == len(values):
                values.copy_(before + stddev * past[-lag - 1].view_as(values))
                past[-1] = past[-lag - 1]

    return add_to


HONEST = randomness.GaussianStream.add_to
RELEASE = step.GradientPlan.release
COMPUTE = step.PrivateGradients.compute


def not_when_empty(self, sums, *, step, noise):
    if any(value.any() for value in sums.values()):
        RELEASE(self, sums, step=step, noise=noise)


def skipped_when_empty(self, indices, *, step):
    return COMPUTE(self, indices, step=step) if len(indices) else step_totals()


def step_totals():
    return step.StepTotals()


def divided_by_the_batch(self, indices, *, step):
    totals = COMPUTE(self, indices, step=step)
    for parameter in self._model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(self._plan.expected_batch_size / max(1, len(indices)))
    return totals


def raw_beside(self, indices, *, step):
    """Planted: one parameter gets its gradient as it was."""
    sums = self._sums
    real = sums.combine

    def combine():
        real()
        name = next(iter(sums.lent))
        kept[name] = sums.lent[name].clone()

    kept = {}
    sums.combine = combine
    totals = COMPUTE(self, indices, step=step)
    for name, value in kept.items():
        sums._parameters[name].grad = value
    sums.combine = real
    return totals


def noised_for_next(self, *, gradient_multiplier, stddev):
    """Planted: nothing; the noise of the step looks ahead instead."""


def ahead(self, *, step=0, max_grad_norm=None):
    """Planted: the noise of the next level."""
    return STDDEV(self, step=step + 1, max_grad_norm=max_grad_norm)


STDDEV = step.GradientPlan.noise_stddev


def smaller(self, *, step=0, max_grad_norm=None):
    """Planted: a moving C has moved before the noise is drawn."""
    moved = None if max_grad_norm is None else 0.9 * max_grad_norm
    return STDDEV(self, step=step, max_grad_norm=moved)


def stale_factors():
    last = []

    def factors(self, norms):
        now = FACTORS(self, norms)
        last.append(now)
        old = last[-2] if len(last) > 1 else now
        return old if old.shape == now.shape else torch.ones_like(now) * old.max()

    return factors


COUNT, LOSSES = adaptive_clipping.MovingClip.count, Feed.losses
FACTORS = clipping.FlatClip.factors


def moved_by_raw_counts(self, *, gradient_multiplier, stddev):
    """Planted: counts are noised, and C moves by what they were before."""
    raw, norm = self._counts.tolist(), self.max_grad_norm
    MOVE(self, gradient_multiplier=gradient_multiplier, stddev=stddev)
    figures = adaptive_clipping.StepFigures(
        max_grad_norm=norm,
        expected_batch_size=self._expected_batch_size,
        gradient_multiplier=gradient_multiplier,
        num_parameters=self._num_parameters,
    )
    self.max_grad_norm = self._rule.next_norm(raw, figures)


def told_raw_counts(self, noise_multiplier):
    """Planted: counts are noised, and the controller sees what they were before."""
    raw = self._opened().counts.clone()
    stddevs = DRAW(self, noise_multiplier)
    self._opened().counts.copy_(raw)
    return stddevs


MOVE = adaptive_clipping.MovingClip.release
DRAW = adaptive_clipping.SteeredClip.draw


def also_decays_by_loss(self, state, source, indices):
    """Planted: weights are moved by what was not released."""
    done = STEP(self, state, source, indices)
    with torch.no_grad():
        for parameter in self._parameters.values():
            parameter.add_(1e-3 * len(indices))
    return done


STEP = trainer._Run._step


@pytest.mark.parametrize(
    ("where", "name", "twin", "changes", "expected"),
    [
        (step.GradientPlan, "release", not_when_empty, {}, "noise_as_planned"),
        (step.PrivateGradients, "compute", skipped_when_empty, {}, "every_step"),
        (
            step.PrivateGradients,
            "compute",
            divided_by_the_batch,
            {},
            "optimizer_sees_releases",
        ),
        (step.PrivateGradients, "compute", raw_beside, {}, "optimizer_sees_releases"),
        (step.GradientPlan, "noise_stddev", ahead, RISING, "noise_as_planned"),
        (step.GradientPlan, "noise_stddev", smaller, MOVING, "noise_covers_clip"),
        (
            adaptive_clipping.MovingClip,
            "release",
            noised_for_next,
            MOVING,
            "noise_as_planned",
        ),
        (
            adaptive_clipping.MovingClip,
            "release",
            moved_by_raw_counts,
            MOVING,
            "clip_follows_counts",
        ),
        (
            adaptive_clipping.SteeredClip,
            "draw",
            told_raw_counts,
            STEERED,
            "noise_variance_of_counts",
        ),
        (trainer._Run, "_step", also_decays_by_loss, {}, "weights_follow_releases"),
        (
            noise,
            "seed_sequence",
            lambda *_, **__: np.random.SeedSequence(7),
            {},
            "streams_apart",
        ),
    ],
    ids=[
        *("no noise when empty", "empty step skipped", "divided by the batch"),
        *("one raw gradient", "noise of the next step", "noise of the next C"),
        *("C that stays", "C by raw counts", "a controller sees raw counts"),
        *("weights by something else", "guessable seed"),
    ],
)
def test_planted_bug_shows_in_a_rehearsal(
    where, name, twin, changes, expected, tiny, monkeypatch
):
    monkeypatch.setattr(where, name, twin)
    assert expected in again(tiny, **changes)


def test_clip_of_the_step_before_shows_in_a_rehearsal(tiny, monkeypatch):
    monkeypatch.setattr(clipping.FlatClip, "factors", stale_factors())
    assert "noise_covers_clip" in again(tiny)


def test_moved_buffers_and_frozen_weights_show(tiny, monkeypatch):
    def moves(self, state, source, indices):
        frozen.data.add_(1.0)
        return STEP(self, state, source, indices)

    frozen = tiny.transformer.ln_f.bias
    frozen.requires_grad_(False)
    try:
        assert again(tiny) == set()
        monkeypatch.setattr(trainer._Run, "_step", moves)
        assert again(tiny) == {"frozen_weights_stay"}
    finally:
        frozen.requires_grad_(True)


@pytest.mark.parametrize("steps_apart", [1, 3])
def test_noise_used_again_some_steps_later_shows(steps_apart, tiny, monkeypatch):
    parameters = len(list(tiny.parameters()))
    monkeypatch.setattr(
        randomness.GaussianStream, "add_to", kept_noise(parameters * steps_apart)
    )
    assert "noise_independence" in again(tiny)


def test_noise_of_an_earlier_process_shows(tiny, tmp_path, monkeypatch):
    kept = np.random.SeedSequence(2**255)
    recorded(tiny, tmp_path)
    assert names(recorded(tiny, tmp_path)) == set()
    before = json.loads((tmp_path / "record.json").read_text())
    monkeypatch.setattr(noise, "seed_sequence", lambda *_, **__: kept)
    folder = tmp_path / "other"
    recorded(tiny, folder)
    again = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(
        json.dumps([again[0] | {"attempt": 9}, *before[:0]])
    )
    for stale in folder.glob("step-*"):
        stale.rename(folder / "gone")
    assert "streams_apart" in names(recorded(tiny, folder))


def epochs(self, generator):
    """Planted: shuffled batches, each unit once in a pass."""
    waiting = getattr(self, "_waiting", np.empty(0, np.int64))
    size = max(1, round(self._num_units * self._sample_rate))
    if len(waiting) < size:
        waiting = generator.permutation(self._num_units)
    self._waiting = waiting[size:]
    return np.sort(waiting[:size])


def in_pairs(self, generator):
    """Planted: neighbors share a coin."""
    coins = generator.random(-(-self._num_units // 2)) < self._sample_rate
    return np.flatnonzero(np.repeat(coins, 2)[: self._num_units])


def by_place(self, generator):
    """Planted: the first half of the data is twice as likely as the other."""
    place = np.arange(self._num_units) < self._num_units / 2
    rates = self._sample_rate * np.where(place, 4 / 3, 2 / 3)
    return np.flatnonzero(generator.random(self._num_units) < rates)


def sticky(self, generator):
    """Planted: half of those who were drawn stay for the next step."""
    joined = np.flatnonzero(generator.random(self._num_units) < self._sample_rate / 2)
    old = getattr(self, "_old", joined)
    stays = old[generator.random(len(old)) < 0.5]
    self._old = np.union1d(joined, stays)
    return self._old


def favourites(self, generator):
    """Planted: every tenth unit is three times as likely, such as of high loss."""
    rates = np.full(self._num_units, self._sample_rate * 7 / 9)
    rates[::10] = 3 * self._sample_rate
    return np.flatnonzero(generator.random(self._num_units) < rates)


def of_a_known_generator(self, generator):
    return np.flatnonzero(np.random.random(self._num_units) < self._sample_rate)  # noqa: NPY002


@pytest.mark.parametrize(
    ("twin", "expected"),
    [
        (epochs, "sampling_memoryless"),
        (in_pairs, "sampling_apart"),
        (by_place, "sampling_fair"),
        (sticky, "sampling_memoryless"),
        (favourites, "sampling_fair"),
        (of_a_known_generator, "sampling_secret"),
    ],
)
def test_sampling_that_remembers_or_looks_shows(twin, expected, monkeypatch):
    monkeypatch.setattr(sampling.PoissonSampler, "sample", twin)
    found = check_sampling(plan_of(), num_units=400)
    assert expected in {c.name for c in found if not c.passed}


@pytest.mark.parametrize("changes", [{}, BANDS, CAPPED, {"sample_rate": 1.0}])
def test_sampling_of_a_sound_sampler_passes(changes):
    found = check_sampling(
        plan_of(**changes), num_units=400, lengths=np.arange(400) % 7
    )
    assert [c.name for c in found if not c.passed] == []
    assert all(c.measured is None for c in found)


@pytest.mark.parametrize(("apart", "is_seen"), [(None, False), (200, True)])
def test_noise_that_is_used_again_much_later_shows(tiny, apart, is_seen):
    """The rows of the last 128 steps are whole; of all others some entries are."""
    recorder = StepRecorder(plan_of(), settings=ADAM, num_steps=300, num_units=9)
    recorder.started(
        tiny,
        ADAM.build(tiny.parameters()),
        sampling.sampling_generator(),
        TrainingState(step=0, attempt=0, digest=""),
    )
    rows = np.random.default_rng(0).normal(size=(300, 2000))
    if apart:
        rows[50 + apart] = rows[50]
    for row in rows:
        recorder._see_noise(torch.from_numpy(row), [2000])
        recorder._done += 1
    assert recorder._independence().passed is not is_seen


def test_shuffled_batches_show_in_few_steps_of_a_run(monkeypatch):
    monkeypatch.setattr(sampling.PoissonSampler, "sample", epochs)
    plan = plan_of()
    tally, sampler = SamplingTally(plan=plan, num_units=400), plan.sampler(400)
    generator = sampling.sampling_generator()
    for _ in range(30):
        tally.see(sampler.sample(generator))
    assert "sampling_memoryless" in {c.name for c in tally.checks() if not c.passed}


def per_row(self, norms):
    """Planted: only the first unit of a piece is clipped, as if by rows."""
    factors = FACTORS(self, norms)
    factors = factors.clone()
    factors[:, -1] = 1.0
    return factors


def one_for_all(self, norms):
    """Planted: one factor for a piece, of the norm of all that is in it."""
    return FACTORS(self, norms.norm(dim=1, keepdim=True).expand_as(norms))


def averaged(self, model, batch):
    """Planted: losses are averaged over the piece before they are clipped."""
    losses = LOSSES(self, model, batch)
    return losses / len(losses)


def counted_twice(self, norms):
    """Planted: what a unit adds to the counts has norm 2."""
    rows = COUNT(self, norms)
    self._counts += rows.sum(0)
    return 2 * rows


def grants(*multipliers):
    """Let a recorder see grants under a deck of one card of 1 and two of 2."""
    terms = deck_terms(((1.0, 1), (2.0, 2)), sample_rate=0.1)
    plan = plan_of(adaptive=terms, sample_rate=0.1)
    recorder = StepRecorder(plan, settings=ADAM, num_steps=3, num_units=8)
    for multiplier in multipliers:
        wish = SimpleNamespace(terms=terms, of_step=lambda _, z=multiplier: z)
        recorder.granted(wish, step=0)
    return {c.name for c in recorder.segment().checks if not c.passed}


def test_grants_that_were_not_paid_for_show():
    assert grants(2.0, 1.0, 2.0) == set()
    assert grants(2.0, 1.9) == {"grants_are_paid"}
    assert grants(1.0, 1.0) == {"grants_are_paid"}
    assert grants(2.0, 1.0, 2.0, 2.0) == {"grants_are_paid"}


def test_counts_of_norm_above_one_show(tiny, monkeypatch):
    monkeypatch.setattr(adaptive_clipping.MovingClip, "count", counted_twice)
    assert "noise_covers_clip" in again(tiny, **MOVING)


def coarse(self, norms):
    """Planted: norms have as many digits as bfloat16."""
    return FACTORS(self, norms.bfloat16().float())


def test_norms_of_few_digits_show(monkeypatch):
    monkeypatch.setattr(clipping.FlatClip, "factors", coarse)
    model = models.tiny_gpt2()  # of others every norm may be rounded up
    found = check_sensitivity(model, plan_of(), FEED, units=probe_units(DATA))
    assert "clipped_to_c" in {c.name for c in found if not c.passed}


@pytest.mark.parametrize(
    ("where", "name", "twin"),
    [
        (clipping.FlatClip, "factors", per_row),
        (clipping.FlatClip, "factors", one_for_all),
        (Feed, "losses", averaged),
        (step.PrivateGradients, "compute", divided_by_the_batch),
    ],
    ids=[
        *("last of a piece unclipped", "one factor for a piece", "mean of a piece"),
        "divided by the batch",
    ],
)
def test_sums_that_do_not_add_up_show(where, name, twin, tiny, monkeypatch):
    monkeypatch.setattr(where, name, twin)
    found = check_sensitivity(tiny, plan_of(), FEED, units=probe_units(DATA))
    assert not all(check.passed for check in found)


def test_recorder_does_not_change_what_is_trained(tmp_path):
    weights = []
    for witness in (True, False):
        model, plan = models.tiny_gpt2(), plan_of()
        recorder = StepRecorder(
            plan, settings=ADAM, num_steps=2, num_units=8, is_secret=False
        )
        trainer.train_stage(
            model,
            DATA,
            plan=plan,
            num_steps=2,
            optimizer=ADAM,
            physical_batch_size=3,
            pad_token_id=0,
            loss_normalizer=8.0,
            checkpoint_dir=None,
            block_size=2,
            charge=lambda *_: None,
            seed=5,
            **({"witness": recorder} if witness else {}),
        )
        if witness:
            assert all(check.passed for check in recorder.segment().checks)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *weights))
    gc.collect()
    assert FLAT["max_grad_norm"] == 0.3
