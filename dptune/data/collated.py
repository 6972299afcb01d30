"""Rows of a script's data set as its own collator makes them, each by itself.

Every row goes through the script's own collator, and goes through it alone: what a
collator does to one row is kept, and nothing can move from one row to another.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from dptune.accounting.store.reservations import num_lookalikes
from dptune.errors import ConfigError, Problem

IGNORED: Final = -100
"""Label of a token that is no target, as transformers writes it."""

_READ: Final = frozenset({"input_ids", "attention_mask", "labels"})
_PACKED: Final = frozenset(
    {"seq_lengths", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "position_ids"}
)
_PIECES: Final = "overflow_to_sample_mapping"
_PREFERENCE: Final = ("chosen", "rejected")
_OTHER_TARGETS: Final = "must have labels that are its own tokens, or -100"
OTHER_TARGETS: Final = (
    "Tags of tokens (NER) are not trained. For masked words repeat input_ids in labels "
    "where they are learnt, unmasked, and mask them there in a `loss` of make_private."
)
"""The way out where rows have labels of other kinds for each token."""

_COMPARED: Final = 4
_READ_AGAIN: Final = 16

Told = TypeVar("Told")
Collator = Callable[[list[Any]], Mapping[str, Any]]


class Rows(Protocol):
    """A data set of known length whose rows are mappings."""

    def __len__(self) -> int:
        """Count the rows."""
        ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        """Return one row."""
        ...


@dataclass(frozen=True, kw_only=True)
class CollatedRow:
    """One row after its collator."""

    ids: list[int]
    weights: list[float]
    label: int | None


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a script calls its rows and its collator."""

    rows: str = "train_dataset"
    collator: str = "data_collator"


class RowFaultError(ValueError):
    """A row that cannot be trained on; says why, never what it holds."""


def read_collated(
    rows: Rows,
    collate: Collator,
    *,
    about: Callable[[Mapping[str, Any], int], Told],
    names: Names,
) -> tuple[list[CollatedRow], list[Told]]:
    """Collate every row alone, and look whether it stays what it was.

    Args:
        rows: of the script.
        collate: of the script; sees no column but those that the model takes.
        about: tells something else of a row and its number, such as its owner.
        names: of both, in errors.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    if not hasattr(rows, "__len__") or not len(rows):
        raise ConfigError(f"{names.rows} must hold a row, got none.")
    problems = _mixing(rows, collate, names)
    if problems:
        raise ConfigError(problems)
    found: list[CollatedRow] = []
    faults: dict[str, list[int]] = {}
    told: list[Told] = []
    for index in range(len(rows)):
        try:
            row = row_of(rows, index)  # once: what is told is of what is trained on
            found.append(collated(row, collate))
            told.append(about(row, index))
        except RowFaultError as fault:
            faults.setdefault(str(fault), []).append(index)
    if faults:
        parts = faults.items()
        raise ConfigError([_faulty(fault, where, names) for fault, where in parts])
    if not _stay_alike(rows, collate, found):
        raise ConfigError([_changing_rows(names)])
    return found, told


def unit_name(owner: object) -> str | None:
    """Name the unit that owns a row as text, None where nothing is named.

    `17` and `"17"` are one: columns of mixed types would make two units of one user. A
    null, or an object that is like no other, names none: whose rows they are nobody
    knows.

    Args:
        owner: text, a whole number, or a scalar of numpy or torch that is one.

    >>> unit_name(17), unit_name("17"), unit_name(None)
    ('17', '17', None)
    """
    is_scalar = isinstance(owner, np.generic | np.ndarray | Tensor) and owner.ndim == 0
    name = owner.item() if is_scalar else owner  # type: ignore[attr-defined]
    is_kind = isinstance(name, str | int) and not isinstance(name, bool)
    return str(name) if is_kind and name != "" else None


def lookalike_problems(path: str, owners: Iterable[str]) -> list[Problem]:
    """Refuse owners that look alike: one person would be several units."""
    if not (number := num_lookalikes(owners)):
        return []
    message = (
        f"must name each owner in one way, but {number:,} differ from others only by "
        "blanks around them, characters that do not show or the form of Unicode (NFC, "
        "NFD): each would be a unit of its own."
    )
    return [Problem(path=path, message=message, next_step="Write them alike.")]


def repeated_problems(path: str, rows: object, *, owners: str) -> list[Problem]:
    """Refuse rows that stand in a data set several times, as oversampling leaves them.

    Each would be a unit of its own, and a record that stands k times a group of k. Rows
    that were written anew, as by `map`, are told by what they hold, where they are
    read: see `dptune.data.copies`.

    Args:
        path: of the rows, in errors.
        rows: of a script, of known length; none is read.
        owners: what names the owner of each row, who may have several.
    """
    number = _num_repeated(rows)
    if not number:
        return []
    message = (
        f"must hold each row once, but {number:,} are another row once more, as "
        "`rows * 2`, repeat, select, Subset or ConcatDataset leave them: each would be "
        "a unit of its own, and the claim of one is not that of the record."
    )
    step = f"Leave each row once, or name in {owners} whose rows they are."
    return [Problem(path=path, message=message, next_step=step)]


def piece_problems(path: str, rows: object, *, owners: str) -> list[Problem]:
    """Refuse rows that are pieces of one text, as `return_overflowing_tokens` cuts it.

    Each would be a unit of its own, and whoever wrote a long text several.

    Args:
        path: of the rows, in errors.
        rows: of a script, of known length.
        owners: what names the owner of each row, who may have several.
    """
    if not isinstance(rows, Dataset) or _PIECES not in rows.column_names:
        return []
    numbers = rows.data.column(_PIECES).to_numpy()  # as they were cut, side by side
    texts = np.cumsum(np.diff(numbers, prepend=numbers[:1]) != 0)
    if (chosen := rows._indices) is not None:
        texts = texts[chosen.column(0).to_numpy()]
    more = len(texts) - len(np.unique(texts))
    if not more:
        return []
    message = (
        f"must hold a record in one row, but {more:,} go on with the text of another, "
        f"as the column {_PIECES} says: each would be a unit of its own, and the claim "
        "of one is not that of the record."
    )
    step = (
        "Cut texts without return_overflowing_tokens, or copy an id of each record "
        f"into its pieces where they are made, and name it in {owners}."
    )
    return [Problem(path=path, message=message, next_step=step)]


def _num_repeated(rows: object) -> int:
    """Count rows that are another one once more.

    >>> row = {"input_ids": [1, 2]}
    >>> _num_repeated([row, row, dict(row)]), _num_repeated(Subset([row], [0, 0]))
    (1, 1)
    >>> texts = ConcatDataset([["yes", "no"], ["yes", "maybe"]])  # of two files
    >>> _num_repeated(texts), _num_repeated(ConcatDataset([["yes"]] * 2))
    (0, 1)
    """
    places = _places(rows)
    return len(places) - len(np.unique(places, axis=0))


def _places(rows: Any) -> NDArray[np.int64]:  # noqa: ANN401 - a script's
    """Say where in memory each row is read from, `(rows, 2)`."""
    if isinstance(rows, Subset):
        return _places(rows.dataset)[np.asarray(rows.indices, np.int64)]
    if isinstance(rows, ConcatDataset):
        return np.concatenate([_places(part) for part in rows.datasets])
    if isinstance(rows, list | tuple):
        own = [  # of texts, equal ones may be one object
            (0, id(row)) if isinstance(row, Mapping) else (id(rows), at)
            for at, row in enumerate(rows)
        ]
        return np.array(own, np.int64).reshape(-1, 2)
    if isinstance(rows, Dataset) and rows.column_names:
        column = "input_ids" if "input_ids" in rows.column_names else 0
        found = [np.empty((0, 2), np.int64)]
        for number, chunk in enumerate(rows.data.column(column).chunks):
            values = chunk.buffers()[-1]
            base = -1 - number if values is None else values.address
            found.append(_numbered(base, chunk.offset + np.arange(len(chunk))))
        places = np.concatenate(found)
        chosen = rows._indices
        return places if chosen is None else places[chosen.column(0).to_numpy()]
    return _numbered(id(rows), np.arange(len(rows)))


def _numbered(base: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Put one number before each of several."""
    return np.stack([np.full_like(numbers, base), numbers], axis=1)


