"""p-values of audits, against exact laws, linear programs and the papers' figures."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from dptune.audits.tails import (
    GuaranteeCurve,
    guess_tail,
    hit_tail,
    is_possible,
    largest_refuted,
)
from tests.support.gaussian_curve import GaussianCurve, gaussian_epsilon


@pytest.mark.parametrize(("num", "capacity"), [(100, 3.5), (1_000, 5.8), (10_000, 7.8)])
def test_guess_tail_capacity_is_that_of_the_methods_page(num, capacity):
    def refutes(epsilon):
        tail = guess_tail(num, guesses=num, canaries=num, epsilon=epsilon, delta=1e-5)
        return tail <= 0.05

    assert largest_refuted(refutes) == pytest.approx(capacity, abs=0.05)


def test_guess_tail_without_delta_is_binomial():
    tail = guess_tail(8, guesses=10, canaries=99, epsilon=math.log(3), delta=0.0)
    assert tail == pytest.approx(stats.binom.sf(7, 10, 0.75))


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_tails_of_nothing_are_one(delta):
    assert guess_tail(0, guesses=0, canaries=9, epsilon=1, delta=delta) == 1.0
    assert hit_tail(0, canaries=9, share=0.1, epsilon=1, delta=delta) == 1.0
    curve = GuaranteeCurve([(1.0, delta)])
    assert is_possible(0, guesses=0, canaries=9, chance=0.0, curve=curve)


def test_guess_tail_grows_with_delta_and_epsilon():
    tails = [
        guess_tail(45, guesses=50, canaries=100, epsilon=e, delta=d)
        for e, d in ((0.5, 0.0), (0.5, 1e-4), (1.0, 1e-4), (2.0, 1e-4))
    ]
    assert tails == sorted(tails)
    assert tails[0] < tails[1]


def test_guess_tail_covers_a_mechanism_that_is_hardly_ever_all_wrong():
    """Of three coins, "all wrong" has 7/8 delta less chance, spread over the rest.

    One more coin wrong changes the chance of two patterns by delta in all; theorem 5.2
    gives 7/8 + 6/8 delta.
    """
    delta = 1e-4
    actual = 7 / 8 * (1 + delta)
    fixed = {"guesses": 3, "canaries": 3, "epsilon": 0.0}
    assert guess_tail(1, delta=delta, **fixed) >= actual
    assert guess_tail(2, delta=0.0, **fixed) == pytest.approx(0.5)


def test_hit_tail_of_one_canary_is_the_law_of_subset_selection():
    """The mechanism that reaches the bound: P[hit] = e^eps o / (1 + e^eps o)."""
    odds = math.exp(2.0) * 0.01 / 0.99
    tail = hit_tail(1, canaries=1, share=0.01, epsilon=2.0, delta=0.0)
    assert tail == pytest.approx(odds / (1 + odds))


def test_hit_tail_with_delta_covers_a_mechanism_that_tells_all_with_delta():
    delta, share = 0.01, 0.1
    actual = delta + (1 - delta) * share
    assert hit_tail(1, canaries=1, share=share, epsilon=0.0, delta=delta) >= actual


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_guarantee_curve_inverts_both_lines(epsilon):
    curve, delta = GuaranteeCurve([(epsilon, 0.02)]), 0.02
    for small in np.linspace(0, 1, 21):
        upper = min(
            math.exp(epsilon) * small + delta,
            1 - math.exp(-epsilon) * (1 - small - delta),
            1.0,
        )
        assert curve.inverse(upper) <= small + 1e-12


def test_gaussian_curve_is_that_of_two_normals():
    for probability in (0.01, 0.5, 0.99):
        threshold = stats.norm.isf(probability, loc=1.5)
        found = GaussianCurve(1.5).inverse(probability)
        assert found == pytest.approx(stats.norm.sf(threshold))
    assert (GaussianCurve(1).inverse(0.0), GaussianCurve(1).inverse(1.0)) == (0.0, 1.0)


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 1e-5), (0.3, 1e-3), (2.0, 1e-6)])
def test_gaussian_epsilon_by_its_own_curve(mu, delta):
    epsilon = gaussian_epsilon(mu, delta=delta)
    upper = special.ndtr(mu / 2 - epsilon / mu)
    lower = math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu)
    assert upper - lower == pytest.approx(delta, rel=1e-5)
    assert gaussian_epsilon(0.0, delta=delta) == 0.0


def largest_chance(correct, guesses, canaries, guarantees):
    """The same constraints as a linear program over p_0 ... p_r."""
    counts = np.arange(guesses + 1)
    rows, limits = [], []
    for least in range(1, guesses + 1):
        right = np.where(counts >= least, counts, 0) / canaries
        wrong = np.where(counts >= least - 1, guesses - counts, 0) / canaries
        for epsilon, delta in guarantees:
            rows.append(right - math.exp(epsilon) * wrong)
            limits.append(delta)
            rows.append(right - math.exp(-epsilon) * wrong)
            limits.append(1 - math.exp(-epsilon) * (1 - delta))
    found = optimize.linprog(
        -(counts >= correct).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    return -found.fun


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries"), [(9, 10, 10), (7, 10, 25), (5, 5, 40)]
)
@pytest.mark.parametrize(
    "guarantees", [[(0.8, 0.0)], [(0.8, 0.01)], [(1.0, 0.001), (0.3, 0.05)]]
)
def test_is_possible_is_the_linear_program(correct, guesses, canaries, guarantees):
    chance = largest_chance(correct, guesses, canaries, guarantees)
    assert 0.0 < chance < 1.0
    fixed = {
        "guesses": guesses,
        "canaries": canaries,
        "curve": GuaranteeCurve(guarantees),
    }
    assert is_possible(correct, chance=chance * 0.999, **fixed)
    assert not is_possible(correct, chance=min(1.0, chance * 1.001), **fixed)


def test_is_possible_with_the_whole_curve_refutes_more_than_its_epsilon():
    """A Gaussian claim by its curve, and by its epsilon at one delta."""
    mu, counts = 0.5, {"guesses": 400, "canaries": 1_000, "chance": 0.01}
    point = (gaussian_epsilon(mu, delta=1e-5), 1e-5)
    assert not is_possible(345, curve=GaussianCurve(mu), **counts)
    assert is_possible(345, curve=GuaranteeCurve([point]), **counts)


def test_largest_refuted_is_zero_where_nothing_is():
    assert largest_refuted(lambda epsilon: False) == 0.0
    assert largest_refuted(lambda epsilon: True) == 100.0
    assert largest_refuted(lambda epsilon: epsilon <= 3.25) == pytest.approx(3.25)
