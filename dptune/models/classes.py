"""Turn labelled records into token sequences and class numbers."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from dptune.errors import DataError, ModelError, Problem
from dptune.models.mask import MASK

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
            named by id.
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
                    path=f"record {ids[row]}",
                    message=f"must have one of the {len(numbers)} labels of "
                    "model.labels, got another.",
                    next_step="Name every label, as it stands in the corpus.",
                )
                for row in unknown[:_MAX_REPORTED]
            ]
        )
    return found
