"""Rows of a script's data set as sequences of privacy units.

Every row goes through the script's own collator, and goes through it alone: what a
collator does to one row is kept, and nothing can move from one row to another.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import ConfigError, Problem

IGNORED: Final = -100
"""Label of a token that is no target, as transformers writes it."""

_READ: Final = frozenset({"input_ids", "attention_mask", "labels"})
_PACKED: Final = frozenset(
    {"seq_lengths", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "position_ids"}
)
_FEWEST_PACKED: Final = 8
_COMPARED: Final = 4
_READ_AGAIN: Final = 16

Collator = Callable[[list[Any]], Mapping[str, Any]]


class Rows(Protocol):
    """A data set of known length whose rows are mappings."""

    def __len__(self) -> int:
        """Count the rows."""
        ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        """Return one row."""
        ...


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
        unit_ids: names of the units, in the order of `data.units`; their place in the
            data set where no column names them. A hash of their content would make them
            new units to a budget whenever a tokenizer or a length changes.
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
        return _tokens_digest(ids) in self.tokens


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One row after its collator."""

    ids: list[int]
    weights: list[float]
    label: int | None


class RowFaultError(ValueError):
    """A row that cannot be trained on; says why, never what it holds."""


def read_rows(
    rows: Rows,
    collate: Collator,
    *,
    unit_column: str | None,
    max_rows_per_unit: int,
    rows_are_single_units: bool,
) -> UnitRows:
    """Collate every row alone and group them by owner.

    Args:
        rows: of the script.
        collate: of the script; sees no column but those that the model takes.
        unit_column: names the owner of each row; None makes each row a unit.
        max_rows_per_unit: rows that a unit keeps.
        rows_are_single_units: rows of one length are none that were packed.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    if not hasattr(rows, "__len__") or not len(rows):
        raise ConfigError("train_dataset must hold a row, got none.")
    problems = _mixing(rows, collate)
    if problems:
        raise ConfigError(problems)
    found: list[_Row] = []
    faults: dict[str, list[int]] = {}
    owners: list[str] = []
    for index in range(len(rows)):
        try:
            row = _row(rows, index)  # once: the owner is told for what is trained on
            found.append(_collated(row, collate))
            owners.append(_owner(row, unit_column, index=index))
        except RowFaultError as fault:
            faults.setdefault(str(fault), []).append(index)
    if faults:
        raise ConfigError([_faulty(fault, where) for fault, where in faults.items()])
    if not _stay_alike(rows, collate, found):
        raise ConfigError([_changing_rows()])
    if unit_column is None and not rows_are_single_units and _look_packed(found):
        raise ConfigError([_packed_rows()])
    return _grouped(found, owners, unit_column, max_rows_per_unit=max_rows_per_unit)


def _grouped(
    found: Sequence[_Row],
    owners: Sequence[str],
    unit_column: str | None,
    *,
    max_rows_per_unit: int,
) -> UnitRows:
    """Give every row to its owner."""
    labels = [row.label for row in found if row.label is not None]
    if labels and len(labels) < len(found):
        message = "must have a label in each row."
        raise ConfigError([Problem(path="train_dataset", message=message)])
    records = tuple(map(_record_digest, found))
    data = UnitDataset.from_columns(
        [row.ids for row in found],
        [row.weights for row in found],
        owners,
        max_sequences_per_unit=max_rows_per_unit,
        labels=labels or None,
    )
    return UnitRows(
        data=data,
        unit_ids=tuple(dict.fromkeys(owners)),
        records=records,
        tokens=frozenset(_tokens_digest(row.ids) for row in found),
        are_named=unit_column is not None,
    )


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
            row = _collated(_row(rows, index), collate)
            seen += train.holds(row.ids)
        except RowFaultError:
            continue
    return seen / max(1, len(rows))


def _record_digest(row: _Row) -> bytes:
    """Hash all that is trained on of one row. Private."""
    digest = hashlib.sha256(_tokens_digest(row.ids))
    digest.update(np.asarray(row.weights, np.float32).tobytes())
    digest.update(str(row.label).encode())
    return digest.digest()


def _tokens_digest(ids: Sequence[int]) -> bytes:
    """Hash the tokens of a row. Private."""
    return hashlib.sha256(np.asarray(ids, np.int64).tobytes()).digest()


def _owner(row: Mapping[str, Any], unit_column: str | None, *, index: int) -> str:
    """Name the unit of a row."""
    if unit_column is None:
        return str(index)
    owner = row.get(unit_column)
    if isinstance(owner, np.generic | Tensor) and owner.ndim == 0:
        owner = owner.item()
    if isinstance(owner, bool) or not isinstance(owner, str | int) or owner == "":
        raise RowFaultError(
            f"must name an owner in column {unit_column!r}, as text or number"
        )
    return str(owner)


def _row(rows: Rows, index: int) -> Mapping[str, Any]:
    """Ask a script's data set for a row."""
    try:
        row = rows[index]
    except Exception as error:  # noqa: BLE001 - a script's; its message may hold rows
        raise RowFaultError(_cannot("be read by its number", error)) from None
    if not isinstance(row, Mapping):
        raise RowFaultError(f"must be a mapping of columns, got {type(row).__name__}")
    return row


