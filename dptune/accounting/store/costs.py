"""Costs: what ran, per notion, as multisets of mechanisms.

A store never adds epsilons. It keeps how often each mechanism ran, adds those counts,
and asks an accountant about the sum.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Self

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.events import (
    event_from_json,
    event_to_json,
    mechanism_counts,
    merge_events,
)
from dptune.errors import ArtifactError, DptuneError
from dptune.privacy import Notion

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
