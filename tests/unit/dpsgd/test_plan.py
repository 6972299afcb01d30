import dp_accounting
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.accounting.accountants import epsilon
from dptune.accounting.calibration import calibrate_noise_multiplier
from dptune.dpsgd.factorization import band_coefficients
from dptune.dpsgd.noise import BandedNoise, IndependentNoise, noise_stream
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.sampling import (
    CyclicPoissonSampler,
    PoissonSampler,
    SamplingKind,
    ShuffledSampler,
    TruncatedPoissonSampler,
)
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation, PrivacyBudget

NUMBERS = {
    "noise_multiplier": 1.5,
    "sample_rate": 0.1,
    "max_grad_norm": 0.5,
    "expected_batch_size": 8.0,
}


def test_plan_derives_everything_from_the_same_numbers():
    plan = GradientPlan(**NUMBERS)
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5))
    assert plan.dp_event(7) == dp_accounting.SelfComposedDpEvent(step, 7)
    assert plan.noise_stddev() == 0.75
    assert plan.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE) == 0.5
    assert plan.sensitivity(NeighboringRelation.REPLACE_ONE) == 1.0
    assert isinstance(plan.sampler(10), PoissonSampler)


@pytest.mark.parametrize("grouping", Grouping)
@pytest.mark.parametrize("norm", [1e-3, 0.5, 40.0])
def test_noise_is_that_of_the_whole_bound_whatever_is_clipped_by_itself(grouping, norm):
    plan = GradientPlan(**NUMBERS | {"max_grad_norm": norm}, grouping=grouping)
    assert plan.noise_stddev() == 1.5 * norm
    assert plan.noise_stddev(step=3, max_grad_norm=2 * norm) == 3.0 * norm
    assert plan.dp_event(7) == GradientPlan(**NUMBERS).dp_event(7)


def test_release_divides_by_the_expected_batch_size():
    plan = GradientPlan(**NUMBERS | {"noise_multiplier": 0.0})
    sums = {"a": torch.full((3,), 16.0)}
    plan.release(sums, step=0, noise=plan.noise(noise_stream(), sums=sums))
    assert sums["a"].tolist() == [2.0] * 3


def test_plan_without_noise_is_not_private():
    plan = GradientPlan(**NUMBERS | {"noise_multiplier": 0.0})
    assert plan.dp_event(1) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("shares", [(), (1.0, 0.5)])
@pytest.mark.parametrize(("first", "level"), [(0, 1.0), (2, 0.5), (4, 2.0), (9, 2.0)])
def test_block_of_a_schedule_costs_what_its_own_steps_draw(shares, first, level):
    """Two steps from `first` on are two steps of a plan of that level alone."""
    levels = {"noise_levels": (1.0, 0.5, 2.0), "steps_per_level": 2}
    plan = GradientPlan(**NUMBERS, **levels, part_shares=shares)
    alike = NUMBERS | {"noise_multiplier": 1.5 * level}
    constant = GradientPlan(**alike, part_shares=shares)
    assert plan.dp_event(2, first_step=first) == constant.dp_event(2)
    for kind in range(len(shares)):
        assert plan.part_event(kind, 2, first_step=first) == constant.part_event(
            kind, 2
        )
    drawn = {plan.noise_stddev(step=step) for step in (first, first + 1)}
    assert drawn == {constant.noise_stddev()}


def test_plain_plan_is_not_private():
    plan = PlainPlan(batch_size=4)
    assert plan.dp_event(1) == dp_accounting.NonPrivateDpEvent()
    assert plan.dp_event(0) == dp_accounting.NoOpDpEvent()
    assert plan.expected_batch_size == 4.0
    assert isinstance(plan.sampler(10), ShuffledSampler)


def test_faults_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        GradientPlan(
            noise_multiplier=-1, sample_rate=2, max_grad_norm=1, expected_batch_size=0
        )
    assert {p.path for p in caught.value.problems} == {
        "noise_multiplier",
        "sample_rate",
        "expected_batch_size",
    }
    with pytest.raises(ConfigError, match="max_grad_norm"):
        GradientPlan(**NUMBERS | {"max_grad_norm": 0.0})
    with pytest.raises(ConfigError, match="batch_size"):
        PlainPlan(batch_size=0)


BANDS = band_coefficients(num_bands=4, num_steps=40)
CYCLIC = NUMBERS | {"sampling": SamplingKind.CYCLIC_POISSON}
BANDED = CYCLIC | {"noise_coefficients": BANDS}
TRUNCATED = NUMBERS | {
    "sampling": SamplingKind.TRUNCATED_POISSON,
    "max_batch_size": 12,
    "num_units": 80,
}


def gaussians(rate, count):
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1.5))
    return dp_accounting.SelfComposedDpEvent(step, count)


