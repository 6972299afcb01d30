"""Conversion of a guarantee from one relation to the other, where a theorem allows it.

| from | to | by |
|---|---|---|
| add or remove | replace | one removal and one addition: group of two |
| replace | add or remove | never |
| record, replace | selective | replacing a record covers changing some of its tokens |
| selective, local | record | never: they say nothing of the rest of a record |
| one unit | k units | `groups.group_epsilon` |
| k units | one unit | always, the same epsilon; hardly ever worth saying |

The ledger does not need the first row for Gaussian steps, since it accounts them under
the relation that is asked for, which is tighter. It is for what is known under add or
remove only: Laplace noise, and adaptive runs whose filter kept that relation.
"""

import math

from dp_accounting import DpEvent

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import RenyiFilterDpEvent, mechanism_counts
from dptune.accounting.groups import general_group_epsilon
from dptune.errors import PrivacyError
from dptune.privacy import NeighboringRelation


def converted_epsilon(
    event: DpEvent,
    *,
    delta: float,
    known: NeighboringRelation,
    wanted: NeighboringRelation,
) -> float:
    """Compute epsilon under one relation from what is known under another.

    **Formal guarantee**: (epsilon, delta)-DP under `wanted`. From add or remove to
    replace: (e, d) for one unit gives (2 e, d (1 + exp(e))) for a removal followed by
    an addition; the best split of delta is searched.

    Args:
        event: what ran.
        delta: in (0, 1), of the wanted guarantee.
        known: relation under which the event is accounted.
        wanted: relation of the claim.

    Returns:
        Infinity where no bound within double precision follows.

    Raises:
        PrivacyError: from replace to add or remove. Data sets that differ by a
            replacement have equally many units, so a mechanism that publishes how many
            there are is (0, 0)-DP under replace, and has no guarantee under add or
            remove. No theorem can bridge that.
        UnsupportedEventError: the accountant does not know the event under `known`.

    References:
        Vadhan (2017), The Complexity of Differential Privacy, Lemma 2.2, k = 2.
    """
    known, wanted = NeighboringRelation(known), NeighboringRelation(wanted)
    if known is wanted:
        return epsilon(event, delta=delta, relation=known)
    if known is NeighboringRelation.REPLACE_ONE:
        raise PrivacyError(
            "relation must be replace_one, as the guarantee is, got "
            "relation=add_or_remove_one. Under replace the number of units is not "
            "protected at all, so no guarantee under add or remove follows: account "
            "the mechanism itself under add or remove."
        )
    return general_group_epsilon(event, group_size=2, delta=delta, relation=known)


def is_foreign(event: DpEvent, relation: NeighboringRelation) -> bool:
    """Whether some filter in the event was kept under the other relation."""
    return any(
        isinstance(mechanism, RenyiFilterDpEvent) and mechanism.relation != relation
        for mechanism, _ in mechanism_counts(event)
    )


def stated_epsilon(
    event: DpEvent, *, delta: float, relation: NeighboringRelation
) -> float:
    """Compute what a history guarantees under a relation, whatever filters it holds.

    | filters | asked | answer |
    |---|---|---|
    | none, or of the relation asked | any | `epsilon` |
    | of add or remove | replace | the whole history converted: group of two |
    | of replace | add or remove | infinity: no theorem, so no guarantee |

    Args:
        event: what ran.
        delta: in (0, 1).
        relation: of the claim.

    Raises:
        UnsupportedEventError: the accountant does not know another mechanism.
    """
    relation = NeighboringRelation(relation)
    if not is_foreign(event, relation):
        return epsilon(event, delta=delta, relation=relation)
    known = NeighboringRelation.ADD_OR_REMOVE_ONE
    if relation is known or is_foreign(event, known):
        return math.inf
    return converted_epsilon(event, delta=delta, known=known, wanted=relation)
