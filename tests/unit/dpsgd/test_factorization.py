"""Bands against dense matrices, a grid, and finite differences."""

import math

import numpy as np
import pytest

from dptune.dpsgd import factorization
from dptune.dpsgd.factorization import (
    INDEPENDENT,
    band_coefficients,
    column_norm,
    is_normalized,
    normalized,
    prefix_sum_error,
)
from dptune.errors import ConfigError


def dense(coefficients, num_steps):
    matrix = np.zeros((num_steps, num_steps))
    for band, value in enumerate(coefficients):
        matrix += value * np.eye(num_steps, k=-band)
    return matrix


@pytest.mark.parametrize("bands", [1, 2, 5, 16])
def test_error_is_that_of_the_dense_matrices(bands):
    found = band_coefficients(num_bands=bands, num_steps=40)
    noisy = np.tril(np.ones((40, 40))) @ np.linalg.inv(dense(found, 40))
    expected = math.sqrt((noisy**2).sum(1).mean())
    assert prefix_sum_error(found, num_steps=40) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("bands", [1, 2, 7, 40])
def test_largest_column_has_norm_one_and_never_more(bands):
    found = band_coefficients(num_bands=bands, num_steps=40)
    norms = np.linalg.norm(dense(found, 40), axis=0)
    assert norms.max() == norms[0] == pytest.approx(1.0, abs=1e-9)
    assert column_norm(found) <= 1.0
    assert is_normalized(found)


def test_one_band_is_independent_noise():
    assert band_coefficients(num_bands=1, num_steps=9) == INDEPENDENT == (1.0,)
    assert prefix_sum_error(INDEPENDENT, num_steps=9) == pytest.approx(math.sqrt(5))


@pytest.mark.parametrize("num_steps", [3, 256, 8000])
def test_two_bands_are_the_best_of_a_grid(num_steps):
    found = band_coefficients(num_bands=2, num_steps=num_steps)
    best = min(
        prefix_sum_error(normalized(np.array([1.0, tail])), num_steps=num_steps)
        for tail in np.linspace(0.2, 0.999, 800)
    )
    assert prefix_sum_error(found, num_steps=num_steps) <= best * (1 + 1e-5)


@pytest.mark.parametrize("num_steps", [64, 5000])
def test_more_bands_have_less_error_at_equal_noise(num_steps):
    errors = [
        prefix_sum_error(
            band_coefficients(num_bands=bands, num_steps=num_steps), num_steps=num_steps
        )
        for bands in (1, 2, 4, 8, 16, 32, 64)
    ]
    assert errors == sorted(errors, reverse=True)
    least = math.sqrt((num_steps + 1) / 2 / 64)  # b bands save sqrt(b) at most
    assert errors[-1] > least


def test_gradient_is_that_of_finite_differences():
    tail = np.array([0.4, 0.25, 0.1])
    _, slope = factorization._loss(tail, 50)
    for index in range(3):
        step = np.zeros(3)
        step[index] = 1e-6
        high, low = (factorization._loss(tail + s, 50)[0] for s in (step, -step))
        assert slope[index] == pytest.approx((high - low) / 2e-6, rel=1e-5)


def test_bands_whose_inverse_overflows_are_hopeless():
    value, slope = factorization._loss(np.array([9.0]), 2000)
    assert value == 1e6
    assert not slope.any()


@pytest.mark.parametrize(("bands", "steps"), [(0, 5), (6, 5), (-1, 5), (1, 0)])
def test_more_bands_than_steps_are_refused(bands, steps):
    with pytest.raises(ConfigError, match="num_bands"):
        band_coefficients(num_bands=bands, num_steps=steps)


@pytest.mark.parametrize(
    "coefficients",
    [(), (1.0, 0.5), (0.9,), (-1.0,), (0.0, 1.0), (math.nan,), (math.inf,)],
)
def test_coefficients_of_another_norm_are_told_apart(coefficients):
    assert not is_normalized(coefficients)
