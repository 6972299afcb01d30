"""Allowances: what a data set may spend, and what its worst cohort has spent.

A cost is what ran, per notion, as a multiset of mechanisms. Epsilons are never added,
neither over runs nor over cohorts: a store keeps how often each mechanism ran, adds
those counts, and asks an accountant about the sum of each cohort.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Self

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.accountants import epsilon
from dptune.accounting.certificates import check_relation
from dptune.accounting.events import (
    event_from_json,
    event_to_json,
    mechanism_counts,
    merge_events,
)
from dptune.accounting.filters import filtered_epsilon
from dptune.errors import ArtifactError, BudgetExceededError, DptuneError
from dptune.privacy import NeighboringRelation, Notion, PrivacyBudget
from dptune.rounding import written_at_least, written_at_most

Tally = Mapping[str, int]
NON_PRIVATE: Final = event_to_json(dp_accounting.NonPrivateDpEvent())


@dataclass(frozen=True, kw_only=True)
class Cost:
    """How often each mechanism ran, for every notion.

    Args:
        tallies: counts by the canonical JSON of a mechanism. A mechanism without a
            guarantee counts once: twice infinity is no more.
    """

    tallies: Mapping[Notion, Tally] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Mapping[Notion, DpEvent]) -> "Cost":
        """Count the mechanisms of one event per notion.

        Raises:
            UnsupportedEventError: a sub-event is outside the table of events.
        """
        return cls(
            tallies={
                notion: {
                    event_to_json(mechanism): count
                    for mechanism, count in mechanism_counts(event)
                }
                for notion, event in events.items()
            }
        ).plus(cls())

    @classmethod
    def from_json(cls, value: Any) -> Self:  # noqa: ANN401 - whatever was stored
        """Read what `to_json` wrote.

        Raises:
            ArtifactError: it is no cost.
        """
        try:
            return cls(
                tallies={
                    Notion(notion): {_mechanism(m): int(n) for m, n in tally.items()}
                    for notion, tally in value.items()
                }
            )
        except (AttributeError, TypeError, ValueError, DptuneError):
            raise ArtifactError("cost must map notions to counts.") from None

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read the JSON text of what `to_json` wrote.

        Raises:
            ArtifactError: it is no cost.
        """
        try:
            return cls.from_json(json.loads(text))
        except json.JSONDecodeError:
            raise ArtifactError("cost must be JSON, got text that is not.") from None

    def to_json(self) -> dict[str, dict[str, int]]:
        """Write as plain data."""
        return {notion.value: dict(tally) for notion, tally in self.tallies.items()}

    def plus(self, other: "Cost") -> "Cost":
        """Compose with another cost."""
        return self._joined(other, lambda a, b: a + b)

    def times(self, count: int) -> "Cost":
        """Compose with itself, `count` times in all."""
        tallies = {
            notion: {m: 1 if m == NON_PRIVATE else n * count for m, n in tally.items()}
            for notion, tally in self.tallies.items()
        }
        return Cost(tallies=tallies) if count else Cost()

    def at_least(self, other: "Cost") -> "Cost":
        """Return the smallest cost that covers both."""
        return self._joined(other, max)

    def covers(self, other: "Cost") -> bool:
        """Whether this holds at least as many of every mechanism, for every notion."""
        return all(
            self.tally(notion).get(mechanism, 0) >= count
            for notion, tally in other.tallies.items()
            for mechanism, count in tally.items()
        )

    def tally(self, notion: Notion) -> Tally:
        """Counts of one notion."""
        return self.tallies.get(notion, {})

    def count(self, notion: Notion) -> int:
        """Count the mechanisms of one notion."""
        return sum(self.tally(notion).values())

    def event(self, notion: Notion) -> DpEvent:
        """Describe what ran as one event of this notion."""
        return tally_event(self.tally(notion))

    def _joined(self, other: "Cost", join: Any) -> "Cost":  # noqa: ANN401 - max or sum
        """Join two costs count by count."""
        joined: dict[Notion, dict[str, int]] = {}
        for notion in Notion:
            mine, others = self.tally(notion), other.tally(notion)
            counts = {
                m: join(mine.get(m, 0), others.get(m, 0)) for m in {*mine, *others}
            }
            if NON_PRIVATE in counts:
                counts[NON_PRIVATE] = 1
            if counts:
                joined[notion] = dict(sorted(counts.items()))
        return Cost(tallies=joined)


def total(costs: Iterable[Cost]) -> Cost:
    """Compose costs."""
    result = Cost()
    for cost in costs:
        result = result.plus(cost)
    return result


def tally_event(tally: Tally) -> DpEvent:
    """Describe counted mechanisms as one event."""
    return merge_events(
        dp_accounting.SelfComposedDpEvent(event=event_from_json(text), count=count)
        for text, count in tally.items()
    )


