"""Adaptive runs: what a schedule or a controller must ask before every step.

A controller that chooses the noise of a step from what was released before it makes
the composition *fully adaptive*: the theorems for schedules that were fixed in advance
do not apply. In particular a "filter" that composes what was spent so far, by PLD or
f-DP, and stops when that curve reaches (epsilon, delta), is invalid: each outcome may
choose the continuation that hurts most just there, although each of the curves stays
within the budget (`tests/unit/accounting/test_filters.py` has an example by numbers).

Two ways are sound. Both charge everything up front, so that nothing a controller does
later can spend more than what is in the ledger:

| | `RdpFilter` | `SigmaDeck` |
|---|---|---|
| fixed before training | orders, epsilon, delta | a multiset of cards |
| the controller chooses | any noise, rate, number of steps | the order, when to stop |
| price | noise up about 6 % at one order | none: plain PLD of the cards |
| relation | one, named | both |
| event | `renyi_filter` | the cards, composed |

What a controller may look at: what was released with noise, public data, coins that do
not depend on the data. Nothing else, ever: the guarantee of both rests on it.

References:
    Rogers, Roth, Ullman, Vadhan (2016), privacy filters, arXiv:1605.08294.
    Feldman, Zrnic (2021), Theorem 4.3, arXiv:2008.11193.
    Lécuyer (2021), arXiv:2103.01379.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.events import RenyiFilterDpEvent, check_event, merge_events
from dptune.accounting.renyi import divergence_limit, step_divergence
from dptune.errors import BudgetExceededError, ConfigError
from dptune.privacy import NeighboringRelation, PrivacyBudget


class AdaptiveBudget(Protocol):
    """Grants noise multipliers to a controller, one step at a time.

    The run charges `event` before its first step. Then, before each step, the
    controller asks; only what was granted may be used, and only for one step.
    """

    @property
    def event(self) -> DpEvent:
        """What the whole run is charged for, whatever will be asked."""
        ...

    def ask(
        self, noise_multiplier: float, *, sample_rate: float | None = None
    ) -> float:
        """Grant the noise multiplier of the next step, the wish or one near it.

        Raises:
            BudgetExceededError: nothing fits any more; no further step may run.
        """
        ...


class RdpFilter:
    """Stops a fully adaptive run before its Renyi divergence exceeds a limit.

    With R_t(a) the divergence at order a of the mechanism that the controller chose at
    step t, a step is granted if R_1(a) + ... + R_t(a) <= B(a) for at least one order a.
    B(a) is the largest divergence from which (epsilon, delta / number of orders)
    follows at order a.

    **Formal guarantee**: what was released is (epsilon, delta)-DP under `relation`,
    whatever the controller does, if it sees nothing private.

    *One order.* The sum is at most B(a) with certainty, so the whole has divergence at
    most B(a) (Feldman and Zrnic, Theorem 4.3).

    *Several orders.* Let T(a) be the step before which order a's own sum would exceed.
    The run ends by max T(a). Split its outcomes by the order that reaches the maximum,
    the first in the list if several do; outcomes show the sums, so they show the part.
    In part a the run equals the one that stops at T(a), which has divergence at most
    B(a). So for any event E, P(E in part a) <= exp(epsilon) Q(E in part a) + delta /
    number of orders, and the parts add up.

    | case | meaning |
    |---|---|
    | noise multiplier 0 | refused: its divergence is infinite |
    | sample rate 0 | granted, costs nothing |
    | a refused wish | spends nothing; a smaller wish may still be granted |

    Args:
        budget: of the adaptive run.
        sample_rate: of a step, unless a wish says otherwise.
        relation: neighboring relation of the promise.
        orders: above 1, fixed in advance; one is best unless it is unknown how
            unevenly the run will spend. See `best_order`.
        spent: sums at each order when a killed run goes on; it must be stored before
            the noise of a granted step is drawn.

    Raises:
        ConfigError: no order leaves anything to spend, or the numbers do not match.
    """

    def __init__(
        self,
        budget: PrivacyBudget,
        *,
        sample_rate: float,
        relation: NeighboringRelation,
        orders: Sequence[float],
        spent: Sequence[float] | None = None,
    ) -> None:
        self._relation = NeighboringRelation(relation)
        self._sample_rate = _checked_rate(sample_rate)
        share = budget.target_delta / max(len(orders), 1)
        limits = {
            float(order): divergence_limit(
                epsilon=budget.target_epsilon, delta=share, order=order
            )
            for order in orders
            if order > 1
        }
        self._check(budget, orders, limits, spent)
        self._limits = limits
        self._spent = list(spent) if spent is not None else [0.0] * len(limits)

    @property
    def orders(self) -> tuple[float, ...]:
        """Orders of the filter."""
        return tuple(self._limits)

    @property
    def spent(self) -> tuple[float, ...]:
        """Sum of divergences at each order, to be stored with a checkpoint."""
        return tuple(self._spent)

    @property
    def event(self) -> DpEvent:
        """The limits: an upper bound of every run, charged before the first step."""
        usable = {a: limit for a, limit in self._limits.items() if limit >= 0}
        return check_event(
            RenyiFilterDpEvent(
                orders=tuple(usable),
                divergences=tuple(usable.values()),
                relation=self._relation.value,
            )
        )

    def ask(
        self, noise_multiplier: float, *, sample_rate: float | None = None
    ) -> float:
        """Grant exactly the wish, or nothing.

        Raises:
            BudgetExceededError: the wish would exceed the limit at every order.
        """
        rate = self._sample_rate if sample_rate is None else _checked_rate(sample_rate)
        after = [
            spent
            + step_divergence(
                sample_rate=rate,
                noise_multiplier=_checked_noise(noise_multiplier),
                order=order,
                relation=self._relation,
            )
            for order, spent in zip(self._limits, self._spent, strict=True)
        ]
        if not any(
            total <= limit
            for total, limit in zip(after, self._limits.values(), strict=True)
        ):
            raise BudgetExceededError(
                "noise_multiplier must be one that the Renyi filter can still grant, "
                f"got noise_multiplier={noise_multiplier:g}. End the stage here, or "
                "plan it with more noise or a larger budget."
            )
        self._spent = after
        return noise_multiplier

    def _check(
        self,
        budget: PrivacyBudget,
        orders: Sequence[float],
        limits: Mapping[float, float],
        spent: Sequence[float] | None,
    ) -> None:
        """Refuse orders that cannot work."""
        if not orders or len(limits) != len(orders):
            raise ConfigError(
                f"orders must be different numbers above 1, got orders={list(orders)}. "
                "Take one from best_order."
            )
        if all(limit < 0 for limit in limits.values()):
            raise ConfigError(
                f"target_epsilon must leave something to spend at one of the orders, "
                f"got target_epsilon={budget.target_epsilon:g}. Choose larger orders."
            )
        if spent is not None and not (
            len(spent) == len(limits) and all(x >= 0 for x in spent)
        ):
            raise ConfigError("spent must hold one sum for each order, at least 0.")


_CANDIDATES = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(2**k for k in range(6, 11)),
)


def best_order(
    budget: PrivacyBudget,
    *,
    sample_rate: float,
    noise_multiplier: float,
    num_steps: int,
    relation: NeighboringRelation,
) -> float:
    """Choose the order at which a typical plan uses the smallest part of its limit.

    To be called before training, with public numbers.
    """

    def use(order: float) -> float:
        limit = divergence_limit(
            epsilon=budget.target_epsilon, delta=budget.target_delta, order=order
        )
        step = step_divergence(
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
            order=order,
            relation=relation,
        )
        return num_steps * step / limit if limit > 0 else math.inf

    return min(map(float, _CANDIDATES), key=use)


@dataclass(frozen=True, kw_only=True, order=True)
class Card:
    """One Poisson-sampled Gaussian step that a deck holds."""

    sample_rate: float
    noise_multiplier: float


class SigmaDeck:
    """A multiset of steps, committed to before training, played in any order.

    **Theorem.** Let a deck S be fixed before the data is seen. At each step a
    controller, seeing only what was released and its own coins, picks a card that is
    left and runs a mechanism that the card's pair (P_c, Q_c) dominates whatever was
    released before; each card is played at most once; it may stop at any time. Then
    for every c = exp(e) >= 0 the hockey stick of all that was released is at most h_S,
    that of the product of all pairs of S. So plain PLD of the multiset holds.

    *Proof*, by induction on the number of cards. With none left, both sides are
    (1 - c)+. Otherwise the first card a is fixed by coins; let y be its output with
    densities p, q. What follows is a controller on the deck S - a, *the same deck for
    every y*, so its hockey stick is at most h_{S-a} at every point, and

        H_c(all) = integral of p(y) H_{c q(y)/p(y)}(rest | y) dy
                <= integral of p(y) h_{S-a}(c q(y)/p(y)) dy,

    which is the hockey stick of the pair (first mechanism, independent product of S -
    a). Those are independent, so the order of integration may be swapped, and the
    first mechanism's hockey stick is at most that of its pair at every point: the
    result is h_S, whichever card came first and whatever the coins. Stopping early
    drops outputs, which is post-processing. Both directions (unit added, unit
    removed) are separate uses of the theorem.

    What breaks it: cards added or changed after training began, a card played twice
    (also by a killed run that goes on: store `played` before the noise is drawn), a
    controller that sees private values.

    Args:
        cards: how many of each.
        played: how many of each a killed run had already been granted.

    Raises:
        ConfigError: a count or a number is out of range, or more was played than held.
    """

    def __init__(
        self, cards: Mapping[Card, int], *, played: Mapping[Card, int] | None = None
    ) -> None:
        for card, count in cards.items():
            _checked_rate(card.sample_rate)
            _checked_noise(card.noise_multiplier, positive=True)
            if isinstance(count, bool) or count < 0:
                raise ConfigError(f"cards must be counted from 0, got {count}.")
        self._cards = Counter(dict(cards))
        self._played: Counter[Card] = Counter(dict(played or {}))
        if self._played - self._cards or any(n < 0 for n in self._played.values()):
            raise ConfigError(
                "played must be part of the deck. Restore the deck that was charged."
            )

    @property
    def event(self) -> DpEvent:
        """All cards, played or not."""
        return merge_events(
            dp_accounting.SelfComposedDpEvent(
                event=dp_accounting.PoissonSampledDpEvent(
                    card.sample_rate,
                    dp_accounting.GaussianDpEvent(card.noise_multiplier),
                ),
                count=count,
            )
            for card, count in sorted(self._cards.items())
            if count
        )

    @property
    def played(self) -> dict[Card, int]:
        """Cards that were granted, to be stored with a checkpoint."""
        return {card: count for card, count in sorted(self._played.items()) if count}

    @property
    def left(self) -> dict[Card, int]:
        """Cards that can still be granted."""
        return dict(sorted((self._cards - self._played).items()))

    def ask(
        self, noise_multiplier: float, *, sample_rate: float | None = None
    ) -> float:
        """Play the card nearest to the wish and return its noise multiplier.

        Nearest by ratio; of two equally near, the one with more noise.

        Raises:
            BudgetExceededError: no card of this rate is left.
            ConfigError: the deck has several rates and the wish names none.
        """
        wish = math.log(_checked_noise(noise_multiplier, positive=True))
        rate = self._rate(sample_rate)
        fitting = [card for card in self.left if card.sample_rate == rate]
        if not fitting:
            raise BudgetExceededError(
                f"the deck must have a card left, got none of sample_rate={rate:g}. "
                "End the stage here, or commit to a larger deck before training."
            )
        chosen = min(
            fitting,
            key=lambda card: (
                abs(math.log(card.noise_multiplier) - wish),
                -card.noise_multiplier,
            ),
        )
        self._played[chosen] += 1
        return chosen.noise_multiplier

    def _rate(self, asked: float | None) -> float:
        """Rate of the next step."""
        if asked is not None:
            return asked
        rates = {card.sample_rate for card in self._cards}
        if len(rates) != 1:
            raise ConfigError(
                f"sample_rate must be given where a deck has {len(rates)} rates."
            )
        return rates.pop()


def _checked_rate(sample_rate: float) -> float:
    """Refuse a rate outside [0, 1]."""
    if not 0 <= sample_rate <= 1:
        raise ConfigError(f"sample_rate must be in [0, 1], got {sample_rate}.")
    return sample_rate


def _checked_noise(noise_multiplier: float, *, positive: bool = False) -> float:
    """Refuse a multiplier that is negative, infinite or NaN."""
    least = noise_multiplier > 0 if positive else noise_multiplier >= 0
    if not (least and math.isfinite(noise_multiplier)):
        raise ConfigError(
            "noise_multiplier must be a finite number "
            f"{'above' if positive else 'of at least'} 0, got {noise_multiplier}."
        )
    return noise_multiplier
