"""Rows of a script's data set, as transformers has them, by privacy unit."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from dptune.api.arguments import Arguments, is_list
from dptune.data.collated import (
    IGNORED,
    OTHER_TARGETS,
    Names,
    Rows,
    lookalike_problems,
    piece_problems,
    preference_problems,
    read_collated,
    repeated_problems,
    unit_name,
)
from dptune.data.copies import look_packed, record_digest, without_copies
from dptune.data.records import MAX_ROWS_NAMED
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.prechecks import row_problems
from dptune.errors import ConfigError, DataError, Problem
from dptune.logits import NO_TARGET

_KNOWN = frozenset({"input_ids", "attention_mask", "labels"})
_MOST_PROBLEMS = 20
_SHORTEST_BLOCK = 32
_SHIFTED = "the model shifts them by itself"


def units_of(
    data: Rows,
    *,
    owners: Sequence[str | int] | None,
    max_rows_per_unit: int,
    max_tokens: int,
) -> UnitDataset:
    """Read all rows, and group them by the privacy unit that owns them.

    Args:
        data: rows; see `dptune.make_private`.
        owners: of each row, as text or whole numbers; None makes every row a unit of
            its own.
        max_rows_per_unit: contribution bound: further rows of a unit are left out.
        max_tokens: public length that no row may exceed.

    Raises:
        ConfigError: it is no data set of known length, or owners name no unit.
        DataError: rows that cannot be trained on; names them by number, all at once.
    """
    check_kind(data, owners)
    problems: list[Problem] = []
    rows = []
    for number in range(len(data)):
        row = _read(data, number)
        if not number and isinstance(row, Mapping):
            problems += preference_problems("data", row)
            if problems:
                break
        found = list(_problems(row, max_tokens=max_tokens))
        problems += [Problem(path=f"data[{number}]", message=each) for each in found]
        if len(problems) >= _MOST_PROBLEMS:
            break
        if not found:
            rows.append(_columns(row))
    if problems:
        told = problems[:_MOST_PROBLEMS]
        if any(_SHIFTED in problem.message for problem in told):
            told.append(Problem(path="labels", message=OTHER_TARGETS))
        raise DataError(told)
    if not rows:
        raise DataError("data must have at least one row, got none.")
    classes = [label for _, _, label in rows if label is not None]
    if classes and len(classes) < len(rows):
        raise DataError("labels must be a class in every row or in none.")
    if owners is None:
        _warn_of_blocks([len(ids) for ids, _, label in rows if label is None])
        records = [record_digest(*row) for row in rows]
        rows = [rows[n] for n in without_copies(records, path="data", owners="owners")]
        classes = [label for _, _, label in rows if label is not None]
    names = range(len(rows)) if owners is None else _numbered(owners)
    return UnitDataset.from_columns(
        [ids for ids, _, _ in rows],
        [weights for _, weights, _ in rows],
        list(names),
        max_sequences_per_unit=max_rows_per_unit,
        labels=classes or None,
    )


def _warn_of_blocks(lengths: Sequence[int]) -> None:
    """Tell that rows look like blocks, each of which holds texts of several records."""
    if look_packed(lengths) and max(lengths) >= _SHORTEST_BLOCK:
        warnings.warn(
            "data has rows that all, or nearly all, have one length, as grouping texts "
            "into blocks leaves them: each block would be a unit, and whose text is "
            "in several has the guarantee of a group. Tokenize records one by one, or "
            "name in owners whose rows they are; where texts were cut to one length, "
            "this says nothing.",
            stacklevel=2,
        )


def _read(data: Rows, number: int) -> Mapping[str, Any]:
    """Ask a script's data set for a row; its own error may hold what is in it."""
    try:
        return data[number]
    except Exception as error:  # noqa: BLE001 - a script's
        raise DataError(
            f"data[{number}] must be read by its number, which raised "
            f"{type(error).__name__}. Pass a list of mappings, such as "
            'frame.to_dict("records"), or a data set of the `datasets` package.'
        ) from None


