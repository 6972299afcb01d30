"""What a model is still good for: its loss on held-out records, base beside it."""

import math
from collections.abc import Sequence

from torch import nn

from dptune.attacks.signals import TokenSignals, token_signals
from dptune.errors import DataError
from dptune.results import UtilityReport
from dptune.statistics import paired_bootstrap_upper

__all__ = ["paired_bootstrap_upper", "utility_report"]


def utility_report(
    sequences: Sequence[Sequence[int]],
    *,
    model: nn.Module,
    base_model: nn.Module,
    model_digest: str,
    corpus_fingerprint: str,
    split: str,
    batch_size: int = 32,
    device: str | None = None,
) -> UtilityReport:
    """Loss, perplexity and next-token accuracy of a model and of its base.

    Both forward the same held-out records once.

    Args:
        sequences: token ids of each held-out record, as in training.
        model: the fine-tuned model.
        base_model: the model before fine-tuning.
        model_digest: digest of the model's weights.
        corpus_fingerprint: of the corpus that the records belong to.
        split: the records' split.
        batch_size: records forwarded at once, at most.
        device: where to run; None is where each model is.

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
    tokens = tuple(len(sequence) - 1 for sequence in sequences)
    total = sum(tokens)
    if total <= 0:
        raise DataError(
            f"split {split} must have a token to predict, got none in "
            f"{len(sequences)} records."
        )
    found, base = (
        token_signals(one, sequences, batch_size=batch_size, device=device)
        for one in (model, base_model)
    )
    losses = tuple(signals.nll for signals in found)
    return UtilityReport(
        model_digest=model_digest,
        corpus_fingerprint=corpus_fingerprint,
        split=split,
        num_records=len(sequences),
        num_tokens=total,
        nll_per_token=sum(losses) / total,
        perplexity=_perplexity(losses, total),
        base_perplexity=_perplexity([signals.nll for signals in base], total),
        record_nll=losses,
        record_tokens=tokens,
        token_accuracy=_accuracy(found, total),
        base_token_accuracy=_accuracy(base, total),
        base_record_nll=tuple(signals.nll for signals in base),
    )


def _accuracy(signals: Sequence[TokenSignals], total: int) -> float:
    """Share of the tokens that were the model's first choice."""
    return sum(int(one.hits.sum()) for one in signals) / total


def _perplexity(losses: Sequence[float], total: int) -> float:
    """Exponential of the mean, infinite where it overflows."""
    mean = sum(losses) / total
    return math.inf if mean > 700 else math.exp(mean)
