"""Noise follows its law in every parameter, and twins that do not are caught.

With n draws and two-sided chi-square bounds at 1e-6, a stddev that is 5 % off escapes
with the probability asserted below. Each parameter is tested by itself, so that one
forgotten group cannot hide among the others.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dptune.dpsgd import noise as noise_module
from dptune.dpsgd.factorization import band_coefficients, normalized
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.noise import BandedNoise, add_gaussian_noise, noise_stream
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.step import gradient_source
from tests.support import models, oracles
from tests.support.statistics import (
    mean_bound,
    variance_bounds,
    variance_escape_probability,
)

DRAWS = 24_000
PLAN = GradientPlan(
    noise_multiplier=1.3, sample_rate=0.5, max_grad_norm=0.4, expected_batch_size=5.0
)


def variance_is_right(values, *, stddev):
    low, high = variance_bounds(values.numel(), stddev=stddev)
    return low <= float(values.double().square().mean()) <= high


def noise(stddev=2.0, *, seed=3, **options):
    sums = {"a": torch.zeros(DRAWS)}
    stream = noise_stream(fixed_seed=seed, **options)
    add_gaussian_noise(sums, noise_stddev=stddev, stream=stream)
    return sums["a"]


def test_five_percent_error_escapes_less_than_once_in_a_million():
    for error in (0.05, -0.05):
        assert variance_escape_probability(DRAWS, relative_error=error) < 1e-6


def test_noise_has_the_stated_stddev_and_no_mean():
    values = noise()
    assert variance_is_right(values, stddev=2.0)
    assert abs(float(values.double().mean())) <= mean_bound(DRAWS, stddev=2.0)


@pytest.mark.parametrize("error", [0.05, -0.05])
def test_noise_five_percent_off_is_caught(error):
    assert not variance_is_right(noise(2.0 * (1 + error)), stddev=2.0)


def test_noise_has_gaussian_tails():
    """Shares beyond 1, 2 and 3 stddev; uniform noise of equal variance is caught."""
    for values, keeps in (
        (noise(1.0), True),
        ((torch.rand(DRAWS) - 0.5) * 12**0.5, False),
    ):
        shares = [float((values.abs() > k).double().mean()) for k in (1, 2, 3)]
        expected = [0.3173105, 0.0455003, 0.0026998]
        bounds = [5 * (p * (1 - p) / DRAWS) ** 0.5 for p in expected]
        within = [
            abs(s - p) <= b for s, p, b in zip(shares, expected, bounds, strict=True)
        ]
        assert all(within) is keeps


def test_noise_of_two_attempts_is_uncorrelated():
    product = noise(1.0) * noise(1.0, attempt=1)
    bound = mean_bound(DRAWS, stddev=1.0)
    assert abs(float(product.double().mean())) <= bound
    assert float((noise(1.0) * noise(1.0)).mean()) > bound  # the twin that reuses it


def released_noise(indices, *, plan=PLAN, steps=40):
    """Draws of each parameter's released gradient where every loss is zero."""
    data = oracles.random_data()
    weightless = type(data)(
        sequences=data.sequences,
        loss_weights=Ragged.of(
            [np.zeros_like(w) for w in data.loss_weights], np.float32
        ),
        units=data.units,
    )
    model = models.tiny_gpt2(num_layers=1)
    feed = Feed(
        data=weightless,
        record_loss=CausalLoss(loss_normalizer=1.0),
        physical_batch_size=8,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )
    draws = {name: [] for name, _ in model.named_parameters()}
    with gradient_source(model, plan=plan, feed=feed, seed=9, attempt=0) as source:
        for step in range(steps):
            source.compute(np.array(indices, np.int64), step=step)
            for name, parameter in model.named_parameters():
                draws[name].append(parameter.grad.flatten().clone())
    return {name: torch.cat(values) for name, values in draws.items()}


def faulty_parameters(draws):
    stddev = 1.3 * 0.4 / 5.0
    return [n for n, v in draws.items() if not variance_is_right(v, stddev=stddev)]


@pytest.mark.parametrize("indices", [[], [0, 1, 2]], ids=["empty", "three"])
def test_every_parameter_is_noised_alike_whatever_was_drawn(indices):
    assert faulty_parameters(released_noise(indices)) == []


def test_noise_scaled_by_the_drawn_batch_is_caught(monkeypatch):
    def by_drawn(self, sums, *, step, noise):
        noise.add(sums, step=step)
        for value in sums.values():
            value.div_(3)

    monkeypatch.setattr(GradientPlan, "release", by_drawn)
    draws = released_noise([0, 1, 2])
    assert len(faulty_parameters(draws)) == len(draws)


def test_noise_forgotten_on_one_group_is_caught(monkeypatch):
    def all_but_norms(sums, *, noise_stddev, stream):
        rest = {name: v for name, v in sums.items() if "ln_f.bias" not in name}
        add_gaussian_noise(rest, noise_stddev=noise_stddev, stream=stream)

    monkeypatch.setattr(noise_module, "add_gaussian_noise", all_but_norms)
    assert faulty_parameters(released_noise([0])) == ["transformer.ln_f.bias"]


