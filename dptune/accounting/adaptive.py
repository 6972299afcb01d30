"""Terms of an adaptive run, and a budget whose grants a crash cannot take back.

`AdaptiveTerms` are public numbers that are fixed before training: they say what the run
is charged for, once, whatever a controller will ask. `AskedBudget` lets a controller
ask within them. A grant is on durable storage before it is returned, so that what a
killed run was granted stays used up when it goes on.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from dp_accounting import DpEvent, NonPrivateDpEvent

from dptune.accounting.chain import Chain
from dptune.accounting.filters import AdaptiveBudget, Card, RdpFilter, SigmaDeck
from dptune.errors import ArtifactError, PrivacyError
from dptune.privacy import NeighboringRelation, PrivacyBudget


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


@dataclass(frozen=True, kw_only=True)
class FilterTerms:
    """A Renyi filter, see `RdpFilter`.

    Args:
        target_epsilon, target_delta: of the adaptive run.
        sample_rate: of every step.
        relation: neighboring relation of the promise.
        orders: above 1.
    """

    target_epsilon: float
    target_delta: float
    sample_rate: float
    relation: NeighboringRelation
    orders: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what is no filter."""
        self.open()

    @property
    def event(self) -> DpEvent:
        """The limits."""
        return self.open().event

    @property
    def sample_rates(self) -> frozenset[float]:
        """The one rate."""
        return frozenset({self.sample_rate})

    def open(self) -> RdpFilter:
        """Return a filter that has let nothing through."""
        return RdpFilter(
            PrivacyBudget(
                target_epsilon=self.target_epsilon, target_delta=self.target_delta
            ),
            sample_rate=self.sample_rate,
            relation=self.relation,
            orders=self.orders,
        )


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
