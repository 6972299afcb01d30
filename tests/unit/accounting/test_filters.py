"""Adaptive budgets against adversaries: exact trees of every adaptive strategy.

Cards of the trees are two- or three-outcome mechanisms, so that the best strategy of a
controller can be found by trying all of them, with no sampling and no rounding.
"""

import functools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune import privacy
from dptune.accounting import accountants, filters
from dptune.accounting.adaptive import Card, SigmaDeck
from dptune.accounting.pairs import GaussianPair
from dptune.accounting.quadrature import log_moment_of_pair
from dptune.errors import BudgetExceededError, ConfigError

ADD_OR_REMOVE = privacy.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = privacy.NeighboringRelation.REPLACE_ONE

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


def sampled(rate, noise, count):
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    return SelfComposedDpEvent(step, count)


def losses(event, interval=1e-3):
    """Losses of an event where the unit is there, their chances, and that of infinity.

    On a grid of dp_accounting, which lies above the true ones.
    """
    accountant = PLDAccountant(
        NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
    )
    found = accountant.compose(event)._pld._pmf_remove.to_dense_pmf()
    first, chances = found._lower_loss, found._probs
    return (first + np.arange(len(chances))) * interval, chances, found._infinity_mass


def hockey_sticks(event, epsilons):
    values, chances, infinite = losses(event)
    tails, weights = (
        np.append(np.cumsum(parts[::-1])[::-1], 0.0)
        for parts in (chances, chances * np.exp(-values))
    )
    above = np.searchsorted(values, epsilons, side="right")
    return infinite + tails[above] - np.exp(epsilons) * weights[above]


def test_runs_that_are_chosen_by_earlier_ones_can_spend_more_than_a_grant():
    """What docs/BUDGET.md says of two runs under a grant of epsilon 3 at delta 1e-5.

    Each of two second runs stays within the grant. Who takes the one or the other by
    what the first has released, whichever hurts more there, spends 3.2.
    """
    epsilon, delta = 3.0, 1e-5
    first = sampled(0.01, 1.0, 1000)
    seconds = (sampled(1.0, 1.764, 1), sampled(1e-5, 0.2755, 100))
    for second in seconds:
        both = ComposedDpEvent([first, second])
        spent = accountants.epsilon(both, delta=delta, relation=ADD_OR_REMOVE)
        assert 2.9 < spent <= epsilon
    values, chances, infinite = losses(first)

    def chosen(granted, plans):
        after = [hockey_sticks(plan, granted - values) for plan in plans]
        return infinite + chances @ np.max(after, axis=0)

    for second in seconds:
        assert chosen(epsilon, [second]) == pytest.approx(delta, rel=0.2)
    assert chosen(epsilon, seconds) > 1.7 * delta
    assert chosen(3.22, seconds) > delta > chosen(3.26, seconds)
    taken = [
        filters.filtered_epsilon(
            ComposedDpEvent([first, second]), delta=delta, relation=ADD_OR_REMOVE
        )
        for second in seconds
    ]
    assert min(taken) > epsilon  # an adaptive grant of 3 lets neither of them in
    assert chosen(max(taken), seconds) <= delta


def flipped(chance, loss):
    """Outcomes of a mechanism that says much, but seldom."""
    rest = 1 - chance
    return ((chance, chance * math.exp(-loss)), (rest, 1 - chance * math.exp(-loss)))


CHOICES = (response(0.2), response(0.6), response(1.2), flipped(0.03, 3.0))
CHOICES += (tuple((q, p) for p, q in flipped(0.05, 2.0)),)


def moments(mechanism):
    """ln E exp(cL) at the orders of the filter."""
    powers = filters._ORDERS - 1
    return np.log(sum(p * (p / q) ** powers for p, q in mechanism))


def admitted(fits):
    """Moves of who may go on while what was spent fits."""

    def moves(spent):
        return [
            (mechanism, (*spent, index))
            for index, mechanism in enumerate(CHOICES)
            if len(spent) < 4 and fits([CHOICES[i] for i in (*spent, index)])
        ]

    return moves


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1.0, 0.1), (1.0, 0.2), (2.0, 0.05), (2.5, 0.2), (3.5, 0.01)]
)
def test_whatever_is_chosen_stays_within_what_the_filter_admits(epsilon, delta):
    """The theorem of `filters`, exactly, against the choice that hurts most."""
    moves = admitted(
        lambda run: filters._smallest(sum(map(moments, run)), delta) <= epsilon
    )
    assert any(moves(()))
    assert worst_case(math.exp(epsilon), (), moves) <= delta


def test_twin_that_asks_for_what_is_fixed_in_advance_is_caught():
    c, delta = math.exp(1.0), 0.1
    twin = worst_case(c, (), admitted(lambda run: hockey_stick(run, c) <= delta))
    assert twin > 1.1 * delta


