"""The small part of a corpus that people can read (JFT, selective manual screening)."""

import hashlib
from collections.abc import Iterable

from datasets import Dataset

from dptune.settings import ScreenedSettings


def screened_units(units: Iterable[str], settings: ScreenedSettings) -> frozenset[str]:
    """Draw the units that are to be read, by public coins.

    **Privacy**: the draw looks at ids alone, so that no secret decides it. Ids must not
    be hashes of texts, which `check_selective` refuses.

    Args:
        units: ids of all privacy units of the training split, in any order, each as
            often as it has records.
        settings: how many, and the public seed.

    References:
        Shi et al. (2022), "Just Fine-tune Twice", sections 3.1 and 6.2: 0.1 % there.
    """
    known = set(units)

    def coin(unit: str) -> bytes:
        return hashlib.sha256(f"{settings.public_seed} {unit}".encode()).digest()

    return frozenset(sorted(known, key=coin)[: settings.num_units(len(known))])


def screened_rows(rows: Dataset, settings: ScreenedSettings) -> Dataset:
    """Return the records of the units that are to be read, in their order."""
    chosen = screened_units(rows["unit_id"], settings)
    places = [i for i, unit in enumerate(rows["unit_id"]) if unit in chosen]
    return rows.select(places)