def _collated(row: Mapping[str, Any], collate: Collator) -> _Row:
    """Send one row through the collator, alone."""
    try:
        batch = collate([row])
    except Exception as error:  # noqa: BLE001 - a script's; its message may hold rows
        raise RowFaultError(
            _cannot("pass the collator with the columns that the model takes", error)
        ) from None
    return _read_row(batch)


def _cannot(what: str, error: Exception) -> str:
    """Say what a script's own code raised, without its message."""
    return f"must {what}, which raised {type(error).__name__}"


def _read_row(batch: Mapping[str, Any]) -> _Row:
    """Take the padding off a batch of one row."""
    if "input_ids" not in batch or "labels" not in batch:
        raise RowFaultError("must have input_ids and labels behind the collator")
    ids = _one_row(batch["input_ids"])
    mask = batch.get("attention_mask")
    kept = torch.ones_like(ids) if mask is None else _one_row(mask)
    where = torch.nonzero(kept).flatten()
    if not len(where) or len(where) != int(where[-1] - where[0]) + 1:
        raise RowFaultError(
            "must have padding on its ends only, and a token between them"
        )
    span = slice(int(where[0]), int(where[-1]) + 1)
    _check_others(batch, span)
    labels = torch.as_tensor(batch["labels"])
    if labels.numel() == 1 and labels.dim() <= 1:
        return _classified(ids[span], labels)
    targets = _one_row(labels)
    if len(targets) != len(ids):
        raise RowFaultError("must have as many labels as tokens")
    targets = targets[span]
    is_target = targets != IGNORED
    if bool((targets[is_target] != ids[span][is_target]).any()):
        raise RowFaultError("must have labels that are its own tokens, or -100")
    return _Row(ids=ids[span].tolist(), weights=is_target.float().tolist(), label=None)


def _classified(ids: Tensor, labels: Tensor) -> _Row:
    """Return a row with one class."""
    if labels.is_floating_point() or int(labels) < 0:
        raise RowFaultError("must have a class from 0 as its label, no score")
    return _Row(ids=ids.tolist(), weights=[1.0] * len(ids), label=int(labels))


def _one_row(values: object) -> Tensor:
    """Return the only row of a batch of one, `(time,)`."""
    tensor = torch.as_tensor(values)
    if tensor.dim() != 2 or len(tensor) != 1:
        raise RowFaultError("must stay one row behind the collator")
    return tensor[0]


def _check_others(batch: Mapping[str, Any], span: slice) -> None:
    """Refuse what the engine would not hand to the model, unless it says nothing."""
    for name in set(batch) - _READ:
        if batch[name] is None:
            continue
        values = torch.as_tensor(batch[name])
        if name == "token_type_ids" and not values.any():
            continue
        if name == "position_ids" and values.dim() == 2:
            place = values[0, span]
            if bool((place == torch.arange(len(place))).all()):
                continue
        raise RowFaultError(
            f"must have no {name}, which the engine does not hand to the model"
        )


