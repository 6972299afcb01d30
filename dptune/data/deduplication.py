"""Find exact and near duplicates: equal texts, then MinHash.

Dropping a copy lets one unit decide about another's data, unless the rule sees one unit
alone (`WITHIN_UNITS`), or the copies cannot be told apart in training.

**Lemma.** Let every unit be one record without a label, and let `EXACT` drop, in every
split, all but one of the records whose texts are equal character by character. Let the
split of a record follow from its id alone. Then what is trained on is the *set* `T` of
the texts of training records, and

* adding or removing one record changes `T` by one text at most;
* replacing one by another, whatever id, split or text it has, gives
  `T` less one text at most and plus one at most.

*Proof.* `T` is the set of `text(r)` over the records `r` of the training split, since
copies in other splits never make a training record go. Adding a record adds its text to
that multiset or leaves it alone, and a set gains one element or none; removal likewise.
A replacement is a removal and then an addition. ∎

Units are sampled by coins of their own, so that the law of the clipped sums depends on
`T` alone, and not on which of the equal records stands for a text: the claims of `|T|`
units hold as they are, C under add or remove and 2C under replace. (Less one text alone
is a replacement by a text whose gradient is 0.) That `|T|` may move by one under
replacement too is named where rates and steps follow from it, in
`dptune.workflow.charging`.

Each condition is needed. With labels the copy that stays brings its own, so that a
removal exchanges one example for another: 2C where C is claimed. Texts that differ in
blanks only do the same. Of a unit with several records others may lose or regain as
many texts. If copies in a test set made training records go, then a record that moves
from there to the training split would add two texts. Near duplicates form chains: one
record less may bring back one text, which sends away others. Values that are invented
per unit tell copies apart, so that a redacted view with such has no lemma.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dptune.data.duplicates import Duplicates
from dptune.data.engine import Engine, count, fetch, given
from dptune.data.near import Copies, Positions, find_near_copies
from dptune.data.source import SPLITS
from dptune.data.table import (
    KNOWN_AS,
    LEFT_OUT,
    RANK_BITS,
    TEXT_DIGEST,
    RecordTable,
    Splits,
)

_LATE = {"test": 2, "validation": 1}
"""Nothing held out decides what is trained on."""


@dataclass(frozen=True, kw_only=True)
class Deduplication:
    """Which records stay.

    Args:
        kept: for every record whether it stays, `(records,)`.
        num_exact: exact duplicates of any record, dropped or not.
        num_near: near duplicates among the rest, dropped or not.
        num_across_units: dropped records whose kept copy belongs to another unit.
    """

    kept: npt.NDArray[np.bool_] = field(repr=False)
    num_exact: int
    num_near: int
    num_across_units: int


def deduplicate(
    table: RecordTable,
    splits: Splits,
    *,
    duplicates: Duplicates,
    near_duplicate_threshold: float | None,
    folder: Path | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Deduplication:
    """Count exact and near duplicates, and drop some.

    The first copy stays, of training before validation before test: what is trained on
    must not follow from records that are held out, see the module. Near means a Jaccard
    similarity of word 3-grams of at least the threshold; MinHash with 128 permutations
    proposes pairs, which are then compared exactly (up to collisions of 32-bit hashes):
    a reported pair is near, and at most about one in a hundred is missed. Texts are
    told apart by their SHA-256.

    **Privacy**: within one unit this is a function of that unit; what it is across
    units the module says.

    Args:
        table: checked records.
        splits: code of every record's split, `LEFT_OUT` for one that is not taken.
        duplicates: what to drop; not `AUTO`.
        near_duplicate_threshold: Jaccard similarity in (0, 1]; None counts none.
        folder: private folder for hashes of words; None keeps them in memory.
        on_progress: called with the number of records that were looked at.

    References:
        Lee et al. (2022), "Deduplicating training data makes language models better",
        section 4; Debenedetti et al. (2024), "Privacy side channels in machine learning
        systems", section 4.
    """
    late = [_LATE.get(split, 0) for split in SPLITS]
    table.place(splits, late=late)
    taken = splits != LEFT_OUT
    copies = _find_copies(table.engine, TEXT_DIGEST)
    if table.is_chat:
        copies = _with_held_out_copies(table.engine, copies)
    near = copies[:0]
    if near_duplicate_threshold is not None:
        near = find_near_copies(
            _told(table.texts(_without(taken, copies)), on_progress),
            delays=np.asarray(late, np.int64)[np.maximum(splits, 0)],
            threshold=near_duplicate_threshold,
            engine=table.engine,
            folder=folder,
        )
    match duplicates:
        case Duplicates.WITHIN_UNITS:
            dropped = _find_copies(table.engine, ("unit", *TEXT_DIGEST))
        case Duplicates.EXACT:
            dropped = copies
        case Duplicates.NEAR:
            dropped = np.concatenate([copies, near])
        case _:
            dropped = copies[:0]
    return Deduplication(
        kept=_without(taken, dropped),
        num_exact=len(copies),
        num_near=len(near),
        num_across_units=_count_across_units(table.engine, dropped),
    )


def _told(
    texts: Iterable[tuple[Positions, pa.StringArray]], tell: Callable[[int], None]
) -> Iterator[tuple[Positions, pa.StringArray]]:
    """Tell which texts were read."""
    for positions, part in texts:
        tell(int(positions[0]))
        yield positions, part


def _find_copies(engine: Engine, columns: Sequence[str]) -> Copies:
    """Find the records whose values were there before, and the first of each."""
    values = ", ".join(columns)
    found = fetch(
        engine,
        "SELECT rank, first FROM placed JOIN "  # noqa: S608 - ours
        f"(SELECT {values}, min(rank) AS first FROM placed GROUP BY {values} "
        f"HAVING count(*) > 1) USING ({values}) WHERE rank <> first",
    )
    return np.stack(found, axis=1)


def _with_held_out_copies(engine: Engine, copies: Copies) -> Copies:
    """Count held-out conversations as copies of earlier ones of other turns learnt.

    In training they are two texts; a model that learnt one half knows the rest.
    """
    repeats = _find_copies(engine, KNOWN_AS)
    held_out = repeats[repeats[:, 0] >= 1 << RANK_BITS]
    others = ~np.isin(copies[:, 0], held_out[:, 0])
    return np.concatenate([copies[others], held_out])


def _without(taken: npt.NDArray[np.bool_], copies: Copies) -> npt.NDArray[np.bool_]:
    """Leave out copies."""
    rest = taken.copy()
    rest[copies[:, 0] & ((1 << RANK_BITS) - 1)] = False
    return rest


def _count_across_units(engine: Engine, copies: Copies) -> int:
    """Count copies of what another unit owns."""
    if not len(copies):
        return 0
    with given(engine, {"rank": copies[:, 0], "first": copies[:, 1]}):
        return count(
            engine,
            "SELECT count(*) FROM given JOIN placed USING (rank) JOIN placed AS first "
            "ON first.rank = given.first WHERE first.unit <> placed.unit",
        )
