"""AdaCliP and GeoClip: the sources' equations, in their own units and step by step."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from dptune.mechanisms.transforms import AdaClip, GeoClip

C, D, SIGMA = 0.3, 7, 0.05
UNIT = C / math.sqrt(D)


def draws(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape)).float()


def followed(transform, releases, *, noise_stddev=SIGMA):
    state = transform.start(releases.shape[1])
    for released in releases:
        state = transform.follow(released, state, noise_stddev=noise_stddev)
    return state


@pytest.mark.parametrize(
    "transform", [AdaClip(initial_norm=C), GeoClip(initial_norm=C, rank=3)]
)
def test_first_step_is_that_of_dp_sgd(transform):
    rows, state = draws(4, D), transform.start(D)
    torch.testing.assert_close(transform.forward(rows, state), rows)
    torch.testing.assert_close(transform.back(rows[0], state), rows[0])


@pytest.mark.parametrize(
    "transform",
    [
        AdaClip(initial_norm=C),
        GeoClip(initial_norm=C, rank=3),
        GeoClip(initial_norm=C, rank=1),
        GeoClip(initial_norm=C, rank=50),
    ],
)
def test_way_back_undoes_the_way_there(transform):
    state = followed(transform, 0.2 * draws(9, D))
    rows = draws(4, D, seed=1)
    moved = transform.forward(rows, state)
    assert float((moved - rows).norm()) > 0.1
    again = torch.stack([transform.back(row, state) for row in moved])
    torch.testing.assert_close(again, rows, rtol=1e-4, atol=1e-5)


def test_adaclip_follows_the_paper_in_its_own_units():
    """m, v, s and b as printed, with clip 1 and s = 1: gradients over C / sqrt(d)."""
    beta_1, beta_2, h_1, h_2 = 0.99, 0.9, 1e-12, 10.0
    releases = 0.2 * draws(6, D).double().numpy()
    m, s = np.zeros(D), np.ones(D)
    for released in releases / UNIT:
        b = np.sqrt(s) * np.sqrt(s.sum())
        m = beta_1 * m + (1 - beta_1) * released
        v = np.clip((released - m) ** 2 - (b * SIGMA / C) ** 2, h_1, h_2)
        s = np.sqrt(beta_2 * s**2 + (1 - beta_2) * v)
    b = np.sqrt(s) * np.sqrt(s.sum())
    gradient = draws(D, seed=2).double().numpy()
    expected = C * (gradient / UNIT - m) / b
    transform = AdaClip(initial_norm=C)
    state = followed(transform, torch.tensor(releases).float())
    found = transform.forward(torch.tensor(gradient).float()[None], state)[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_adaclip_divides_by_what_adds_least_noise():
    """Minimise the sum of b_i^2 while the sum of s_i^2 / b_i^2 is 1."""
    spread = np.array([0.1, 0.5, 2.0, 3.0])
    transform = AdaClip(initial_norm=C)
    state = {"mean": torch.zeros(4), "variance": torch.tensor(spread**2).float()}
    found = transform.back(torch.ones(4), state).numpy() * math.sqrt(4)
    assert (spread**2 / found**2).sum() == pytest.approx(1.0, rel=1e-5)
    best = optimize.minimize(
        lambda b: (b**2).sum(),
        x0=np.full(4, 5.0),
        constraints={"type": "eq", "fun": lambda b: (spread**2 / b**2).sum() - 1},
        tol=1e-12,
    )
    np.testing.assert_allclose(found, np.abs(best.x), rtol=1e-3)


def test_adaclip_takes_the_noise_out_of_its_variance():
    """Releases that are noise alone end at the floor, not at the noise."""
    quiet = AdaClip(initial_norm=C, variance_decay=0.0, floor=1e-6)
    state = followed(quiet, torch.full((1, D), 0.1 * SIGMA))
    assert state["variance"].tolist() == pytest.approx([1e-6] * D)
    twin = followed(quiet, torch.full((1, D), 0.1 * SIGMA), noise_stddev=0.0)
    assert min(twin["variance"].tolist()) > 1e-4


def source_of(covariance):
    """Return (sum of sqrt(lambda))^-1/2 Lambda^-1/4 U^T, as the source writes M."""
    values, vectors = np.linalg.eigh(covariance)
    return (np.sqrt(values).sum() ** -0.5 * values**-0.25)[:, None] * vectors.T


def test_geoclip_of_full_rank_follows_the_source():
    """Norms after M are those of the source's M, in units of C and C / sqrt(d)."""
    alpha, beta = 0.98, 0.9
    releases = 0.2 * draws(30, D).double().numpy()
    mean, covariance = np.zeros(D), np.eye(D)
    for released in releases / UNIT:
        mean = beta * mean + (1 - beta) * released
        step = released - mean
        covariance = alpha * covariance + (1 - alpha) * np.outer(step, step)
    rows = draws(5, D, seed=2).double().numpy()
    expected = C * (rows / UNIT - mean) @ source_of(covariance).T
    transform = GeoClip(initial_norm=C, rank=D, floor=1e-12, ceiling=1e12)
    state = followed(transform, torch.tensor(releases).float())
    found = transform.forward(torch.tensor(rows).float(), state).numpy()
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=1e-3)


def test_geoclip_keeps_the_trace_of_the_full_covariance():
    releases = 0.2 * draws(20, D)
    low, full = (GeoClip(initial_norm=C, rank=k) for k in (2, D))
    traces = []
    for transform in (low, full):
        state = followed(transform, releases)
        others = D - len(state["eigenvalues"])
        traces.append(float(state["eigenvalues"].sum() + others * state["rest"]))
    assert traces[0] == pytest.approx(traces[1], rel=1e-4)


def test_geoclip_learns_directions_that_it_does_not_have():
    direction = torch.zeros(D)
    direction[-1] = 1.0
    transform = GeoClip(initial_norm=C, rank=2, ceiling=1e6)
    state = transform.start(D)
    assert float((direction @ state["basis"]).norm()) == 0.0
    for sign in (1, -1) * 10:
        state = transform.follow(sign * direction, state, noise_stddev=0.0)
    assert float((direction @ state["basis"]).norm()) == pytest.approx(1.0, abs=1e-4)


def test_projection_as_in_the_source_never_learns_another_direction():
    """Why the directions outside the basis are kept: releases stay in its span."""
    transform = GeoClip(initial_norm=C, rank=2)
    state = transform.start(D)
    start, coins = state["basis"].clone(), draws(20, 2, seed=3)
    for noise in coins:
        projected = state["basis"] @ noise + state["mean"]
        state = transform.follow(projected, state, noise_stddev=0.0)
    inside = start @ (start.t() @ state["basis"])
    torch.testing.assert_close(inside, state["basis"], atol=1e-5, rtol=0)


def test_bounds_of_eigenvalues_hold():
    transform = GeoClip(initial_norm=C, rank=1, floor=0.5, ceiling=2.0)
    state = followed(transform, 100 * draws(5, D))
    centre = transform.back(torch.zeros(D), state)
    scale = [
        float((transform.back(row, state) - centre).norm()) for row in torch.eye(D)
    ]
    assert max(scale) <= math.sqrt(2.0) + 1e-4
