"""Draws that follow from names: the same on every machine, each by itself."""

import hashlib
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt


def seeded_fractions(
    values: Iterable[str], *, seed: int, purpose: str
) -> npt.NDArray[np.float64]:
    """Map strings to [0, 1), the same in every process for one seed and purpose.

    >>> seeded_fractions(["record 7"], seed=0, purpose="split").round(3)
    array([0.032])
    """
    start = f"{seed}\x1f{purpose}\x1f".encode()
    digests = (
        hashlib.blake2b(start + value.encode(), digest_size=8).digest()
        for value in values
    )
    numbers = np.frombuffer(b"".join(digests), dtype=">u8")
    return (numbers >> np.uint64(11)).astype(np.float64) / 2.0**53


def by_hash(names: Iterable[str]) -> list[int]:
    """Put places into an order that their names alone decide."""
    places = seeded_fractions(names, seed=0, purpose="attack")
    return [int(place) for place in np.argsort(places, kind="stable")]


def one_of_each(names: Iterable[str], owners: Sequence[Hashable]) -> list[int]:
    """Choose a place of every owner by a hash of its name, so that no order tells.

    >>> one_of_each(["a", "b", "c"], ["x", "y", "x"])
    [1, 2]
    """
    chosen: dict[Hashable, int] = {}
    for place in by_hash(names):
        chosen.setdefault(owners[place], place)
    return sorted(chosen.values())