def preference_problems(path: str, columns: Iterable[str]) -> list[Problem]:
    """Refuse rows that compare two answers, as those of DPO and of reward models do.

    Args:
        path: of the rows, in errors.
        columns: of a row; those of a tokenized one may stand beside its `input_ids`.
    """
    names = [str(name) for name in columns]
    found = sorted(n for n in names if n.split("_", maxsplit=1)[0] in _PREFERENCE)
    if not found or "input_ids" in names:
        return []
    return [
        Problem(
            path=path,
            message="must hold one text in a row, with labels that are its tokens or "
            f"its class, got the columns {', '.join(found)} of preferences: a loss "
            "that compares two answers is not trained.",
            next_step="Fine-tune on the chosen answers: make prompt and chosen one "
            "text, or prompt and completion of DPSFTTrainer.",
        )
    ]


def row_of(rows: Rows, index: int) -> Mapping[str, Any]:
    """Ask a script's data set for a row."""
    try:
        row = rows[index]
    except Exception as error:  # noqa: BLE001 - a script's; its message may hold rows
        raise RowFaultError(_cannot("be read by its number", error)) from None
    if not isinstance(row, Mapping):
        raise RowFaultError(f"must be a mapping of columns, got {type(row).__name__}")
    return row


def collated(row: Mapping[str, Any], collate: Collator) -> CollatedRow:
    """Send one row through the collator, alone."""
    try:
        batch = collate([row])
    except Exception as error:  # noqa: BLE001 - a script's; its message may hold rows
        raise RowFaultError(
            _cannot("pass the collator with the columns that the model takes", error)
        ) from None
    try:
        return _read_row(batch)
    except RowFaultError:
        raise
    except Exception as error:  # noqa: BLE001 - of a script's values; it may hold them
        raise RowFaultError(
            _cannot("come out of the collator as tensors of numbers", error)
        ) from None


