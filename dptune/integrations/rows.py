"""Rows of a script's data set as sequences of privacy units."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from torch import Tensor
from torch.utils.data import Dataset

from dptune.conversation import ScoredTokens
from dptune.data.collated import (
    Collator,
    Names,
    RowFaultError,
    Rows,
    collated,
    lookalike_problems,
    read_collated,
    row_of,
    unit_name,
)
from dptune.data.copies import (
    look_packed,
    record_digest,
    tokens_digest,
    without_copies,
)
from dptune.data.draws import by_hash, one_of_each
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import ConfigError, Problem

_OF_TRAINING: Final = Names()


class CountedUnits(Dataset[None]):
    """As many items as there are units, for a loop that counts; it holds none."""

    def __init__(self, num_units: int) -> None:
        self._num_units = num_units

    def __len__(self) -> int:
        """Count the units."""
        return self._num_units

    def __getitem__(self, index: int) -> None:
        """Return nothing."""


def collate_nothing(_: list[None]) -> dict[str, Tensor]:
    """Collate what a loop is given in place of data."""
    return {}


@dataclass(frozen=True, kw_only=True)
class UnitRows:
    """A script's training data, by unit. All of it is private.

    Args:
        data: what the engine trains on.
        unit_ids: names of the units, in the order of `data.units`; the place of each
            row in the data set, copies included, where no column names them. A hash of
            their content would make them new units to a budget whenever a tokenizer or
            a length changes.
        records: content of each row, hashed.
        tokens: token ids of each row, hashed.
        are_named: whether the names of units come from a column.
    """

    data: UnitDataset = field(repr=False)
    unit_ids: tuple[str, ...] = field(repr=False)
    records: tuple[bytes, ...] = field(repr=False)
    tokens: frozenset[bytes] = field(repr=False)
    are_named: bool

    @property
    def fingerprint(self) -> str:
        """Hash rows and owners, in order."""
        digest = hashlib.sha256(self.data.digest().encode())
        for unit in self.unit_ids:
            digest.update(hashlib.sha256(unit.encode()).digest())
        return digest.hexdigest()

    def holds(self, ids: Sequence[int]) -> bool:
        """Whether these tokens are a row of the data."""
        return tokens_digest(ids) in self.tokens


def read_rows(
    rows: Rows,
    collate: Collator,
    *,
    unit_column: str | None,
    max_rows_per_unit: int,
    rows_are_single_units: bool,
    names: Names = _OF_TRAINING,
) -> UnitRows:
    """Collate every row alone and group them by owner; without any, leave copies out.

    Args:
        rows: of the script.
        collate: of the script; sees no column but those that the model takes.
        unit_column: names the owner of each row; None makes each row a unit.
        max_rows_per_unit: rows that a unit keeps.
        rows_are_single_units: rows of one length, or nearly, were not packed.
        names: of rows and collator, in errors.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    found, owners = read_collated(
        rows, collate, about=partial(_owner, unit_column), names=names
    )
    texts = [len(row.ids) for row in found if row.label is None]
    if unit_column is None and not rows_are_single_units and look_packed(texts):
        raise ConfigError([_packed_rows()])
    if problems := lookalike_problems(names.rows, owners):
        raise ConfigError(problems)
    if len({row.label is None for row in found}) > 1:
        raise ConfigError.at(names.rows, "must have a label in each row.")
    kept = list(range(len(found)))
    records = tuple(record_digest(row.ids, row.weights, row.label) for row in found)
    if unit_column is None:
        kept = without_copies(records, path=names.rows, owners="privacy.unit_column")
    own = [found[number] for number in kept]
    data = UnitDataset.from_columns(
        [row.ids for row in own],
        [row.weights for row in own],
        [owners[number] for number in kept],
        max_sequences_per_unit=max_rows_per_unit,
        labels=[row.label for row in own if row.label is not None] or None,
    )
    return UnitRows(
        data=data,
        unit_ids=tuple(dict.fromkeys(owners)),
        records=records,
        tokens=frozenset(tokens_digest(row.ids) for row in own),
        are_named=unit_column is not None,
    )


def name_owners(rows: Rows, unit_column: str | None) -> bool:
    """Whether rows have the column that names owners; what cannot be read has not."""
    try:
        return len(rows) > 0 and unit_column in row_of(rows, 0)
    except RowFaultError:
        return False


def scored_rows(data: UnitDataset) -> list[ScoredTokens]:
    """Sequences with what of them was a target."""
    return [
        ScoredTokens(tokens.tolist(), [i > 0 and w > 0 for i, w in enumerate(weights)])
        for tokens, weights in zip(data.sequences, data.loss_weights, strict=True)
    ]


def owners_of_rows(data: UnitDataset) -> dict[int, int]:
    """Number of the unit that owns each row."""
    return {int(row): unit for unit, own in enumerate(data.units) for row in own}


def one_of_each_unit(data: UnitDataset, fitting: Set[int], count: int) -> list[int]:
    """Draw rows that fit, at most one of a unit and `count` in all; always the same."""
    owners = owners_of_rows(data)
    rows = sorted(fitting & owners.keys())
    chosen = one_of_each(map(str, rows), [owners[row] for row in rows])
    drawn = [rows[place] for place in chosen]
    return sorted(drawn[place] for place in by_hash(map(str, drawn))[:count])


def repeated_rows(data: UnitDataset) -> set[int]:
    """Return the rows whose tokens a row of another unit has: one tells of the other.

    By them the sides are told apart without any model, where only one side has them.
    """
    owners, known = owners_of_rows(data), defaultdict[bytes, list[int]](list)
    for row, tokens in enumerate(data.sequences):
        known[tokens_digest(tokens.tolist())].append(row)
    alike = (rows for rows in known.values() if len({*map(owners.get, rows)}) > 1)
    return {row for rows in alike for row in rows}


def share_seen(rows: Rows, collate: Collator, train: UnitRows) -> float:
    """Return the share of rows whose tokens are those of a row of the training data.

    Args:
        rows: of an evaluation set.
        collate: of the script.
        train: what is trained on.
    """
    seen = 0
    for index in range(len(rows)):
        try:
            row = collated(row_of(rows, index), collate)
            seen += train.holds(row.ids)
        except RowFaultError:
            continue
    return seen / max(1, len(rows))


def _owner(unit_column: str | None, row: Mapping[str, Any], index: int) -> str:
    """Name the unit of a row."""
    if unit_column is None:
        return str(index)
    name = unit_name(row.get(unit_column))
    if name is None:
        raise RowFaultError(
            f"must name an owner in column {unit_column!r}, as text or a whole number: "
            "write ids as text, and give rows without an owner one each, or drop them"
        )
    return name


def _packed_rows() -> Problem:
    """Refuse rows of one length."""
    return Problem(
        path="train_dataset",
        message="must have rows that were made from one record each, got rows that all "
        "have one length, or nearly all, as grouping texts into blocks leaves them.",
        next_step="Tokenize records one by one, without concatenation; or name owners "
        "in privacy.unit_column; or, if each row is one record, set "
        "privacy.rows_are_single_units.",
    )
