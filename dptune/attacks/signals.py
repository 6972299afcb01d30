"""One pass of a causal language model: token losses, and what it is good for."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dptune.attacks.inference import (
    OnProgress,
    evaluating,
    forwarded,
    place,
    positions_at_once,
    unwatched,
)
from dptune.conversation import scored
from dptune.errors import DataError
from dptune.logits import logits_at
from dptune.results import UtilityReport
from dptune.statistics import unit_numbers

Floats = NDArray[np.float64]

_LEAST_LOG = -200.0
_PIECE_ENTRIES = 1 << 18
"""Logits whose moments are taken at once: what fits into the cache."""


@dataclass(frozen=True, kw_only=True)
class TokenSignals:
    """Log probabilities of the tokens of one record that have a loss. Private.

    Of plain text these are all but the first; of a conversation, what was learnt.

    Args:
        log_probs: of each token given those before it, nats.
        hits: whether the token was the model's first choice.
        means: mean log probability under the model's own distribution there.
        stddevs: its standard deviation. Both are empty unless moments were asked for.
    """

    log_probs: Floats = field(repr=False)  # (scored tokens,)
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
    on_progress: OnProgress = unwatched,
) -> list[TokenSignals]:
    """Forward every record once.

    Args:
        model: a causal language model.
        sequences: token ids of each record, as in training; each fits the model.
        batch_size: records forwarded at once, at most; fewer where memory asks for it.
        device: where to run; None is where the model is.
        moments: also keep mean and standard deviation, which Min-K%++ needs.
        on_progress: told how many records were forwarded.

    Returns:
        Signals in the order of `sequences`; a record of fewer than two tokens has
        empty ones.

    Raises:
        DataError: a record has no token.
    """
    empty = sum(len(sequence) == 0 for sequence in sequences)
    if empty:
        raise DataError(
            f"records must have at least one token, got {empty} empty ones. Leave them "
            "out."
        )
    target = place(model, device, allow_half=True)
    found: dict[int, TokenSignals] = {}
    with evaluating(model):
        for rows, tokens, logits in forwarded(
            model,
            sequences,
            batch_size=batch_size,
            device=target,
            on_progress=on_progress,
        ):
            batch = [sequences[row] for row in rows]
            signals = _signals(batch, tokens, logits, moments=moments)
            found |= zip(rows, signals, strict=True)
    return [found[row] for row in range(len(sequences))]


def _signals(
    batch: Sequence[Sequence[int]], tokens: Tensor, logits: Tensor, *, moments: bool
) -> Iterator[TokenSignals]:
    """Signals of one padded batch, computed where a token has a loss."""
    own = [np.flatnonzero(scored(sequence)[1:]) for sequence in batch]
    counts = list(map(len, own))
    rows = torch.from_numpy(np.repeat(np.arange(len(batch)), counts))
    places = torch.stack([rows, torch.from_numpy(np.concatenate(own))])
    places = places.to(tokens.device)
    found = [tokens.new_zeros(4, 0, dtype=torch.float32)]
    for some in torch.split(places, positions_at_once(logits), dim=1):
        targets = tokens[some[0], some[1] + 1]
        found += _statistics(logits_at(logits, *some), targets, moments=moments)
    values = torch.cat(found, dim=1).double().cpu().numpy()
    of_rows = np.split(values, np.cumsum(counts)[:-1], axis=1)
    for chosen, hits, means, stddevs in of_rows:
        yield TokenSignals(
            log_probs=chosen,
            hits=hits > 0,
            means=means if moments else means[:0],
            stddevs=stddevs if moments else stddevs[:0],
        )


def _statistics(logits: Tensor, targets: Tensor, *, moments: bool) -> Iterator[Tensor]:
    """Statistics of targets, `(4, some)` at a time: what fits into the cache.

    Args:
        logits: `(positions, vocabulary)`, in any precision.
        targets: `(positions,)`.
        moments: also mean and standard deviation of the log probability there.

    Yields:
        Log probability, hit, mean and standard deviation.
    """
    few = max(1, _PIECE_ENTRIES // logits.shape[-1])
    pieces = (torch.split(values, few) for values in (logits, targets))
    for part, target in zip(*pieces, strict=True):
        some = part.float()
        normalizer = some.logsumexp(-1)
        chosen = some.gather(-1, target[:, None])[:, 0] - normalizer
        hits = (some.argmax(-1) == target).float()
        mean = square = torch.zeros_like(chosen)
        if moments:
            # Below it a probability is 0 in float32, and 0 * -inf would be NaN.
            log_probs = (some - normalizer[:, None]).clamp_min_(_LEAST_LOG)
            weighted = log_probs.exp().mul_(log_probs)
            mean = weighted.sum(-1)
            square = weighted.mul_(log_probs).sum(-1)
        stddev = (square - mean.square()).clamp_min(0.0).sqrt()
        yield torch.stack([chosen, hits, mean, stddev])


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What a model makes of held-out records. Private.

    Args:
        nll: total negative log likelihood of each record, nats.
        hits: tokens that were the model's first choice.
    """

    nll: tuple[float, ...] = field(repr=False)
    hits: int


