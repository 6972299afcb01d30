"""Table I of SA-ADP under the formula of its section IV: what fits, and what cannot.

Etuk, Matrawy (2025): q = 0.1, delta = 1e-5, sigma 2 and 3 for DP-SGD. The number of
steps is not given: it is the one free number of two figures, which is why tolerances
are wide.
"""

import math

import pytest

from dptune.mechanisms.nominal import OPACUS_ORDERS, renyi_epsilon

DELTA, RATE = 1e-5, 0.1
DP_SGD = {
    "UNSW-NB15": (1.7246, 1.0712),
    "ABCD": (1.5039, 0.9401),
    "CUSTOMERSIM": (2.5096, 1.5319),
    "WIKITEXT-2": (2.7711, 1.1259),
}


def figure(sigma, num_steps, **changes):
    return renyi_epsilon([(sigma, num_steps)], sample_rate=RATE, delta=DELTA, **changes)


@pytest.mark.parametrize(
    ("corpus", "num_steps", "apart"),
    [("CUSTOMERSIM", 68, 0.015), ("UNSW-NB15", 30, 0.04), ("ABCD", 21, 0.05)],
)
def test_figures_of_dp_sgd_are_the_least_over_orders(corpus, num_steps, apart):
    for sigma, printed in zip((2.0, 3.0), DP_SGD[corpus], strict=True):
        assert figure(sigma, num_steps) == pytest.approx(printed, rel=apart)


def test_figures_of_wikitext_belong_to_no_number_of_steps():
    first, second = DP_SGD["WIKITEXT-2"]
    for num_steps in (35, 50, 70, 84):
        off = abs(figure(2.0, num_steps) / first - 1)
        assert off + abs(figure(3.0, num_steps) / second - 1) > 0.2


def test_order_32_of_the_text_gives_none_of_them():
    assert figure(2.0, 20, orders=(32.0,)) > 20
    assert math.log(1 / DELTA) / 31 > 0.37  # at any noise at all


@pytest.mark.parametrize(("printed", "above"), [(0.1858, 2e-4), (0.1869, 2e-3)])
def test_smallest_figures_of_sa_adp_are_the_floor_of_the_orders(printed, above):
    floor = math.log(1 / DELTA) / (max(OPACUS_ORDERS) - 1)
    assert figure(1e6, 1) == pytest.approx(floor, rel=1e-6)
    assert 0 < printed - floor < above
