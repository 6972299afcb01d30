"""Adaptive budgets against adversaries: exact trees of every adaptive strategy.

Cards of the trees are two- or three-outcome mechanisms, so that the best strategy of a
controller can be found by trying all of them, with no sampling and no rounding.
"""

import functools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import event_from_json, event_to_json, merge_events
from dptune.accounting.filters import (
    AdaptiveBudget,
    Card,
    RdpFilter,
    SigmaDeck,
    best_order,
)
from dptune.accounting.pairs import gaussian_pairs
from dptune.accounting.renyi import divergence_limit, step_divergence
from dptune.errors import BudgetExceededError, ConfigError, UnsupportedEventError
from dptune.privacy import NeighboringRelation, PrivacyBudget

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
LAWS = settings(derandomize=True, deadline=None, max_examples=40)


def response(loss):
    """Outcomes (p, q) of randomized response with this privacy loss."""
    truth = math.exp(loss) / (1 + math.exp(loss))
    return ((truth, 1 - truth), (1 - truth, truth))


def leak(chance):
    """Outcomes of a mechanism that tells all with a small chance, else nothing."""
    return ((chance, 0.0), (1 - chance, 1 - chance), (0.0, chance))


def hockey_stick(mechanisms, c):
    """Exact hockey stick of a fixed sequence."""
    if not mechanisms:
        return max(0.0, 1 - c)
    first, *rest = mechanisms
    return sum(p * hockey_stick(rest, c * q / p) for p, q in first if p > 0)


def worst_case(c, state, moves):
    """Exact hockey stick of the adaptive controller that hurts most.

    Args:
        c: exp(epsilon).
        state: what the budget knows.
        moves: mechanisms that may run now, with the state after each.
    """

    @functools.cache
    def value(c, state):
        stop = max(0.0, 1 - c)
        return max(
            [
                stop,
                *(
                    sum(p * value(c * q / p, after) for p, q in mechanism if p > 0)
                    for mechanism, after in moves(state)
                ),
            ]
        )

    return value(c, state)


def without(cards, index):
    return (*cards[:index], *cards[index + 1 :])


CARDS = st.lists(
    st.one_of(st.floats(0.05, 2.0).map(response), st.floats(0.001, 0.2).map(leak)),
    min_size=1,
    max_size=4,
).map(tuple)


@LAWS
@given(cards=CARDS, c=st.floats(0.2, 8.0))
def test_deck_no_adaptive_order_beats_the_multiset(cards, c):
    """The theorem of `SigmaDeck`, exactly."""
    worst = worst_case(
        c, cards, lambda left: [(left[i], without(left, i)) for i in range(len(left))]
    )
    assert worst <= hockey_stick(list(cards), c) * (1 + 1e-12) + 1e-15


@pytest.mark.parametrize("c", [2.0, 4.0])
def test_deck_twin_that_may_play_a_card_twice_is_caught(c):
    cards = (response(0.5), leak(0.05))
    twin = worst_case(
        c, 2, lambda left: [(card, left - 1) for card in cards] if left else []
    )
    assert twin > hockey_stick(list(cards), c) * 1.05


def test_spent_curve_filter_twin_under_reports():
    """The invalid filter, by numbers.

    Budget: epsilon 1, delta .1. First a response of loss 1. Had the next mechanism been
    fixed, either a response of loss .27 or a leak of .1 would keep the composition
    within the budget: that is all that the spent curve looks at. But a controller may
    take the response after the outcome of loss +1 and the leak after that of -1.
    """
    c, delta = math.exp(1.0), 0.1
    first, after_high, after_low = response(1.0), response(0.27), leak(0.1)
    assert hockey_stick([first], c) <= delta
    assert hockey_stick([first, after_high], c) <= delta
    assert hockey_stick([first, after_low], c) <= delta * (1 + 1e-12)
    (p_high, q_high), (p_low, q_low) = first
    true = p_high * hockey_stick([after_high], c * q_high / p_high)
    true += p_low * hockey_stick([after_low], c * q_low / p_low)
    assert true > 1.2 * delta


OFFERS = (response(0.1), response(0.27), response(1.0), leak(0.02), leak(0.1))


def allowed(spent):
    """Moves of the spent-curve filter at epsilon 1, delta .1."""
    return [
        (offer, (*spent, index))
        for index, offer in enumerate(OFFERS)
        if len(spent) < 3
        and hockey_stick([OFFERS[i] for i in spent] + [offer], math.exp(1.0))
        <= 0.1 + 1e-12
    ]


def test_spent_curve_filter_twin_is_refuted_by_the_tree():
    assert worst_case(math.exp(1.0), (), allowed) > 1.2 * 0.1


def renyi(mechanism, order):
    """Exact Renyi divergence of outcomes, infinite where q is 0."""
    total = 0.0
    for p, q in mechanism:
        if p > 0 and q == 0:
            return math.inf
        total += q * (p / q) ** order if q > 0 else 0.0
    return math.log(total) / (order - 1)


