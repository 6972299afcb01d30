"""Losses of single records: a vector, never a mean over the batch."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.errors import ConfigError, DataError, ModelError
from dptune.logits import (
    NO_TARGET,
    UnwrittenLogits,
    cross_entropy,
    unwritten_logits,
)


class RecordLoss(Protocol):
    """Runs a model and returns one loss per row.

    **Formal guarantee** (to be kept by every implementation): entry r depends on row r
    alone, and every constant in it is public. Without it the gradients of other units
    move when one unit comes or goes, and no clip of single units bounds that.
    """

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return losses, `(rows,)`."""
        ...

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Sum token losses and their weights over rows with a finite loss. Private."""
        ...


@dataclass(frozen=True, kw_only=True)
class CausalLoss:
    """Weighted next-token loss of each row over a public normalizer, or its own.

    loss[r] = (1 / normalizer[r]) * sum over t >= 1 of
    loss_weights[r, t] * -log p(input_ids[r, t] | input_ids[r, :t]).

    **Formal guarantee**: entry r depends on row r alone, under either normalizer. The
    built-in loss of a causal model divides by the number of tokens in the batch and
    does not have this property: the sums of two neighboring data sets were seen to
    differ by 3.66 C.

    | case | loss |
    |---|---|
    | all weights of a row are 0, or it has one token | 0, with zero gradient |
    | a target with weight 0 | contributes nothing, even if its logit is infinite |

    **Privacy**: losses are private.

    Args:
        loss_normalizer: public constant, such as the largest number of tokens per unit;
            in (0, inf). None divides by the number of the row's own targets, those of
            a weight above 0: a short row then counts as much as a long one.

    Raises:
        ConfigError: the normalizer is out of range.
    """

    loss_normalizer: float | None

    def __post_init__(self) -> None:
        """Refuse a normalizer that divides by nothing."""
        if self.loss_normalizer is not None:
            _check_normalizer(self.loss_normalizer)

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Run a causal language model and return losses, `(rows,)`."""
        with unwritten_logits(model):
            output: Any = model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                use_cache=False,
            )
        losses = token_losses(output.logits, batch)  # (rows, time)
        return losses.sum(1) / self._normalizers(batch)

    def _normalizers(self, batch: PhysicalBatch) -> Tensor:
        """Return what the loss of each row is divided by, `(rows,)`; no row by 0."""
        weights = batch.loss_weights[:, 1:]
        if self.loss_normalizer is None:
            return (weights > 0).sum(1).clamp(min=1).to(weights)
        return weights.new_full((len(weights),), self.loss_normalizer)

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Sum weighted token losses and weights of rows with a finite loss. Private."""
        finite = torch.isfinite(losses)
        nll = (losses.detach() * self._normalizers(batch))[finite].sum()
        return float(nll), float(batch.loss_weights[finite, 1:].sum())


@dataclass(frozen=True, kw_only=True)
class ClassificationLoss:
    """Cross-entropy of each row's class over a fixed public normalizer.

    loss[r] = -log p(labels[r] | input_ids[r]) / loss_normalizer.

    **Formal guarantee**: entry r depends on row r alone.

    **Privacy**: losses are private, and so are the labels.

    Args:
        loss_normalizer: public constant, such as the largest number of rows per unit;
            in (0, inf).

    Raises:
        ConfigError: the normalizer is out of range.
    """

    loss_normalizer: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a normalizer that divides by nothing."""
        _check_normalizer(self.loss_normalizer)

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Run a sequence classifier and return losses, `(rows,)`.

        Raises:
            DataError: the data has no labels.
        """
        if batch.labels is None:
            raise DataError(
                "labels must be set to train a classifier. Name the label column."
            )
        output: Any = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask
        )
        losses = cross_entropy(output.logits, batch.labels) / self.loss_normalizer
        return losses * (batch.loss_weights.sum(1) > 0)  # rows that fill a batch

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Sum losses of real rows with a finite loss, and count them. Private."""
        real = torch.isfinite(losses) & (batch.loss_weights.sum(1) > 0)
        nll = losses.detach()[real].sum() * self.loss_normalizer
        return float(nll), float(real.sum())


def _check_normalizer(loss_normalizer: float) -> None:
    """Refuse a normalizer that divides by nothing."""
    if not 0 < loss_normalizer < float("inf"):
        raise ConfigError(
            "loss_normalizer must be in (0, inf), got "
            f"loss_normalizer={loss_normalizer}. Use the maximum number of tokens of "
            "a sequence, or of rows of a unit."
        )


def token_losses(logits: Tensor, batch: PhysicalBatch) -> Tensor:
    """Return the weighted loss of predicting position t + 1, at position t.

    Backpropagation writes the gradient of the logits over the logits, unless the graph
    is kept: use them before, or not at all.

    Args:
        logits: `(rows, time, vocabulary)`.
        batch: tokens and weights.

    Returns:
        `(rows, time)`, float32; the last column is 0.

    Raises:
        ModelError: there are more or fewer logits than tokens.
    """
    targets = functional.pad(batch.input_ids[:, 1:], (0, 1))
    weights = functional.pad(batch.loss_weights[:, 1:], (0, 1))
    targets = torch.where(weights > 0, targets, NO_TARGET)
    losses = (
        logits.cross_entropy(targets.flatten())
        if isinstance(logits, UnwrittenLogits)
        else cross_entropy(logits.flatten(0, 1), targets.flatten())
    )
    if losses.numel() != weights.numel():
        raise ModelError(
            f"the model must give logits for each of {weights.numel()} tokens, got "
            f"{losses.numel()}: prompt tuning, for one, puts tokens of its own before "
            "a row. Use LoRA, or prefix tuning, which does not."
        )
    return losses.view_as(weights) * weights
