import dp_accounting
import pytest
import torch

from dptune.dpsgd.noise import noise_generator
from dptune.dpsgd.plan import DPPlan, GradientPlan, PlainPlan
from dptune.dpsgd.sampling import PoissonSampler, ShuffledSampler
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation

NUMBERS = {
    "noise_multiplier": 1.5,
    "sample_rate": 0.1,
    "max_grad_norm": 0.5,
    "expected_batch_size": 8.0,
}


def test_plan_derives_everything_from_the_same_numbers():
    plan: DPPlan = GradientPlan(**NUMBERS)
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5))
    assert plan.dp_event(7) == dp_accounting.SelfComposedDpEvent(step, 7)
    assert plan.noise_stddev() == 0.75
    assert plan.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE) == 0.5
    assert plan.sensitivity(NeighboringRelation.REPLACE_ONE) == 1.0
    assert isinstance(plan.sampler(10), PoissonSampler)


def test_release_divides_by_the_expected_batch_size():
    plan = GradientPlan(**NUMBERS | {"noise_multiplier": 0.0})
    sums = {"a": torch.full((3,), 16.0)}
    plan.release(sums, step=0, noise=plan.noise(noise_generator(), sums=sums))
    assert sums["a"].tolist() == [2.0] * 3


def test_plan_without_noise_is_not_private():
    plan = GradientPlan(**NUMBERS | {"noise_multiplier": 0.0})
    assert plan.dp_event(1) == dp_accounting.NonPrivateDpEvent()


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
