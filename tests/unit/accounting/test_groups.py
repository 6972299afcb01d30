"""A secret in several units is protected less, by a theorem or not at all."""

import math

import dp_accounting as dpa
import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.groups import (
    _mixture_epsilon,
    general_group_epsilon,
    group_epsilon,
)
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def steps(rate=0.1, noise=2.0, count=50):
    return poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=count
    )


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_group_epsilon_of_one_is_epsilon(relation):
    one = group_epsilon(steps(), group_size=1, delta=1e-5, relation=relation)
    assert one == epsilon(steps(), delta=1e-5, relation=relation)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_group_epsilon_gaussian_sum_moves_by_k(relation):
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(30.0), 9)
    three = group_epsilon(event, group_size=3, delta=1e-5, relation=relation)
    louder = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(10.0), 9)
    assert three == pytest.approx(epsilon(louder, delta=1e-5, relation=relation))


def test_group_epsilon_mixture_of_one_is_the_sampled_gaussian():
    one = _mixture_epsilon(((0.1, 2.0, 50),), 1, 1e-5)
    assert one == pytest.approx(epsilon(steps(), delta=1e-5, relation=ADD), rel=3e-3)


def test_group_epsilon_grows_faster_than_the_group():
    one = epsilon(steps(), delta=1e-5, relation=ADD)
    two = group_epsilon(steps(), group_size=2, delta=1e-5, relation=ADD)
    four = group_epsilon(steps(), group_size=4, delta=1e-5, relation=ADD)
    assert 2 * one < two < four / 2


def test_group_epsilon_mixture_is_tighter_than_thegeneral_group_epsilon():
    two = group_epsilon(steps(), group_size=2, delta=1e-5, relation=ADD)
    assert two < general_group_epsilon(steps(), group_size=2, delta=1e-5, relation=ADD)


def test_group_epsilon_replace_follows_from_thegeneral_group_epsilon():
    one = epsilon(steps(), delta=1e-5, relation=REPLACE)
    two = group_epsilon(steps(), group_size=2, delta=1e-5, relation=REPLACE)
    assert 2 * one < two < math.inf


@pytest.mark.parametrize(
    ("event", "size", "expected"),
    [
        (dpa.NoOpDpEvent(), 5, 0.0),
        (steps(rate=0.0), 5, 0.0),
        (dpa.NonPrivateDpEvent(), 5, math.inf),
    ],
)
def test_group_epsilon_edge_cases(event, size, expected):
    actual = group_epsilon(event, group_size=size, delta=1e-5, relation=ADD)
    assert actual == pytest.approx(expected, abs=1e-6)


def test_group_epsilon_is_not_what_rounding_of_transforms_leaves_of_a_tiny_delta():
    """2.15 by convolutions of positive numbers, which lose nothing to rounding.

    Transforms leave 1.68 of it, and as much at a tenth of that delta.
    """
    event, relation = steps(rate=1e-4, noise=0.8, count=100_000), ADD
    small, tiny = (
        group_epsilon(event, group_size=2, delta=delta, relation=relation)
        for delta in (1e-13, 1e-14)
    )
    assert 2.15 <= small <= tiny


def test_group_epsilon_no_bound_is_infinite():
    assert group_epsilon(
        steps(rate=0.5, noise=0.5, count=500),
        group_size=50,
        delta=1e-9,
        relation=REPLACE,
    ) == (math.inf)


@pytest.mark.parametrize("size", [0, -1, True])
def test_group_epsilon_bad_size_is_refused(size):
    with pytest.raises(ConfigError, match="group_size"):
        group_epsilon(steps(), group_size=size, delta=1e-5, relation=ADD)
