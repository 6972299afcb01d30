"""Seeded fractions of ids."""

import hashlib


def seeded_fraction(value: str, *, seed: int, purpose: str) -> float:
    """Map a string to [0, 1), the same in every process for one seed and purpose."""
    text = f"{seed}\x1f{purpose}\x1f{value}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53
