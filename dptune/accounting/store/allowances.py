"""Allowances: what a data set may spend, and what its worst cohort has spent.

An epsilon is computed by the accountant on the composed events of each cohort. Epsilons
are never added: neither over runs nor over cohorts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from dptune.accounting.certificates import check_relation
from dptune.accounting.conversion import stated_epsilon
from dptune.accounting.store.costs import Cost, Tally, tally_event, total
from dptune.errors import BudgetExceededError
from dptune.privacy import NeighboringRelation, Notion, PrivacyBudget


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a data set may spend under one notion and relation.

    Raises:
        ConfigError: epsilon or delta is out of range.
        PrivacyError: the notion is not defined under the relation.
    """

    data_set: str
    notion: Notion
    relation: NeighboringRelation
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        PrivacyBudget(target_epsilon=self.epsilon, target_delta=self.delta)
        check_relation(self.notion, self.relation)

    @property
    def label(self) -> str:
        """Name what is allowed."""
        relation = self.relation.value.replace("_", " ")
        return f"{self.notion.value} ({relation}) at delta {self.delta:g}"


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


def worst(
    histories: Iterable[History],
    *,
    notion: Notion,
    delta: float,
    relation: NeighboringRelation,
) -> Worst:
    """Find the cohort that has spent most.

    Only histories that no other history contains are composed: less of everything
    never costs more.
    """
    sizes = largest(histories, notion)
    spent = [
        Worst(
            epsilon=stated_epsilon(
                tally_event(dict(key)), delta=delta, relation=relation
            ),
            num_units=size,
        )
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
        terms = {
            "notion": grant.notion, "delta": grant.delta, "relation": grant.relation
        }  # fmt: skip
        old, new = worst(before, **terms), worst(after, **terms)  # type: ignore[arg-type]
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
    asked = stated_epsilon(
        tally_event(alone.get(grant.notion, {})),
        delta=grant.delta,
        relation=grant.relation,
    )
    left = max(grant.epsilon - claim.before, 0.0)
    return (
        f"data set {grant.data_set!r} must stay within epsilon {grant.epsilon:g}, "
        f"{grant.label}: {claim.before:.4g} is spent or reserved, {left:.4g} is left; "
        f"this asks for {asked:.4g} by itself and would bring the worst cohort "
        f"({claim.num_units:,} units) to {claim.after:.4g}. Ask for less, wait for "
        "other runs to settle (`python run.py budget show`), or have more granted."
    )


def _contains(tally: Tally, key: tuple[tuple[str, int], ...]) -> bool:
    """Whether a tally holds at least as many of every mechanism."""
    return all(tally.get(mechanism, 0) >= count for mechanism, count in key)
