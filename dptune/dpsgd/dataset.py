"""Sequences grouped by privacy unit, and the physical batches they are trained in."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dptune.errors import DataError, Problem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

Scalar = TypeVar("Scalar", bound=np.generic)

_MAX_REPORTED = 20
_PADDING = -1


@dataclass(frozen=True, kw_only=True)
class PhysicalBatch:
    """What goes through the model at once. All of it is private.

    Args:
        input_ids: token ids, `(rows, time)`.
        attention_mask: 1 for tokens, 0 for padding, `(rows, time)`.
        loss_weights: weight of each token as a target, 0 for padding, `(rows, time)`.
        rows_of_unit: rows of each unit, padded with -1, `(units, largest unit)`; on the
            CPU.
    """

    input_ids: Tensor = field(repr=False)
    attention_mask: Tensor = field(repr=False)
    loss_weights: Tensor = field(repr=False)
    rows_of_unit: Tensor = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Sequences in the batch."""
        return self.input_ids.shape[0]

    def to(self, device: str | torch.device) -> "PhysicalBatch":
        """Copy what the model reads to a device."""
        return PhysicalBatch(
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            loss_weights=self.loss_weights.to(device),
            rows_of_unit=self.rows_of_unit,
        )


@dataclass(frozen=True, kw_only=True)
class UnitDataset:
    """Token sequences, each owned by exactly one privacy unit.

    **Formal guarantee**: no sequence belongs to two units and no unit owns more than
    `max_sequences_per_unit`, so that adding or removing one unit changes the sequences
    of that unit and no others.

    **Privacy**: everything but the bound is private, `num_dropped_sequences` included.

    Args:
        sequences: token ids of each sequence, at least one token each.
        loss_weights: weight of the token *at* each position as a target, at least 0;
            that of position 0 is never used.
        units: indices of the sequences of each unit, at least one each.
        max_sequences_per_unit: public contribution bound.
        num_dropped_sequences: how many sequences the bound cost.

    Raises:
        DataError: a sequence is empty, has weights of another length or invalid
            weights, or is not owned by exactly one unit. Names rows by index.
    """

    sequences: tuple[IntArray, ...] = field(repr=False)
    loss_weights: tuple[FloatArray, ...] = field(repr=False)
    units: tuple[IntArray, ...] = field(repr=False)
    max_sequences_per_unit: int = 1
    num_dropped_sequences: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        """Check every condition of the guarantee and report all faults at once."""
        problems = [*self._sequence_problems(), *self._unit_problems()]
        if problems:
            raise DataError(problems[:_MAX_REPORTED])

    @classmethod
    def from_columns(
        cls,
        input_ids: Sequence[Sequence[int]],
        loss_weights: Sequence[Sequence[float]],
        unit_ids: Sequence[str | int],
        *,
        max_sequences_per_unit: int,
    ) -> Self:
        """Group rows by unit and drop what exceeds the contribution bound.

        A unit keeps its first `max_sequences_per_unit` rows. Units are ordered by first
        appearance.

        Args:
            input_ids: token ids, one row per sequence.
            loss_weights: weights, shaped like `input_ids`.
            unit_ids: owner of each row.
            max_sequences_per_unit: at least 1.

        Raises:
            DataError: the columns differ in length, or see the class.
        """
        if not len(input_ids) == len(loss_weights) == len(unit_ids):
            raise DataError(
                "columns must have one length, got "
                f"len(input_ids)={len(input_ids)}, len(loss_weights)="
                f"{len(loss_weights)}, len(unit_ids)={len(unit_ids)}."
            )
        rows_of_unit: dict[str | int, list[int]] = {}
        for row, unit_id in enumerate(unit_ids):
            rows_of_unit.setdefault(unit_id, []).append(row)
        kept = [rows[:max_sequences_per_unit] for rows in rows_of_unit.values()]
        ends = np.cumsum([len(rows) for rows in kept], dtype=np.int64)
        order = [row for rows in kept for row in rows]
        return cls(
            sequences=tuple(np.asarray(input_ids[row], np.int64) for row in order),
            loss_weights=tuple(
                np.asarray(loss_weights[row], np.float32) for row in order
            ),
            units=tuple(
                np.arange(end - len(rows), end, dtype=np.int64)
                for rows, end in zip(kept, ends, strict=True)
            ),
            max_sequences_per_unit=max_sequences_per_unit,
            num_dropped_sequences=len(input_ids) - len(order),
        )

    @property
    def num_units(self) -> int:
        """Privacy units in the data."""
        return len(self.units)

    @property
    def largest_unit(self) -> int:
        """Most sequences that any unit really has."""
        return max((len(rows) for rows in self.units), default=0)

    def collate(
        self, unit_indices: Sequence[int] | IntArray, pad_token_id: int
    ) -> PhysicalBatch:
        """Pad the sequences of some units on the right to one length.

        Args:
            unit_indices: units to take, at least one.
            pad_token_id: id that fills the padding; never a target, never attended to.

        Raises:
            DataError: no units were given; an empty batch has no tensors.
        """
        if len(unit_indices) == 0:
            raise DataError("unit_indices must not be empty. Skip the model instead.")
        units = [self.units[unit] for unit in unit_indices]
        sequences = [self.sequences[row] for rows in units for row in rows]
        weights = [self.loss_weights[row] for rows in units for row in rows]
        ones = [np.ones(len(sequence), np.int64) for sequence in sequences]
        rows, ends = [], np.cumsum([len(unit) for unit in units])
        for unit, end in zip(units, ends, strict=True):
            rows.append(np.arange(end - len(unit), end))
        return PhysicalBatch(
            input_ids=torch.from_numpy(_padded(sequences, pad_token_id)),
            attention_mask=torch.from_numpy(_padded(ones, 0)),
            loss_weights=torch.from_numpy(_padded(weights, 0)),
            rows_of_unit=torch.from_numpy(_padded(rows, _PADDING)),
        )

    def physical_batches(
        self, unit_indices: IntArray, *, physical_batch_size: int, pad_token_id: int
    ) -> Iterator[PhysicalBatch]:
        """Cut one logical batch into pieces that fit in memory.

        Units of like length share a piece, so that little is spent on padding. A unit
        is never cut in two: a unit with more rows than `physical_batch_size` makes a
        piece of its own.

        Args:
            unit_indices: units of the logical batch; none gives no piece.
            physical_batch_size: rows per piece.
            pad_token_id: see `collate`.
        """
        lengths = {unit: self._longest(unit) for unit in unit_indices}
        waiting: list[int] = []
        num_rows = 0
        for unit in sorted(unit_indices, key=lambda unit: (-lengths[unit], unit)):
            size = len(self.units[unit])
            if waiting and num_rows + size > physical_batch_size:
                yield self.collate(waiting, pad_token_id)
                waiting, num_rows = [], 0
            waiting.append(int(unit))
            num_rows += size
        if waiting:
            yield self.collate(waiting, pad_token_id)

    def digest(self) -> str:
        """Hash tokens, weights and units; tells data sets apart. Private."""
        digest = hashlib.sha256()
        for columns in (self.sequences, self.loss_weights, self.units):
            lengths = np.asarray([len(column) for column in columns], np.int64)
            digest.update(lengths.tobytes())
            for column in columns:
                digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    def _longest(self, unit: int) -> int:
        """Length of the longest sequence of a unit."""
        return max(len(self.sequences[row]) for row in self.units[unit])

    def _sequence_problems(self) -> list[Problem]:
        """Faults of single sequences."""
        if len(self.sequences) != len(self.loss_weights):
            return [
                Problem(
                    path="loss_weights",
                    message="must have one row per sequence, got "
                    f"{len(self.sequences)} sequences and {len(self.loss_weights)} "
                    "rows of weights.",
                )
            ]
        problems = []
        pairs = zip(self.sequences, self.loss_weights, strict=True)
        for row, (sequence, weights) in enumerate(pairs):
            message = _sequence_fault(sequence, weights)
            if message:
                problems.append(Problem(path=f"sequences[{row}]", message=message))
        return problems

    def _unit_problems(self) -> list[Problem]:
        """Faults of the assignment of sequences to units."""
        problems = [
            Problem(
                path=f"units[{unit}]",
                message=f"must own 1 to {self.max_sequences_per_unit} sequences, got "
                f"{len(rows)}.",
                next_step="Build the data with UnitDataset.from_columns.",
            )
            for unit, rows in enumerate(self.units)
            if not 1 <= len(rows) <= self.max_sequences_per_unit
        ]
        owned = np.sort(np.concatenate([np.empty(0, np.int64), *self.units]))
        if not np.array_equal(owned, np.arange(len(self.sequences))):
            problems.append(
                Problem(
                    path="units",
                    message="must own every sequence exactly once.",
                    next_step="A sequence of two units has no single owner to protect.",
                )
            )
        return problems


def _sequence_fault(sequence: IntArray, weights: FloatArray) -> str | None:
    """Say what is wrong with one sequence, if anything."""
    if sequence.ndim != 1 or len(sequence) == 0:
        return "must be a list of at least one token."
    if weights.shape != sequence.shape:
        return f"must have {len(sequence)} loss weights, got {weights.size}."
    if not np.isfinite(weights).all() or (weights < 0).any():
        return "must have finite loss weights of at least 0."
    return None


def _padded(arrays: Sequence[NDArray[Scalar]], fill: float) -> NDArray[Scalar]:
    """Stack arrays of unequal length, filled up on the right."""
    longest = max(len(array) for array in arrays)
    result = np.full((len(arrays), longest), fill, dtype=arrays[0].dtype)
    for row, array in enumerate(arrays):
        result[row, : len(array)] = array
    return result
