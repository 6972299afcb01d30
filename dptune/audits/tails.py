"""How likely an attack succeeds if a claim holds, and the epsilons that it refutes.

All hold in one training run, whatever canaries do to each other in training: a DP
mechanism bounds what its output says of each secret given all others. What is assumed
is the experiment: secrets (or coins) are drawn independently from a secure source.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

_TINY: Final = 1e-300
_LARGEST_LOG: Final = 700.0


def guess_tail(
    correct: int, *, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Bound the chance of so many right guesses of fair coins under (epsilon, delta).

    `canaries` fair coins decide which records a mechanism sees; its output names
    `guesses` of them and guesses each. With W ~ Bin(guesses, e^eps / (1 + e^eps)),

        P[right >= v] <= P[W >= v] + 2 canaries delta max_i P[v - i <= W < v] / i.

    | case | result |
    |---|---|
    | no guess, or none right | 1 |
    | `delta` 0 | the binomial tail |
    | `delta` above 0, binomial tail above one half | 1: the sum can be too small |

    Args:
        correct: v, right guesses.
        guesses: made; the number must not depend on the coins.
        canaries: coins that were thrown.
        epsilon: of the claim about flipping one coin.
        delta: of the claim.

    References:
        Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run",
        theorem 5.2, https://arxiv.org/abs/2305.08846.

    >>> twenty = {"guesses": 20, "canaries": 20, "delta": 0.0}
    >>> round(guess_tail(19, epsilon=1.0, **twenty), 3)
    0.016
    >>> round(guess_tail(19, epsilon=4.0, **twenty), 3)
    0.95
    """
    if correct <= 0:
        return 1.0
    chance = float(special.expit(epsilon))
    tail = float(special.bdtrc(correct - 1, guesses, chance))
    if delta == 0.0:
        return tail
    if tail > 0.5:
        return 1.0
    below = _binomial(np.arange(correct - 1, -1, -1), guesses, chance)
    worst = float(np.max(np.cumsum(below) / np.arange(1, correct + 1)))
    return min(1.0, tail + 2.0 * canaries * delta * worst)


def hit_tail(
    hits: int, *, canaries: int, share: float, epsilon: float, delta: float
) -> float:
    """Bound the chance that so many secrets are among a share of all candidates.

    Each secret is uniform over N candidates, and the output names r = share N of them
    for each canary. Under a replace guarantee a secret is named with probability at
    most e^eps o / (1 + e^eps o), o = share / (1 - share), given all other canaries, but
    for an event of probability delta / (1 - share). With W ~ Bin(canaries, .), any j:

        P[hits >= v] <= P[W >= v - j] + canaries delta / (1 - share) / (j + 1).

    Proof of the first: let f_s be the density of the output if the secret is s, A the r
    candidates it names and g the mean of f over those outside A. By convexity
    f_s <= e^eps g + h_s, with h_s the mean of (f_s - e^eps f_t)+ over t outside A,
    whose integral over outputs, averaged over s, is at most delta (N - 1) / (N - r).
    With x = mean of h over A, times r / N over the mean density, the posterior
    probability p of A obeys p <= e^eps o (1 - p) + x, so that
    p <= e^eps o / (1 + e^eps o) + x / (1 + e^eps o): a coin of the first chance, or
    else one of chance x. Canaries are taken one after another, each given the earlier.
    The first coins are independent; of the others F fall, E[F] is at most
    canaries delta / (1 - share), and hits are at most W + F (Markov for F > j).

    | case | result |
    |---|---|
    | no hit | 1 |
    | `share` 1 / N, one canary | the reconstruction bound of one guess |

    Args:
        hits: v.
        canaries: number of secrets.
        share: in (0, 1).
        epsilon: of the replace claim about one secret.
        delta: of the claim.
    """
    if hits <= 0:
        return 1.0
    chance = float(special.expit(epsilon + math.log(share) - math.log1p(-share)))
    spared = np.arange(hits)
    tails = special.bdtrc(hits - 1 - spared, canaries, chance)
    fallen = canaries * delta / (1.0 - share) / (1.0 + spared)
    return min(1.0, float(np.min(tails + fallen)))


