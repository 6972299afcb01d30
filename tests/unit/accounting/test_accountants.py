"""Laws that every accountant obeys, and mutants that the cross-check must catch."""

import importlib.metadata
import logging
import math

import dp_accounting as dpa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special

from dptune.accounting import accountants
from dptune.accounting.accountants import (
    Accountant,
    cross_check,
    epsilon,
)
from dptune.accounting.events import merge_events
from dptune.errors import ConfigError, PrivacyError, UnsupportedEventError
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
RELATIONS = [ADD, REPLACE]
KNOWN = [
    (Accountant.PUBLISHED, ADD),
    (Accountant.PUBLISHED, REPLACE),
    (Accountant.PLD, ADD),
    (Accountant.PLD, REPLACE),
    (Accountant.RDP, ADD),
    (Accountant.QUADRATURE, ADD),
    (Accountant.QUADRATURE, REPLACE),
]
LAWS = settings(derandomize=True, deadline=None, max_examples=12)


def steps(rate=0.02, noise=1.0, count=100):
    return poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=count
    )


def by_rdp(event, *, delta=1e-5, relation=ADD):
    return epsilon(event, delta=delta, relation=relation, accountant=Accountant.RDP)


@pytest.fixture
def forgetful():
    """Empty the cache before and after a test that breaks something."""
    accountants._epsilon.cache_clear()
    yield
    accountants._epsilon.cache_clear()


@pytest.mark.parametrize(("accountant", "relation"), KNOWN)
@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (dpa.NoOpDpEvent(), 0.0),
        (dpa.ComposedDpEvent([]), 0.0),
        (steps(rate=0.0), 0.0),
        (dpa.NonPrivateDpEvent(), math.inf),
        (dpa.ComposedDpEvent([steps(), dpa.NonPrivateDpEvent()]), math.inf),
        (steps(noise=0.0), math.inf),
        (dpa.GaussianDpEvent(0.0), math.inf),
    ],
)
def test_epsilon_edge_cases(event, expected, accountant, relation):
    actual = epsilon(event, delta=1e-5, relation=relation, accountant=accountant)
    assert actual == expected


@pytest.mark.parametrize(("accountant", "relation"), KNOWN)
def test_epsilon_falls_with_noise_and_delta_rises_with_steps_and_rate(
    accountant, relation
):
    def cost(delta=1e-5, **changes):
        event = steps(**{"rate": 0.2, **changes})
        return epsilon(event, delta=delta, relation=relation, accountant=accountant)

    assert cost(noise=0.9) > cost(noise=1.0) > cost(noise=1.2)
    assert cost(count=90) < cost(count=100) < cost(count=150)
    assert cost(rate=0.15) < cost(rate=0.2) < cost(rate=0.3)
    assert cost(delta=1e-6) > cost(delta=1e-5) > cost(delta=1e-4)


@LAWS
@given(
    rate=st.floats(0.001, 1.0),
    noise=st.floats(0.5, 8.0),
    count=st.integers(1, 400),
    more=st.integers(1, 400),
    relation=st.sampled_from(RELATIONS),
)
def test_epsilon_rises_with_steps_and_falls_with_noise(
    rate, noise, count, more, relation
):
    def cost(noise, count):
        return epsilon(steps(rate, noise, count), delta=1e-5, relation=relation)

    base = cost(noise, count)
    assume(base < 50)
    assert cost(noise, count + more) >= base * (1 - 2e-3)
    assert cost(1.1 * noise, count) <= base * (1 + 2e-3)


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_does_not_depend_on_order_or_grouping(relation):
    blocks = [steps(count=10), steps(noise=2.0, count=5), steps(count=20)]
    one = epsilon(merge_events(blocks), delta=1e-5, relation=relation)
    other = epsilon(
        dpa.ComposedDpEvent(list(reversed(blocks))), delta=1e-5, relation=relation
    )
    assert one == other


def test_epsilon_twin_that_drops_a_block_is_smaller():
    whole = epsilon(steps(count=120), delta=1e-5, relation=ADD)
    assert epsilon(steps(count=100), delta=1e-5, relation=ADD) < whole * 0.98


def test_epsilon_replace_costs_more_than_add_or_remove():
    for accountant in (Accountant.PLD, Accountant.QUADRATURE):
        small = epsilon(steps(), delta=1e-5, relation=ADD, accountant=accountant)
        large = epsilon(steps(), delta=1e-5, relation=REPLACE, accountant=accountant)
        assert large > 1.2 * small
    plain = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(10.0), 25)
    half = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(5.0), 25)
    replaced = epsilon(plain, delta=1e-5, relation=REPLACE)
    assert replaced == pytest.approx(epsilon(half, delta=1e-5, relation=ADD), rel=2e-3)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta", "relation"),
    [
        (0.02, 50.0, 50, 1e-5, ADD),
        (0.02, 50.0, 50, 1e-5, REPLACE),
        (0.001, 100.0, 1000, 1e-6, ADD),
        (1.0, 1000.0, 10, 1e-6, REPLACE),
        (0.2, 350.0, 100, 1e-4, ADD),
    ],
)
def test_epsilon_tiny_is_tight(rate, noise, count, delta, relation):
    """Coarse grids are off by a factor of six here."""
    event = steps(rate, noise, count)
    exact = epsilon(
        event, delta=delta, relation=relation, accountant=Accountant.QUADRATURE
    )
    assert 0 < exact < 0.05
    actual = epsilon(event, delta=delta, relation=relation)
    assert exact * (1 - 5e-4) <= actual <= exact * 1.01 + 1e-6


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_small_delta_is_still_an_upper_bound(relation):
    event = steps(0.01, 0.8, 1000)
    exact = epsilon(
        event, delta=1e-10, relation=relation, accountant=Accountant.QUADRATURE
    )
    assert exact <= epsilon(event, delta=1e-10, relation=relation) <= exact * 1.01