def test_weights_of_orders_sum_to_one():
    powers = filters._ORDERS - 1
    largest = [
        max((1 - math.exp(-y)) * math.exp(-c * y) for y in np.linspace(0, 3, 30001))
        for c in powers
    ]
    assert np.exp(filters._LOG_WEIGHTS + np.log(largest)).sum() == pytest.approx(
        1.0, rel=1e-4
    )


@LAWS
@given(
    rate=st.floats(1e-4, 1.0),
    noise=st.floats(0.4, 20.0),
    count=st.integers(1, 2000),
    relation=st.sampled_from(privacy.NeighboringRelation),
)
def test_filter_takes_no_less_than_what_is_fixed_in_advance(
    rate, noise, count, relation
):
    event, terms = sampled(rate, noise, count), {"delta": 1e-5, "relation": relation}
    spent = accountants.epsilon(event, **terms)
    assert filters.filtered_epsilon(event, **terms) >= spent * (1 - 2e-3)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "relation", "taken", "fixed"),
    [
        (0.25, 1.64, 24, ADD_OR_REMOVE, 5.141, 4.046),
        (0.01, 1.0, 1000, ADD_OR_REMOVE, 2.543, 1.829),
        (0.25, 1.64, 24, REPLACE, 8.309, 6.934),
        (0.01, 1.0, 1000, REPLACE, 3.525, 2.846),
    ],
)
def test_filter_takes_what_is_said_of_it(rate, noise, count, relation, taken, fixed):
    """The figures of docs/BUDGET.md; orders of a filter must never change."""
    event, terms = sampled(rate, noise, count), {"delta": 1e-5, "relation": relation}
    assert filters.filtered_epsilon(event, **terms) == pytest.approx(taken, abs=6e-4)
    assert accountants.epsilon(event, **terms) == pytest.approx(fixed, abs=6e-4)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize(
    ("rate", "noise", "power"), [(0.01, 1.0, 128.0), (0.5, 0.1, 4.0), (1e-6, 20.0, 1.0)]
)
def test_moments_agree_with_sums_of_forty_digits(direction, rate, noise, power):
    pair = GaussianPair(direction=direction, sample_rate=rate, noise_multiplier=noise)
    with mpmath.workdps(40):
        s, q, c = map(mpmath.mpf, (noise, rate, power))

        def density(x, mean):
            own = (1 - q) * mpmath.exp(-(x**2) / (2 * s**2))
            other = q * mpmath.exp(-((x - mean) ** 2) / (2 * s**2))
            return own + other if mean else own / (1 - q)

        p_mean, q_mean = {"remove": (1, 0), "add": (0, -1), "replace": (1, -1)}[
            direction
        ]
        spacing = s / 24
        ends = int(-(13 * s + 1) / spacing), int((13 * s + 2 + 2 * c) / spacing)
        total = mpmath.fsum(
            density(x, p_mean) * (density(x, p_mean) / density(x, q_mean)) ** c
            for x in (spacing * place for place in range(*ends))
        )
        exact = float(mpmath.log(total * spacing / (s * mpmath.sqrt(2 * mpmath.pi))))
    assert log_moment_of_pair(pair, power) == pytest.approx(exact, rel=1e-13, abs=1e-13)


CUT = [(1000, 1.0, 1000, 4.0, 20), (20, 1.0, 20, 2.0, 1), (10, 0.5, 10, 2.0, 1)]
CUT += [(10, 0.9, 4, 1.0, 3), (1, 0.5, 1, 1.0, 10), (1000, 0.1, 130, 1.5, 50)]


@pytest.mark.parametrize("relation", privacy.NeighboringRelation)
@pytest.mark.parametrize(("units", "rate", "cap", "noise", "count"), CUT)
def test_filter_of_batches_that_a_cap_cuts_is_above_what_is_fixed_in_advance(
    units, rate, cap, noise, count, relation
):
    """Of a unit that joins as many as the cap has room for, too."""
    step = TruncatedSubsampledGaussianDpEvent(units, rate, cap, noise)
    event, terms = SelfComposedDpEvent(step, count), {"delta": 1e-5}
    spent = accountants.epsilon(event, relation=relation, **terms)
    taken = filters.filtered_epsilon(event, relation=relation, **terms)
    assert taken >= spent


def test_filter_knows_what_costs_nothing_and_what_costs_everything():
    terms = {"delta": 1e-5, "relation": ADD_OR_REMOVE}
    assert filters.filtered_epsilon(NoOpDpEvent(), **terms) == 0.0
    for event in (NonPrivateDpEvent(), GaussianDpEvent(0.05)):
        assert filters.filtered_epsilon(event, **terms) == math.inf
    assert filters.filtered_epsilon(sampled(0.0, 1.0, 10), **terms) == 0.0


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


@pytest.mark.parametrize("bad", [-1.0, 0.0, math.nan, math.inf])
def test_ask_bad_noise_is_refused(bad):
    cards = SigmaDeck({Card(sample_rate=0.1, noise_multiplier=1): 1})
    with pytest.raises(ConfigError, match="noise_multiplier"):
        cards.ask(bad)


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
