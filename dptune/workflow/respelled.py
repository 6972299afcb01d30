"""Units whose ids come back in another spelling are charged as those of before.

A source that is written again may spell its ids anew: pandas makes `17.0` of 17 where a
value is missing, a spreadsheet 7 of `007`, another database a UUID in capitals; a file
that moves to another folder or split has another name. Each would be a unit of its own
with a fresh budget.

**Formal guarantee.** A unit that no run was charged for takes the place of every unit
that the store knows under another spelling of its id; it is never entered under its
own, so that the next run finds the same. Two units that are taken for one share what
was spent on either: that charges too much, never too little.
"""

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from typing import Final

import numpy as np

from dptune.accounting.store.reservations import (
    NAME,
    Names,
    UnitSet,
    distinct,
    keyed_names,
    locate,
)
from dptune.accounting.store.store import BudgetStore
from dptune.data.source import SPLITS, DataSource, FolderSource, TextSource

Spell = Callable[[str], set[str]]
"""Writes an id in other ways; the id itself may be among them."""

_IDS_AT_ONCE: Final = 1 << 15
_NUMBER: Final = re.compile(r"0*(0|[1-9][0-9]*)(?:\.0)?")
_WIDTHS: Final = range(17)
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{32}")
_SPLIT: Final = re.compile(rf"(?:{'|'.join(SPLITS)})/")
_FILE: Final = re.compile(r"(.*?)(?:\.gz)?(|:[0-9]+)", re.DOTALL)
"""A file, and the line of a record in it."""
_SPLITS: Final = ("", *(f"{name}/" for name in SPLITS))


@dataclass(frozen=True, kw_only=True)
class Respelled:
    """Names of units, and of those in whose place each is charged, side by side.

    Args:
        names: of units that no run was charged for under their own; repeated where
            several others are known.
        known: of units that the store knows.
    """

    names: Names = field(default_factory=lambda: np.empty(0, NAME), repr=False)
    known: Names = field(default_factory=lambda: np.empty(0, NAME), repr=False)

    def among(self, units: UnitSet) -> UnitSet:
        """Return units as the store knows them."""
        if not len(self.names):
            return units
        places, there = locate(units.names, self.names)
        rest = np.delete(units.names, places[there])
        return replace(units, names=distinct(np.concatenate([rest, self.known[there]])))


def find_respelled(
    store: BudgetStore,
    units: UnitSet,
    ids: Iterable[str],
    *,
    key: bytes,
    spell: Spell,
) -> Respelled:
    """Find units that the store knows under another spelling of their ids.

    Ids of units that are known are passed over, as are all where the data set is new.

    Args:
        store: that knows units of earlier runs.
        units: of a run.
        ids: theirs, in any order and repeated as one likes.
        key: that names units.
        spell: the ways in which an id may have been written before.
    """
    known = store.known(units)
    if known is None or known.all():
        return Respelled()
    new, rest = units.names[~known], iter(ids)
    names, others = [np.empty(0, NAME)], [np.empty(0, NAME)]
    while part := list(dict.fromkeys(islice(rest, _IDS_AT_ONCE))):
        own = keyed_names(part, key=key, data_set=units.data_set)
        _, is_new = locate(new, own)
        fresh = [spell(unit) - {unit} for unit in compress(part, is_new)]
        spelled = keyed_names(
            (one for ways in fresh for one in ways), key=key, data_set=units.data_set
        )
        asked = replace(units, names=distinct(spelled))
        if not len(asked) or (answer := store.known(asked)) is None:
            continue
        _, found = locate(asked.names[answer], spelled)
        names.append(np.repeat(own[is_new], [len(ways) for ways in fresh])[found])
        others.append(spelled[found])
    return Respelled(names=np.concatenate(names), known=np.concatenate(others))


