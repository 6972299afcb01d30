"""What RLDP claims, and what that costs even if its controller saw nothing."""

import math

import pytest
from dp_accounting import dp_event as dpe
from scipy.optimize import brentq

from dptune.accounting.accountants import epsilon
from dptune.mechanisms.nominal import gdp_epsilon
from dptune.privacy import NeighboringRelation

RATE, STEPS, PAIRS, DELTA = 16 / 73271, 13740, 12, 1e-5
"""Section 3: batches of 16, three epochs of 80 % of 90 % of 101,766; GPT-2 has 12."""


@pytest.mark.parametrize(("claimed", "true"), [(0.5, 180.7), (8.0, 553.5)])
def test_pairs_noised_each_as_if_alone_cost_what_they_cost_together(claimed, true):
    """Equation 6: n Gaussians of sigma are one of sigma / sqrt(n).

    An independent accountant gave 181 and 553. The tolerance is the
    grid's, at an epsilon of hundreds.
    """
    sigma = brentq(
        lambda s: gdp_epsilon([(s, STEPS)], sample_rate=RATE, delta=DELTA) - claimed,
        0.2,
        3.0,
    )
    together = dpe.PoissonSampledDpEvent(
        RATE, dpe.GaussianDpEvent(sigma / math.sqrt(PAIRS))
    )
    event = dpe.SelfComposedDpEvent(together, STEPS)
    spent = epsilon(event, delta=DELTA, relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert spent == pytest.approx(true, rel=0.01)