def check_kind(data: object, owners: object) -> None:
    """Refuse what cannot be sampled from by chance of each unit.

    Raises:
        ConfigError: rows have no length or number, or owners do not name one unit for
            each row; all at once.
    """
    problems = []
    if isinstance(data, DataLoader):
        problems.append(
            Problem(
                path="data",
                message="must be the data set, not a DataLoader: batches are drawn "
                "here, by a coin for each unit, and padded here.",
                next_step="Pass loader.dataset.",
            )
        )
    elif not is_list(data):
        problems.append(
            Problem(
                path="data",
                message="must have a length and rows by number, got "
                f"{type(data).__name__}: from a stream no unit joins a step with a "
                "known chance.",
                next_step="Load it as a list or a data set of the `datasets` package.",
            )
        )
    elif owners is not None and not (is_list(owners) and len(owners) == len(data)):
        got = len(owners) if isinstance(owners, Sized) else type(owners).__name__
        message = f"must name the unit of every row, got {got} for {len(data)} rows."
        problems.append(Problem(path="owners", message=message))
    elif owners is not None:
        problems += _owner_problems(cast("Iterable[object]", owners))
    else:
        problems += repeated_problems("data", data, owners="owners")
        problems += piece_problems("data", data, owners="owners")
    if problems:
        raise ConfigError(problems)


def check_rows(data: UnitDataset, model: nn.Module, *, own_loss: bool) -> None:
    """Refuse tokens, and classes of the model's loss, that a model does not have.

    Raises:
        ConfigError: all at once.
    """
    problems = row_problems(data, model, path="data", own_loss=own_loss)
    if problems:
        raise ConfigError(problems)


def check_loader(loader: DataLoader[Any], expected_batch_size: object) -> None:
    """Refuse a loader whose way to draw batches a coin for each unit does not replace.

    Raises:
        ConfigError: it draws by a law of its own, or no batches; all at once.
    """
    problems = []
    if type(loader).__iter__ is not DataLoader.__iter__:
        problems.append(
            Problem(
                path="data",
                message=f"must be torch's own DataLoader, got {type(loader).__name__}, "
                "which makes batches in a way of its own.",
                next_step="Pass the loader that it wraps; call make_private before "
                "accelerator.prepare.",
            )
        )
    elif loader.batch_size is None:
        problems.append(
            Problem(
                path="data",
                message="must have a batch_size, got a loader without one, or with a "
                "batch_sampler: units per step are the public divisor.",
                next_step="Say batch_size in the loader.",
            )
        )
    sampler, is_stream = loader.sampler, isinstance(loader.dataset, IterableDataset)
    shuffles = type(sampler) is RandomSampler and not sampler.replacement
    if not (shuffles or type(sampler) is SequentialSampler or is_stream):
        problems.append(
            Problem(
                path="data",
                message="must go through its rows, shuffled or not, got a loader with "
                f"{type(sampler).__name__}: each unit joins a step by a coin of its "
                "own, with one chance for all.",
                next_step="Leave the sampler out; train on a Subset of the data.",
            )
        )
    if expected_batch_size is not None:
        problems.append(
            Problem(
                path="expected_batch_size",
                message="must be left to the loader, whose batch_size it is.",
                next_step="Say batch_size in the loader: all rows of a step; "
                "physical_batch_size is what fits into memory.",
            )
        )
    if problems:
        raise ConfigError(problems)


def rows_of(loader: DataLoader[Any]) -> tuple[Rows, tuple[str, ...]]:
    """Send every row of a loader through its collator alone.

    Returns:
        The rows, and the columns that the loader's batches have.

    Raises:
        ConfigError: rows or collator do not come out alike; all at once.
    """
    columns: dict[str, None] = {}

    def collate(rows: list[Any]) -> Mapping[str, Any]:
        batch: Mapping[str, Any] = loader.collate_fn(rows)
        columns.update(dict.fromkeys(batch))
        if "labels" in batch or "input_ids" not in batch:
            return batch
        ids = torch.as_tensor(batch["input_ids"])
        mask = torch.as_tensor(batch.get("attention_mask", torch.ones_like(ids)))
        return {**batch, "labels": torch.where(mask > 0, ids, IGNORED)}

    names = Names(rows="data.dataset", collator="data.collate_fn")
    found, _ = read_collated(
        cast("Rows", loader.dataset), collate, about=lambda *_: None, names=names
    )
    rows = [
        {
            "input_ids": row.ids,
            "labels": row.label
            if row.label is not None
            else np.where(np.asarray(row.weights) > 0, row.ids, IGNORED),
        }
        for row in found
    ]
    return rows, tuple(columns)