def as_known(url: str, units: UnitSet, ids: Iterable[str], *, key: bytes) -> UnitSet:
    """Return units as a store knows them, whose ids are names of people.

    Args:
        url: of the budget store, which is created if need be.
        units: of a run.
        ids: theirs.
        key: that names units.

    Raises:
        ConfigError, DependencyError, ArtifactError: as `BudgetStore.open`.
    """
    with BudgetStore.open(url) as store:
        found = find_respelled(store, units, ids, key=key, spell=_otherwise)
    return found.among(units)


def ways_to_spell(source: DataSource) -> Spell:
    """Return how ids of a source may be written: those that it makes up are paths."""
    folders = None
    if isinstance(source, TextSource):
        folders = [path.parent for _, path in source.files()]
    elif isinstance(source, FolderSource) and source.format == "text":
        folders = [path for _, path in source.files()]
    if folders is not None:
        ends = [end for folder in folders for end in _ends(folder.as_posix())]
        return lambda unit: _otherwise(unit) | _elsewhere(unit, ends)
    if getattr(source, "ids_are_per_split", False):
        return lambda unit: _otherwise(unit) | _elsewhere(unit, None)
    return _otherwise


def spelt_twice(source: DataSource, ids: Iterable[str]) -> tuple[str, ...]:
    """Say how many units of one corpus may be another one in another spelling.

    Nothing is refused: who names people by letters in which capitals count has two.

    Args:
        source: nothing is said of one that names no unit beside a record.
        ids: of its units, repeated as one likes.
    """
    if getattr(source, "unit_column", None) is None:
        return ()
    units = set(ids)
    if not (number := len(units) - len(set(map(_plain, units)))):
        return ()
    said = (
        f"{number:,} of {len(units):,} units have an id that another has in another "
        "spelling (capitals, leading zeros, 17.0 for 17, a UUID's dashes): if these "
        "are the same people, each is two units, and claims are about one of them. "
        "Spell ids in one way."
    )
    return (said,)


def _plain(unit: str) -> str:
    """Write an id in the one of its spellings that stands for all.

    >>> {_plain(unit) for unit in ("017.0", "17")}
    {'17'}
    """
    if number := _NUMBER.fullmatch(unit):
        return number[1]
    bare = unit.strip("{}").replace("-", "")
    return bare.lower() if _HEXADECIMAL.fullmatch(bare) else unit.lower()


def _otherwise(unit: str) -> set[str]:
    """Write an id in other letters, as a number of other width, or as another UUID.

    >>> sorted(_otherwise("17.0"))[-3:]
    ['017', '17', '17.0']
    >>> sorted(_otherwise("Ann"))
    ['ANN', 'ann']
    """
    found = {unit.lower(), unit.upper()}
    if number := _NUMBER.fullmatch(unit):
        digits = number[1]
        found |= {f"{digits}.0", *(digits.zfill(width) for width in _WIDTHS)}
    bare = unit.strip("{}").replace("-", "")
    if _HEXADECIMAL.fullmatch(bare):
        dashed = str(uuid.UUID(bare))
        forms = {dashed, dashed.replace("-", ""), f"{{{dashed}}}"}
        found |= forms | {form.upper() for form in forms}
    return found


def _elsewhere(unit: str, folders: Iterable[str] | None) -> set[str]:
    """Write an id that holds a split, and the name of a file, with other places.

    Args:
        unit: the id.
        folders: in which files may have been; None where ids are no names of files.
    """
    split = _SPLIT.match(unit)
    bare = unit[split.end() :] if split else unit
    names = {bare}
    if folders is not None:
        places = {*_ends(bare), *(f"{folder}/{bare}" for folder in folders)}
        parts = [_FILE.fullmatch(place) for place in places]
        names = {f"{p[1]}{end}{p[2]}" for p in parts if p for end in ("", ".gz")}
    return {f"{split}{name}" for split in _SPLITS for name in names}


def _ends(path: str) -> list[str]:
    """Leave out the first folders of a path, one more each time.

    >>> _ends("a/b/c.txt")
    ['a/b/c.txt', 'b/c.txt', 'c.txt']
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ["/".join(parts[first:]) for first in range(len(parts))]
