"""How text is drawn from an attacked model, and how likely it draws a given one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor, nn

from dptune.attacks.inference import (
    Floats,
    OnProgress,
    evaluating,
    forwarded,
    next_logits,
    place,
    unwatched,
)
from dptune.errors import ModelError
from dptune.logits import logits_at


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Sampling with temperature, then top-k, then top-p, in that order.

    Args:
        temperature: greater than 0.
        top_k: tokens that may be drawn at all; 0 for every one.
        top_p: of those, the likeliest that make up this share.
    """

    temperature: float = 0.7
    top_k: int = 50
    top_p: float = 0.95

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates of each row, likeliest first, and their log probabilities.

        Returns:
            token ids `(rows, k)` and log probabilities `(rows, k)`, minus infinity for
            tokens that are never drawn.
        """
        size = logits.shape[-1]
        count = min(self.top_k, size) if self.top_k else size
        values, tokens = (logits.float() / self.temperature).topk(count, dim=-1)
        if self.top_p < 1.0:
            shares = values.softmax(dim=-1)
            before = shares.cumsum(dim=-1) - shares
            values = values.masked_fill(before >= self.top_p, -torch.inf)
        return tokens, values.log_softmax(dim=-1)


@torch.inference_mode()
def sample_continuations(
    model: nn.Module,
    context: Sequence[int],
    *,
    count: int,
    max_new_tokens: int,
    decoding: Decoding,
    generator: torch.Generator,
    stop: int | Collection[int] | None = None,
    batch_size: int = 512,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> list[list[int]]:
    """Draw continuations of one context.

    Args:
        model: a causal language model.
        context: at least one token.
        count: how many to draw.
        max_new_tokens: longest continuation.
        decoding: how tokens are drawn.
        generator: source of the draws, on the CPU.
        stop: tokens that end a continuation, of which they are no part.
        batch_size: continuations drawn at once.
        device: where to run; None is where the model is.
        on_progress: told how many were drawn.

    Privacy:
        What a fine-tuned model says may be training data: count, do not keep.
    """
    target = place(model, device, allow_half=True)
    stops = {stop} if isinstance(stop, int) else {*(stop or ())}
    drawn: list[list[int]] = []
    with evaluating(model):
        first, root = next_logits(
            model, torch.tensor([list(context)]), [], past=0, device=target
        )
        for start in range(0, count, batch_size):
            rows = min(batch_size, count - start)
            logits = first.expand(rows, -1)
            past = [
                (k.expand(rows, *k.shape[1:]), v.expand(rows, *v.shape[1:]))
                for k, v in root
            ]
            grown: list[Tensor] = []
            for step in range(max_new_tokens):
                grown.append(_draw(logits, decoding, generator))
                if step + 1 < max_new_tokens:
                    logits, past = next_logits(
                        model,
                        grown[-1],
                        past,
                        past=len(context) + step,
                        device=target,
                    )
            drawn.extend(
                list(takewhile(lambda token: token not in stops, row))
                for row in torch.cat(grown, dim=1).tolist()
            )
            on_progress(start + rows, count)
    return drawn


def _draw(logits: Tensor, decoding: Decoding, generator: torch.Generator) -> Tensor:
    """One token for each row, `(rows, 1)`."""
    tokens, log_probs = decoding.log_probs(logits)
    place_in_row = torch.multinomial(log_probs.exp().cpu(), 1, generator=generator)
    return tokens.cpu().gather(1, place_in_row)


@torch.inference_mode()
def ending_log_probs(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    decoding: Decoding,
    batch_size: int = 32,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> Floats:
    """Log chance that one trial draws the rest of each record, token by token.

    Args:
        model: a causal language model.
        sequences: token ids of each record.
        starts: for each record, tokens that are given; the rest must be drawn.
        decoding: how tokens are drawn.
        batch_size: records forwarded at once, at most.
        device: where to run; None is where the model is.
        on_progress: told how many records were forwarded.

    Returns:
        Sums of log probabilities; minus infinity where a token can never be drawn. The
        same text in other tokens is not counted: a lower bound of the text's chance.

    Raises:
        ModelError: a probability is NaN.
    """
    target = place(model, device, allow_half=True)
    found = np.zeros(len(sequences))
    with evaluating(model):
        for rows, tokens, logits in forwarded(
            model,
            sequences,
            batch_size=batch_size,
            device=target,
            on_progress=on_progress,
        ):
            for place_in_batch, row in enumerate(rows):
                at = slice(starts[row] - 1, len(sequences[row]) - 1)
                wanted = tokens[place_in_batch, starts[row] : len(sequences[row])]
                its = logits_at(logits, place_in_batch, at)
                found[row] = _chance(its, wanted, decoding)
    return found


def _chance(logits: Tensor, wanted: Tensor, decoding: Decoding) -> float:
    """Log chance of the wanted tokens, one for each row."""
    tokens, log_probs = decoding.log_probs(logits)
    if log_probs.isnan().any():
        raise ModelError(
            "chances must be numbers, got NaN. The model's weights or activations are "
            "not finite; nothing can be said of what it would draw."
        )
    same = tokens == wanted.to(tokens.device)[:, None]
    each = torch.where(same, log_probs, -torch.inf).amax(dim=-1)
    return float(each.double().sum())
