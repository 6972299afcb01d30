"""From one relation to the other: by a theorem, or not at all."""

import math

import dp_accounting as dpa
import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.conversion import converted_epsilon
from dptune.accounting.events import RenyiFilterDpEvent, poisson_gaussian_event
from dptune.errors import PrivacyError
from dptune.privacy import NeighboringRelation

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def steps(rate=0.02, noise=1.5, count=100):
    return poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=count
    )


def test_converted_epsilon_same_relation_is_epsilon():
    for relation in (ADD, REPLACE):
        same = converted_epsilon(steps(), delta=1e-5, known=relation, wanted=relation)
        assert same == epsilon(steps(), delta=1e-5, relation=relation)


def test_converted_epsilon_to_replace_is_sound_and_never_tighter_than_its_own_pair():
    converted = converted_epsilon(steps(), delta=1e-5, known=ADD, wanted=REPLACE)
    assert epsilon(steps(), delta=1e-5, relation=REPLACE) <= converted < math.inf


def test_converted_epsilon_is_the_group_of_two():
    """(e, d) gives (2 e, d (1 + exp e))."""
    converted = converted_epsilon(steps(), delta=1e-5, known=ADD, wanted=REPLACE)
    one = converted / 2
    smaller = 1e-5 / (1 + math.exp(one))
    assert one == pytest.approx(epsilon(steps(), delta=smaller, relation=ADD), rel=1e-2)


def test_converted_epsilon_twin_that_keeps_epsilon_is_below_the_truth():
    """The broken twin: an add or remove epsilon read as replace."""
    twin = epsilon(steps(), delta=1e-5, relation=ADD)
    assert twin < epsilon(steps(), delta=1e-5, relation=REPLACE) * 0.8


@pytest.mark.parametrize(
    "event",
    [
        dpa.LaplaceDpEvent(2.0),
        RenyiFilterDpEvent(orders=(8.0,), divergences=(0.2,), relation=ADD.value),
    ],
)
def test_converted_epsilon_knows_what_replace_does_not(event):
    with pytest.raises(PrivacyError):
        epsilon(event, delta=1e-5, relation=REPLACE)
    converted = converted_epsilon(event, delta=1e-5, known=ADD, wanted=REPLACE)
    one = epsilon(event, delta=1e-5, relation=ADD)
    assert 2 * one * (1 - 1e-3) <= converted < 4 * one


def test_converted_epsilon_replace_to_add_or_remove_is_refused_with_the_reason():
    with pytest.raises(PrivacyError, match="number of units"):
        converted_epsilon(steps(), delta=1e-5, known=REPLACE, wanted=ADD)


def test_converted_epsilon_non_private_is_infinite():
    assert (
        converted_epsilon(
            dpa.NonPrivateDpEvent(), delta=1e-5, known=ADD, wanted=REPLACE
        )
        == math.inf
    )