def test_epsilon_in_the_hundreds_is_not_below():
    huge = epsilon(steps(0.99, 1.0, 318), delta=1e-3, relation=REPLACE)
    assert huge > 600


def test_epsilon_delta_beyond_double_precision_falls_back_or_refuses():
    event = steps(0.01, 1.0, 1000)
    bound = epsilon(event, delta=1e-14, relation=ADD)
    assert bound == by_rdp(event, delta=1e-14)
    with pytest.raises(PrivacyError, match="delta"):
        epsilon(event, delta=1e-14, relation=REPLACE)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, float("nan")])
def test_epsilon_bad_delta_is_refused(delta):
    with pytest.raises(ConfigError, match="delta"):
        epsilon(steps(), delta=delta, relation=ADD)


def test_epsilon_unknown_accountant_or_event_is_refused():
    with pytest.raises(ValueError, match="gdp"):
        epsilon(steps(), delta=1e-5, relation=ADD, accountant="gdp")
    with pytest.raises(UnsupportedEventError, match="ZCDpEvent"):
        epsilon(dpa.ZCDpEvent(0.1), delta=1e-5, relation=ADD)
    with pytest.raises(UnsupportedEventError, match="LaplaceDpEvent"):
        epsilon(dpa.LaplaceDpEvent(1.0), delta=1e-5, relation=ADD)


def test_rdp_refuses_replace_for_every_event():
    """dp_accounting would account the plain Gaussian as if it was add/remove."""
    for event in (steps(), dpa.GaussianDpEvent(1.0)):
        with pytest.raises(UnsupportedEventError, match="replace_one"):
            by_rdp(event, relation=REPLACE)


def test_rdp_unknown_mechanism_is_refused():
    event = dpa.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0)
    with pytest.raises(UnsupportedEventError, match="truncated"):
        by_rdp(event)


def test_rdp_skipped_orders_do_not_fill_the_log(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        by_rdp(steps(rate=0.21))
    assert not caplog.records
    assert not logging.getLogger("absl").filters


def test_cross_check_add_or_remove_asks_rdp():
    check = cross_check(steps(), delta=1e-5, relation=ADD)
    assert check.second_method == "rdp"
    assert check.second_epsilon > check.epsilon


def test_cross_check_replace_asks_the_quadrature():
    check = cross_check(steps(), delta=1e-5, relation=REPLACE)
    assert check.second_method == "quadrature"
    assert check.second_epsilon == pytest.approx(check.epsilon, rel=2e-3)


def test_cross_check_truncated_asks_the_quadrature_where_rdp_is_silent():
    event = dpa.SelfComposedDpEvent(
        dpa.TruncatedSubsampledGaussianDpEvent(1600, 0.01, 24, 0.8), 100
    )
    check = cross_check(event, delta=1e-5, relation=ADD)
    assert check.second_method == "quadrature"
    assert check.second_epsilon == pytest.approx(check.epsilon, rel=5e-3)


def test_cross_check_infinite_agrees_with_itself():
    check = cross_check(dpa.NonPrivateDpEvent(), delta=1e-5, relation=ADD)
    assert check.epsilon == check.second_epsilon == math.inf


def test_cross_check_catches_add_or_remove_used_for_replace(forgetful, monkeypatch):
    sound = accountants._pld_epsilon
    monkeypatch.setattr(
        accountants, "_pld_epsilon", lambda event, delta, _: sound(event, delta, ADD)
    )
    with pytest.raises(PrivacyError, match="must confirm pld"):
        cross_check(steps(), delta=1e-5, relation=REPLACE)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("factor", [0.995, 1.005])
def test_cross_check_catches_a_pld_half_a_percent_off(
    forgetful, monkeypatch, factor, relation
):
    sound = accountants._pld_epsilon
    monkeypatch.setattr(
        accountants, "_pld_epsilon", lambda *given: factor * sound(*given)
    )
    with pytest.raises(PrivacyError, match="published must confirm pld"):
        cross_check(steps(), delta=1e-5, relation=relation)


@pytest.mark.parametrize("factor", [1.0, 0.95, 1.05])
def test_cross_check_of_a_huge_epsilon_bears_with_coarse_grids(
    forgetful, monkeypatch, factor
):
    """Found by random histories: ours is .4 % larger, and neither is wrong."""
    sound = accountants._pld_epsilon
    monkeypatch.setattr(
        accountants, "_pld_epsilon", lambda *given: factor * sound(*given)
    )
    huge = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(0.393), 762)
    if factor == 1.0:
        assert cross_check(huge, delta=2e-8, relation=ADD).epsilon > 2800
    else:
        with pytest.raises(PrivacyError, match="published must confirm pld"):
            cross_check(huge, delta=2e-8, relation=ADD)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_cross_check_certifies_the_larger_of_two_that_agree(
    forgetful, monkeypatch, factor, relation
):
    """The mutant: whichever is smaller."""
    sound = accountants._pld_epsilon
    monkeypatch.setattr(
        accountants, "_pld_epsilon", lambda *given: factor * sound(*given)
    )
    ours = epsilon(steps(), delta=1e-5, relation=relation)
    theirs = epsilon(
        steps(), delta=1e-5, relation=relation, accountant=Accountant.PUBLISHED
    )
    found = cross_check(steps(), delta=1e-5, relation=relation).epsilon
    assert found == max(ours, theirs) > min(ours, theirs)


