"""Equations 9 to 20 of RLDP, step by step, by hand."""

import math

import pytest
import torch

from dptune.mechanisms.rldp import (
    clip_around,
    due,
    next_clip,
    next_sigma,
    num_actions,
    paper_state,
    reward,
    sigma_step,
    signal_share,
    track_median,
    utility,
)


def test_utility_is_minus_the_log_of_perplexity():
    loss = 1.7
    assert utility(loss) == pytest.approx(-math.log(math.exp(loss)))


@pytest.mark.parametrize(
    ("action", "clip"), [(0.0, 1.0), (-2.302585, 0.1), (0.7, 1.0), (900.0, 1.0)]
)
def test_clip_is_the_exponential_up_to_one(action, clip):
    assert next_clip(action) == pytest.approx(clip, rel=1e-5)


@pytest.mark.parametrize(
    ("action", "clip"), [(0.0, 0.3), (50.0, 0.6), (-50.0, 0.15), (0.5493061, 0.42426)]
)
def test_clip_around_a_reference_stays_within_the_span(action, clip):
    """tanh(.5493) = .5, so .3 sqrt(2)."""
    assert clip_around(0.3, action, span=2.0) == pytest.approx(clip, rel=1e-4)


@pytest.mark.parametrize(
    ("action", "spent", "step"),
    [
        (0.0, 0.0, 0.0),
        (0.5493061443, 0.0, 0.05),
        (0.5493061443, 0.4, 0.03),
        (-50.0, 0.0, -0.1),
        (50.0, 1.0, 0.0),
        (50.0, 1.5, 0.0),
    ],
)
def test_sigma_step_by_hand(action, spent, step):
    """tanh(.5493) = .5; .5 * .1 * (1 - .4) = .03."""
    assert sigma_step(action, spent=spent) == pytest.approx(step)


def test_sigma_by_hand():
    """log 1 + .03 proposed, a fifth of it taken: exp(.006)."""
    got = next_sigma(0.5493061443, sigma=1.0, start=1.0, spent=0.4)
    assert got == pytest.approx(1.0060180361, rel=1e-9)


@pytest.mark.parametrize(("action", "bound"), [(50.0, 2.0), (-50.0, 0.5)])
def test_sigma_stays_between_half_and_double(action, bound):
    sigma = 1.0
    for _ in range(400):
        sigma = next_sigma(action, sigma=sigma, start=1.0, spent=0.0)
    assert sigma == pytest.approx(bound, rel=1e-9)


def test_sigma_goes_below_what_the_proof_assumes():
    """Theorem B.10 needs sigma >= sigma_0; equation 13 lets it fall."""
    assert next_sigma(-1.0, sigma=1.0, start=1.0, spent=0.0) < 1.0


@pytest.mark.parametrize(
    ("gain", "cost", "value"),
    [
        (0.0, 0.1, 0.0),
        (0.1, 0.1 - 1e-6, math.log(2.0)),
        (-0.05, 0.1 - 1e-6, math.log(0.5)),
        (-10.0, 0.1, -5.0),
        (0.0, 0.0, 0.0),
        (1e-6, 0.0, math.log(2.0)),
    ],
)
def test_reward_by_hand(gain, cost, value):
    assert reward(gain, cost, largest_loss=5.0) == pytest.approx(value, abs=1e-9)


def test_least_reward_is_minus_6_9_whatever_the_bound():
    assert reward(-10.0, 0.1, largest_loss=1e9) == pytest.approx(math.log(0.001))


def test_state_of_the_paper_by_hand():
    """Two pairs, four units; all summaries written out."""
    norms = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 8.0]])
    got = paper_state(norms, loss=1.5, epsilon=0.7)
    assert len(got) == 3 * 2 + 8
    flat = norms.flatten().double()
    mean = flat.mean()
    sigma = (flat - mean).square().mean().sqrt()
    by_hand = [
        *(1.75, 0.0),
        *(2.5, 0.0),
        *(3.25, 2.0),
        *(-1.5, 0.7, float(sigma**2), 1.5),
        float((flat**2).mean()),
        float((flat**2).var(correction=0)),
        float((((flat - mean) / sigma) ** 3).mean()),
        float((((flat - mean) / sigma) ** 4).mean() - 3),
    ]
    assert got.tolist() == pytest.approx(by_hand, rel=1e-5)


def test_state_of_nobody_is_finite():
    assert torch.isfinite(
        paper_state(torch.zeros(3, 0), loss=math.nan, epsilon=0)
    ).all()


def test_signal_share_is_nothing_for_pure_noise():
    noise = 0.1 * torch.randn(200_000, generator=torch.Generator().manual_seed(0))

    def share_of(released):
        squares = float(released.square().sum())
        return signal_share(squares, num_entries=200_000, noise_stddev=0.1)

    assert share_of(noise) < 0.02
    assert share_of(noise + 0.1) == pytest.approx(math.log(2.0), abs=0.02)


def test_controller_acts_after_the_warm_up_every_interval():
    steps = [s for s in range(20) if due(s, warmup=5, interval=4)]
    assert steps == [5, 9, 13, 17]
    assert num_actions(20, warmup=5, interval=4) == len(steps)
    assert num_actions(5, warmup=5, interval=4) == 0


def test_the_papers_run_has_32_actions():
    """3,600 steps, warm-up 50, interval 112."""
    assert num_actions(3600, warmup=50, interval=112) == 32


def test_median_is_tracked():
    """Too many below: down. exp(-.2 * .25) and its inverse."""
    got = track_median((1.0, 2.0, 1.0), (0.75, 0.25, 0.5), rate=0.2)
    assert got == pytest.approx((math.exp(-0.05), 2 * math.exp(0.05), 1.0))
