"""The second opinion against closed forms that know nothing of either accountant."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import integrate, stats

from dptune.accounting.quadrature import (
    QuadratureError,
    quadrature_delta,
    quadrature_epsilon,
)
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def gaussian_delta(mu, epsilon):
    """Balle and Wang (2018), Theorem 8."""
    tail = stats.norm.logcdf(-mu / 2 - epsilon / mu)
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + tail)


@pytest.mark.parametrize(("relation", "sensitivity"), [(ADD, 1.0), (REPLACE, 2.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 6.0])
def test_quadrature_delta_gaussians_match_the_closed_form(
    relation, sensitivity, epsilon
):
    event = dpa.ComposedDpEvent(
        [
            dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(5.0), 30),
            dpa.GaussianDpEvent(1.5),
        ]
    )
    mu = sensitivity * math.sqrt(30 / 25 + 1 / 2.25)
    actual = quadrature_delta(event, epsilon=epsilon, relation=relation)
    assert actual == pytest.approx(gaussian_delta(mu, epsilon), rel=1e-3)


def hockey_stick(p, q, epsilon):
    """Integrate (P - exp(e) Q)+ directly."""
    value, _ = integrate.quad(
        lambda x: max(p(x) - math.exp(epsilon) * q(x), 0.0),
        -30,
        30,
        limit=500,
        epsabs=1e-14,
    )
    return value


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("rate", "noise"), [(0.3, 1.0), (0.9, 2.0), (0.5, 0.7)])
def test_quadrature_delta_one_sampled_step_matches_direct_integration(
    relation, rate, noise
):
    def mixture(center):
        return lambda x: (
            (1 - rate) * stats.norm.pdf(x, 0, noise)
            + rate * stats.norm.pdf(x, center, noise)
        )

    event = poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=1
    )
    pairs = [(mixture(1.0), mixture(-1.0))]
    if relation is ADD:
        pairs = [(mixture(1.0), mixture(0.0)), (mixture(0.0), mixture(1.0))]
    epsilon = 0.4
    exact = max(hockey_stick(p, q, epsilon) for p, q in pairs)
    actual = quadrature_delta(event, epsilon=epsilon, relation=relation)
    assert actual == pytest.approx(exact, rel=1e-3)


def test_quadrature_epsilon_inverts_delta():
    event = poisson_gaussian_event(
        sample_rate=0.05, noise_multiplier=1.1, num_steps=200
    )
    epsilon = quadrature_epsilon(event, delta=1e-5, relation=REPLACE)
    delta = quadrature_delta(event, epsilon=epsilon, relation=REPLACE)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize(
    ("event", "epsilon", "delta"),
    [
        (dpa.NoOpDpEvent(), 0.0, 0.0),
        (dpa.NonPrivateDpEvent(), math.inf, 1.0),
        (dpa.GaussianDpEvent(0.0), math.inf, 1.0),
        (dpa.PoissonSampledDpEvent(0.0, dpa.GaussianDpEvent(1.0)), 0.0, 0.0),
        (dpa.GaussianDpEvent(1e6), 0.0, None),
    ],
)
def test_quadrature_edge_cases(event, epsilon, delta):
    assert quadrature_epsilon(event, delta=1e-5, relation=REPLACE) == epsilon
    if delta is not None:
        assert quadrature_delta(event, epsilon=1.0, relation=ADD) == delta


def test_quadrature_delta_added_unit_cannot_cost_more_than_its_largest_loss():
    """Beyond -ln(1-q) per step only the remove direction is left."""
    event = poisson_gaussian_event(sample_rate=0.1, noise_multiplier=1.0, num_steps=2)
    beyond = -2 * math.log1p(-0.1) + 0.5
    assert 0 < quadrature_delta(event, epsilon=beyond, relation=ADD) < 0.01


def test_quadrature_epsilon_truncated_steps_cost_more_than_whole_ones():
    def cost(cap):
        event = dpa.SelfComposedDpEvent(
            dpa.TruncatedSubsampledGaussianDpEvent(1600, 0.01, cap, 0.8), 100
        )
        return quadrature_epsilon(event, delta=1e-5, relation=ADD)

    whole = quadrature_epsilon(
        poisson_gaussian_event(sample_rate=0.01, noise_multiplier=0.8, num_steps=100),
        delta=1e-5,
        relation=ADD,
    )
    assert cost(200) == pytest.approx(whole, rel=1e-3)
    assert cost(24) > whole * 1.05


def test_quadrature_refuses_what_it_cannot_do():
    with pytest.raises(QuadratureError, match="noise_multiplier"):
        quadrature_epsilon(dpa.GaussianDpEvent(0.01), delta=1e-5, relation=ADD)
    tiny = poisson_gaussian_event(sample_rate=1e-6, noise_multiplier=0.5, num_steps=2)
    with pytest.raises(QuadratureError, match="settle"):
        quadrature_epsilon(tiny, delta=1e-9, relation=ADD)


def test_quadrature_delta_falls_with_epsilon():
    event = poisson_gaussian_event(
        sample_rate=0.02, noise_multiplier=0.9, num_steps=300
    )
    deltas = [
        quadrature_delta(event, epsilon=float(e), relation=ADD)
        for e in np.linspace(0, 5, 11)
    ]
    assert all(np.diff(deltas) < 0)
