"""Turn records into tokens, and their class: one layout for training and attacks.

```
record      [bos] token_1 ... token_n [eos]       bos, eos: if the tokenizer has them
weight       0      1           1      1          belongs to the target

split at    [bos] token_1 ... token_(m-1)         every chunk of a long record opens
max_tokens  [bos] token_m ... token_n [eos]       with bos, only the last ends in eos
```

No position is a target without something before it, so that the first weight of every
chunk is 0. Special tokens spelt out in a text, such as `<mask>`, are read as tokens.

A conversation is what its template makes of it, see `dptune.models.chat`: neither bos
nor eos is added, only what is learnt has a weight, and a long one is cut, not split,
since the rest of a turn without its role is no conversation.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from dptune.conversation import CALL, TOOLS, ScoredTokens, is_conversation, turns_of
from dptune.errors import DataError, ModelError, Problem, id_suffix
from dptune.models.chat import ChatFormat
from dptune.models.chat_checks import RefusedChats
from dptune.parts import batches, fresh_name, map_table
from dptune.results import CutTurns
from dptune.text import MASK

_BATCH_SIZE = 1000

LongRecords = Literal["split", "truncate"]
_Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """One row of the result: tokens and the code points that they cover."""

    record: int
    tokens: _Ints  # (tokens,)
    spans: _Ints  # (tokens, 2)
    learnt: NDArray[np.bool_] | None = None  # (tokens,) None: all


def record_tokens(
    text: str, tokenizer: PreTrainedTokenizerFast, *, open_ended: bool = False
) -> list[int]:
    """Tokens of one record exactly as training sees them, before any split.

    Args:
        text: the record's text.
        tokenizer: the model's tokenizer.
        open_ended: leave the end-of-record token out: the context of something that
            is still to come, such as the secret of a canary.

    Returns:
        `[bos] + tokens + [eos]`, each special token only if the tokenizer has it; of a
        conversation `ScoredTokens`, which know what has a loss.

    Raises:
        ModelError: the tokenizer's template cannot write the conversation.
    """
    if is_conversation(text):
        chat = ChatFormat.of(tokenizer).encode(text, open_ended=open_ended)
        known = [False, *chat.learnt[1:].tolist()]
        return ScoredTokens(chat.ids.tolist(), known)
    start, end = _frame(tokenizer)
    tokens, _ = _tokenize([text], tokenizer)[0]
    return [*start, *tokens.tolist(), *([] if open_ended else end)]


def encode_corpus(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_tokens: int,
    ignore_token_id: int | None = None,
    long_records: LongRecords = "split",
    with_offsets: bool = False,
    folder: Path | None = None,
) -> Dataset:
    """Encode every record; rows keep the order of the corpus.

    A record longer than `max_tokens` becomes several rows with its `id` and `unit_id`,
    or its first `max_tokens` tokens. An end-of-record token that would stand alone in a
    last row is left out. The corpus is not changed, and nothing is written to disk.

    Privacy:
        Chunks of one record are not units of their own: group rows by `unit_id`.

    Args:
        dataset: columns `id`, `text`, `unit_id`.
        tokenizer: the model's tokenizer.
        max_tokens: longest row, special tokens included, at least 3.
        ignore_token_id: target that is never learnt, such as the mask token.
        long_records: `split` or `truncate`.
        with_offsets: add `token_starts` and `token_ends`, the code points of the
            record's text that each token covers (0, 0 for bos and eos).
        folder: private folder for a file without a name that holds the rows, as long as
            somebody reads them; None keeps them in memory.

    Returns:
        Columns `id`, `unit_id`, `input_ids` (list of int32) and `loss_weights` (list of
        float32: weight of the token at that position as a target; 0 at the first
        position and where the token is `ignore_token_id`, else 1).

    Raises:
        DataError: a column is missing, or a record gives no token at all.
        ModelError: `max_tokens` or `long_records` is out of range, or the tokenizer's
            template cannot write some conversations.
    """
    _check(dataset, max_tokens=max_tokens, long_records=long_records)
    schema, refused = _schema(with_offsets=with_offsets), RefusedChats()

    def encoded() -> Iterator[pa.RecordBatch]:
        for rows in _batches(dataset):
            chunks = sorted(
                _chat_chunks(rows, tokenizer, max_tokens=max_tokens, refused=refused)
                + _chunks(rows, tokenizer, max_tokens=max_tokens, long=long_records),
                key=lambda chunk: chunk.record,
            )
            if chunks:
                columns = _columns(rows, chunks, ignore_token_id)
                own = {name: columns[name] for name in schema.names}
                yield from pa.table(own, schema).to_batches()
        refused.raise_if_any()

    table = _stored(encoded(), schema, folder=folder)
    return Dataset(table, fingerprint=fresh_name())


def _stored(
    made: Iterator[pa.RecordBatch], schema: pa.Schema, *, folder: Path | None
) -> pa.Table:
    """Collect batches, in memory or in a file that nobody else can open."""
    if folder is None:
        return pa.Table.from_batches(list(made), schema)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in made:
                writer.write_batch(batch)
        file.flush()
        return map_table(Path(file.name))


def _check(dataset: Dataset, *, max_tokens: int, long_records: str) -> None:
    """Refuse a corpus without its columns and rows without room for a token."""
    missing = sorted({"id", "text", "unit_id"} - set(dataset.column_names))
    if missing:
        raise DataError(
            f"a corpus must have the columns id, text, unit_id, got none named "
            f"{', '.join(missing)}."
        )
    if max_tokens < 3:
        raise ModelError(f"max_tokens must be at least 3, got max_tokens={max_tokens}.")
    if long_records not in {"split", "truncate"}:
        raise ModelError(
            f"long_records must be split or truncate, got long_records={long_records}."
        )


def _schema(*, with_offsets: bool) -> pa.Schema:
    """Column names and types of the result."""
    fields = {
        "id": pa.string(),
        "unit_id": pa.string(),
        "input_ids": pa.list_(pa.int32()),
        "loss_weights": pa.list_(pa.float32()),
    }
    if with_offsets:
        fields |= dict.fromkeys(("token_starts", "token_ends"), pa.list_(pa.int32()))
    return pa.schema(list(fields.items()))


def _batches(dataset: Dataset) -> Iterator[dict[str, list[str]]]:
    """Rows of the corpus, a thousand at a time, and their names in messages."""
    seen = 0
    for batch in batches(dataset, ["id", "text", "unit_id"], rows=_BATCH_SIZE):
        rows = batch.to_pydict()
        numbers = enumerate(rows["id"], start=seen + 1)
        rows["name"] = [f"{number}{id_suffix(one)}" for number, one in numbers]
        seen += batch.num_rows
        yield rows


def _frame(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Tokens that open and close a record."""
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    start, end = ([token] if isinstance(token, int) else [] for token in ends)
    return start, end


