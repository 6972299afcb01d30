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

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from datasketch import MinHash, MinHashLSH

from dptune.conversation import contents_only, without_training
from dptune.data.records import Record
from dptune.privacy import PrivacyUnit

SHINGLE_WORDS = 3
NUM_PERMUTATIONS = 128
_RECALL = 0.99
_WORD = re.compile(r"\w+")

_LATE = {"test": 2, "validation": 1}
"""Nothing held out decides what is trained on."""


class Duplicates(StrEnum):
    """What becomes of records that repeat another one.

    * `AUTO`: `EXACT` where the lemma above holds, else `WITHIN_UNITS`.
    * `KEEP`: all stay; where rows of a table were written out as text, equal rows are
      different people.
    * `WITHIN_UNITS`: a unit's copies of its own texts go.
    * `EXACT`: copies go, whoever owns them.
    * `NEAR`: near ones as well; templated dialogues are near duplicates by nature.
    """

    AUTO = "auto"
    KEEP = "keep"
    WITHIN_UNITS = "drop_within_units"
    EXACT = "drop_exact"
    NEAR = "drop_near"

    def resolved(self, *, privacy_unit: PrivacyUnit, has_labels: bool) -> "Duplicates":
        """Say what `AUTO` stands for; both arguments are public."""
        if self is not Duplicates.AUTO:
            return self
        if privacy_unit is PrivacyUnit.RECORD and not has_labels:
            return Duplicates.EXACT
        return Duplicates.WITHIN_UNITS

    def is_free(self, *, privacy_unit: PrivacyUnit, has_labels: bool) -> bool:
        """Whether claims hold for the data as they were before anything was dropped."""
        known = self.resolved(privacy_unit=privacy_unit, has_labels=has_labels)
        if known is Duplicates.EXACT:
            return privacy_unit is PrivacyUnit.RECORD and not has_labels
        return known is not Duplicates.NEAR


@dataclass(frozen=True, kw_only=True)
class Deduplication:
    """Which records stay.

    Args:
        kept: indices of the records that stay, ascending.
        num_exact: exact duplicates of any record, dropped or not.
        num_near: near duplicates among the rest, dropped or not.
        num_across_units: dropped records whose kept copy belongs to another unit.
    """

    kept: tuple[int, ...]
    num_exact: int
    num_near: int
    num_across_units: int


def deduplicate(
    records: Sequence[Record],
    *,
    duplicates: Duplicates,
    near_duplicate_threshold: float | None,
) -> Deduplication:
    """Count exact and near duplicates, and drop some.

    The first copy stays, of training before validation before test: what is trained on
    must not follow from records that are held out, see the module. Near means a Jaccard
    similarity of word 3-grams of at least the threshold; MinHash with 128 permutations
    proposes pairs, which are then compared exactly (up to collisions of 32-bit hashes):
    a reported pair is near, and at most about one in a hundred is missed.

    **Privacy**: within one unit this is a function of that unit; what it is across
    units the module says.

    Args:
        records: checked records, with their splits.
        duplicates: what to drop; not `AUTO`.
        near_duplicate_threshold: Jaccard similarity in (0, 1]; None counts none.

    References:
        Lee et al. (2022), "Deduplicating training data makes language models better",
        section 4; Debenedetti et al. (2024), "Privacy side channels in machine learning
        systems", section 4.
    """
    order = sorted(
        range(len(records)), key=lambda i: _LATE.get(records[i].split or "train", 0)
    )
    copies = _copies([row.text for row in records], order)
    copies |= _held_out_copies(records, order)
    rest = [i for i in order if i not in copies]
    near: dict[int, int] = {}
    if near_duplicate_threshold is not None:
        near = _near_copies(records, rest, near_duplicate_threshold)
    own = _copies([(row.unit_id, row.text) for row in records], order)
    dropped = {
        Duplicates.WITHIN_UNITS: own,
        Duplicates.EXACT: copies,
        Duplicates.NEAR: copies | near,
    }.get(duplicates, {})
    return Deduplication(
        kept=tuple(i for i in range(len(records)) if i not in dropped),
        num_exact=len(copies),
        num_near=len(near),
        num_across_units=sum(
            records[i].unit_id != records[first].unit_id for i, first in dropped.items()
        ),
    )


def _copies(values: Sequence[object], order: Sequence[int]) -> dict[int, int]:
    """Map each index whose value was there before to the first that has it."""
    first: dict[object, int] = {}
    found = {i: first.setdefault(values[i], i) for i in order}
    return {i: original for i, original in found.items() if i != original}


def _held_out_copies(records: Sequence[Record], order: Sequence[int]) -> dict[int, int]:
    """Map held-out conversations to earlier ones of other turns that are learnt.

    In training they are two texts; a model that learnt one half knows the rest.
    """
    first: dict[str, int] = {}
    found = {i: first.setdefault(without_training(records[i].text), i) for i in order}
    return {
        i: original
        for i, original in found.items()
        if i != original and records[i].split in _LATE
    }


def _near_copies(
    records: Sequence[Record], order: Sequence[int], threshold: float
) -> dict[int, int]:
    """Map each near copy to an earlier record that is none itself."""
    index = MinHashLSH(num_perm=NUM_PERMUTATIONS, params=_bands(threshold))
    empty = MinHash(num_perm=NUM_PERMUTATIONS, seed=1, hashfunc=int)
    shingles: dict[int, frozenset[int]] = {}
    near = {}
    for i in order:
        own = _shingles(records[i].text)
        sketch = empty.copy()
        sketch.update_batch(own)
        candidates = sorted(index.query(sketch))
        match = [j for j in candidates if _jaccard(own, shingles[j]) >= threshold]
        if match:
            near[i] = match[0]
        else:
            shingles[i] = own
            index.insert(i, sketch)
    return near


def _bands(threshold: float) -> tuple[int, int]:
    """Choose the longest bands that propose a pair at the threshold with chance .99.

    With b bands of r rows the chance is `1 - (1 - threshold^r)^b`.
    """
    for rows in range(NUM_PERMUTATIONS // 2, 1, -1):
        bands = NUM_PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return NUM_PERMUTATIONS, 1


def _shingles(text: str) -> frozenset[int]:
    """Hash every run of three words; shorter texts count as one run."""
    words = _WORD.findall(contents_only(text).casefold()) or [text]
    last = max(len(words) - SHINGLE_WORDS, 0)
    return frozenset(
        zlib.crc32(" ".join(words[i : i + SHINGLE_WORDS]).encode())
        for i in range(last + 1)
    )


def _jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """Divide the size of the intersection by that of the union."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)
