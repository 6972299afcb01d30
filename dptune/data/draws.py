"""Draws that follow from names: the same on every machine, each by itself."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def seeded_fractions(
    values: Iterable[str], *, seed: int, purpose: str
) -> npt.NDArray[np.float64]:
    """Map strings to [0, 1), as `dptune.data.records.seeded_fraction` maps each.

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