def _binomial(counts: NDArray[np.int64], num: int, chance: float) -> Floats:
    """Probabilities of counts under Bin(num, chance)."""
    choose = -special.betaln(counts + 1, num - counts + 1) - math.log(num + 1)
    powers = special.xlogy(counts, chance) + special.xlog1py(num - counts, -chance)
    found: Floats = np.exp(choose + powers)
    return found


class TradeOff(Protocol):
    """What is known of a mechanism: P[E | D] is at most a function of P[E | D']."""

    def inverse(self, probability: float) -> float:
        """Return the least P[E | D'] of an event with P[E | D] = `probability`."""
        ...


class GuaranteeCurve:
    """The curve of a mechanism that is known to be (epsilon, delta)-DP, for each pair.

    Args:
        guarantees: pairs of epsilon and delta; more pairs say more.
    """

    def __init__(self, guarantees: Sequence[tuple[float, float]]) -> None:
        self._guarantees = tuple(guarantees)

    def inverse(self, probability: float) -> float:
        """Return the largest that any pair implies, at least 0."""
        gap = max(1.0 - probability, _TINY)
        found = 0.0
        for epsilon, delta in self._guarantees:
            small = (probability - delta) * math.exp(-epsilon)
            large = 1.0 - delta - math.exp(min(_LARGEST_LOG, epsilon + math.log(gap)))
            found = max(found, small, large)
        return found


def is_possible(
    correct: int, *, guesses: int, canaries: int, chance: float, curve: TradeOff
) -> bool:
    """Whether P[right >= correct] can be `chance` under a trade-off curve.

    Let p_i be the chance of i right guesses. For a canary j at random and any t, the
    event "j is guessed right and i >= t guesses are" becomes, when j's coin is flipped
    and the output stays, "j is guessed wrong and i - 1 >= t - 1 are right". With phi
    the curve's inverse, which is convex, so that it may be averaged over j and coins,

        phi(sum_{i >= t} i p_i / m) <= sum_{i >= t} (r - i + 1) p_{i-1} / m.

    From P[right >= v] = chance this gives the least p_{v-1}, then p_{v-2}, and so on;
    it is impossible if they add up to more than 1. The least total has all of `chance`
    at v: mass further up asks for more below.

    Args:
        correct: v.
        guesses: r; the number must not depend on the coins.
        canaries: m, coins that were thrown.
        chance: to be refuted.
        curve: of flipping one coin, in both directions.

    References:
        Mahloujifar, Melis, Chaudhuri (2024), "Auditing f-differential privacy in one
        run", section 3, https://arxiv.org/abs/2410.22235.
    """
    if correct <= 0:
        return True
    total = chance
    right = correct * chance / canaries
    wrong = (guesses - correct) * chance / canaries
    for count in range(correct - 1, -1, -1):
        lacking = curve.inverse(min(1.0, right)) - wrong
        if lacking > 0.0:
            mass = lacking * canaries / (guesses - count)
            total += mass
            right += count * mass / canaries
            wrong += lacking
        if total > 1.0:
            return False
    return True


_LARGEST = 100.0
_STEPS = 24


def largest_refuted(refutes: Callable[[float], bool]) -> float:
    """Return an epsilon that is refuted and above which, near by, none is.

    Whoever has a smaller epsilon has any larger one too, so that every smaller epsilon
    is refuted with it. 0 where even epsilon 0 is not refuted.

    Args:
        refutes: whether an epsilon, at least 0, is refuted.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, 0.5
    while refutes(high):
        low, high = high, 2.0 * high
        if low >= _LARGEST:
            return _LARGEST
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low
