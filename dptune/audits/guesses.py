"""Guesses about coins, made from scores without looking at the coins.

Two experiments lie in one canary plan of m planted and m held-out secrets, which were
drawn uniformly and without order:

* **pairs**: of each pair (planted i, held out i) a fair coin said which one is planted.
  The coins are independent, exactly. Flipping one replaces a record.
* **inclusion**: each of the 2m secrets is in or out. The coins are fair and independent
  *given* that m of them came up: a probability is at most what independent coins give,
  over P[Bin(2m, 1/2) = m]. Flipping one adds or removes a record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FRACTIONS = (0.05, 0.1, 0.2, 0.4)
"""Shares of the coins that are guessed; chosen before looking, one bound for each."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """How many coins were guessed, and how many rightly.

    Args:
        correct: right guesses.
        guesses: made.
        canaries: coins that were thrown.
        chance: probability of the coins' number of heads, by which a p-value is
            divided; 1 where it was not fixed.
    """

    correct: int
    guesses: int
    canaries: int
    chance: float = 1.0

    def best(self, *, num_known: int) -> "Guesses":
        """The same with every guess right of so many coins, and half of the others."""
        known = min(self.guesses, num_known)
        return Guesses(
            correct=known + (self.guesses - known) // 2,
            guesses=self.guesses,
            canaries=self.canaries,
            chance=self.chance,
        )


def guess_pairs(
    planted: Sequence[float],
    held_out: Sequence[float],
    *,
    fractions: Sequence[float] = FRACTIONS,
) -> tuple[Guesses, ...]:
    """Guess which secret of each pair was planted: the one with the higher score.

    Pairs with the largest difference are guessed; a tie counts as wrong.

    Args:
        planted: scores of planted secrets, higher for better known ones.
        held_out: scores of as many others; what has no partner is left out.
        fractions: shares of the pairs that are guessed.

    >>> best, every = guess_pairs(
    ...     [9.0, 4.0, 1.0, 3.0], [2.0, 3.0, 3.0, 2.5], fractions=(0.5, 1.0)
    ... )
    >>> (best.correct, best.guesses), (every.correct, every.guesses)
    ((1, 2), (3, 4))
    """
    num = min(len(planted), len(held_out))
    gain = np.asarray(planted[:num], np.float64) - np.asarray(held_out[:num])
    order = np.argsort(-np.abs(gain), kind="stable")
    counts = _counts(num, fractions)
    return tuple(
        Guesses(correct=int((gain[order[:r]] > 0).sum()), guesses=r, canaries=num)
        for r in counts
    )


def guess_inclusion(
    planted: Sequence[float],
    held_out: Sequence[float],
    *,
    fractions: Sequence[float] = FRACTIONS,
) -> tuple[Guesses, ...]:
    """Guess "in" for the highest scores and "out" for the lowest, as many of each.

    Ties are broken against the guesser.

    Args:
        planted: scores of secrets that were planted.
        held_out: scores of those that were not.
        fractions: shares of all secrets that are guessed.
    """
    scores = np.asarray([*planted, *held_out], np.float64)
    is_in = np.arange(len(scores)) < len(planted)
    from_top = is_in[np.lexsort((is_in, -scores))]
    from_bottom = ~is_in[np.lexsort((~is_in, scores))]
    chance = float(stats.binom.pmf(len(planted), len(scores), 0.5))
    found = []
    for count in _counts(len(scores), fractions):
        half = count // 2
        right = int(from_top[:half].sum() + from_bottom[:half].sum())
        if half:
            found.append(
                Guesses(
                    correct=right,
                    guesses=2 * half,
                    canaries=len(scores),
                    chance=chance,
                )
            )
    return tuple(found)


def _counts(num: int, fractions: Sequence[float]) -> list[int]:
    """Numbers of guesses, each once, at least one."""
    return sorted({max(1, math.floor(f * num)) for f in fractions} if num else ())