def test_cross_check_names_the_published_accountant_and_its_version():
    check = cross_check(steps(), delta=1e-5, relation=ADD)
    version = importlib.metadata.version("dp-accounting")
    assert check.method == f"pld (dp_accounting {version})"


@pytest.mark.parametrize(
    ("event", "delta", "reason"),
    [
        (
            dpa.ComposedDpEvent([steps(noise=1 + n / 50) for n in range(20)]),
            1e-5,
            "20 kinds of mechanism",
        ),
        (steps(1e-4, 0.6, 3_000_000), 1e-5, "grid of"),
        (steps(0.01, 1.0, 1000), 5e-11, "rounding"),
    ],
)
def test_cross_check_that_cannot_ask_dp_accounting_says_why(event, delta, reason):
    check = cross_check(event, delta=delta, relation=ADD)
    assert check.method.startswith("pld (dptune ")
    assert reason in check.method
    assert check.second_method == "rdp"
    assert check.epsilon == epsilon(event, delta=delta, relation=ADD)


def test_cross_check_catches_a_wrong_count(forgetful, monkeypatch):
    sound = accountants._used_mechanisms
    monkeypatch.setattr(
        accountants,
        "_used_mechanisms",
        lambda event: tuple((m, max(1, count - 5)) for m, count in sound(event)),
    )
    with pytest.raises(PrivacyError, match="published must confirm pld"):
        cross_check(steps(), delta=1e-5, relation=REPLACE)


@pytest.mark.parametrize(
    ("value", "relation", "doubter"), [(5.0, ADD, "rdp"), (3.0, REPLACE, "quadrature")]
)
def test_cross_check_catches_two_plds_that_are_wrong_alike(
    forgetful, monkeypatch, value, relation, doubter
):
    monkeypatch.setattr(accountants, "_pld_epsilon", lambda *_: value)
    monkeypatch.setattr(accountants, "_published_epsilon", lambda *_: value)
    with pytest.raises(PrivacyError, match=f"{doubter} must confirm pld"):
        cross_check(steps(count=1000), delta=1e-5, relation=relation)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("noise", "count"), [(0.2, 1), (0.3, 30_000), (0.8, 100_000)])
def test_epsilon_of_plain_gaussians_is_finite_beyond_exp(noise, count, relation):
    """Their losses overflow exp(); epsilon is mu^2 / 2 + z mu, or little above."""
    mu = math.sqrt(count) / noise * (1 if relation is ADD else 2)
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise), count)
    found = epsilon(event, delta=1e-6, relation=relation)
    assert gaussian_delta(mu, found) <= 1e-6
    assert found <= 1.01 * (mu**2 / 2 + 4.76 * mu)


def gaussian_delta(mu, at):
    """Balle and Wang (2018), theorem 8."""
    further = math.exp(at + special.log_ndtr(-at / mu - mu / 2))
    return special.ndtr(mu / 2 - at / mu) - further


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_of_truncated_batches_at_a_tiny_delta_says_so(relation):
    event = dpa.SelfComposedDpEvent(
        dpa.TruncatedSubsampledGaussianDpEvent(
            dataset_size=100,
            sampling_probability=0.1,
            truncated_batch_size=12,
            noise_multiplier=1.0,
        ),
        1000,
    )
    with pytest.raises(PrivacyError, match="delta must be above 2e-15"):
        epsilon(event, delta=1e-13, relation=relation)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta", "relation"),
    [
        (0.0112, 0.257, 1, 2.28e-15, ADD),  # RDP is nearer where rounding is felt
        (0.0041, 933.4, 86, 8.38e-12, REPLACE),  # too flat for the quadrature
        (1.18e-6, 33.1, 1, 5.75e-15, REPLACE),  # five gigabytes of nodes
    ],
)
def test_cross_check_at_the_edge_of_precision_contradicts_nobody(
    rate, noise, count, delta, relation
):
    found = cross_check(steps(rate, noise, count), delta=delta, relation=relation)
    assert 0 < found.epsilon < 32
