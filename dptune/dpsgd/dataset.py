"""Sequences grouped by privacy unit, and the physical batches they are trained in."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dptune.dpsgd.ragged import Ragged, cuts_by_length, kept_rows, read_column
from dptune.errors import DataError, Problem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

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
        labels: class of each row, `(rows,)`, where the data has classes.
        num_real_units: units in front that are units of the data; the others only fill
            the batch up to a fixed shape, and must get factor 0.
        kinds: of each unit, where units are parts of privacy units; on the CPU.
        is_part: the first unit has more rows, in other pieces; it is the only one.
        continues: the next piece goes on with it.
    """

    input_ids: Tensor = field(repr=False)
    attention_mask: Tensor = field(repr=False)
    loss_weights: Tensor = field(repr=False)
    rows_of_unit: Tensor = field(repr=False)
    labels: Tensor | None = field(default=None, repr=False)
    num_real_units: int = field(default=-1, repr=False)
    kinds: Tensor | None = field(default=None, repr=False)
    is_part: bool = False
    continues: bool = False

    def __post_init__(self) -> None:
        """Take all units for real ones unless told otherwise."""
        if self.num_real_units < 0:
            object.__setattr__(self, "num_real_units", len(self.rows_of_unit))

    @property
    def num_rows(self) -> int:
        """Sequences in the batch."""
        return self.input_ids.shape[0]

    @property
    def num_real_rows(self) -> int:
        """Sequences in front that are of the data; the others are fillers."""
        return int((self.rows_of_unit[: self.num_real_units] != _PADDING).sum())

    def to(self, device: str | torch.device) -> "PhysicalBatch":
        """Copy what the model reads to a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            loss_weights=self.loss_weights.to(device),
            labels=None if self.labels is None else self.labels.to(device),
        )

    def filled(self, *, num_rows: int, num_tokens: int, pad_token_id: int) -> Self:
        """Pad to a fixed shape, for compilers and graphs that want one.

        Rows that are added hold one attended padding token and no target, and belong to
        units of their own behind the real ones.

        Args:
            num_rows: rows afterwards, at least as many as now.
            num_tokens: time steps afterwards, likewise.
            pad_token_id: fills everything.
        """
        rows, time = num_rows - self.num_rows, num_tokens - self.input_ids.shape[1]
        mask = functional.pad(self.attention_mask, (0, time, 0, rows))
        mask[self.num_rows :, 0] = 1
        fillers = torch.full((rows, self.rows_of_unit.shape[1]), _PADDING)
        fillers[:, 0] = torch.arange(self.num_rows, num_rows)
        ids, labels, kinds = self.input_ids, self.labels, self.kinds
        return replace(
            self,
            input_ids=functional.pad(ids, (0, time, 0, rows), value=pad_token_id),
            attention_mask=mask,
            loss_weights=functional.pad(self.loss_weights, (0, time, 0, rows)),
            rows_of_unit=torch.cat([self.rows_of_unit, fillers]),
            labels=None if labels is None else functional.pad(labels, (0, rows)),
            kinds=None if kinds is None else functional.pad(kinds, (0, rows)),
        )


@dataclass(frozen=True, kw_only=True)
class UnitDataset:
    """Token sequences, each owned by exactly one privacy unit.

    **Formal guarantee**: no sequence belongs to two units and no unit owns more than
    `max_sequences_per_unit`, so that adding or removing one unit changes the sequences
    of that unit and no others.

    **Privacy**: everything but the bound is private, `num_dropped_sequences` included.

    Args:
        sequences: token ids of each sequence, at least one token each; on disk, if they
            are many.
        loss_weights: weight of the token *at* each position as a target, at least 0;
            that of position 0 is never used.
        units: indices of the sequences of each unit, at least one each.
        labels: class of each sequence, from 0, where the data has classes.
        max_sequences_per_unit: public contribution bound.
        num_dropped_sequences: how many sequences the bound cost.
        kinds: which part of its owner each unit is, from 0; None where units are whole.
        unnoised: beside parts: what joins every step without clip or noise. It must be
            the same for all neighbors.

    Raises:
        DataError: a sequence is empty, has weights of another length or invalid
            weights, or is not owned by exactly one unit. Names rows by index.

    >>> data = UnitDataset.from_columns(
    ...     [[5, 6, 7], [5, 8], [9, 9]],
    ...     [[1.0, 1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
    ...     ["grace", "grace", "alan"],
    ...     max_sequences_per_unit=1,
    ... )
    >>> [unit.tolist() for unit in data.units], data.num_dropped_sequences
    ([[0], [1]], 1)
    """

    sequences: Ragged[Any] = field(repr=False)
    loss_weights: Ragged[np.float32] = field(repr=False)
    units: Ragged[np.int64] = field(repr=False)
    labels: IntArray | None = field(default=None, repr=False)
    max_sequences_per_unit: int = 1
    num_dropped_sequences: int = field(default=0, repr=False)
    kinds: IntArray | None = field(default=None, repr=False)
    unnoised: Self | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check every condition of the guarantee and report all faults at once."""
        problems = [
            *self._sequence_problems(),
            *self._label_problems(),
            *self._unit_problems(),
        ]
        if problems:
            raise DataError(problems[:_MAX_REPORTED])

    @classmethod
    def from_columns(
        cls,
        input_ids: Sequence[Sequence[int]] | Ragged[Any],
        loss_weights: Sequence[Sequence[float]] | Ragged[np.float32],
        unit_ids: Sequence[str | int] | pa.ChunkedArray,
        *,
        max_sequences_per_unit: int,
        labels: Sequence[int] | None = None,
        kinds: Sequence[int] | None = None,
        unnoised: Self | None = None,
    ) -> Self:
        """Group rows by unit and drop what exceeds the contribution bound.

        A unit keeps its first `max_sequences_per_unit` rows. Units are ordered by first
        appearance.

        Args:
            input_ids: token ids, one row per sequence.
            loss_weights: weights, shaped like `input_ids`.
            unit_ids: owner of each row.
            max_sequences_per_unit: at least 1.
            labels: class of each row, from 0.
            kinds: part of its owner that each row belongs to; `unit_ids` then name
                parts, each of one kind.
            unnoised: see the class.

        Raises:
            DataError: the columns differ in length, or see the class.
        """
        columns = [input_ids, loss_weights, unit_ids]
        columns += [] if labels is None else [labels]
        if len({len(column) for column in columns}) > 1:
            raise DataError(
                "columns must have one length, got "
                f"len(input_ids)={len(input_ids)}, len(loss_weights)="
                f"{len(loss_weights)}, len(unit_ids)={len(unit_ids)}."
            )
        kept = kept_rows(unit_ids, max_sequences_per_unit)
        order = kept.flat()
        return cls(
            sequences=Ragged.of(input_ids, np.int64).select(order),
            loss_weights=Ragged.of(loss_weights, np.float32).select(order),
            units=Ragged.cut(np.arange(len(order)), kept.lengths),
            labels=None if labels is None else np.asarray(labels, np.int64)[order],
            max_sequences_per_unit=max_sequences_per_unit,
            num_dropped_sequences=len(input_ids) - len(order),
            kinds=None
            if kinds is None
            else np.asarray(kinds, np.int64)[kept.values[kept.starts]],
            unnoised=unnoised,
        )

    @classmethod
    def from_encoded(
        cls, encoded: Dataset, *, max_sequences_per_unit: int, folder: Path | None
    ) -> Self:
        """Group encoded rows by unit; tokens of large corpora go to disk.

        Args:
            encoded: columns `unit_id`, `input_ids`, `loss_weights`, and `labels` where
                the data has classes.
            max_sequences_per_unit: see `from_columns`.
            folder: private folder for what does not fit into memory, in files that go
                with this process; None keeps to memory.

        Raises:
            DataError: see the class.
        """
        plain = encoded.with_format("arrow")
        has_classes = "labels" in encoded.column_names
        return cls.from_columns(
            read_column(encoded, "input_ids", np.int32, folder=folder),
            read_column(encoded, "loss_weights", np.float32, folder=folder),
            plain.select_columns(["unit_id"])[:]["unit_id"],
            max_sequences_per_unit=max_sequences_per_unit,
            labels=plain.select_columns(["labels"])[:]["labels"]
            if has_classes
            else None,
        )

    @property
    def num_units(self) -> int:
        """Privacy units in the data."""
        return len(self.units)

    @property
    def largest_unit(self) -> int:
        """Most sequences that any unit really has."""
        return int(self.units.lengths.max(initial=0))

    @property
    def num_targets(self) -> int:
        """Tokens, or classes, that have a loss; those of `unnoised` too."""
        if self.labels is not None:
            return len(self.labels)
        weights = self.loss_weights
        found = sum(int(np.count_nonzero(piece)) for piece in weights.pieces())
        found -= int(np.count_nonzero(weights.values[weights.starts]))
        return found + (self.unnoised.num_targets if self.unnoised else 0)

    @property
    def longest_sequence(self) -> int:
        """Most tokens that any sequence has."""
        return int(self.sequences.lengths.max(initial=0))

    def lengths_of(self, unit_indices: Sequence[int] | IntArray) -> Ragged[np.int64]:
        """Return the tokens of each sequence of some units, a row for each unit."""
        rows = self.units.select(unit_indices)
        return Ragged.cut(self.sequences.lengths[rows.flat()], rows.lengths)

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
        units = self.units.select(unit_indices)
        taken = units.flat()
        ids = self.sequences.select(taken).padded(pad_token_id)
        is_token = np.arange(ids.shape[1]) < self.sequences.lengths[taken, None]
        rows = Ragged.cut(np.arange(len(taken)), units.lengths).padded(_PADDING)
        labels, kinds = self.labels, self.kinds
        return PhysicalBatch(
            input_ids=torch.from_numpy(ids.astype(np.int64, copy=False)),
            attention_mask=torch.from_numpy(is_token.astype(np.int64)),
            loss_weights=torch.from_numpy(self.loss_weights.select(taken).padded(0)),
            rows_of_unit=torch.from_numpy(rows),
            labels=None if labels is None else torch.from_numpy(labels[taken]),
            kinds=None if kinds is None else torch.from_numpy(kinds[unit_indices]),
        )

    def physical_batches(
        self,
        unit_indices: IntArray,
        *,
        physical_batch_size: int,
        pad_token_id: int,
        pass_cost: float = math.inf,
    ) -> Iterator[PhysicalBatch]:
        """Cut one logical batch into pieces that fit in memory.

        Units of like length share a piece, so that little is spent on padding. A unit
        with more rows than `physical_batch_size` is cut into pieces of its own, one
        after the other, whose gradients must be added up before they are clipped.

        Args:
            unit_indices: units of the logical batch; none gives no piece.
            physical_batch_size: rows per piece, at most.
            pad_token_id: see `collate`.
            pass_cost: tokens of padding that cost as much as one more pass, which is
                then made.
        """
        units = np.asarray(unit_indices, np.int64)
        lengths = self.lengths_of(units)
        longest, num_rows = lengths.reduced(np.maximum), lengths.lengths
        waiting: list[int] = []
        num_waiting = 0

        def collated() -> Iterator[PhysicalBatch]:
            about = longest[waiting], num_rows[waiting]
            cuts = cuts_by_length(*about, pass_cost=pass_cost)
            for piece in np.split(units[waiting], cuts):
                yield self.collate(piece, pad_token_id)

        for place in map(int, np.lexsort((units, -longest))):
            size = int(num_rows[place])
            if size > physical_batch_size:
                unit = int(units[place])
                yield from self._parts(unit, physical_batch_size, pad_token_id)
                continue
            if num_waiting + size > physical_batch_size:
                yield from collated()
                waiting, num_waiting = [], 0
            waiting.append(place)
            num_waiting += size
        if waiting:
            yield from collated()

    def _parts(
        self, unit: int, num_rows: int, pad_token_id: int
    ) -> Iterator[PhysicalBatch]:
        """Cut one unit into pieces."""
        whole, size = self.units[unit], len(self.units[unit])
        for first in range(0, size, num_rows):
            rows = whole[first : first + num_rows]
            piece = replace(
                self,
                sequences=self.sequences.select(rows),
                loss_weights=self.loss_weights.select(rows),
                units=Ragged.cut(np.arange(len(rows)), [len(rows)]),
                labels=None if self.labels is None else self.labels[rows],
                kinds=None if self.kinds is None else self.kinds[[unit]],
                unnoised=None,
            ).collate([0], pad_token_id)
            continues = first + num_rows < size
            yield replace(piece, is_part=True, continues=continues)

    def digest(self) -> str:
        """Hash tokens, weights and units; tells data sets apart. Private."""
        digest = hashlib.sha256()
        columns: list[tuple[Ragged[Any], type[np.generic]]] = [
            (self.sequences, np.int64),
            (self.loss_weights, np.float32),
            (self.units, np.int64),
        ]
        columns += [
            (Ragged.of([] if row is None else [row], np.int64), np.int64)
            for row in (self.labels, self.kinds)
        ]
        for column, dtype in columns:
            digest.update(column.lengths.tobytes())
            for piece in column.pieces():
                digest.update(np.ascontiguousarray(piece, dtype).tobytes())
        if self.unnoised is not None:
            digest.update(self.unnoised.digest().encode())
        return digest.hexdigest()

    def _sequence_problems(self) -> list[Problem]:
        """Faults of single sequences."""
        lengths, given = self.sequences.lengths, self.loss_weights.lengths
        if len(lengths) != len(given):
            return [
                Problem(
                    path="loss_weights",
                    message="must have one row per sequence, got "
                    f"{len(lengths)} sequences and {len(given)} rows of weights.",
                )
            ]
        invalid = "must have finite loss weights of at least 0."
        faults = dict.fromkeys(self._rows_of_invalid_weights(), invalid)
        for row in map(int, np.flatnonzero(lengths != given)):
            faults[row] = f"must have {lengths[row]} loss weights, got {given[row]}."
        for row in map(int, np.flatnonzero(lengths == 0)):
            faults[row] = "must be a list of at least one token."
        return [
            Problem(path=f"sequences[{row}]", message=message)
            for row, message in sorted(faults.items())
        ]

    def _rows_of_invalid_weights(self) -> list[int]:
        """Find the first rows whose weights are infinite, negative or no numbers."""
        ends = np.cumsum(self.loss_weights.lengths)
        found: list[int] = []
        read = 0
        for piece in self.loss_weights.pieces():
            places = np.flatnonzero(~(np.isfinite(piece) & (piece >= 0)))
            found += np.unique(np.searchsorted(ends, read + places, "right")).tolist()
            if len(found) > _MAX_REPORTED:
                break
            read += len(piece)
        return found

    def _label_problems(self) -> list[Problem]:
        """Faults of the classes."""
        if self.labels is None:
            return []
        if self.labels.shape != (len(self.sequences),) or (self.labels < 0).any():
            return [
                Problem(
                    path="labels",
                    message="must have one class of at least 0 for each of "
                    f"{len(self.sequences)} sequences.",
                )
            ]
        return []

    def _every_sequence_is_owned_once(self) -> bool:
        """Count the owners of each sequence."""
        owned, num = self.units.flat(), len(self.sequences)
        if len(owned) != num or ((owned < 0) | (owned >= num)).any():
            return False
        return bool((np.bincount(owned, minlength=num) == 1).all())

    def _unit_problems(self) -> list[Problem]:
        """Faults of the assignment of sequences to units."""
        sizes = self.units.lengths
        is_wrong = (sizes < 1) | (sizes > self.max_sequences_per_unit)
        problems = [
            Problem(
                path=f"units[{unit}]",
                message=f"must own 1 to {self.max_sequences_per_unit} sequences, got "
                f"{sizes[unit]}.",
                next_step="Build the data with UnitDataset.from_columns.",
            )
            for unit in np.flatnonzero(is_wrong)[:_MAX_REPORTED]
        ]
        if not self._every_sequence_is_owned_once():
            problems.append(
                Problem(
                    path="units",
                    message="must own every sequence exactly once.",
                    next_step="A sequence of two units has no single owner to protect.",
                )
            )
        if self.kinds is not None and (
            self.kinds.shape != (len(self.units),) or (self.kinds < 0).any()
        ):
            problems.append(
                Problem(path="kinds", message="must have one kind for each unit.")
            )
        return problems
