"""One pass of a causal language model: everything that membership and utility need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dptune.attacks._inference import evaluating, place
from dptune.errors import DataError

Floats = NDArray[np.float64]

_MAX_LOGITS = 1 << 25
_ASSUMED_VOCABULARY = 50_257


@dataclass(frozen=True, kw_only=True)
class TokenSignals:
    """Log probabilities of the tokens of one record, the first one excepted. Private.

    Args:
        log_probs: of each token given those before it, nats.
        hits: whether the token was the model's first choice.
        means: mean log probability under the model's own distribution there.
        stddevs: its standard deviation. Both are empty unless moments were asked for.
    """

    log_probs: Floats = field(repr=False)  # (tokens - 1,)
    hits: NDArray[np.bool_] = field(repr=False)
    means: Floats = field(repr=False)
    stddevs: Floats = field(repr=False)

    @property
    def nll(self: Self) -> float:
        """Total negative log likelihood, nats."""
        return float(-self.log_probs.sum())


@torch.inference_mode()
def token_signals(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    batch_size: int = 32,
    device: str | torch.device | None = None,
    moments: bool = False,
) -> list[TokenSignals]:
    """Forward every record once.

    Args:
        model: a causal language model.
        sequences: token ids of each record, as in training; each fits the model.
        batch_size: records forwarded at once, at most; fewer where memory asks for it.
        device: where to run; None is where the model is.
        moments: also keep mean and standard deviation, which Min-K%++ needs.

    Returns:
        Signals in the order of `sequences`; a record of fewer than two tokens has
        empty ones.

    Raises:
        DataError: a record has no token.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    if (lengths == 0).any():
        raise DataError(
            f"records must have at least one token, got {int((lengths == 0).sum())} "
            "empty ones. Leave them out."
        )
    target = place(model, device, allow_half=True)
    found: list[TokenSignals | None] = [None] * len(sequences)
    with evaluating(model):
        for rows in _batches(lengths, model, batch_size):
            batch = [sequences[row] for row in rows]
            signals = _forward(model, batch, device=target, moments=moments)
            for row, one in zip(rows, signals, strict=True):
                found[row] = one
    return [signals for signals in found if signals is not None]


def _batches(
    lengths: NDArray[np.int64], model: nn.Module, batch_size: int
) -> Iterator[list[int]]:
    """Rows of similar length, longest first, within the memory of their logits."""
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    room = _MAX_LOGITS // (vocabulary or _ASSUMED_VOCABULARY)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = min(batch_size, max(1, room // int(lengths[order[start]])))
        yield order[start : start + size].tolist()
        start += size


def padded_batches(
    model: nn.Module, sequences: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Row numbers, padded tokens and mask of batches of similar length."""
    lengths = np.array([len(sequence) for sequence in sequences])
    for rows in _batches(lengths, model, batch_size):
        yield rows, *_padded([sequences[row] for row in rows])


def _padded(batch: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens filled up with zeros, and where they are not."""
    width = max(len(sequence) for sequence in batch)
    tokens = torch.zeros((len(batch), width), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(batch):
        tokens[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    return tokens, mask


def _forward(
    model: nn.Module,
    batch: Sequence[Sequence[int]],
    *,
    device: torch.device,
    moments: bool,
) -> Iterator[TokenSignals]:
    """Signals of one padded batch."""
    tokens, mask = (t.to(device) for t in _padded(batch))
    width = tokens.shape[1]
    positions = torch.arange(width, device=device).expand(len(batch), width)
    logits = model(
        input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False
    ).logits[:, :-1]
    logits, targets = logits.float(), tokens[:, 1:]
    hits = (logits.argmax(-1) == targets).cpu().numpy()
    chosen, means, stddevs = _statistics(logits, targets, moments=moments)
    for row, sequence in enumerate(batch):
        end = len(sequence) - 1
        yield TokenSignals(
            log_probs=chosen[row, :end],
            hits=hits[row, :end],
            means=means[row, :end],
            stddevs=stddevs[row, :end],
        )


def _statistics(
    logits: Tensor, targets: Tensor, *, moments: bool
) -> tuple[Floats, Floats, Floats]:
    """Log probability of each target, and the moments of its distribution."""
    normalizer = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, targets[..., None])[..., 0] - normalizer
    if not moments:
        empty = np.empty((len(logits), 0))
        return chosen.double().cpu().numpy(), empty, empty
    log_probs = logits - normalizer[..., None]
    probs = log_probs.exp()
    # 0 * -inf would be NaN where a model rules tokens out
    weighted = torch.where(probs > 0, probs * log_probs, 0.0)
    means = weighted.sum(-1)
    squares = torch.where(probs > 0, weighted * log_probs, 0.0).sum(-1)
    stddevs = (squares - means.square()).clamp_min(0.0).sqrt()
    return (
        chosen.double().cpu().numpy(),
        means.double().cpu().numpy(),
        stddevs.double().cpu().numpy(),
    )
