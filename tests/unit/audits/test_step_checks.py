"""The engine passes; every bug planted in it is caught."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dptune.accounting.adaptive import OpenTerms
from dptune.audits import step_checks
from dptune.audits.noise_checks import check_noise, check_streams
from dptune.audits.release_checks import check_blocks
from dptune.audits.sampling_checks import check_sampling, size_law
from dptune.audits.step_checks import check_sensitivity, probe_units
from dptune.dpsgd import (
    adaptive_clipping,
    clipping,
    noise,
    sampling,
    step,
    transform,
)
from dptune.dpsgd import plan as plan_module
from dptune.dpsgd.factorization import band_coefficients
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.mechanisms.clip_rules import QuantileClip
from dptune.mechanisms.transforms import AdaClip, GeoClip
from tests.support import models, oracles
from tests.support.events import poisson_gaussian_event

FLAT = {
    "noise_multiplier": 0.8,
    "sample_rate": 0.1,
    "max_grad_norm": 0.3,
    "expected_batch_size": 4.0,
}
BANDS = {
    "sampling": "cyclic_poisson",
    "noise_coefficients": band_coefficients(num_bands=3, num_steps=12),
}
RISING = {"noise_levels": (1.0, 1.5, 2.0), "steps_per_level": 2}
MOVING = {"norm_rule": QuantileClip(), "count_share": 0.2}
SHARP = {"initial_norm": 0.3, "mean_decay": 0.5}
SCALED = {"transform": AdaClip(variance_decay=0.2, **SHARP)}
TURNED = {"transform": GeoClip(rank=3, covariance_decay=0.2, **SHARP)}
STEERED = {
    "adaptive": OpenTerms(sample_rate=0.1),
    "steering": True,
    "count_share": 0.2,
    "grouping": Grouping.PER_LAYER,
}
CAPPED = {"sampling": "truncated_poisson", "max_batch_size": 60, "num_units": 400}


PARTS = {"part_shares": (1.0, 0.5)}


def plan_of(**changes):
    values = FLAT | changes
    kind = sampling.SamplingKind(values.pop("sampling", "poisson"))
    return GradientPlan(**values, sampling=kind)


@pytest.fixture
def feed():
    return Feed(
        data=oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3),
        record_loss=CausalLoss(loss_normalizer=8.0),
        physical_batch_size=100,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )


def check_event(plan, event, num_steps):
    return check_blocks(plan, [(event, num_steps)], num_steps=num_steps)


def run_all(plan, feed, model=None):
    model = model or models.tiny_gpt2()
    checks = [
        *check_sensitivity(model, plan, feed, units=probe_units(feed.data)),
        *check_noise(model, plan, feed),
        check_streams(device=torch.device("cpu")),
        *check_sampling(plan, num_units=400),
    ]
    return {check.name for check in checks if not check.passed}


@pytest.mark.parametrize(
    "changes",
    [
        *({}, BANDS, CAPPED, {"sample_rate": 1.0}, RISING, MOVING, MOVING | RISING),
        *(SCALED, TURNED, SCALED | RISING, STEERED),
    ],
)
def test_engine_passes(changes, feed):
    model = models.tiny_gpt2().train()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert run_all(plan_of(**changes), feed, model) == set()
    assert model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


@pytest.mark.parametrize("planted", ["each alone", "of other norms", "raw share"])
def test_steered_noise_of_another_size_is_caught(planted, feed, monkeypatch):
    """Noise of every group as if alone; of norms named later; without the counts."""
    bugs = {
        "each alone": lambda norms, sizes, *, multiplier: [
            multiplier * norm for norm in norms
        ],
        "of other norms": lambda norms, sizes, *, multiplier: real(
            [0.5 * norm for norm in norms], sizes, multiplier=multiplier
        ),
        "raw share": lambda norms, sizes, *, multiplier: real(
            norms, sizes, multiplier=multiplier * math.sqrt(1 - 0.2)
        ),
    }
    real = adaptive_clipping.group_stddevs
    monkeypatch.setattr(adaptive_clipping, "group_stddevs", bugs[planted])
    assert "noise_variance" in run_all(plan_of(**STEERED), feed)


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.95, 1.05, 10.0])
def test_noise_of_another_size_is_caught(factor, feed, monkeypatch):
    real = noise.add_gaussian_noise

    def planted(sums, *, noise_stddev, stream):
        real(sums, noise_stddev=factor * noise_stddev, stream=stream)

    monkeypatch.setattr(noise, "add_gaussian_noise", planted)
    assert "noise_variance" in run_all(plan_of(), feed)


def test_one_parameter_without_noise_is_caught(feed, monkeypatch):
    real = noise.add_gaussian_noise

    def planted(sums, *, noise_stddev, stream):
        noisy = {n: v for n, v in sums.items() if not n.endswith("ln_f.bias")}
        assert len(noisy) == len(sums) - 1
        real(noisy, noise_stddev=noise_stddev, stream=stream)

    monkeypatch.setattr(noise, "add_gaussian_noise", planted)
    assert "noise_variance_by_parameter" in run_all(plan_of(), feed)


def test_noise_that_repeats_itself_is_caught(feed, monkeypatch):
    kept = {}

    def planted(sums, *, noise_stddev, stream):
        for name, value in sums.items():
            if (stream, name) not in kept:
                kept[stream, name] = torch.zeros_like(value)
                stream.add_to(kept[stream, name], stddev=noise_stddev)
            value.add_(kept[stream, name])

    monkeypatch.setattr(noise, "add_gaussian_noise", planted)
    assert "noise_independence" in run_all(plan_of(), feed)


def test_noise_of_a_known_seed_is_caught(feed, monkeypatch):
    """Two secret releases that are equal have no secret."""
    real = noise.noise_stream

    def planted(*, fixed_seed, **options):
        return real(fixed_seed=7, **options)

    monkeypatch.setattr(step, "noise_stream", planted)
    assert "noise_variance" in run_all(plan_of(), feed)


@pytest.mark.parametrize("planted", ["counts without noise", "no share given up"])
def test_moving_clip_that_pays_for_one_of_two_is_caught(planted, feed, monkeypatch):
    if planted == "counts without noise":
        monkeypatch.setattr(
            adaptive_clipping, "add_gaussian_noise", lambda sums, **options: None
        )
        expected = {"count_noise_variance"}
    else:
        monkeypatch.setattr(plan_module, "shares", lambda z, f: (z, z))
        expected = {"noise_variance", "count_noise_variance"}
    assert run_all(plan_of(**MOVING), feed) >= expected


def centred_at_the_batch(self, tape, clip):
    """Planted: a is the mean gradient of the batch that is being released."""
    gradients = self._rows(tape, torch.zeros(tape.norms().shape[1], dtype=torch.bool))
    self.state = {**self.state, "mean": gradients.mean(0)}
    HONEST["add"](self, tape, clip)


def clipped_before(self, tape, clip):
    """Planted: the gradient keeps to C, its transform need not."""
    gradients = self._rows(tape, torch.zeros(tape.norms().shape[1], dtype=torch.bool))
    factors = clip(gradients.norm(dim=1)[None])[0]
    rows = self._transform.forward(factors[:, None] * gradients, self.state)
    self.owned["transformed"].add_(rows.sum(0))


def learned_without_noise(self, *, noise_stddev):
    """Planted: the next space is that of the sum before its noise."""
    released = self._transform.back(self.before, self.state)
    self.state = self._transform.follow(released, self.state, noise_stddev=noise_stddev)


def remembers(self):
    """Keep the sum before its noise for `learned_without_noise`."""
    self.before = self.owned["transformed"] / FLAT["expected_batch_size"]


def noised_after(self):
    """Planted: noise of plain DP-SGD on what comes back, in the place of b z."""
    released = self._transform.back(self.before, self.state)
    stddev = FLAT["noise_multiplier"] * FLAT["max_grad_norm"]
    released += torch.randn_like(released) * stddev / FLAT["expected_batch_size"]
    sizes = [p.numel() for p in self._parameters.values()]
    for parameter, piece in zip(
        self._parameters.values(), released.split(sizes), strict=True
    ):
        parameter.grad = piece.view_as(parameter).clone()


HONEST = {"add": transform.TransformedSums.add}
NOISE = {"noise_variance", "noise_variance_by_parameter", "noise_independence"}


@pytest.mark.parametrize("space", [SCALED, TURNED], ids=["adaclip", "geoclip"])
@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({"add": centred_at_the_batch}, {"sensitivity"}),
        ({"add": clipped_before}, {"clipped_to_c"}),
        ({"combine": remembers, "follow": learned_without_noise}, NOISE),
        ({"combine": remembers, "hand_out": noised_after}, NOISE),
    ],
    ids=["unreleased centre", "clip before", "unreleased spread", "noise after"],
)
def test_transform_that_looks_or_clips_in_the_wrong_place_is_caught(
    space, planted, expected, feed, monkeypatch
):
    for name, twin in planted.items():
        monkeypatch.setattr(transform.TransformedSums, name, twin)
    assert run_all(plan_of(**space), feed) & expected


@pytest.mark.parametrize("planted", ["none", "ten times"])
def test_clip_that_does_not_bound_is_caught(planted, feed, monkeypatch):
    real = clipping.FlatClip.factors

    def factors(self, norms):
        if planted == "none":
            return torch.ones_like(norms)
        wide = clipping.FlatClip(10 * self._max_grad_norm)
        return real(wide, norms)

    monkeypatch.setattr(clipping.FlatClip, "factors", factors)
    # sums without any clip are so large that their rounding shows as well
    assert run_all(plan_of(), feed) - {"sums_add_up"} == {"sensitivity", "clipped_to_c"}


def with_replacement(self, generator):
    count = round(self._num_units * self._sample_rate)
    return np.sort(generator.integers(0, self._num_units, count))


def fixed_size(self, generator):
    count = round(self._num_units * self._sample_rate)
    return np.sort(generator.choice(self._num_units, count, replace=False))


def five_percent_more(self, generator):
    return np.flatnonzero(generator.random(self._num_units) < 1.05 * self._sample_rate)


@pytest.mark.parametrize(
    ("planted", "names"),
    [
        (with_replacement, {"sampling_without_repeats", "sampling_spread"}),
        (fixed_size, {"sampling_spread"}),
        (five_percent_more, {"sampling_rate"}),
    ],
)
def test_sampling_of_another_law_is_caught(planted, names, feed, monkeypatch):
    """At a rate of .1 five percent more would be missed once in 150 runs."""
    monkeypatch.setattr(sampling.PoissonSampler, "sample", planted)
    plan = plan_of(sample_rate=0.3)
    found = {c.name for c in check_sampling(plan, num_units=400) if not c.passed}
    assert found >= names


def test_cap_and_turns_that_are_forgotten_are_caught(monkeypatch):
    plain = plan_of().sampler(400)
    monkeypatch.setattr(
        sampling.TruncatedPoissonSampler, "sample", lambda self, g: plain.sample(g)
    )
    monkeypatch.setattr(
        sampling.CyclicPoissonSampler, "sample", lambda self, g: plain.sample(g)
    )
    for changes, name in (
        ({**CAPPED, "max_batch_size": 45}, "sampling_cap"),
        (BANDS, "sampling_in_turn"),
    ):
        failed = {
            c.name
            for c in check_sampling(plan_of(**changes), num_units=400)
            if not c.passed
        }
        assert name in failed


def everyone(self, generator):
    """Planted: all join, and the cap alone says how many stay."""
    places = np.arange(self._num_units)
    return np.sort(generator.choice(places, self._max_batch_size, replace=False))


def tenth_more(self, generator):
    rate = 1.1 * self._poisson._sample_rate
    joined = np.flatnonzero(generator.random(self._num_units) < rate)
    return joined[: self._max_batch_size]


def forty(self, generator):
    return np.sort(generator.choice(self._num_units, 40, replace=False))


@pytest.mark.parametrize(
    ("planted", "names"),
    [
        (everyone, {"sampling_rate", "sampling_spread"}),
        (tenth_more, {"sampling_rate"}),
        (forty, {"sampling_spread"}),
    ],
)
def test_rate_and_spread_are_seen_below_a_cap(planted, names, monkeypatch):
    monkeypatch.setattr(sampling.TruncatedPoissonSampler, "sample", planted)
    found = check_sampling(plan_of(**CAPPED), num_units=400)
    assert {c.name for c in found if not c.passed} >= names


@pytest.mark.parametrize("places", [12, 20])
def test_law_of_batch_sizes_is_that_of_all_draws(places):
    """By the chance of each number of units and of empty places that join."""
    plan = plan_of(**CAPPED | {"num_units": places, "max_batch_size": 4})
    units, others = (stats.binom(n, plan.sample_rate) for n in (12, places - 12))
    sizes, chances = [], []
    for one, other in itertools.product(range(13), range(places - 11)):
        kept, joint = min(4, one + other), units.pmf(one) * others.pmf(other)
        for size in range(kept + 1):
            ways = math.comb(one, size) * math.comb(other, kept - size)
            chances.append(joint * ways / math.comb(one + other, kept))
            sizes.append(size)
    middle = np.dot(chances, sizes)
    second, fourth = (np.dot(chances, (sizes - middle) ** k) for k in (2, 4))
    found = size_law(plan, num_units=12)
    assert found.mean == pytest.approx(middle)
    assert found.variance == pytest.approx(second)
    assert found.kurtosis == pytest.approx(fourth / second**2)
    assert found.farthest == pytest.approx(max(middle, 4 - middle))


def first_of_a_batch(self, generator):
    """Planted: a batch above the cap keeps its first units."""
    return self._poisson.sample(generator)[: self._max_batch_size]


def test_cap_that_keeps_the_first_units_is_caught(monkeypatch):
    plan = plan_of(**CAPPED | {"max_batch_size": 42})
    assert all(c.passed for c in check_sampling(plan, num_units=400))
    monkeypatch.setattr(sampling.TruncatedPoissonSampler, "sample", first_of_a_batch)
    found = check_sampling(plan, num_units=400)
    assert "sampling_fair" in {c.name for c in found if not c.passed}


def test_event_must_pay_for_every_step_of_the_plan():
    event = poisson_gaussian_event(sample_rate=0.1, noise_multiplier=0.8, num_steps=9)
    assert check_event(plan_of(), event, num_steps=9).passed
    assert not check_event(plan_of(), event, num_steps=10).passed
    for twin in (
        {"sample_rate": 0.2},
        {"noise_multiplier": 0.7},
        CAPPED,
    ):
        assert not check_event(plan_of(**twin), event, num_steps=9).passed
    for changes in ({}, BANDS, CAPPED, RISING):
        plan = plan_of(**changes)
        assert check_event(plan, plan.dp_event(9), num_steps=9).passed


def test_plan_without_noise_fails(feed):
    assert "noise" in run_all(plan_of(noise_multiplier=0.0), feed)


@pytest.fixture
def parts(feed):
    """Two parts of each of three units, and what joins without noise."""
    beside = oracles.random_data(rows_per_unit=(1, 1, 1), seed=4)
    data = replace(feed.data, kinds=np.arange(6) % 2, unnoised=beside)
    return replace(feed, data=data)


def test_engine_passes_in_parts(parts):
    assert run_all(plan_of(**PARTS), parts) == set()
    assert {parts.data.kinds[i] for i in probe_units(parts.data)} == {0, 1}


def test_noise_of_the_wrong_tier_is_caught(parts):
    """The tier that is promised more noise is clipped as the other one."""
    kinds = 1 - parts.data.kinds
    swapped = replace(parts, data=replace(parts.data, kinds=kinds))
    units = probe_units(parts.data)
    plan, model = plan_of(**PARTS), models.tiny_gpt2()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_checks, "_share", lambda *_: 0.5)
        assert not check_sensitivity(model, plan, parts, units=units)[0].passed
        only = [u for u in units if swapped.data.kinds[u] == 1]
        assert check_sensitivity(model, plan, swapped, units=only)[0].passed


def test_parts_that_are_clipped_to_the_whole_bound_are_caught(parts, monkeypatch):
    monkeypatch.setattr(
        step, "bounds_of", lambda batch, shares: torch.ones(len(batch.kinds))
    )
    assert run_all(plan_of(**PARTS), parts) == {"sensitivity", "clipped_to_c"}


def test_tier_that_is_not_paid_for_is_caught():
    plan = plan_of(**PARTS)
    assert check_event(plan, plan.dp_event(5), num_steps=5).passed
    assert not check_event(plan, plan.part_event(0, 5), num_steps=5).passed
    assert not check_event(plan, plan_of().dp_event(5), num_steps=5).passed
    mixed = plan_of(**PARTS, mixed_parts=True)
    assert not check_event(mixed, plan.dp_event(5), num_steps=5).passed
    assert check_event(mixed, mixed.dp_event(5), num_steps=5).passed
