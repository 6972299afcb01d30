"""EW-FT's noise list for SST-2, against Opacus' PRV accountant and closed forms.

`LIST` and `CONSTANT` were computed with `opacus.accountants.PRVAccountant` (1.6.0,
eps_error .01), the accountant of the paper, by a separate program.
"""

import math
from functools import partial

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from scipy.optimize import brentq
from scipy.stats import norm

from dptune.accounting.accountants import epsilon
from dptune.mechanisms.ewpba import allocate, sampled_epsilon
from dptune.privacy import NeighboringRelation

DELTA, EPOCHS = 1e-5, 3
LIST = (0.46188, 0.41602, 0.37016)
CENTER = 0.40455
CONSTANT = 0.3905


def claimed():
    """The paper's figure on SST-2: 67,349 sequences, batches of 32, 3 epochs."""
    steps = 67_349 // 32 * EPOCHS
    rate = 32 / 67_349
    return partial(sampled_epsilon, sample_rate=rate, num_steps=steps, delta=DELTA)


def certified(multipliers):
    """What a server that sees every participation has, by the accountant."""
    event = ComposedDpEvent([GaussianDpEvent(s) for s in multipliers])
    return epsilon(event, delta=DELTA, relation=NeighboringRelation.REPLACE_ONE)


def closed_form(multipliers):
    """The same by Balle and Wang (2018), theorem 5: mu = 2 sqrt(sum 1 / sigma^2)."""
    mu = 2 * math.sqrt(sum(1 / s**2 for s in multipliers))

    def excess(e):
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)

    return brentq(lambda e: excess(e) - DELTA, 0, 500)


def test_list_for_sst2_is_that_of_the_papers_accountant():
    found = allocate(claimed(), target_epsilon=8.0, num_epochs=EPOCHS, step_distance=2)
    assert found == pytest.approx(LIST, abs=1e-3)
    assert sum(found) / 3 == pytest.approx(found[1])


def test_papers_figures_agree_with_prv():
    assert claimed()((CENTER,) * 3) == pytest.approx(7.0, abs=0.02)
    assert claimed()((CONSTANT,) * 3) == pytest.approx(8.0, abs=0.02)
    assert claimed()(LIST) == pytest.approx(8.0, abs=0.02)


@pytest.mark.parametrize(
    ("multipliers", "expected"), [((CONSTANT,) * 3, 76.4), (LIST, 70.7)]
)
def test_claim_of_eight_is_worth_seventy(multipliers, expected):
    assert closed_form(multipliers) == pytest.approx(expected, abs=0.05)
    assert certified(multipliers) == pytest.approx(expected, abs=0.2)


def test_sound_scale_of_the_list_is_certified_at_eight():
    scale = brentq(lambda c: closed_form([c * s for s in LIST]) - 8.0, 1, 20)
    assert certified([scale * s for s in LIST]) == pytest.approx(8.0, abs=0.05)
    assert scale == pytest.approx(5.0, abs=0.7)
