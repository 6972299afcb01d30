"""The deck of noise multipliers that RLDP's controller plays from.

References:
    `dptune.accounting.filters.SigmaDeck`, with the theorem; RLDP, equations 13 to 15.
"""

import math

from dptune.accounting.adaptive import DeckTerms
from dptune.accounting.filters import Card
from dptune.mechanisms.nominal import Steps

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