@pytest.mark.parametrize(("steps", "turns"), [(1, 1), (4, 1), (5, 2), (40, 10)])
def test_banded_plan_pays_for_turns_at_the_rate_of_a_turn(steps, turns):
    plan = GradientPlan(**BANDED)
    assert plan.dp_event(steps) == gaussians(0.4, turns)
    assert plan.dp_event(0) == dp_accounting.NoOpDpEvent()
    assert plan.noise_stddev() == 0.75
    assert isinstance(plan.sampler(10), CyclicPoissonSampler)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    bands=st.integers(1, 9),
    block=st.integers(1, 20),
    steps=st.integers(1, 60),
    killed=st.integers(0, 60),
)
def test_blocks_pay_for_the_segment_wherever_it_is_killed(bands, block, steps, killed):
    """What `GradientPlan` says of blocks, by counting."""
    plan = GradientPlan(
        **CYCLIC
        | {
            "sample_rate": 0.1,
            "noise_coefficients": band_coefficients(num_bands=bands, num_steps=60),
        }
    )
    whole = plan.whole_block(block)
    assert whole >= block
    assert whole % bands == 0
    paid = done = 0
    while done < steps and (done <= killed or done == 0):
        size = min(whole, steps - done)
        paid += plan.num_mechanisms(size)
        done += size
    assert paid == plan.num_mechanisms(done)
    assert paid >= plan.num_mechanisms(min(killed, done))


def test_truncated_plan_is_the_truncated_event():
    plan = GradientPlan(**TRUNCATED)
    step = dp_accounting.TruncatedSubsampledGaussianDpEvent(
        dataset_size=80,
        sampling_probability=0.1,
        truncated_batch_size=12,
        noise_multiplier=1.5,
    )
    assert plan.dp_event(3) == dp_accounting.SelfComposedDpEvent(step, 3)
    assert isinstance(plan.sampler(80), TruncatedPoissonSampler)
    assert isinstance(plan.sampler(79), TruncatedPoissonSampler)
    assert plan.whole_block(7) == 7
    with pytest.raises(ConfigError, match="num_places=80"):
        plan.sampler(81)


def test_cyclic_plan_of_one_band_is_the_poisson_plan():
    cyclic, poisson = GradientPlan(**CYCLIC), GradientPlan(**NUMBERS)
    assert cyclic.dp_event(9) == poisson.dp_event(9)
    for plan in (cyclic, poisson):
        noise = plan.noise(noise_stream(), sums={})
        assert isinstance(noise, IndependentNoise)


def test_banded_release_adds_banded_noise_and_divides():
    plan = GradientPlan(**BANDED)
    sums = {"a": torch.zeros(4)}
    twin = plan.noise(noise_stream(fixed_seed=1), sums=sums)
    expected = {"a": torch.zeros(4)}
    twin.add(expected, step=0)
    noise = plan.noise(noise_stream(fixed_seed=1), sums=sums)
    plan.release(sums, step=0, noise=noise)
    assert isinstance(noise, BandedNoise)
    torch.testing.assert_close(sums["a"], expected["a"] / 8.0)


@pytest.mark.parametrize("sampling", ["poisson", "truncated_poisson"])
def test_banded_noise_with_other_sampling_is_refused(sampling):
    numbers = BANDED if sampling == "poisson" else TRUNCATED | BANDED
    with pytest.raises(ConfigError, match="must be cyclic_poisson for banded noise"):
        GradientPlan(**numbers | {"sampling": SamplingKind(sampling)})


def test_banded_noise_with_a_changing_multiplier_is_refused():
    class Rising(GradientPlan):
        def noise_schedule(self):
            return type("Schedule", (), {"noise_multiplier": lambda self, step: step})()

    Rising(**NUMBERS)
    with pytest.raises(ConfigError, match="unless the noise multiplier is constant"):
        Rising(**BANDED)


def test_contradictions_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        GradientPlan(
            **NUMBERS
            | {
                "sample_rate": 0.5,
                "max_batch_size": 0,
                "num_units": 9,
                "noise_coefficients": (1.0, 0.5, 0.25),
            }
        )
    assert {p.path for p in caught.value.problems} == {
        "max_batch_size",
        "num_units",
        "noise_coefficients",
        "sampling",
    }
    with pytest.raises(ConfigError, match="max_batch_size"):
        GradientPlan(**TRUNCATED | {"max_batch_size": None})


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("numbers", [BANDED, TRUNCATED], ids=["banded", "truncated"])
def test_calibration_meets_the_target_to_one_percent(numbers, relation):
    budget = PrivacyBudget(target_epsilon=2.0, target_delta=1e-4)

    def event(noise):
        return GradientPlan(**numbers | {"noise_multiplier": noise}).dp_event(40)

    found = calibrate_noise_multiplier(event, budget=budget, relation=relation)
    spent = epsilon(event(found), delta=1e-4, relation=relation)
    assert 0.99 * 2.0 <= spent <= 2.0
