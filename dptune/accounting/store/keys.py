"""Keyed names of privacy units, so that a store holds no source id."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from dptune.errors import ArtifactError, ConfigError

KEY_BYTES: Final = 32
NAME_DIGITS: Final = 32
_KEY_SIZES: Final = range(16, 65)


@dataclass(frozen=True, kw_only=True)
class UnitSet:
    """The privacy units of one run, by their keyed names.

    Args:
        data_set: the population that ids speak of; equal ids of two data sets get
            names that cannot be linked without the key.
        names: sorted, each once; `NAME_DIGITS` hexadecimal digits.
        key_check: tells two keys apart and nothing else; a store refuses another key,
            under which every unit would look new.
    """

    data_set: str
    names: tuple[str, ...] = field(repr=False)
    key_check: str

    @classmethod
    def of(cls, unit_ids: Iterable[str], *, key: bytes, data_set: str) -> Self:
        """Name units by HMAC-SHA256 of their stable source ids.

        **Privacy**: without the key the names reveal neither ids nor whether a guessed
        id is among them. Order, repetition, texts and file formats do not matter.

        Args:
            unit_ids: stable ids of the source, before deduplication and canaries.
            key: secret of 16 to 64 bytes, the same for every run of a store.
            data_set: name of the data set.

        Raises:
            ConfigError: the key is too short or too long.

        References:
            RFC 2104 (1997), HMAC; truncated to 128 bits as its section 5 allows.
        """
        _check_key(key)
        names = {_name(key, f"unit\x1f{data_set}\x1f{unit}") for unit in unit_ids}
        return cls(
            data_set=data_set,
            names=tuple(sorted(names)),
            key_check=_name(key, f"check\x1f{data_set}"),
        )

    def __len__(self) -> int:
        """Count the units."""
        return len(self.names)

    @property
    def packed(self) -> bytes:
        """All names, one behind the other."""
        return bytes.fromhex("".join(self.names))

    @property
    def digest(self) -> str:
        """SHA-256 of the packed names: equal sets have equal digests."""
        return hashlib.sha256(self.packed).hexdigest()


def unpack(packed: bytes) -> list[str]:
    """Read the names that `UnitSet.packed` wrote.

    Raises:
        ArtifactError: the bytes are no whole number of names.
    """
    if len(packed) * 2 % NAME_DIGITS:
        raise ArtifactError("unit set must hold whole names. Restore the store.")
    text = packed.hex()
    return [text[i : i + NAME_DIGITS] for i in range(0, len(text), NAME_DIGITS)]


def _check_key(key: bytes) -> None:
    """Refuse a key that is no secret."""
    if len(key) not in _KEY_SIZES:
        raise ConfigError(
            f"unit key must be 16 to 64 bytes, got {len(key)} bytes. "
            "Make one with secrets.token_bytes(32) and keep it for the data set."
        )


def _name(key: bytes, message: str) -> str:
    """Hash one message."""
    return hmac.digest(key, message.encode(), "sha256").hex()[:NAME_DIGITS]