@cache
def _mechanism(text: str) -> str:
    """Accept the canonical JSON of a mechanism."""
    if event_to_json(event_from_json(text)) != text:
        raise ValueError
    return text


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an epsilon of a history is of.

    Args:
        adaptive: whether it holds whatever runs are chosen for what earlier ones
            released: a filter counts then (`filtered_epsilon`), which takes more for
            the same runs. Else it is as if all had been fixed before the first.
    """

    notion: Notion
    relation: NeighboringRelation
    delta: float
    adaptive: bool = False

    def cost(self, tally: Tally) -> float:
        """Compute the epsilon of counted mechanisms."""
        compose = filtered_epsilon if self.adaptive else epsilon
        return compose(tally_event(tally), delta=self.delta, relation=self.relation)


@dataclass(frozen=True, kw_only=True)
class Grant(Terms):
    """What a data set may spend under one notion and relation.

    Raises:
        ConfigError: epsilon or delta is out of range.
        PrivacyError: the notion is not defined under the relation.
    """

    data_set: str
    epsilon: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        PrivacyBudget(target_epsilon=self.epsilon, target_delta=self.delta)
        check_relation(self.notion, self.relation)

    @property
    def label(self) -> str:
        """Name what is allowed."""
        relation = self.relation.value.replace("_", " ")
        chosen = ", whatever is chosen for earlier releases" if self.adaptive else ""
        return f"{self.notion.value} ({relation}) at delta {self.delta:g}{chosen}"


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The cohort whose epsilon is the largest.

    Args:
        epsilon: of its whole history, composed.
        num_units: how many units have this history or one that costs as much.
    """

    epsilon: float
    num_units: int


@dataclass(frozen=True, kw_only=True)
class History:
    """What a number of units must be charged for.

    Args:
        cost: of all runs that read them.
        num_units: how many there are.
    """

    cost: Cost
    num_units: int

    @classmethod
    def of(cls, costs: Iterable[Cost], *, num_units: int) -> Self:
        """Compose what every run costs these units."""
        return cls(cost=total(costs), num_units=num_units)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A grant, and what the units of one run will have spent at most.

    Args:
        before: epsilon of the worst cohort without the run.
        after: the same with it.
        num_units: of the worst cohort with it.
    """

    grant: Grant
    before: float
    after: float
    num_units: int


def worst(histories: Iterable[History], terms: Terms) -> Worst:
    """Find the cohort that has spent most.

    Only histories that no other history contains are composed: less of everything
    never costs more.
    """
    sizes = largest(histories, terms.notion)
    spent = [
        Worst(epsilon=terms.cost(dict(key)), num_units=size)
        for key, size in sizes.items()
    ]
    return max(spent, key=lambda w: w.epsilon, default=Worst(epsilon=0.0, num_units=0))


def largest(
    histories: Iterable[History], notion: Notion
) -> dict[tuple[tuple[str, int], ...], int]:
    """Keep histories that no other contains, with the units that have each."""
    sizes: dict[tuple[tuple[str, int], ...], int] = {}
    for history in histories:
        key = tuple(sorted(history.cost.tally(notion).items()))
        sizes[key] = sizes.get(key, 0) + history.num_units
    kept: list[tuple[tuple[str, int], ...]] = []
    for key in sorted(sizes, key=lambda k: -sum(n for _, n in k)):
        if not any(_contains(dict(other), key) for other in kept):
            kept.append(key)
    return {key: sizes[key] for key in kept}


def claims(
    grants: Iterable[Grant], *, before: list[History], after: list[History]
) -> list[Claim]:
    """Compute what each grant's worst cohort has spent before and after."""
    found = []
    for grant in grants:
        old, new = worst(before, grant), worst(after, grant)
        found.append(
            Claim(
                grant=grant,
                before=old.epsilon,
                after=new.epsilon,
                num_units=new.num_units,
            )
        )
    return found


def check(found: Iterable[Claim], *, alone: Mapping[Notion, Tally]) -> None:
    """Refuse if any grant would be exceeded; names all of them.

    Args:
        found: what the run's units will have spent.
        alone: what the run costs by itself.

    Raises:
        BudgetExceededError: with what is left, what was asked, and who decides.
    """
    messages = [_refusal(c, alone) for c in found if c.after > c.grant.epsilon]
    if messages:
        raise BudgetExceededError("\n".join(messages))


def _refusal(claim: Claim, alone: Mapping[Notion, Tally]) -> str:
    """Say why a run is refused."""
    grant = claim.grant
    asked = grant.cost(alone.get(grant.notion, {}))
    left = written_at_least(max(grant.epsilon - claim.before, 0.0), digits=4)
    before, after, by_itself = (
        written_at_most(spent, digits=4) for spent in (claim.before, claim.after, asked)
    )
    return (
        f"data set {grant.data_set!r} must stay within epsilon {grant.epsilon:g}, "
        f"{grant.label}: {before} is spent or reserved, {left} is left; "
        f"this asks for {by_itself} by itself, with one spare block for a kill, and "
        f"would bring the worst cohort ({claim.num_units:,} units) to "
        f"{after}. Ask for less (a smaller target, or smaller blocks), "
        "wait for other runs to settle (`dptune budget show`), or have more granted."
    )


def _contains(tally: Tally, key: tuple[tuple[str, int], ...]) -> bool:
    """Whether a tally holds at least as many of every mechanism."""
    return all(tally.get(mechanism, 0) >= count for mechanism, count in key)