SPREAD = tuple(response(loss) for loss in (0.1, 0.3, 0.5, 0.8))


@pytest.mark.parametrize("orders", [(4.0,), (2.0, 6.0, 20.0)])
@pytest.mark.parametrize("target", [1.5, 2.0])
def test_rdp_filter_rule_no_adaptive_strategy_beats_the_budget(orders, target):
    """The rule of `RdpFilter` on cards whose divergences are known exactly."""
    delta = 0.02
    limits = [
        divergence_limit(epsilon=target, delta=delta / len(orders), order=order)
        for order in orders
    ]
    costs = [[renyi(card, order) for order in orders] for card in SPREAD]

    def moves(played):
        for index, card in enumerate(SPREAD):
            after = [a + b for a, b in zip(played[1:], costs[index], strict=True)]
            if played[0] < 5 and any(
                total <= limit for total, limit in zip(after, limits, strict=True)
            ):
                yield card, (played[0] + 1, *after)

    worst = worst_case(math.exp(target), (0, *(0.0 for _ in orders)), moves)
    assert 0 < worst <= delta


def test_rdp_filter_twin_without_the_division_of_delta_is_larger():
    orders, delta = (2.0, 6.0, 20.0), 0.02
    for order in orders:
        sound = divergence_limit(epsilon=1.0, delta=delta / len(orders), order=order)
        assert divergence_limit(epsilon=1.0, delta=delta, order=order) > sound


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_rdp_filter_event_costs_the_budget(relation):
    budget = PrivacyBudget(target_epsilon=3.0, target_delta=1e-5)
    for orders in ((6.0,), (6.0, 12.0)):
        granted = RdpFilter(budget, sample_rate=0.02, relation=relation, orders=orders)
        cost = epsilon(granted.event, delta=1e-5, relation=relation)
        assert 3.0 <= cost <= 3.0 * 1.002


def test_rdp_filter_event_round_trips_and_belongs_to_one_relation():
    budget = PrivacyBudget(target_epsilon=3.0, target_delta=1e-5)
    event = RdpFilter(budget, sample_rate=0.02, relation=ADD, orders=[6.0, 12.0]).event
    assert event_from_json(event_to_json(event)) == event
    assert merge_events([event]) == event
    with pytest.raises(UnsupportedEventError, match="relation"):
        epsilon(event, delta=1e-5, relation=REPLACE)


def test_rdp_filter_event_covers_a_run_that_it_let_through():
    """Filter event plus a fixed stage: never below PLD of what really ran."""
    budget = PrivacyBudget(target_epsilon=2.0, target_delta=1e-5)
    granted = RdpFilter(budget, sample_rate=0.02, relation=ADD, orders=[8.0])
    fixed = dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0)), 200
    )
    count = 0
    while count < 5000:
        try:
            granted.ask(1.3)
        except BudgetExceededError:
            break
        count += 1
    assert 100 < count < 5000
    ran = dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(0.02, dpa.GaussianDpEvent(1.3)), count
    )
    true = epsilon(merge_events([ran, fixed]), delta=1e-5, relation=ADD)
    charged = epsilon(merge_events([granted.event, fixed]), delta=1e-5, relation=ADD)
    assert true < charged < true + 0.6


def test_rdp_filter_refuses_what_does_not_fit_and_spends_nothing_for_it():
    budget = PrivacyBudget(target_epsilon=1.0, target_delta=1e-5)
    granted = RdpFilter(budget, sample_rate=0.1, relation=ADD, orders=[20.0])
    assert granted.ask(2.0) == 2.0
    before = granted.spent
    for wish in (0.1, 0.0):
        with pytest.raises(BudgetExceededError, match="noise_multiplier"):
            granted.ask(wish)
    assert granted.spent == before
    assert granted.ask(0.3, sample_rate=0.0) == 0.3
    assert granted.spent == pytest.approx(before)


def test_rdp_filter_goes_on_where_it_was_killed():
    budget = PrivacyBudget(target_epsilon=1.0, target_delta=1e-5)
    whole = RdpFilter(budget, sample_rate=0.02, relation=ADD, orders=[20.0])
    for _ in range(3):
        whole.ask(4.0)
    again = RdpFilter(
        budget, sample_rate=0.02, relation=ADD, orders=[20.0], spent=whole.spent
    )
    assert again.spent == whole.spent
    assert again.event == whole.event


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"orders": []}, "orders"),
        ({"orders": [1.0]}, "orders"),
        ({"orders": [4.0, 4.0]}, "orders"),
        ({"orders": [1.01]}, "target_epsilon"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"spent": [0.1, 0.2]}, "spent"),
        ({"spent": [-0.1]}, "spent"),
    ],
)
def test_rdp_filter_bad_settings_are_refused(changes, message):
    settings = {"sample_rate": 0.1, "orders": [20.0], "relation": ADD, **changes}
    with pytest.raises(ConfigError, match=message):
        RdpFilter(PrivacyBudget(target_epsilon=1.0, target_delta=1e-5), **settings)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_ask_bad_noise_is_refused(bad):
    budget = PrivacyBudget(target_epsilon=1.0, target_delta=1e-5)
    granted = RdpFilter(budget, sample_rate=0.1, relation=ADD, orders=[20.0])
    for adaptive in (
        granted,
        SigmaDeck({Card(sample_rate=0.1, noise_multiplier=1): 1}),
    ):
        with pytest.raises(ConfigError, match="noise_multiplier"):
            adaptive.ask(bad)


