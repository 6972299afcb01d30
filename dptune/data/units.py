"""Keyed names of privacy units and seeded fractions of ids."""

import hashlib
from collections.abc import Iterable

from dptune.errors import ConfigError

_KEY_SIZES = range(16, 65)


def unit_keys(unit_ids: Iterable[str], key: bytes) -> list[str]:
    """Name privacy units by keyed BLAKE2b, so that a store holds no source id.

    Args:
        unit_ids: stable ids of the source.
        key: secret of 16 to 64 bytes, the same for every run that shares a budget.

    Privacy: without the key the names reveal neither ids nor whether a guessed id is in
    the corpus; equal ids give equal names under one key.

    Returns:
        One name of 32 hexadecimal digits for each id, in order.

    Raises:
        ConfigError: the key is too short or too long.

    References:
        Aumasson et al. (2015), RFC 7693, keyed hashing with BLAKE2b.
    """
    if len(key) not in _KEY_SIZES:
        raise ConfigError(
            f"unit key must be 16 to 64 bytes, got {len(key)} bytes. "
            "Make one with secrets.token_bytes(32) and keep it for the data set."
        )
    return [
        hashlib.blake2b(
            unit_id.encode("utf-8"), digest_size=16, key=key, person=b"dptune.unit"
        ).hexdigest()
        for unit_id in unit_ids
    ]


def seeded_fraction(value: str, *, seed: int, purpose: str) -> float:
    """Map a string to [0, 1), the same in every process for one seed and purpose."""
    text = f"{seed}\x1f{purpose}\x1f{value}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53
