"""Texts that an attack on membership may count as drawn independently.

Several texts of one person are alike, and so are copies: as if each were drawn by
itself, they make intervals too narrow, and what sees no model tells the sides apart.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from dptune.data import draws
from dptune.data.collated import lookalike_problems
from dptune.errors import DataError

Owners = Sequence[str]


def one_of_each(
    members: Sequence[str],
    non_members: Sequence[str],
    *,
    member_owners: Owners | None = None,
    non_member_owners: Owners | None = None,
) -> tuple[list[str], list[str]]:
    """Take one text of each owner, and none that both sides or several owners have.

    Which one, a hash of the texts decides, not their order. Without owners, texts that
    are equal are one. A text of several owners of one side alone would tell the sides
    apart without any model: one copy tells of the next.

    Args:
        members: texts that were trained on.
        non_members: texts that were not.
        member_owners: whose each of `members` is; None where each is its own.
        non_member_owners: likewise.

    Returns:
        Both sides, in the order of their texts.

    Raises:
        DataError: an owner is on both sides, or looks like another; or nothing is left
            of a side.

    >>> one_of_each(["a", "b", "a"], ["c", "d", "b"], non_member_owners=["x", "x", "y"])
    (['a'], ['d'])
    """
    if shared := len(set(member_owners or ()) & set(non_member_owners or ())):
        raise DataError(
            f"owners must be on one side alone, got {shared} on both: what was learnt "
            "from a member would tell of a non-member. Take their texts out of one."
        )
    named = chain(member_owners or (), non_member_owners or ())
    if problems := lookalike_problems("owners", named):
        raise DataError(problems)
    both = set(members) & set(non_members)
    kept = tuple(
        _one_of_each(texts, owners or texts, without=both)
        for texts, owners in (
            (members, member_owners),
            (non_members, non_member_owners),
        )
    )
    if not all(kept):
        raise DataError(
            "members and non-members must each hold texts that nobody else has, got "
            f"{len(kept[0])} and {len(kept[1])} of them. Remove copies."
        )
    return kept[0], kept[1]


def _one_of_each(
    texts: Sequence[str], owners: Sequence[str], *, without: set[str]
) -> list[str]:
    """Take one text of each owner that no other one has."""
    pairs = Counter(text for text, _ in set(zip(texts, owners, strict=True)))
    left = [i for i, t in enumerate(texts) if t not in without and pairs[t] == 1]
    chosen = draws.one_of_each([texts[i] for i in left], [owners[i] for i in left])
    return [texts[left[place]] for place in chosen]
