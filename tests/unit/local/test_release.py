"""What is released has norm C and noise everywhere."""

import math

import pytest
import torch

from dptune.errors import PrivacyError
from dptune.local.plan import SMALLEST_MAX_NORM
from dptune.local.release import normalize, release

C, SIGMA = 2.0, 0.7


def hidden(rows=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 5, 8, generator=generator) * 100


def norms(values):
    return values.flatten(1).norm(dim=1)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e15])
def test_normalize_gives_every_sequence_norm_c(scale):
    found = normalize(hidden() * scale, max_norm=C)
    assert norms(found) == pytest.approx(torch.full((4,), C), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -math.inf])
def test_normalize_unusable_sequence_is_zero_and_leaves_the_others(value):
    states = hidden()
    expected = normalize(states, max_norm=C)
    states[1] = value
    found = normalize(states, max_norm=C)
    assert norms(found)[1] == 0
    assert found[[0, 2, 3]].equal(expected[[0, 2, 3]])


def test_normalize_rows_are_independent():
    together = normalize(hidden(), max_norm=C)
    alone = torch.cat([normalize(row[None], max_norm=C) for row in hidden()])
    assert together.equal(alone)


def noise_of(sent, states):
    return sent - normalize(states, max_norm=C)


def is_noised_everywhere(noise, stddev):
    """Every position of every sequence has noise of the planned size."""
    return bool((noise.std(dim=(0, 2)) > 0.8 * stddev).all())


def test_release_noises_every_position(stream):
    states = hidden(400)
    sent = release(states, max_norm=C, noise_stddev=SIGMA * C, stream=stream)
    noise = noise_of(sent, states)
    assert noise.std().item() == pytest.approx(SIGMA * C, rel=0.02)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.05)
    assert is_noised_everywhere(noise, SIGMA * C)
    assert not sent.requires_grad


def test_noise_on_real_tokens_only_is_caught(stream):
    states = hidden(400)
    sent = normalize(states, max_norm=C)
    stream.add_to(sent[:, :3], stddev=SIGMA * C)  # broken: padding shows the length
    assert not is_noised_everywhere(noise_of(sent, states), SIGMA * C)


@pytest.mark.parametrize("stddev", [0.0, -1.0, math.nan])
def test_release_without_noise_is_refused(stream, stddev):
    with pytest.raises(PrivacyError, match="above 0"):
        release(hidden(), max_norm=C, noise_stddev=stddev, stream=stream)


@pytest.mark.parametrize(("norm", "holds"), [(SMALLEST_MAX_NORM, True), (1e-43, False)])
def test_norm_holds_down_to_the_smallest_that_is_planned(norm, holds):
    """Far below float32 rounds entries up to the next of its few numbers."""
    states = torch.randn(50, 64, 384, generator=torch.Generator().manual_seed(0))
    found = normalize(states, max_norm=norm).double().flatten(1).norm(dim=1)
    assert bool(found.max() <= norm * (1 + 1e-6)) is holds
