"""The slowest honest way to per-unit gradients: one backward pass per row."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.loss import RecordLoss
from dptune.dpsgd.parameters import trainable_parameters
from dptune.dpsgd.ragged import Ragged

Gradients = dict[str, Tensor]


def random_data(
    *,
    rows_per_unit: Sequence[int] = (1, 1, 1, 1),
    vocabulary: int = 29,
    longest: int = 9,
    seed: int = 0,
) -> UnitDataset:
    """Return sequences of unequal length with unequal token weights."""
    draws = np.random.default_rng(seed)
    ends = np.cumsum(rows_per_unit)
    lengths = draws.integers(3, longest + 1, size=int(ends[-1]))
    # Token 0 is kept for padding and 1 for padding of RoBERTa.
    return UnitDataset(
        sequences=Ragged.of(
            [draws.integers(2, vocabulary, size=n) for n in lengths], np.int64
        ),
        loss_weights=Ragged.of(
            [draws.choice([0.0, 0.2, 1.0], size=n).astype(np.float32) for n in lengths],
            np.float32,
        ),
        units=Ragged.of(
            [
                np.arange(end - size, end)
                for end, size in zip(ends, rows_per_unit, strict=True)
            ],
            np.int64,
        ),
        max_sequences_per_unit=max(rows_per_unit),
    )


def naive_unit_gradients(
    model: nn.Module, record_loss: RecordLoss, data: UnitDataset, *, pad_token_id: int
) -> list[Gradients]:
    """Return the float64 gradient of every unit: each row alone, without padding."""
    parameters = trainable_parameters(model)
    result = []
    for rows in data.units:
        total = {
            name: torch.zeros_like(value, dtype=torch.float64)
            for name, value in parameters.items()
        }
        for row in rows:
            alone = UnitDataset(
                sequences=Ragged.of((data.sequences[row],), np.int64),
                loss_weights=Ragged.of((data.loss_weights[row],), np.float32),
                units=Ragged.of((np.zeros(1, np.int64),), np.int64),
                labels=None if data.labels is None else data.labels[[row]],
            )
            losses = record_loss(model, alone.collate([0], pad_token_id))
            gradients = torch.autograd.grad(
                losses.sum(), list(parameters.values()), allow_unused=True
            )
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient
        result.append(total)
    return result


def norm(gradients: Gradients) -> float:
    """Return the L2 norm over all parameters."""
    squares = [float(value.double().square().sum()) for value in gradients.values()]
    return math.sqrt(math.fsum(squares))


def naive_clipped_sum(
    unit_gradients: Sequence[Gradients], *, max_grad_norm: float
) -> Gradients:
    """Clip each unit's gradient and add up, in float64."""
    total = {name: torch.zeros_like(v) for name, v in unit_gradients[0].items()}
    for gradients in unit_gradients:
        factor = min(1.0, max_grad_norm / max(norm(gradients), 1e-300))
        for name, value in gradients.items():
            total[name] += factor * value
    return total


def distance(first: Gradients, second: Gradients) -> float:
    """Return the L2 distance over all parameters."""
    return norm({name: first[name].double() - second[name].double() for name in first})


class FirstTokenClassification:
    """Record loss of a classifier whose label is a function of the first token."""

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return cross entropies, `(rows,)`."""
        output: Any = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask
        )
        labels = batch.input_ids[:, 0] % output.logits.shape[1]
        return functional.cross_entropy(output.logits, labels, reduction="none")

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Return summed loss and number of rows."""
        return float(losses.sum()), float(batch.num_rows)
