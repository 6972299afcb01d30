"""Epsilons of published schedules, and of an accountant that shares no code with ours.

The schedules and the figures for RDP and PLD were computed with dp_accounting 0.6.0's
own accountants (PLD grid 1e-3), PRV with Opacus 1.6.0 (`PRVAccountant`, Gopi et al.
2021, eps_error 0.01). Tolerances: one unit of the last digit given; our grid is
adaptive, theirs was fixed.
"""

import dp_accounting as dpa
import pytest
from opacus.accountants import PRVAccountant

from dptune.accounting.accountants import Accountant, epsilon
from dptune.accounting.adaptive import Card, SigmaDeck
from dptune.accounting.events import merge_events
from dptune.accounting.groups import group_epsilon
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def schedule(*parts):
    return merge_events(
        poisson_gaussian_event(
            sample_rate=rate, noise_multiplier=noise, num_steps=count
        )
        for rate, noise, count in parts
    )


JFT_ATDP = [
    (0.02, 1.0, 200),
    *((0.05, noise, 10) for noise in (2.0, 2.6, 3.4, 2.0, 2.6)),
]
SCHEDULES = [
    pytest.param(JFT_ATDP, 2.317, 1.947, 1.957, id="jft then atdp"),
    pytest.param([(0.01, 0.8, 1000)], 3.696, 3.141, 3.151, id="dp-sgd"),
    pytest.param([(0.02, 0.7, 3)], 2.819, 1.911, 1.921, id="few steps"),
    pytest.param([(16 / 73272, 0.5, 13740)], 3.464, 2.254, 2.261, id="rldp floor"),
]


@pytest.mark.parametrize(("parts", "rdp", "pld", "prv"), SCHEDULES)
def test_epsilon_add_or_remove_agrees_with_published_figures(parts, rdp, pld, prv):
    event = schedule(*parts)
    ours = epsilon(event, delta=1e-5, relation=ADD)
    assert ours == pytest.approx(pld, rel=2e-3)
    assert pld * (1 - 2e-3) <= ours <= prv
    second = epsilon(event, delta=1e-5, relation=ADD, accountant=Accountant.RDP)
    assert second == pytest.approx(rdp, abs=1e-3)


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_epsilon_never_below_the_lower_estimate_of_prv():
    """Opacus brackets epsilon; ours must lie inside its bracket."""
    for parts in (JFT_ATDP, [(0.05, 1.3, 300)]):
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, count) for rate, noise, count in parts]
        upper = accountant.get_epsilon(1e-5, eps_error=0.01)
        ours = epsilon(schedule(*parts), delta=1e-5, relation=ADD)
        assert upper - 0.02 <= ours <= upper


@pytest.mark.parametrize(("relation", "expected"), [(ADD, 2.568), (REPLACE, 4.559)])
def test_epsilon_replace_is_not_add_or_remove(relation, expected):
    """Shi et al. (2022), Definition 3, replaces: 4.56, where add/remove gives 2.57."""
    event = schedule((0.02, 1.37, 1000))
    actual = epsilon(event, delta=1e-6, relation=relation)
    assert expected - 1e-3 <= actual <= expected * 1.002
    theirs = dpa.pld.PLDAccountant(
        {
            ADD: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
            REPLACE: dpa.NeighboringRelation.REPLACE_ONE,
        }[relation],
        1e-3,
    )
    theirs.compose(event)
    assert actual == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-3)


def test_epsilon_light_noise_certified_with_the_true_sample_rate():
    """JFT's light noise claims .26 by multiplying q with the missing rate.

    That is not random sampling. Sample rate .02, noise multiplier .6: already a
    single pass of 50 steps costs more than ten times the claim.
    """
    event = schedule((0.02, 0.6, 50))
    assert epsilon(event, delta=1e-5, relation=REPLACE) > 10 * 0.26


def test_group_epsilon_secret_inserted_ten_times():
    """ATDP plants its canary ten times: at epsilon 2.57 the group's is about 41."""
    event = schedule((0.02, 1.37, 1000))
    ten = group_epsilon(event, group_size=10, delta=1e-6, relation=ADD)
    assert ten == pytest.approx(41.17, rel=2e-3)
    assert ten > 41.1


@pytest.mark.parametrize(("cap", "expected"), [(16, None), (26, 8.13), (102, None)])
def test_epsilon_truncated_batches_cost_what_the_cap_costs(cap, expected):
    """q .01, noise .8, 1,000 steps, 1,600 units: mean 16, cap 1.6 times the mean."""
    size = 1600 if cap < 100 else 6400
    event = dpa.SelfComposedDpEvent(
        dpa.TruncatedSubsampledGaussianDpEvent(size, 0.01, cap, 0.8), 1000
    )
    actual = epsilon(event, delta=1e-5, relation=ADD)
    free = epsilon(schedule((0.01, 0.8, 1000)), delta=1e-5, relation=ADD)
    assert actual >= free * 0.999
    if expected is not None:
        assert actual == pytest.approx(expected, rel=0.1)
    if cap == 102:
        assert actual == pytest.approx(3.165, rel=5e-3)


def test_epsilon_local_release_as_certified():
    """A server sees every participation: no amplification, sensitivity 2C."""
    plain = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(4.0), 3)
    replaced = epsilon(plain, delta=1e-5, relation=REPLACE)
    analytic = dpa.get_epsilon_gaussian(4.0 / 2 / 3**0.5, 1e-5)
    assert analytic <= replaced <= analytic * 1.002


def test_sigma_deck_costs_what_a_fixed_schedule_of_its_cards_costs():
    counts = {0.9: 120, 1.1: 500, 1.4: 380}
    deck = SigmaDeck(
        {Card(sample_rate=0.02, noise_multiplier=s): n for s, n in counts.items()}
    )
    fixed = schedule(*((0.02, noise, count) for noise, count in counts.items()))
    for relation in (ADD, REPLACE):
        charged = epsilon(deck.event, delta=1e-5, relation=relation)
        assert charged == epsilon(fixed, delta=1e-5, relation=relation)
