"""RLDP: equations 9 to 20, one function each, and what its controller looks at.

Nothing here is private by itself; a guarantee comes from what feeds it, see
`dptune.mechanisms.rldp_controller` and `dptune.dpsgd.adaptive_clipping`. The deck of
noise multipliers that the controller plays from (`deck`, in place of equations 13 to
15) is charged before the first step: `dptune.accounting.adaptive.SigmaDeck`.

| symbol | here |
|---|---|
| n, C_i | pairs of LoRA matrices, clip norm of each |
| sigma, sigma_0 | noise multiplier, and the calibrated one |
| nu | joint norms of units, `(pairs, units)` |
| u | utility, minus the loss per token |
| epsilon | nominal, by the central limit (`dptune.mechanisms.nominal`) |

References:
    Khadangi, Sartipi, Tchappi, Bahmani, Fridgen (2025), "Efficient Differentially
    Private Fine-Tuning of LLMs via Reinforcement Learning" (RLDP), section 2.4.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dptune.accounting.adaptive import Card, DeckTerms
from dptune.mechanisms.nominal import Steps

_LARGEST_STEP = 0.1
_MOMENTUM = 0.8
_LEAST_RATIO = -0.999
_TINY = 1e-6


def utility(loss: float) -> float:
    """Return u = -log PPL = -loss, for a mean loss per token in nats (equation 9)."""
    return -loss


def next_clip(action: float) -> float:
    """Return C = min(exp(a), 1), equation 10.

    The text calls a the *change* of log C; the equation and line 21 of algorithm 1 set
    C itself, and so does this.

    >>> next_clip(0.7), round(next_clip(-0.7), 2)
    (1.0, 0.5)
    """
    return math.exp(min(action, 0.0))


def clip_around(reference: float, action: float, *, span: float) -> float:
    """Return reference * span^tanh(a): equation 10 for gradients of unknown size.

    Equation 10 takes norms near 1 for granted. Section 4.1 reports radii that move by
    1.6 to 2.4 times; a span of 2 keeps an untrained policy within what was seen.

    Args:
        reference: a norm that follows the gradients, such as their noisy median.
        action: a, unbounded.
        span: largest factor, at least 1.

    >>> clip_around(0.5, 0.0, span=2.0), round(clip_around(0.5, 9.0, span=2.0), 3)
    (0.5, 1.0)
    """
    return reference * math.exp(math.log(span) * math.tanh(action))


def sigma_step(action: float, *, spent: float) -> float:
    """Return the change of log sigma, equations 11 and 12.

    Args:
        action: a_{n+1}.
        spent: epsilon_t / epsilon_max; beyond 1 sigma stays.
    """
    return math.tanh(action) * _LARGEST_STEP * max(0.0, 1.0 - spent)


def next_sigma(action: float, *, sigma: float, start: float, spent: float) -> float:
    """Return the next sigma, equations 11 to 15.

    Args:
        action: a_{n+1}.
        sigma: of now.
        start: sigma_0; the proposal stays between half of it and its double. The
            paper's proof takes sigma >= sigma_0 for granted (theorem B.10).
        spent: epsilon_t / epsilon_max.
    """
    proposed = math.log(sigma) + sigma_step(action, spent=spent)
    proposed = min(max(proposed, math.log(0.5 * start)), math.log(2.0 * start))
    return math.exp(_MOMENTUM * math.log(sigma) + (1 - _MOMENTUM) * proposed)


def reward(gain: float, cost: float, *, largest_loss: float) -> float:
    """Return r, equations 17 to 20.

    The inner clamp makes log(0.001) = -6.9 the least value, so that a larger R_max,
    which the paper does not give, changes nothing.

    Args:
        gain: change of utility.
        cost: change of epsilon.
        largest_loss: R_max.
    """
    ratio = max(gain / (cost + _TINY), _LEAST_RATIO)
    return max(-largest_loss, math.log1p(ratio))


def paper_state(norms: Tensor, *, loss: float, epsilon: float) -> Tensor:
    """Return the paper's state, with statistics of the batch as they are.

    It lists eleven summaries, though it speaks of twelve. Its Fisher entries are the
    squares of the same norms. Batches of nobody give zeros.

    **Privacy**: reads private norms and losses, and releases them without noise:
    nothing is certified for a run whose controller sees this.

    Args:
        norms: `(pairs, units)`.
        loss: mean loss per token.
        epsilon: nominal, so far.

    Returns:
        `(3 pairs + 8,)`: quartiles, utility, epsilon, dispersion, loss, mean and
        variance of squared norms, skewness, excess kurtosis.
    """
    if norms.shape[1] == 0:
        norms = torch.zeros(len(norms), 1)
    levels = torch.tensor([0.25, 0.5, 0.75])
    quartiles = torch.quantile(norms, levels, dim=1).flatten()
    centered = norms - norms.mean()
    variance = centered.square().mean()
    scale = variance.sqrt().clamp(min=_TINY)
    squares = norms.square()
    summaries = torch.stack(
        [
            torch.tensor(utility(loss)),
            torch.tensor(epsilon),
            variance,
            torch.tensor(loss),
            squares.mean(),
            squares.var(correction=0),
            (centered / scale).pow(3).mean(),
            (centered / scale).pow(4).mean() - 3.0,
        ]
    )
    return torch.nan_to_num(torch.cat((quartiles, summaries)).float())


def signal_share(squares: float, *, num_entries: int, noise_stddev: float) -> float:
    """Return log(1 + signal / noise) of the released gradient of one pair.

    |g|^2 - d s^2 estimates the squared norm of what was released before its noise.
    Post-processing: it takes the place of the paper's Fisher moments for nothing.

    Args:
        squares: |g|^2 of the noisy mean gradient.
        num_entries: d.
        noise_stddev: s, in its units.
    """
    noise = num_entries * noise_stddev**2
    return math.log1p(max(squares - noise, 0.0) / max(noise, 1e-30))


def due(step: int, *, warmup: int, interval: int) -> bool:
    """Whether the controller acts before `step`, counted from 0."""
    return step >= warmup and (step - warmup) % interval == 0


def num_actions(num_steps: int, *, warmup: int, interval: int) -> int:
    """Return how often the controller acts in `num_steps` steps."""
    return max(0, math.ceil((num_steps - warmup) / interval))


def track_median(
    reference: Sequence[float], shares: Sequence[float], *, rate: float
) -> tuple[float, ...]:
    """Move each reference towards the median: times exp(-rate (share - 1/2)).

    Args:
        reference: norms, above 0.
        shares: noisy share of units at or below each.
        rate: above 0.

    References:
        Andrew et al. (2021), algorithm 1; it takes the place of line 14 of algorithm 1
        of RLDP, which sets C to the raw median.
    """
    pairs = zip(reference, shares, strict=True)
    return tuple(
        ref * math.exp(-rate * (min(max(share, 0.0), 1.0) - 0.5))
        for ref, share in pairs
    )


_WEIGHTS = (1, 4, 6, 4, 1)


def deck(noise_multiplier: float, *, num_steps: int, spread: float) -> Steps:
    """Commit to a multiplier for every step; the controller chooses their order.

    There are five levels between sigma / spread and sigma * spread, in equal ratios,
    and counts in proportion to 1, 4, 6, 4, 1: a policy that stays near sigma has most
    of its wishes granted. The composition of the deck is what a run is charged for, so
    that calibration raises sigma by what the spread costs.

    Args:
        noise_multiplier: sigma of the middle.
        num_steps: cards.
        spread: at least 1; 1 makes all cards alike.

    Returns:
        Multipliers, rising, and how many of each, `num_steps` together.
    """
    if spread == 1:
        return ((noise_multiplier, num_steps),)
    counts = [num_steps * weight // sum(_WEIGHTS) for weight in _WEIGHTS]
    counts[len(counts) // 2] += num_steps - sum(counts)
    powers = [place / 2 - 1 for place in range(len(counts))]
    levels = [noise_multiplier * math.exp(p * math.log(spread)) for p in powers]
    return tuple((z, count) for z, count in zip(levels, counts, strict=True) if count)


def deck_terms(steps: Steps, *, sample_rate: float) -> DeckTerms:
    """Return the terms of such a deck."""
    return DeckTerms(
        cards=tuple(
            (Card(sample_rate=sample_rate, noise_multiplier=z), count)
            for z, count in steps
        )
    )
