"""Losses of single records: a vector, never a mean over the batch."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.errors import ConfigError

_NO_TARGET = -100


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
    """Weighted next-token loss of each row over a fixed public normalizer.

    loss[r] = (1 / loss_normalizer) * sum over t >= 1 of
    loss_weights[r, t] * -log p(input_ids[r, t] | input_ids[r, :t]).

    **Formal guarantee**: entry r depends on row r alone. The built-in loss of a causal
    model divides by the number of tokens in the batch and does not have this property:
    the sums of two neighboring data sets were seen to differ by 3.66 C.

    | case | loss |
    |---|---|
    | all weights of a row are 0, or it has one token | 0, with zero gradient |
    | a target with weight 0 | contributes nothing, even if its logit is infinite |

    **Privacy**: losses are private.

    Args:
        loss_normalizer: public constant, such as the largest number of tokens per unit;
            in (0, inf).

    Raises:
        ConfigError: the normalizer is out of range.
    """

    loss_normalizer: float

    def __post_init__(self) -> None:
        """Refuse a normalizer that divides by nothing."""
        if not 0 < self.loss_normalizer < float("inf"):
            raise ConfigError(
                "loss_normalizer must be in (0, inf), got "
                f"loss_normalizer={self.loss_normalizer}. Use the maximum number of "
                "tokens of a sequence."
            )

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Run a causal language model and return losses, `(rows,)`."""
        output: Any = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            use_cache=False,
        )
        losses = token_losses(output.logits, batch)  # (rows, time)
        return losses.sum(1) / self.loss_normalizer

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Sum weighted token losses and weights of rows with a finite loss. Private."""
        finite = torch.isfinite(losses)
        nll = losses.detach()[finite].sum() * self.loss_normalizer
        return float(nll), float(batch.loss_weights[finite, 1:].sum())


def token_losses(logits: Tensor, batch: PhysicalBatch) -> Tensor:
    """Return the weighted loss of predicting position t + 1, at position t.

    Args:
        logits: `(rows, time, vocabulary)`.
        batch: tokens and weights.

    Returns:
        `(rows, time)`, float32; the last column is 0.
    """
    targets = functional.pad(batch.input_ids[:, 1:], (0, 1))
    weights = functional.pad(batch.loss_weights[:, 1:], (0, 1))
    targets = torch.where(weights > 0, targets, _NO_TARGET)
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(),
        targets.flatten(),
        reduction="none",
        ignore_index=_NO_TARGET,
    )
    return losses.view_as(weights) * weights
