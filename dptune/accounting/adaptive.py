"""Adaptive runs: what a controller must ask before every step, and what it may get.

A controller that chooses the noise of a step from what was released before it makes
the composition *fully adaptive*: the theorems for schedules that were fixed in advance
do not apply. In particular a "filter" that composes what was spent so far, by PLD or
f-DP, and stops when that curve reaches (epsilon, delta), is invalid: each outcome may
choose the continuation that hurts most just there, although each of the curves stays
within the budget (`tests/unit/accounting/test_filters.py` has an example by numbers).

What is sound, and done here: a fixed multiset of steps, a *deck*, is charged before the
first of them (`DeckTerms`), and the controller chooses only in which order they are
played and when to stop (`SigmaDeck`). Nothing that it does later can spend more than
what is in the ledger, and the price is plain PLD of the cards, under both relations.
Of runs that are chosen one after another `filters` has a filter that is valid.

What a controller may look at: what was released with noise, public data, coins that do
not depend on the data. Nothing else, ever: the guarantee rests on it.

A grant is on durable storage before it is returned (`AskedBudget`), so that what a
killed run was granted stays used up when it goes on.

References:
    Rogers, Roth, Ullman, Vadhan (2016), privacy filters, arXiv:1605.08294.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import dp_accounting
from dp_accounting import DpEvent, NonPrivateDpEvent

from dptune.accounting.chain import Chain
from dptune.accounting.events import merge_events
from dptune.errors import ArtifactError, BudgetExceededError, ConfigError, PrivacyError


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
            _checked_noise(card.noise_multiplier)
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
        wish = math.log(_checked_noise(noise_multiplier))
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


class AdaptiveTerms(Protocol):
    """What is fixed before an adaptive run: a frozen dataclass of plain values."""

    @property
    def event(self) -> DpEvent:
        """What the whole run is charged for."""
        ...

    @property
    def sample_rates(self) -> frozenset[float]:
        """Rates that a step may have."""
        ...

    def open(self) -> AdaptiveBudget:
        """Return a budget of which nothing was asked yet."""
        ...


@dataclass(frozen=True, kw_only=True)
class DeckTerms:
    """A deck of steps, see `SigmaDeck`.

    Args:
        cards: and how many of each.
    """

    cards: tuple[tuple[Card, int], ...]

    def __post_init__(self) -> None:
        """Refuse what is no deck."""
        self.open()

    @property
    def event(self) -> DpEvent:
        """All cards, played or not."""
        return self.open().event

    @property
    def sample_rates(self) -> frozenset[float]:
        """Rates of the cards."""
        return frozenset(card.sample_rate for card, _ in self.cards)

    def open(self) -> SigmaDeck:
        """Return the whole deck."""
        return SigmaDeck(dict(self.cards))


@dataclass(frozen=True, kw_only=True)
class OpenTerms:
    """No terms: whatever is wished is granted, and the run is charged as not private.

    For systems that are run as their papers have them.

    Args:
        sample_rate: of every step.
    """

    sample_rate: float

    @property
    def event(self) -> DpEvent:
        """Infinite epsilon."""
        return NonPrivateDpEvent()

    @property
    def sample_rates(self) -> frozenset[float]:
        """The one rate."""
        return frozenset({self.sample_rate})

    def open(self) -> AdaptiveBudget:
        """Return a budget that has no end."""
        return _Endless()


class _Endless:
    """Grants every wish."""

    event: DpEvent = NonPrivateDpEvent()

    def ask(
        self,
        noise_multiplier: float,
        *,
        sample_rate: float | None = None,  # noqa: ARG002 - of the protocol
    ) -> float:
        """Return the wish."""
        return noise_multiplier


class AskedBudget:
    """An adaptive budget whose grants are on disk before anybody may use them.

    **Formal guarantee**: of all processes that open one path, one after another, the
    grants together are within `terms.event`. What a process was granted and did not
    use, since it was killed, is lost, never granted again.

    The file is a `Chain`: its first line holds the terms and says that they were
    charged, then there is a line for each grant. A new process grants them all again
    and must get the same answers.

    Args:
        terms: fixed before training.
        path: of the file; None keeps grants in memory, for runs that never resume.

    Raises:
        ArtifactError: the file was tampered with, or belongs to other terms.
    """

    def __init__(self, terms: AdaptiveTerms, *, path: Path | None) -> None:
        self._terms = terms
        self._budget = terms.open()
        self._chain = Chain(path) if path is not None else None
        self._grants: list[float] = []
        self._is_charged = False
        if self._chain is not None:
            self._restore(self._chain)

    @property
    def event(self) -> DpEvent:
        """What the whole run is charged for."""
        return self._terms.event

    @property
    def terms(self) -> AdaptiveTerms:
        """What was fixed before training."""
        return self._terms

    @property
    def is_charged(self) -> bool:
        """Whether the event was charged, by this process or by an earlier one."""
        return self._is_charged

    @property
    def grants(self) -> tuple[float, ...]:
        """Noise multipliers that were ever granted, in order. Released values."""
        return tuple(self._grants)

    def confirm_charge(self) -> None:
        """Note that the event was charged; from now on grants may be asked.

        A process that is killed between the charge and this note charges again: one
        event too many, never one too few.
        """
        if not self._is_charged and self._chain is not None:
            self._chain.append({"terms": _plain(self._terms)})
        self._is_charged = True

    def ask(
        self, noise_multiplier: float, *, sample_rate: float | None = None
    ) -> float:
        """Grant the noise multiplier of one step, durably.

        Raises:
            BudgetExceededError: nothing fits any more.
            PrivacyError: the event was not charged.
        """
        if not self._is_charged:
            raise PrivacyError(
                "an adaptive run must be charged before its first step, got a wish "
                "before the charge. Charge `event` and confirm it."
            )
        granted = self._budget.ask(noise_multiplier, sample_rate=sample_rate)
        if self._chain is not None:
            self._chain.append(
                {"wish": noise_multiplier, "rate": sample_rate, "granted": granted}
            )
        self._grants.append(granted)
        return granted

    def _restore(self, chain: Chain) -> None:
        """Ask again for all that was granted before."""
        lines = chain.read()
        if not lines:
            return
        if lines[0] != {"terms": _plain(self._terms)}:
            raise self._foreign(chain)
        self._is_charged = True
        for line in lines[1:]:
            granted = self._budget.ask(line["wish"], sample_rate=line["rate"])
            if granted != line["granted"]:
                raise self._foreign(chain)
            self._grants.append(granted)

    def _foreign(self, chain: Chain) -> ArtifactError:
        """Refuse grants that these terms did not make."""
        return ArtifactError(
            f"{chain.path.name} must hold grants under the terms of this run, got "
            "those of another. Choose another checkpoint folder: what was charged "
            "there stays charged."
        )


def _plain(terms: AdaptiveTerms) -> Mapping[str, Any]:
    """Write terms as JSON values: lists instead of tuples."""
    return {type(terms).__name__: _listed(asdict(terms))}  # type: ignore[call-overload]


def _listed(value: object) -> object:
    """Turn tuples into lists, as JSON reads them back."""
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_listed(inner) for inner in value]
    return value


def _checked_rate(sample_rate: float) -> float:
    """Refuse a rate outside [0, 1]."""
    if not 0 <= sample_rate <= 1:
        raise ConfigError(f"sample_rate must be in [0, 1], got {sample_rate}.")
    return sample_rate


def _checked_noise(noise_multiplier: float) -> float:
    """Refuse a multiplier that is not positive, or infinite or NaN."""
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise ConfigError(
            f"noise_multiplier must be a finite number above 0, got {noise_multiplier}."
        )
    return noise_multiplier