def _cannot(what: str, error: Exception) -> str:
    """Say what a script's own code raised, without its message."""
    return f"must {what}, which raised {type(error).__name__}"


def _read_row(batch: Mapping[str, Any]) -> CollatedRow:
    """Take the padding off a batch of one row."""
    if not isinstance(batch, Mapping):
        raise RowFaultError(
            f"must come out of the collator as a mapping, got {type(batch).__name__}"
        )
    if "start_positions" in batch:
        raise RowFaultError(
            "must have labels of words or classes, got spans of answers (QA), which "
            "are not trained: repeat the first and the last token of an answer in "
            "labels, with -100 elsewhere, and find them there in a `loss` of "
            "make_private"
        )
    if "input_ids" not in batch or "labels" not in batch:
        raise RowFaultError("must have input_ids and labels behind the collator")
    ids = _one_row(batch["input_ids"])
    if ids.is_floating_point():
        raise RowFaultError("must have whole numbers as input_ids")
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
        raise RowFaultError(_OTHER_TARGETS)
    return CollatedRow(
        ids=ids[span].tolist(), weights=is_target.float().tolist(), label=None
    )


def _classified(ids: Tensor, labels: Tensor) -> CollatedRow:
    """Return a row with one class."""
    if labels.is_floating_point() or int(labels) < 0:
        raise RowFaultError("must have a class from 0 as its label, no score")
    return CollatedRow(ids=ids.tolist(), weights=[1.0] * len(ids), label=int(labels))


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


def _mixing(rows: Rows, collate: Collator, names: Names) -> list[Problem]:
    """Compare rows that are collated together with the same rows alone."""
    try:
        few = [row_of(rows, index) for index in range(min(_COMPARED, len(rows)))]
        packed = _PACKED.intersection(few[0])
        if packed:
            return [_packed_columns(sorted(packed), names)]
        if preferences := preference_problems(names.rows, few[0]):
            return preferences
        alone = [collated(row, collate) for row in few]
        again = [collated(row, collate) for row in few]
    except RowFaultError:
        return []  # told row by row
    try:
        batch = collate(list(few)) if len(few) > 1 else None
    except Exception as error:  # noqa: BLE001 - a script's; its message may hold rows
        return [_failing(error, names)]
    together = alone
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if batch is not None and not isinstance(ids, list):
        together = _apart(batch, len(few))
    if alone == again == together:
        return []
    return [
        Problem(
            path=names.collator,
            message="must treat each row by itself and always alike: a row came out "
            "otherwise beside others, or the second time.",
            next_step="Use default_data_collator, DataCollatorWithPadding or "
            "DataCollatorForLanguageModeling(mlm=False). One that pads must return the "
            "attention_mask.",
        )
    ]


def _apart(batch: object, size: int) -> list[CollatedRow]:
    """Take a batch of the collator apart again; empty where it cannot be."""
    if not isinstance(batch, Mapping):
        return []
    tensors = {k: v for k, v in batch.items() if isinstance(v, Tensor)}
    try:
        if {len(values) for values in tensors.values()} != {size}:
            return []
        rows = range(size)
        return [_read_row({k: v[[i]] for k, v in tensors.items()}) for i in rows]
    except Exception:  # noqa: BLE001 - of a script's values
        return []


def _stay_alike(rows: Rows, collate: Collator, found: Sequence[CollatedRow]) -> bool:
    """Whether rows from all over the data set are the same when they are read again."""
    step = max(1, len(found) // _READ_AGAIN)
    try:
        return all(
            collated(row_of(rows, index), collate) == found[index]
            for index in range(0, len(found), step)
        )
    except RowFaultError:
        return False


def _changing_rows(names: Names) -> Problem:
    """Refuse rows that are others the second time."""
    return Problem(
        path=names.rows,
        message="must give the same rows each time, got others the second time: what "
        "draws or remembers rows can put one unit into rows of another.",
        next_step="Write transformed or augmented rows down beforehand, such as by "
        "map, and train on those.",
    )


def _failing(error: Exception, names: Names) -> Problem:
    """Refuse a collator that cannot collate."""
    return Problem(
        path=names.collator,
        message=f"must collate rows of {names.rows} into a batch, but raised "
        f"{type(error).__name__}.",
        next_step="Call it on the first four rows to see why; rows of several lengths "
        "need one that pads, such as DataCollatorForSeq2Seq.",
    )


def _packed_columns(found: Sequence[str], names: Names) -> Problem:
    """Refuse rows that say that they hold several sequences."""
    return Problem(
        path=names.rows,
        message=f"must hold one sequence in a row, got the columns {', '.join(found)} "
        "of packing.",
        next_step="Turn packing and padding_free off.",
    )


def _faulty(fault: str, where: Sequence[int], names: Names) -> Problem:
    """Name the first rows with a fault, and count the rest."""
    shown = ", ".join(map(str, where[:5]))
    more = f" and {len(where) - 5} more" if len(where) > 5 else ""
    return Problem(
        path=f"{names.rows} row {shown}{more}",
        message=f"{fault}.",
        next_step=OTHER_TARGETS if fault == _OTHER_TARGETS else "",
    )