@pytest.mark.parametrize("order", [2.0, 6.0, 32.0])
@pytest.mark.parametrize(("rate", "noise"), [(0.02, 0.8), (0.3, 2.0), (1.0, 1.5)])
def test_step_divergence_equals_dp_accounting_under_add_or_remove(order, rate, noise):
    accountant = dpa.rdp.RdpAccountant(orders=[order])
    accountant.compose(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)))
    ours = step_divergence(
        sample_rate=rate, noise_multiplier=noise, order=order, relation=ADD
    )
    assert ours == pytest.approx(float(accountant.rdp[0]), rel=1e-6)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("order", [1.1, 1.5, 7.3])
def test_step_divergence_equals_direct_integration(order, relation):
    """Fractional orders, where dp_accounting is loose or gives up."""
    rate, noise = 0.3, 0.8
    worst = 0.0
    for pair in gaussian_pairs(
        sample_rate=rate, noise_multiplier=noise, relation=relation
    ):

        def density(x, pair=pair):
            at = np.array([x])
            log_p, log_q = pair.log_p(at), pair.log_q(at)
            return float(np.exp(order * log_p - (order - 1) * log_q)[0])

        total, _ = integrate.quad(density, -20, 40, limit=500, epsabs=0, epsrel=1e-11)
        total /= noise * math.sqrt(2 * math.pi)
        worst = max(worst, math.log(total) / (order - 1))
    ours = step_divergence(
        sample_rate=rate, noise_multiplier=noise, order=order, relation=relation
    )
    assert worst <= ours <= worst * (1 + 1e-7)


def test_step_divergence_replace_of_a_plain_gaussian_has_twice_the_sensitivity():
    ours = step_divergence(
        sample_rate=1.0, noise_multiplier=2.0, order=5.0, relation=REPLACE
    )
    assert ours == pytest.approx(5.0 * 4 / (2 * 4), rel=1e-8)


def deck(**changes):
    cards = {
        Card(sample_rate=0.02, noise_multiplier=noise): count
        for noise, count in ((0.8, 2), (1.0, 3), (1.5, 1))
    }
    return SigmaDeck(cards, **changes)


def test_deck_event_is_the_multiset_whatever_is_played():
    cards = deck()
    before = cards.event
    for wish in (5.0, 1.0):
        cards.ask(wish)
    assert cards.event == before
    assert sum(count for count in cards.left.values()) == 4


def test_deck_plays_the_nearest_card_that_is_left_then_refuses():
    cards = deck()
    assert [cards.ask(1.4) for _ in range(6)] == [1.5, 1.0, 1.0, 1.0, 0.8, 0.8]
    with pytest.raises(BudgetExceededError, match="card left"):
        cards.ask(1.4)
    assert sum(cards.played.values()) == 6


def test_deck_goes_on_where_it_was_killed():
    cards = deck()
    cards.ask(1.5)
    again = deck(played=cards.played)
    assert again.left == cards.left
    with pytest.raises(ConfigError, match="played"):
        deck(played={Card(sample_rate=0.02, noise_multiplier=9.0): 1})


def test_deck_of_several_rates_must_be_asked_for_one():
    cards = SigmaDeck(
        {
            Card(sample_rate=0.02, noise_multiplier=1.0): 1,
            Card(sample_rate=0.05, noise_multiplier=2.0): 1,
        }
    )
    with pytest.raises(ConfigError, match="sample_rate"):
        cards.ask(1.0)
    assert cards.ask(1.0, sample_rate=0.05) == 2.0
    with pytest.raises(BudgetExceededError):
        cards.ask(1.0, sample_rate=0.05)


def test_both_budgets_answer_one_interface():
    budget = PrivacyBudget(target_epsilon=1.0, target_delta=1e-5)
    adaptives: list[AdaptiveBudget] = [
        deck(),
        RdpFilter(budget, sample_rate=0.02, relation=ADD, orders=[16.0]),
    ]
    for adaptive in adaptives:
        assert adaptive.ask(1.5) == 1.5
        assert 0 < epsilon(adaptive.event, delta=1e-5, relation=ADD) < math.inf


def test_best_order_leaves_room_for_the_plan():
    budget = PrivacyBudget(target_epsilon=3.0, target_delta=1e-5)
    plan = {"sample_rate": 0.02, "noise_multiplier": 1.3, "num_steps": 1000}
    order = best_order(budget, relation=ADD, **plan)
    granted = RdpFilter(budget, sample_rate=0.02, relation=ADD, orders=[order])
    for _ in range(1000):
        granted.ask(1.3)
