"""Rows of a script that are no record each: copies of one, blocks of several.

Of rows that say the same one is trained on, and the script is told.

Where rows have no owners each is a unit, and a record that was written anew k times, as
by `map` behind an oversampling, would have the guarantee of a group of k. What is
compared is all that is trained on, classes and targets included, so that no copy can be
told from another: the lemma of `dptune.data.deduplication` holds, and what is claimed
of a unit is so of a record and all its copies.
"""

import hashlib
import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np

_FEWEST_PACKED: Final = 8
_LEFT_OVER: Final = 0.05


def look_packed(lengths: Sequence[int]) -> bool:
    """Whether texts have one length, as packing leaves them.

    What it cannot fill is shorter: a row at the end, or at that of each batch of `map`.

    >>> look_packed([128] * 40), look_packed([128] * 39 + [7])
    (True, True)
    >>> look_packed([128] * 30 + [7] * 10)
    False
    """
    if len(lengths) < _FEWEST_PACKED:
        return False
    shorter = len(lengths) - list(lengths).count(max(lengths))
    return shorter <= max(1, _LEFT_OVER * len(lengths))


def record_digest(ids: Sequence[int], weights: Sequence[float], label: object) -> bytes:
    """Hash all that is trained on of one row. Private.

    Args:
        ids: tokens.
        weights: of each token as a target.
        label: class of the row, None where it has none.
    """
    digest = hashlib.sha256(tokens_digest(ids))
    digest.update(np.asarray(weights, np.float32).tobytes())
    digest.update(str(label).encode())
    return digest.digest()


def tokens_digest(ids: Sequence[int]) -> bytes:
    """Hash the tokens of a row. Private."""
    return hashlib.sha256(np.asarray(ids, np.int64).tobytes()).digest()


def without_copies(records: Sequence[bytes], *, path: str, owners: str) -> list[int]:
    """Number the rows that say what no row before them says; warn of the others.

    Args:
        records: digests of rows, each of which is a unit.
        path: of the rows, in the warning.
        owners: what names the owner of each row.

    >>> without_copies([b"yes", b"no", b"maybe"], path="data", owners="owners")
    [0, 1, 2]
    """
    first: dict[bytes, int] = {}
    for number, record in enumerate(records):
        first.setdefault(record, number)
    if left_out := len(records) - len(first):
        warnings.warn(
            f"{path} has {left_out:,} of {len(records):,} rows that say the same as "
            "one before them. They are left out: a record that stands k times would "
            f"have the guarantee of a group of k. Name in {owners} whose rows they "
            "are, if they are of different people.",
            stacklevel=2,
        )
    return list(first.values())
