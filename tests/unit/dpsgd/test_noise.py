import numpy as np
import pytest
import torch

from dptune.dpsgd import noise as noise_module
from dptune.dpsgd import randomness
from dptune.dpsgd.factorization import band_coefficients
from dptune.dpsgd.noise import (
    BandedNoise,
    GroupedNoise,
    IndependentNoise,
    add_gaussian_noise,
    noise_stream,
)
from dptune.errors import ConfigError, PrivacyError


def noise(**options):
    sums = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}
    add_gaussian_noise(sums, noise_stddev=2.0, stream=noise_stream(**options))
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
    add_gaussian_noise(sums, noise_stddev=0.0, stream=noise_stream())
    assert sums["a"].tolist() == [1.0] * 4


@pytest.mark.parametrize("stddev", [-1.0, float("nan"), float("inf")])
def test_invalid_stddev_is_refused(stddev):
    with pytest.raises(PrivacyError, match="noise_stddev"):
        add_gaussian_noise({}, noise_stddev=stddev, stream=noise_stream())


def test_sum_in_half_precision_is_refused():
    sums = {"a": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(PrivacyError, match="a must be float32"):
        add_gaussian_noise(sums, noise_stddev=1.0, stream=noise_stream())


BANDS = band_coefficients(num_bands=3, num_steps=9)
SHAPES = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}


def banded(coefficients=BANDS, *, noise_stddev=2.0, **options):
    return BandedNoise(
        coefficients=coefficients,
        noise_stddev=noise_stddev,
        stream=noise_stream(fixed_seed=6),
        sums=SHAPES,
        **options,
    )


def steps_of(mechanism, count=9):
    """Noise of every step, `(steps, entries)`."""
    rows = []
    for step in range(count):
        sums = {name: torch.zeros_like(value) for name, value in SHAPES.items()}
        mechanism.add(sums, step=step)
        rows.append(torch.cat([value.flatten() for value in sums.values()]))
    return torch.stack(rows)


def independent():
    return IndependentNoise(
        noise_stddev=lambda step: 2.0, stream=noise_stream(fixed_seed=6)
    )


def test_banded_noise_solves_the_triangular_system():
    matrix = np.zeros((9, 9))
    for band, value in enumerate(BANDS):
        matrix += value * np.eye(9, k=-band)
    expected = np.linalg.solve(matrix, steps_of(independent()).double().numpy())
    np.testing.assert_allclose(steps_of(banded()).numpy(), expected, atol=2e-5)


def test_one_band_is_independent_noise():
    assert torch.equal(steps_of(banded((1.0,))), steps_of(independent()))


def test_independent_noise_follows_the_step():
    rising = IndependentNoise(noise_stddev=float, stream=noise_stream(fixed_seed=6))
    rows = steps_of(rising, 3)
    assert not rows[0].any()
    assert rows[1].all()


@pytest.mark.parametrize("step", [0, 1, 3])
def test_banded_noise_out_of_step_is_refused(step):
    mechanism = banded()
    for done in (0, 1):
        mechanism.add({n: v.clone() for n, v in SHAPES.items()}, step=done)
    with pytest.raises(PrivacyError, match="step by step"):
        mechanism.add({n: v.clone() for n, v in SHAPES.items()}, step=step)


def test_banded_noise_may_begin_at_any_step():
    mechanism = banded()
    for step in (7, 8):
        mechanism.add({n: v.clone() for n, v in SHAPES.items()}, step=step)


def test_past_noise_beyond_the_limit_is_refused():
    needed = 2 * 17 * 4  # two copies of 17 floats
    banded(max_bytes=needed)
    with pytest.raises(ConfigError, match=f"got {needed} bytes"):
        banded(max_bytes=needed - 1)


def test_past_noise_takes_one_copy_per_band_but_one():
    mechanism = banded()
    steps_of(mechanism)
    assert len(mechanism._past) == 2


def test_banded_noise_of_zero_changes_nothing():
    assert not steps_of(banded(noise_stddev=0.0)).any()


def test_bands_of_another_norm_are_refused():
    """Else the stddev would not be what the event says."""
    with pytest.raises(PrivacyError, match="norm 1"):
        banded((1.0, 0.5))


def test_banded_noise_refuses_half_precision_and_bad_stddev():
    sums = {"a": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(PrivacyError, match="a must be float32"):
        banded().add(sums, step=0)
    with pytest.raises(PrivacyError, match="noise_stddev"):
        banded(noise_stddev=float("nan"))


def grouped(**stddevs):
    steps = []
    mechanism = GroupedNoise(
        noise_stddevs=lambda step: steps.append(step) or stddevs,
        stream=noise_stream(fixed_seed=6),
    )
    sums = {name: torch.zeros_like(value) for name, value in SHAPES.items()}
    mechanism.add(sums, step=7)
    assert steps == [7]
    return sums


def test_every_group_has_noise_of_its_own_stddev():
    plain, sums = grouped(a=1.0, b=1.0), grouped(a=0.5, b=3.0)
    torch.testing.assert_close(sums["a"], 0.5 * plain["a"])
    torch.testing.assert_close(sums["b"], 3.0 * plain["b"])
    assert len({*plain["a"].flatten().tolist(), *plain["b"].tolist()}) == 17


@pytest.mark.parametrize(
    "stddevs",
    [{"a": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {}],
)
def test_sum_without_noise_of_its_own_is_refused(stddevs):
    with pytest.raises(PrivacyError, match="noise of its own"):
        grouped(**stddevs)


def test_ranks_of_one_run_never_share_their_noise():
    """The difference of two parts with equal noise would have none."""
    first, same, other = (noise(fixed_seed=4, rank=rank) for rank in (0, 0, 1))
    assert torch.equal(first, same)
    assert not (first == other).any()
    assert torch.equal(first, noise(fixed_seed=4))


def noise_by_default(dtype):
    """Noise on float32 sums of a script that has another kind of number as default."""
    sums = {"a": torch.zeros(1000)}
    torch.set_default_dtype(dtype)
    try:
        stream = noise_stream(fixed_seed=4)
        add_gaussian_noise(sums, noise_stddev=2.0, stream=stream)
    finally:
        torch.set_default_dtype(torch.float32)
    return sums["a"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_noise_is_in_float32_whatever_a_script_defaults_to(dtype):
    assert noise_by_default(dtype).equal(noise_by_default(torch.float32))


def test_noise_of_a_default_kind_cannot_be_made(monkeypatch):
    monkeypatch.setattr(randomness, "_EXACT", None)
    with pytest.raises(RuntimeError, match="Half"):
        noise_by_default(torch.float16)


def test_noise_is_made_where_the_gradients_are(monkeypatch):
    asked = []
    monkeypatch.setattr(
        noise_module,
        "GaussianStream",
        lambda _, *, device="elsewhere": asked.append(device),
    )
    noise_stream()
    noise_stream(device="cuda:1")
    assert asked == ["cpu", "cuda:1"]