def _problems(row: object, *, max_tokens: int) -> Iterator[str]:
    """Say what is wrong with one row, without its tokens."""
    if not isinstance(row, Mapping) or "input_ids" not in row:
        yield "must be a mapping with input_ids. Tokenize the text first."
        return
    unknown = sorted(map(str, row.keys() - _KNOWN))
    if unknown:
        yield (
            f"must hold {', '.join(sorted(_KNOWN))} and nothing else, got also "
            f"{', '.join(unknown)}. Remove these columns: no model would see them."
        )
    ids = _flat(row["input_ids"])
    if ids is None or not len(ids):
        yield "input_ids must be one sequence of at least one token."
        return
    mask = _flat(row.get("attention_mask", [1] * len(ids)))
    if mask is None or len(mask) != len(ids) or (np.diff(mask) > 0).any():
        yield (
            "attention_mask must have ones in front and zeros behind, one for each "
            "token: rows are padded on the right. Tokenize without padding."
        )
        return
    length = int(np.sum(mask))
    if not 1 <= length <= max_tokens:
        yield (
            f"must have 1 to max_tokens={max_tokens} tokens, got {length}. Cut it "
            "where it is tokenized, or raise max_tokens."
        )
    yield from _label_problems(row.get("labels"), ids[:length], len(ids))


def _label_problems(
    labels: Any,  # noqa: ANN401 - whatever the row holds
    ids: np.ndarray[Any, Any],
    length: int,
) -> Iterator[str]:
    """Say what is wrong with targets: they are the row's own tokens, or a class."""
    if labels is None or np.ndim(labels) == 0:
        if labels is not None and not float(labels).is_integer():
            yield "labels must be a class from 0, or a target for each token."
        return
    targets = _flat(labels)
    if targets is None or len(targets) != length:
        yield f"labels must have one target for each of the {length} input_ids."
        return
    targets = targets[: len(ids)]
    if ((targets != ids) & (targets != NO_TARGET)).any():
        yield (
            f"labels must repeat input_ids, or be {NO_TARGET} where nothing is learnt: "
            f"{_SHIFTED}."
        )


def _columns(row: Mapping[str, Any]) -> tuple[list[int], list[float], int | None]:
    """Return tokens, weights of targets, and the class of a row without problems."""
    ids = np.asarray(row["input_ids"]).tolist()
    length = int(np.sum(row.get("attention_mask", [1] * len(ids))))
    labels = row.get("labels")
    if labels is None:
        return ids[:length], [1.0] * length, None
    if np.ndim(labels) == 0:
        return ids[:length], [1.0] * length, int(labels)
    targets = np.asarray(labels)[:length]
    return ids[:length], (targets != NO_TARGET).astype(float).tolist(), None


def _flat(values: Any) -> np.ndarray[Any, Any] | None:  # noqa: ANN401 - of a row
    """Return whole numbers in a row, or None."""
    array = np.asarray(values)
    return array if array.ndim == 1 and array.dtype.kind in "iub" else None


def _numbered(owners: Iterable[object]) -> list[int]:
    """Number owners in the order of their first rows."""
    given = list(owners)  # what is read twice may not say the same twice
    if problems := _owner_problems(given):
        raise ConfigError(problems)
    numbers: dict[str | None, int] = {}
    return [numbers.setdefault(unit_name(owner), len(numbers)) for owner in given]


def named_owners(
    given: Arguments, name: str, owners: object, texts: object
) -> list[str] | None:
    """Name the owner of every text; note in `given` where there is none."""
    if owners is None:
        return None
    if not is_list(owners) or (is_list(texts) and len(owners) != len(texts)):
        got = len(owners) if is_list(owners) else type(owners).__name__
        given.refuse(name, f"must name an owner for each text, got {got}.")
        return None
    found = list(cast("Iterable[object]", owners))
    for problem in _owner_problems(found):
        given.refuse(name, problem.message, problem.next_step)
    return [unit_name(owner) or "" for owner in found]


def _owner_problems(owners: Iterable[object]) -> list[Problem]:
    """Refuse owners that name no unit, or one in two ways; no message holds one."""
    names = list(map(unit_name, owners))
    refused = [row for row, name in enumerate(names) if name is None]
    if not refused:
        return lookalike_problems("owners", filter(None, names))
    rows = ", ".join(map(str, refused[:MAX_ROWS_NAMED]))
    more = len(refused) - MAX_ROWS_NAMED
    message = (
        "must name the unit of every row, as text or a whole number, got something "
        f"else or nothing in row {rows}{f' and {more:,} more' if more > 0 else ''}."
    )
    step = "Write ids as text, and give rows without an owner one each, or drop them."
    return [Problem(path="owners", message=message, next_step=step)]
