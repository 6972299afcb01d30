"""Papers' own figures, against numbers from outside."""

import pytest
from opacus.accountants.analysis import gdp as opacus_gdp
from opacus.accountants.analysis import rdp as opacus_rdp

from dptune.errors import ConfigError
from dptune.mechanisms.nominal import gdp_epsilon, gdp_to_epsilon, renyi_epsilon


def test_order_32_cannot_go_below_its_conversion():
    """SA-ADP prints .186 at delta 1e-5; its own formula cannot be under .371."""
    assert renyi_epsilon(
        [(1000.0, 1)], sample_rate=0.1, delta=1e-5, orders=(32.0,)
    ) == pytest.approx(0.3714, abs=1e-3)


def test_rdp_agrees_with_opacus():
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    spent = opacus_rdp.compute_rdp(
        q=0.01, noise_multiplier=1.1, steps=500, orders=orders
    )
    by_hand = min(
        s + 11.512925464970229 / (a - 1) for s, a in zip(spent, orders, strict=True)
    )
    ours = renyi_epsilon([(1.1, 500)], sample_rate=0.01, delta=1e-5)
    assert ours == pytest.approx(by_hand, rel=1e-6)


def test_levels_add_up():
    both = renyi_epsilon([(1.0, 10), (2.0, 10)], sample_rate=0.1, delta=1e-5)
    assert renyi_epsilon([(2.0, 20)], sample_rate=0.1, delta=1e-5) < both
    assert both < renyi_epsilon([(1.0, 20)], sample_rate=0.1, delta=1e-5)


@pytest.mark.parametrize(
    "changes", [{"delta": 0.0}, {"sample_rate": 0.0}, {"orders": (1.0,)}]
)
def test_numbers_out_of_range_are_refused(changes):
    with pytest.raises(ConfigError, match="nominal"):
        renyi_epsilon([(1.0, 1)], **{"sample_rate": 0.1, "delta": 1e-5} | changes)


@pytest.mark.parametrize(
    ("steps", "rate", "epsilon"),
    [
        ([(0.8, 1000)], 0.01, 2.510),
        ([(0.7, 3)], 0.02, 0.302),
        ([(0.5, 13740)], 16 / 73271, 0.676),
    ],
)
def test_gdp_has_the_figures_that_were_measured(steps, rate, epsilon):
    """By the central limit; PLD certifies 3.14, 1.91 and 2.25 for the same runs."""
    got = gdp_epsilon(steps, sample_rate=rate, delta=1e-5)
    assert got == pytest.approx(epsilon, abs=6e-4)


def test_gdp_agrees_with_opacus():
    mu = opacus_gdp.compute_mu_poisson(
        steps=500, noise_multiplier=1.1, sample_rate=0.01
    )
    theirs = opacus_gdp.eps_from_mu(mu=mu, delta=1e-5)
    ours = gdp_epsilon([(1.1, 500)], sample_rate=0.01, delta=1e-5)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_gdp_of_nothing_is_nothing():
    assert gdp_epsilon([], sample_rate=0.01, delta=1e-5) == 0.0
    assert gdp_to_epsilon(1e-9, delta=1e-5) == 0.0
    assert gdp_to_epsilon(1e6, delta=1e-5) == float("inf")
