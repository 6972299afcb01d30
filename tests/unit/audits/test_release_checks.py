"""Noise of releases that nobody may share, however narrow they are."""

import pytest
import torch

from dptune.audits import noise_checks, release_checks


@pytest.fixture(params=range(20))
def noise(request):
    draw = torch.Generator().manual_seed(request.param)
    return [torch.randn(4, 96, generator=draw) for _ in range(6)]


def fails(noise):
    checks = release_checks._noise_checks(noise)
    return {check.name for check in checks if not check.passed}


def test_noise_of_its_own_passes(noise):
    assert fails(noise) == set()


def test_noise_that_two_releases_share_is_caught_in_every_draw(noise):
    assert fails([*noise, noise[2]]) == {"noise_independence"}


def test_looking_at_sequences_alone_misses_shared_noise():
    """The mutant: what was looked at before."""
    missed = 0
    for seed in range(20):
        rows = torch.randn(4, 96, generator=torch.Generator().manual_seed(seed))
        twice = torch.cat([rows, rows])
        missed += noise_checks.rows_apart(twice, detail="", num_looks=2).passed
    assert missed > 0


def test_noise_that_two_sequences_of_a_release_share_is_caught():
    draw = torch.Generator().manual_seed(0)
    noise = [torch.randn(4, 384, generator=draw) for _ in range(6)]
    noise[1][3] = noise[1][0]
    assert fails(noise) == {"noise_independence"}