def held_out_losses(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    batch_size: int = 32,
    device: str | None = None,
    on_progress: OnProgress = unwatched,
) -> HeldOut:
    """Forward held-out records once; arguments are those of `token_signals`."""
    found = token_signals(
        model,
        sequences,
        batch_size=batch_size,
        device=device,
        on_progress=on_progress,
    )
    return HeldOut(
        nll=tuple(signals.nll for signals in found),
        hits=sum(int(signals.hits.sum()) for signals in found),
    )


def utility_report(
    sequences: Sequence[Sequence[int]],
    *,
    measure: Callable[[], HeldOut],
    measure_base: Callable[[], HeldOut],
    model_digest: str,
    corpus_fingerprint: str,
    split: str,
    units: Sequence[Hashable] = (),
) -> UtilityReport:
    """Loss, perplexity and next-token accuracy of a model and of its base.

    Args:
        sequences: token ids of each held-out record, as in training.
        measure: forwards them through the fine-tuned model.
        measure_base: through the model before fine-tuning, or reads what was measured.
        model_digest: digest of the model's weights.
        corpus_fingerprint: of the corpus that the records belong to.
        split: the records' split.
        units: whose each record is; by default each of its own.

    Returns:
        Losses in nats. Perplexity is `exp(total nats / total predicted tokens)`, so
        that long records count for more; a NaN loss stays NaN.

    Raises:
        DataError: no record has a token to predict.

    References:
        Etuk, Matrawy (2025), "SA-ADP", section V-A, for the accuracy.

    Privacy:
        Held-out records are private too: a function of private data outside any
        epsilon.
    """
    tokens = tuple(sum(scored(sequence)) for sequence in sequences)
    total = sum(tokens)
    if total <= 0:
        raise DataError(
            f"split {split} must have a token to predict, got none in "
            f"{len(sequences)} records."
        )
    found, base = measure(), measure_base()
    return UtilityReport(
        model_digest=model_digest,
        corpus_fingerprint=corpus_fingerprint,
        split=split,
        num_records=len(sequences),
        num_tokens=total,
        nll_per_token=sum(found.nll) / total,
        perplexity=_perplexity(found.nll, total),
        base_perplexity=_perplexity(base.nll, total),
        record_nll=found.nll,
        record_tokens=tokens,
        token_accuracy=found.hits / total,
        base_token_accuracy=base.hits / total,
        base_record_nll=base.nll,
        record_units=unit_numbers(units),
    )


def _perplexity(losses: Sequence[float], total: int) -> float:
    """Exponential of the mean, infinite where it overflows."""
    mean = sum(losses) / total
    return math.inf if mean > 700 else math.exp(mean)
