"""Weights of token losses, from what was detected in each record."""

from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from dptune.mechanisms.atdp import ordinary_weight, token_weights
from dptune.settings import TokenWeightSettings
from dptune.text import Span


def weighted(
    encoded: Dataset, records: Dataset, settings: TokenWeightSettings
) -> Dataset:
    """Weigh every token by whether its record's labels call it sensitive.

    **Privacy**: the weights of a row follow from its own record and from public
    numbers, so that a change of one record changes the weights of no other.

    Args:
        encoded: rows of `encode_corpus` with offsets.
        records: columns `id, text, spans` of the records that were encoded.
        settings: public shares.

    Returns:
        The rows with `loss_weights` of 1, of the ordinary weight, or of 0 where they
        were 0.
    """
    ordinary = ordinary_weight(
        settings.sensitive_share, target_share=settings.target_share
    )
    place = {record: index for index, record in enumerate(records["id"])}
    texts, spans = records["text"], records["spans"]

    def weights(row: dict[str, Any]) -> list[float]:
        index = place[row["id"]]
        found = token_weights(
            texts[index],
            zip(row["token_starts"], row["token_ends"], strict=True),
            [_span(span) for span in spans[index]],
            ordinary=ordinary,
        )
        old = np.asarray(row["loss_weights"], np.float32)
        return np.where(old > 0, found, old).tolist()  # type: ignore[no-any-return]

    kept = encoded.data.table.drop_columns(
        ["token_starts", "token_ends", "loss_weights"]
    )
    column = pa.array([weights(row) for row in encoded], pa.list_(pa.float32()))
    return Dataset(kept.append_column("loss_weights", column))


def _span(row: dict[str, Any]) -> Span:
    """Read a span of a labelled corpus."""
    return Span(start=row["start"], end=row["end"], entity_type=row["entity_type"])
