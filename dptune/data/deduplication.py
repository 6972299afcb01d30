"""Find exact and near duplicates: SHA-256 of normalised text, then MinHash."""

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from datasketch import MinHash, MinHashLSH

from dptune.data.records import Record

SHINGLE_WORDS = 3
NUM_PERMUTATIONS = 128
_RECALL = 0.99
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, kw_only=True)
class Deduplication:
    """Which records stay.

    Args:
        kept: indices of the records that stay, ascending.
        num_exact: exact duplicates, dropped or not.
        num_near: near duplicates among the rest, dropped or not.
        num_across_units: dropped records whose kept copy belongs to another unit.
    """

    kept: tuple[int, ...]
    num_exact: int
    num_near: int
    num_across_units: int


def normalize_text(text: str) -> str:
    """Compose Unicode (NFC) and turn every run of white space into one blank."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def text_digest(text: str) -> bytes:
    """Return the SHA-256 of the normalised text."""
    return hashlib.sha256(normalize_text(text).encode()).digest()


def deduplicate(
    records: Sequence[Record],
    *,
    near_duplicate_threshold: float | None,
    drop_exact_duplicates: bool = True,
    drop_near_duplicates: bool = False,
) -> Deduplication:
    """Count exact and near duplicates; drop the exact ones, and near ones on demand.

    The first copy stays, except that a copy of a split that the source itself decides
    wins: test before validation before train, so that published test sets stay whole.
    Near means a Jaccard similarity of word 3-grams of at least the threshold; MinHash
    with 128 permutations proposes pairs, which are then compared exactly (up to
    collisions of 32-bit hashes): a reported pair is near, and at most about one in a
    hundred is missed.

    Privacy: within one unit this is a function of that unit. Across units, dropping
    makes one unit's data depend on another's: removing the unit that owns the kept copy
    brings the dropped copy back. For exact copies of one-record units the set of texts
    stays the same; in every other case a claim under add/remove-one must name
    `num_across_units` as an assumption or be made for larger groups.

    Args:
        records: checked records.
        near_duplicate_threshold: Jaccard similarity in (0, 1]; None counts none.
        drop_exact_duplicates: drop them; keep them where rows of a table were written
            out as text and equal rows are different people.
        drop_near_duplicates: drop them; templated dialogues are near duplicates by
            nature, hence off by default.

    References:
        Lee et al. (2022), "Deduplicating training data makes language models better",
        section 4; Debenedetti et al. (2024), "Privacy side channels in machine learning
        systems", section 4.
    """
    order = sorted(range(len(records)), key=lambda i: _rank(records[i]))
    copies = _exact_copies(records, order)
    rest = [i for i in order if i not in copies]
    near: dict[int, int] = {}
    if near_duplicate_threshold is not None:
        near = _near_copies(records, rest, near_duplicate_threshold)
    dropped = copies if drop_exact_duplicates else {}
    dropped = dropped | near if drop_near_duplicates else dropped
    return Deduplication(
        kept=tuple(i for i in range(len(records)) if i not in dropped),
        num_exact=len(copies),
        num_near=len(near),
        num_across_units=sum(
            records[i].unit_id != records[first].unit_id for i, first in dropped.items()
        ),
    )


def _rank(record: Record) -> int:
    """Order splits by how much they are worth keeping whole."""
    return {"test": 0, "validation": 1}.get(record.split or "train", 2)


def _exact_copies(records: Sequence[Record], order: Sequence[int]) -> dict[int, int]:
    """Map each copy to the record it copies."""
    first: dict[bytes, int] = {}
    copies = {}
    for i in order:
        original = first.setdefault(text_digest(records[i].text), i)
        if original != i:
            copies[i] = original
    return copies


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
    words = _WORD.findall(text.casefold()) or [text]
    last = max(len(words) - SHINGLE_WORDS, 0)
    return frozenset(
        zlib.crc32(" ".join(words[i : i + SHINGLE_WORDS]).encode())
        for i in range(last + 1)
    )


def _jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """Divide the size of the intersection by that of the union."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)