def _mixing(rows: Rows, collate: Collator) -> list[Problem]:
    """Compare rows that are collated together with the same rows alone."""
    try:
        few = [_row(rows, index) for index in range(min(_COMPARED, len(rows)))]
        packed = _PACKED.intersection(few[0])
        if packed:
            return [_packed_columns(sorted(packed))]
        alone = [_collated(row, collate) for row in few]
        again = [_collated(row, collate) for row in few]
    except RowFaultError:
        return []  # told row by row
    try:
        batch = collate(list(few)) if len(few) > 1 else None
    except Exception as error:  # noqa: BLE001 - a script's; its message may hold rows
        return [_failing(error)]
    together = alone
    if batch is not None and isinstance(batch["input_ids"], Tensor):
        together = _apart(batch) if len(batch["input_ids"]) == len(few) else []
    if alone == again == together:
        return []
    return [
        Problem(
            path="data_collator",
            message="must treat each row by itself and always alike: a row came out "
            "otherwise beside others, or the second time.",
            next_step="Use default_data_collator, DataCollatorWithPadding or "
            "DataCollatorForLanguageModeling(mlm=False). One that pads must return the "
            "attention_mask.",
        )
    ]


def _apart(batch: Mapping[str, Any]) -> list[_Row]:
    """Take a batch of the collator apart again."""
    size = len(batch["input_ids"])
    tensors = {k: v for k, v in batch.items() if isinstance(v, Tensor)}
    parts = [{k: v[i : i + 1] for k, v in tensors.items()} for i in range(size)]
    try:
        return [_read_row(part) for part in parts]
    except RowFaultError:
        return []


def _stay_alike(rows: Rows, collate: Collator, found: Sequence[_Row]) -> bool:
    """Whether rows from all over the data set are the same when they are read again."""
    step = max(1, len(found) // _READ_AGAIN)
    try:
        return all(
            _collated(_row(rows, index), collate) == found[index]
            for index in range(0, len(found), step)
        )
    except RowFaultError:
        return False


def _look_packed(found: Sequence[_Row]) -> bool:
    """Whether all rows of texts have one length, as packing leaves them."""
    texts = [row for row in found if row.label is None]
    return len(texts) >= _FEWEST_PACKED and len({len(row.ids) for row in texts}) == 1


def _changing_rows() -> Problem:
    """Refuse rows that are others the second time."""
    return Problem(
        path="train_dataset",
        message="must give the same rows each time, got others the second time: what "
        "draws or remembers rows can put one unit into rows of another.",
        next_step="Write transformed or augmented rows down beforehand, such as by "
        "map, and train on those.",
    )


def _failing(error: Exception) -> Problem:
    """Refuse a collator that cannot collate."""
    return Problem(
        path="data_collator",
        message="must collate rows of train_dataset into a batch, but raised "
        f"{type(error).__name__}.",
        next_step="Call it on the first four rows to see why; rows of several lengths "
        "need one that pads, such as DataCollatorForSeq2Seq.",
    )


def _packed_columns(names: Sequence[str]) -> Problem:
    """Refuse rows that say that they hold several sequences."""
    return Problem(
        path="train_dataset",
        message=f"must hold one sequence in a row, got the columns {', '.join(names)} "
        "of packing.",
        next_step="Turn packing and padding_free off.",
    )


def _packed_rows() -> Problem:
    """Refuse rows of one length."""
    return Problem(
        path="train_dataset",
        message="must have rows that were made from one record each, got rows that all "
        "have one length, as grouping texts into blocks leaves them.",
        next_step="Tokenize records one by one, without concatenation; or name owners "
        "in privacy.unit_column; or, if each row is one record, set "
        "privacy.rows_are_single_units.",
    )


def _faulty(fault: str, where: Sequence[int]) -> Problem:
    """Name the first rows with a fault, and count the rest."""
    shown = ", ".join(map(str, where[:5]))
    more = f" and {len(where) - 5} more" if len(where) > 5 else ""
    return Problem(path=f"train_dataset row {shown}{more}", message=f"{fault}.")
