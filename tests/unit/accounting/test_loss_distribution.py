"""Our discretisation against dp_accounting's own, and against closed forms."""

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import stats

from dptune.accounting.events import event_to_json
from dptune.accounting.loss_distribution import (
    GaussianPair,
    gaussian_pairs,
    mechanism_distribution,
    truncation_parts,
)
from dptune.errors import UnsupportedEventError
from dptune.privacy import NeighboringRelation

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
THEIRS = {
    ADD: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE: dpa.NeighboringRelation.REPLACE_ONE,
}
EVENTS = [
    dpa.GaussianDpEvent(2.0),
    dpa.PoissonSampledDpEvent(1.0, dpa.GaussianDpEvent(1.5)),
    dpa.PoissonSampledDpEvent(0.02, dpa.GaussianDpEvent(0.8)),
    dpa.PoissonSampledDpEvent(0.5, dpa.GaussianDpEvent(0.3)),
    dpa.PoissonSampledDpEvent(0.9, dpa.GaussianDpEvent(4.0)),
    dpa.PoissonSampledDpEvent(1e-4, dpa.GaussianDpEvent(0.6)),
    dpa.TruncatedSubsampledGaussianDpEvent(1600, 0.01, 24, 0.8),
    dpa.TruncatedSubsampledGaussianDpEvent(16, 0.01, 16, 0.8),
]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event_to_json(event)[:60])
def test_mechanism_distribution_equals_dp_accounting(event, relation):
    interval = 2e-3
    ours = mechanism_distribution(event_to_json(event), relation, interval)
    theirs = PLDAccountant(THEIRS[relation], interval).compose(event)._pld
    for epsilon in (0.0, 0.01, 0.3, 1.0, 3.0):
        expected = theirs.get_delta_for_epsilon(epsilon)
        actual = ours.get_delta_for_epsilon(epsilon)
        assert actual == pytest.approx(expected, rel=1e-6, abs=1e-13)
    for delta in (1e-3, 1e-5, 1e-7):  # below, the noise of their convolution shows
        assert ours.self_compose(50).get_epsilon_for_delta(delta) == pytest.approx(
            theirs.self_compose(50).get_epsilon_for_delta(delta), rel=1e-5
        )


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("interval", [1e-1, 1e-2, 1e-4])
def test_mechanism_distribution_one_step_is_never_below_the_closed_form(
    relation, interval
):
    """One plain Gaussian has a closed form (Balle and Wang 2018, Theorem 8)."""
    ours = mechanism_distribution(
        event_to_json(dpa.GaussianDpEvent(1.3)), relation, interval
    )
    mu = (1.0 if relation is ADD else 2.0) / 1.3
    for epsilon in np.linspace(0, 4, 17):
        exact = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(
            epsilon
        ) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        actual = ours.get_delta_for_epsilon(float(epsilon))
        assert actual >= exact * (1 - 1e-9)
        assert actual <= exact * (1 + interval) + 1e-3 * interval


def test_mechanism_distribution_mass_is_one_on_a_fine_grid():
    """dp_accounting gains 7e-7 of mass here, 6.5 % after 100,000 steps."""
    event = dpa.PoissonSampledDpEvent(1e-5, dpa.GaussianDpEvent(0.7))
    ours = mechanism_distribution(event_to_json(event), REPLACE, 2e-5)
    mass = ours._pmf_remove._probs.sum() + ours._pmf_remove._infinity_mass
    assert mass == pytest.approx(1.0, abs=1e-11)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        0.7,
        sampling_prob=1e-5,
        value_discretization_interval=1e-4,
        neighboring_relation=THEIRS[REPLACE],
    )
    assert theirs._pmf_remove._probs.sum() - 1 > 1e-9


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize(
    ("rate", "noise"), [(1.0, 1.0), (0.3, 0.7), (1e-4, 0.5), (0.9, 9.0), (0.5, 0.04)]
)
def test_inverse_loss_undoes_loss(direction, rate, noise):
    pair = GaussianPair(direction=direction, sample_rate=rate, noise_multiplier=noise)
    x = np.linspace(-5 * noise, 1 + 5 * noise, 41)
    losses = pair.loss(x)
    assert np.all(np.diff(losses) >= -1e-12)
    steep = np.gradient(losses, x) > 1e-3
    back = pair.inverse_loss(losses)
    np.testing.assert_allclose(back[steep], x[steep], rtol=1e-6, atol=1e-6)


def test_gaussian_pairs_twin_with_add_or_remove_for_replace_is_smaller():
    """The broken twin: sensitivity C where neighbors are replaced."""
    sound = gaussian_pairs(sample_rate=1.0, noise_multiplier=2.0, relation=REPLACE)
    twin = gaussian_pairs(sample_rate=1.0, noise_multiplier=2.0, relation=ADD)
    x = np.array([1.0])
    assert sound[0].loss(x) == pytest.approx(2 * x / 4)
    assert twin[0].loss(x) < sound[0].loss(x)


def test_laplace_is_known_under_add_or_remove_only():
    event = event_to_json(dpa.LaplaceDpEvent(1.0))
    pure = mechanism_distribution(event, ADD, 1e-3)
    assert pure.get_epsilon_for_delta(1e-12) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        mechanism_distribution(event, REPLACE, 1e-3)


def test_truncation_parts_cap_above_the_data_never_binds():
    free = dpa.TruncatedSubsampledGaussianDpEvent(10, 0.5, 11, 1.0)
    assert truncation_parts(free) == (0.0, 0.0)
    binds, rate = truncation_parts(
        dpa.TruncatedSubsampledGaussianDpEvent(1000, 0.5, 400, 1.0)
    )
    assert binds > 0.99
    assert rate == pytest.approx(0.4, rel=1e-2)
