"""Our discretisation against dp_accounting's own, and against closed forms."""

import math
from decimal import Decimal, localcontext

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import stats

from dptune.accounting.events import event_to_json
from dptune.accounting.pairs import (
    GaussianPair,
    LossAtoms,
    gaussian_pairs,
    mechanism_distribution,
    truncation_parts,
)
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


def delta_of(event, relation, interval, epsilon):
    """Worst hockey stick of one use of a mechanism."""
    found = mechanism_distribution(event_to_json(event), relation, interval)
    return max(atoms.delta(epsilon, interval=interval) for atoms in found)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event_to_json(event)[:60])
def test_mechanism_distribution_equals_dp_accounting(event, relation):
    """Far from 0 our lattice is sparse, so the interpolation is a little looser."""
    interval = 2e-3
    theirs = PLDAccountant(THEIRS[relation], interval).compose(event)._pld
    for epsilon in (0.0, 0.01, 0.3, 1.0, 3.0):
        expected = theirs.get_delta_for_epsilon(epsilon)
        actual = delta_of(event, relation, interval, epsilon)
        assert actual >= expected * (1 - 1e-6) - 1e-13
        assert actual == pytest.approx(expected, rel=1e-2, abs=1e-13)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("interval", [1e-1, 1e-2, 1e-4])
def test_mechanism_distribution_one_step_is_never_below_the_closed_form(
    relation, interval
):
    """One plain Gaussian has a closed form (Balle and Wang 2018, Theorem 8)."""
    event = dpa.GaussianDpEvent(1.3)
    mu = (1.0 if relation is ADD else 2.0) / 1.3
    for epsilon in np.linspace(0, 4, 17):
        exact = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(
            epsilon
        ) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        actual = delta_of(event, relation, interval, float(epsilon))
        assert actual >= exact * (1 - 1e-9)
        assert actual <= exact * (1 + max(interval, 1e-3)) + 1e-3 * interval


def test_mechanism_distribution_twin_that_rounds_losses_to_the_nearest_is_smaller():
    """The broken twin: mass moved to the nearest atom, not split between two."""
    pair = GaussianPair(direction="replace", sample_rate=1.0, noise_multiplier=1.3)
    interval = 0.5
    x = np.linspace(-12, 14, 200_001)
    mass = stats.norm.pdf(x, loc=1.0, scale=1.3) * (x[1] - x[0])
    twin = LossAtoms(
        index=np.rint(pair.loss(x) / interval).astype(np.int64),
        mass=mass,
        infinity=0.0,
    )
    mu = 2.0 / 1.3
    caught = 0
    for epsilon in np.linspace(0, 4, 17):
        exact = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(
            epsilon
        ) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        caught += twin.delta(float(epsilon), interval=interval) < exact * (1 - 1e-9)
    assert caught > 0


def test_mechanism_distribution_lattice_is_dense_at_zero_and_sparse_outside():
    (atoms,) = mechanism_distribution(
        event_to_json(dpa.PoissonSampledDpEvent(0.001, dpa.GaussianDpEvent(0.7))),
        REPLACE,
        1e-5,
    )
    gaps = np.diff(atoms.index)  # from the atom below
    assert len(atoms.index) < 10_000 < np.ptp(atoms.index)
    assert gaps[np.abs(atoms.index[1:]) < 256].max() == 1
    assert np.all(gaps <= np.maximum(1, np.abs(atoms.index[1:]) / 128))


def test_mechanism_distribution_mass_is_one_on_a_fine_grid():
    """dp_accounting gains 7e-7 of mass here, 6.5 % after 100,000 steps."""
    event = dpa.PoissonSampledDpEvent(1e-5, dpa.GaussianDpEvent(0.7))
    (ours,) = mechanism_distribution(event_to_json(event), REPLACE, 2e-5)
    assert ours.mass.sum() + ours.infinity == pytest.approx(1.0, abs=1e-11)
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


def test_truncation_parts_cap_above_the_data_never_binds():
    free = dpa.TruncatedSubsampledGaussianDpEvent(10, 0.5, 11, 1.0)
    assert truncation_parts(free) == (0.0, 0.0)
    binds, rate = truncation_parts(
        dpa.TruncatedSubsampledGaussianDpEvent(1000, 0.5, 400, 1.0)
    )
    assert binds > 0.99
    assert rate == pytest.approx(0.4, rel=1e-2)


@pytest.mark.parametrize("rate", [0.9, 0.5, 1e-3])
@pytest.mark.parametrize("loss", [1e-3, 3.0, 29.99, 30.0, 30.01, 80.0, 690.0])
def test_outcome_of_a_loss_is_exact_to_the_last_places(rate, loss):
    """x = 1/2 + s^2 ln((exp(loss) - 1 + q) / q), by decimals of fifty digits."""
    pair = GaussianPair(direction="remove", sample_rate=rate, noise_multiplier=1.0)
    with localcontext() as context:
        context.prec = 50
        exact = ((Decimal(loss).exp() - 1 + Decimal(rate)) / Decimal(rate)).ln()
        expected = float(exact + Decimal("0.5"))
    found = float(pair.inverse_loss(np.array([loss]))[0])
    assert abs(found - expected) <= 2 * math.ulp(expected)