def test_noise_without_the_clip_bound_is_caught(monkeypatch):
    def without_bound(self, *, step=0, max_grad_norm=None):
        return self.noise_multiplier

    monkeypatch.setattr(GradientPlan, "noise_stddev", without_bound)
    draws = released_noise([])
    assert len(faulty_parameters(draws)) == len(draws)


BANDS = band_coefficients(num_bands=3, num_steps=8)
STEPS = 8


def banded_noise(stddev=2.0, *, coefficients=BANDS, seed=3, mechanism=BandedNoise):
    """Noise of eight steps, `(steps, draws)`."""
    sums = {"a": torch.zeros(DRAWS)}
    made = mechanism(
        coefficients=coefficients,
        noise_stddev=stddev,
        stream=noise_stream(fixed_seed=seed),
        sums=sums,
    )
    rows = []
    for step in range(STEPS):
        sums = {"a": torch.zeros(DRAWS)}
        made.add(sums, step=step)
        rows.append(sums["a"].double())
    return torch.stack(rows)


def whitened(noise):
    """C times the noise: independent draws of z if and only if its law is C^-1 z."""
    matrix = torch.zeros(STEPS, STEPS, dtype=torch.float64)
    for band, value in enumerate(BANDS):
        matrix += value * torch.diag(torch.ones(STEPS - band).double(), -band)
    return matrix @ noise


def faulty_steps(noise, *, stddev=2.0):
    """Steps whose part of z has not the stated stddev."""
    white = whitened(noise)
    return [t for t in range(STEPS) if not variance_is_right(white[t], stddev=stddev)]


def faulty_lags(noise, *, stddev=2.0):
    """Lags at which parts of z are correlated on average: 7 tests at 1e-6 each."""
    white = whitened(noise) / stddev
    products = {lag: white[lag:] * white[:-lag] for lag in range(1, STEPS)}
    return [
        lag
        for lag, values in products.items()
        if abs(values.mean()) > mean_bound(values.numel(), stddev=1.0)
    ]


def faulty_pairs(noise, *, stddev=2.0):
    """Pairs of steps whose parts of z are correlated: 28 tests at 1e-6 each."""
    white = whitened(noise) / stddev
    bound = mean_bound(DRAWS, stddev=1.0)
    products = white @ white.T / DRAWS
    return [
        (t, u) for t in range(STEPS) for u in range(t) if abs(products[t, u]) > bound
    ]


def test_banded_noise_has_the_covariance_of_the_inverse_factor():
    """8 variances and 28 covariances fix the Gaussian law of C^-1 z."""
    noise = banded_noise()
    assert faulty_steps(noise) == []
    assert faulty_pairs(noise) == []
    assert faulty_lags(noise) == []
    products = noise[1:] * noise[:-1]  # which is no independent noise
    assert float(products.mean()) < -10 * mean_bound(DRAWS, stddev=4.0)


@pytest.mark.parametrize("error", [0.05, -0.05])
def test_banded_noise_five_percent_off_is_caught(error):
    """Escapes any one of the eight steps with less than 1e-6, see above."""
    assert faulty_steps(banded_noise(2.0 * (1 + error))) == list(range(STEPS))


def test_banded_noise_that_forgets_its_last_band_is_caught():
    cut = normalized(np.array(BANDS[:-1]))
    assert faulty_pairs(banded_noise(coefficients=cut))


def test_banded_noise_that_takes_back_five_percent_too_much_is_caught():
    """Bands 5 % off: correlation -0.026 at lag 1, where 168,000 products bound 0.012.

    It escapes with probability below 1e-7.
    """
    loud = normalized(np.array([BANDS[0], *(1.05 * band for band in BANDS[1:])]))
    assert 1 in faulty_lags(banded_noise(coefficients=loud))


def test_independent_noise_in_place_of_banded_is_caught():
    noise = banded_noise(coefficients=(1.0,))
    assert faulty_pairs(noise)


def test_past_noise_lost_on_the_way_is_caught():
    """The twin that resumes in the middle without a charge and without its past."""

    class Forgetful(BandedNoise):
        def add(self, sums, *, step):
            if step == 4:
                self._past.clear()
            super().add(sums, step=step)

    noise = banded_noise(mechanism=Forgetful)
    assert faulty_pairs(noise) or faulty_steps(noise)


def test_every_parameter_of_a_banded_run_is_noised_alike():
    plan = replace(
        PLAN,
        sample_rate=0.25,
        sampling=SamplingKind.CYCLIC_POISSON,
        noise_coefficients=BANDS,
    )
    first = released_noise([], plan=plan, steps=1)
    stddev = 1.3 * 0.4 / 5.0 / BANDS[0]
    assert all(variance_is_right(values, stddev=stddev) for values in first.values())