def _tokenize(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> list[tuple[_Ints, _Ints]]:
    """Tokens and their code points, without special tokens and without any limit."""
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    return [
        (np.asarray(ids, np.int32), np.asarray(spans, np.int32).reshape(-1, 2))
        for ids, spans in zip(
            encoded["input_ids"], encoded["offset_mapping"], strict=True
        )
    ]


def _chunks(
    rows: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_tokens: int,
    long: LongRecords,
) -> list[_Chunk]:
    """Rows of the result for one batch of records."""
    start, end = _frame(tokenizer)
    room = max_tokens - len(start)
    chunks = []
    plain = [i for i, text in enumerate(rows["text"]) if not is_conversation(text)]
    if not plain:
        return []
    encoded = _tokenize([rows["text"][i] for i in plain], tokenizer)
    for record, (tokens, spans) in zip(plain, encoded, strict=True):
        parts = _parts(len(tokens), room=room, num_end=len(end), long=long)
        for first, last, closes in parts:
            tail = end if closes else []
            ids = np.concatenate([start, tokens[first:last], tail]).astype(np.int32)
            covered = np.zeros((len(ids), 2), np.int32)
            covered[len(start) : len(ids) - len(tail)] = spans[first:last]
            chunks.append(_Chunk(record=record, tokens=ids, spans=covered))
        if len(chunks[-1].tokens) == 0:
            raise DataError(
                [
                    Problem(
                        path=f"record {rows['name'][record]}",
                        message="must give at least one token, got none.",
                        next_step="Leave empty records out.",
                    )
                ]
            )
    return chunks


def _chat_chunks(
    rows: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_tokens: int,
    refused: RefusedChats,
) -> list[_Chunk]:
    """One row for each conversation of a batch, cut if it is long."""
    chunks = []
    for record, text in enumerate(rows["text"]):
        if not is_conversation(text):
            continue
        template = ChatFormat.of(tokenizer)
        with refused.collecting(rows["name"][record]):
            chat = template.encode(text)
            chunks.append(
                _Chunk(
                    record=record,
                    tokens=chat.ids[:max_tokens],
                    spans=chat.spans[:max_tokens],
                    learnt=chat.learnt[:max_tokens],
                )
            )
    return chunks


def count_cut(
    dataset: Dataset, tokenizer: PreTrainedTokenizerFast, *, max_tokens: int
) -> tuple[CutTurns, ...]:
    """Count what `max_tokens` cuts off conversations, by role; nothing of plain text.

    **Privacy**: counts of private records.

    Args:
        dataset: columns `id`, `text`, `unit_id`.
        tokenizer: the model's.
        max_tokens: longest row.
    """
    turns, cut, lost = Counter[str](), Counter[str](), Counter[str]()
    for rows in _batches(dataset):
        for text in filter(is_conversation, rows["text"]):
            owners = ChatFormat.of(tokenizer).encode(text).owners.tolist()
            kept, left = set(owners[:max_tokens]), set(owners[max_tokens:])
            for number, turn in enumerate(turns_of(text)):
                if turn.role in (CALL, TOOLS):  # of the turn before, of no turn
                    continue
                turns[turn.role] += 1
                cut[turn.role] += number in left
                lost[turn.role] += number in left - kept
    return tuple(
        CutTurns(
            role=role, num_turns=turns[role], num_cut=cut[role], num_lost=lost[role]
        )
        for role in turns
    )


def _parts(
    num_tokens: int, *, room: int, num_end: int, long: LongRecords
) -> list[tuple[int, int, bool]]:
    """Ranges of a record's tokens, and whether the end-of-record token follows."""
    if num_tokens + num_end <= room:
        return [(0, num_tokens, True)]
    if long == "truncate":
        return [(0, room, False)]
    starts = range(0, num_tokens, room)
    return [
        (first, min(first + room, num_tokens), num_tokens - first + num_end <= room)
        for first in starts
    ]


def _columns(
    rows: dict[str, list[str]], chunks: list[_Chunk], ignore_token_id: int | None
) -> dict[str, pa.Array]:
    """Arrow columns of one batch."""
    records = [chunk.record for chunk in chunks]
    limits = np.cumsum([0, *(len(chunk.tokens) for chunk in chunks)]).astype(np.int32)
    tokens = np.concatenate([chunk.tokens for chunk in chunks])
    spans = np.concatenate([chunk.spans for chunk in chunks])
    weights = np.ones(len(tokens), np.float32)
    for first, chunk in zip(limits, chunks, strict=False):
        if chunk.learnt is not None:
            weights[first : first + len(chunk.tokens)] = chunk.learnt
    weights[limits[:-1]] = 0.0
    if ignore_token_id is not None:
        weights[tokens == ignore_token_id] = 0.0
    flat = {
        "input_ids": tokens,
        "loss_weights": weights,
        "token_starts": np.ascontiguousarray(spans[:, 0]),
        "token_ends": np.ascontiguousarray(spans[:, 1]),
    }
    lists = {k: pa.ListArray.from_arrays(limits, v) for k, v in flat.items()}
    names = {k: pa.array([rows[k][r] for r in records]) for k in ("id", "unit_id")}
    return names | lists


_MAX_REPORTED = 20


def encode_classes(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_tokens: int,
    class_names: Sequence[str],
) -> Dataset:
    """Encode every record as one sequence with a class; rows keep their order.

    A record is framed as the tokenizer frames it, `[CLS] ... [SEP]` for BERT, and cut
    to `max_tokens`. The mask that redaction writes is read as the tokenizer's own.

    Args:
        dataset: columns `id`, `text`, `unit_id`, `label`.
        tokenizer: the model's tokenizer.
        max_tokens: longest sequence, special tokens included, at least 3.
        class_names: labels as they stand in the corpus, in the order of the classes;
            public.

    Returns:
        Columns `id`, `unit_id`, `input_ids` (list of int32), `loss_weights` (ones) and
        `labels` (int64).

    Raises:
        DataError: there is no label column, or a label is none of the names. Rows are
            named by number.
        ModelError: `max_tokens` is out of range.
    """
    if max_tokens < 3:
        raise ModelError(f"max_tokens must be at least 3, got max_tokens={max_tokens}.")
    labels = class_numbers(dataset, class_names=class_names)
    mask = tokenizer.mask_token or MASK
    encoded = tokenizer(
        [str(text).replace(MASK, mask) for text in dataset["text"]],
        truncation=True,
        max_length=max_tokens,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]
    weights = [np.ones(len(tokens), np.float32) for tokens in encoded]
    return Dataset(
        pa.table(
            {
                "id": pa.array(dataset["id"], pa.string()),
                "unit_id": pa.array(dataset["unit_id"], pa.string()),
                "input_ids": pa.array(encoded, pa.list_(pa.int32())),
                "loss_weights": pa.array(weights, pa.list_(pa.float32())),
                "labels": pa.array(labels, pa.int64()),
            }
        )
    )


def class_numbers(dataset: Dataset, *, class_names: Sequence[str]) -> list[int]:
    """Number the label of each record.

    Raises:
        DataError: there is no label column, or a label is none of the names.
    """
    if "label" not in dataset.column_names:
        raise DataError(
            "a classifier needs labels, but the corpus has none. Set "
            "data.source.label_column."
        )
    numbers = {name: number for number, name in enumerate(class_names)}
    found = [numbers.get(str(label), -1) for label in dataset["label"]]
    unknown = [row for row, number in enumerate(found) if number < 0]
    if unknown:
        ids = dataset["id"]
        raise DataError(
            [
                Problem(
                    path=f"record {row + 1}{id_suffix(ids[row])}",
                    message=f"must have one of the {len(numbers)} labels of "
                    "model.labels, got another.",
                    next_step="Name every label, as it stands in the corpus.",
                )
                for row in unknown[:_MAX_REPORTED]
            ]
        )
    return found
