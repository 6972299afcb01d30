import pytest
import torch

from dptune.dpsgd.noise import add_gaussian_noise, noise_generator
from dptune.errors import PrivacyError


def noise(**options):
    sums = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}
    add_gaussian_noise(sums, noise_stddev=2.0, generator=noise_generator(**options))
    return torch.cat([value.flatten() for value in sums.values()])


def test_noise_without_seed_is_fresh():
    assert not torch.equal(noise(), noise())


def test_noise_of_another_attempt_is_other_noise():
    assert torch.equal(noise(fixed_seed=4), noise(fixed_seed=4))
    assert not (noise(fixed_seed=4) == noise(fixed_seed=4, attempt=1)).any()


def test_noise_is_added_to_every_entry_of_every_tensor():
    assert (noise(fixed_seed=0) != 0).all()


def test_zero_noise_changes_nothing():
    sums = {"a": torch.ones(4)}
    add_gaussian_noise(sums, noise_stddev=0.0, generator=noise_generator())
    assert sums["a"].tolist() == [1.0] * 4


@pytest.mark.parametrize("stddev", [-1.0, float("nan"), float("inf")])
def test_invalid_stddev_is_refused(stddev):
    with pytest.raises(PrivacyError, match="noise_stddev"):
        add_gaussian_noise({}, noise_stddev=stddev, generator=noise_generator())


def test_sum_in_half_precision_is_refused():
    sums = {"a": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(PrivacyError, match="a must be float32"):
        add_gaussian_noise(sums, noise_stddev=1.0, generator=noise_generator())
