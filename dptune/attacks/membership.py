"""Was this record trained on? Attacks on token losses, and a blind baseline."""

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dptune.attacks.blind import blind_signal
from dptune.attacks.roc import RocSettings, membership_signal
from dptune.attacks.signals import TokenSignals, token_signals
from dptune.errors import DataError
from dptune.results import MembershipReport

Floats = NDArray[np.float64]

MIN_K_SHARE = 0.2
"""Share of the least likely tokens that Min-K% looks at (Shi et al. 2024)."""


def membership_report(
    member_sequences: Sequence[Sequence[int]],
    non_member_sequences: Sequence[Sequence[int]],
    *,
    member_texts: Sequence[str],
    non_member_texts: Sequence[str],
    model: nn.Module,
    base_model: nn.Module,
    model_digest: str,
    base_model_digest: str,
    batch_size: int = 32,
    device: str | None = None,
    low_fpr: float = 0.01,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> MembershipReport:
    """Attack one model with every attack that one pass of token losses affords.

    Leave canary records out: they are members that no non-member is alike. Records of
    fewer than two tokens have nothing to predict and are left out of both groups.

    Args:
        member_sequences: token ids of records that were trained on, as in training.
        non_member_sequences: of records of the same law that were not.
        member_texts: their texts, for compression and for the blind baseline.
        non_member_texts: likewise.
        model: the fine-tuned model.
        base_model: the model before fine-tuning, which calibrates the losses.
        model_digest: digest of the model's weights.
        base_model_digest: digest of the base model's weights.
        batch_size: records forwarded at once, at most.
        device: where to run; None is where each model is.
        low_fpr: false-positive rate at which true positives are reported.
        confidence: of the intervals; the blind baseline's is 0.99.
        num_resamples: bootstrap draws.
        seed: of bootstrap and cross-validation.

    Returns:
        Signals `loss`, `zlib`, `min_k`, `min_k_plus_plus`, `calibrated_loss`, each with
        `max(AUC, 1 - AUC)` as `membership_signal` explains, and the blind baseline.

    Raises:
        DataError: a group is too small, texts and sequences differ in number, or a loss
            is NaN.

    Privacy:
        A function of private data outside any epsilon.
    """
    members = _predictable(member_sequences, member_texts)
    others = _predictable(non_member_sequences, non_member_texts)
    num_members = len(members)
    sequences = [sequence for sequence, _ in (*members, *others)]
    texts = [text for _, text in (*members, *others)]
    settings = RocSettings(
        low_fpr=low_fpr, confidence=confidence, num_resamples=num_resamples, seed=seed
    )
    signals = token_signals(
        model, sequences, batch_size=batch_size, device=device, moments=True
    )
    base = token_signals(base_model, sequences, batch_size=batch_size, device=device)
    scores = membership_scores(signals, base, texts)
    return MembershipReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        num_members=num_members,
        num_non_members=len(others),
        signals=tuple(
            membership_signal(
                name, values[:num_members], values[num_members:], settings=settings
            )
            for name, values in scores.items()
        ),
        blind=blind_signal(texts[:num_members], texts[num_members:], settings=settings),
    )


def membership_scores(
    signals: Sequence[TokenSignals],
    base_signals: Sequence[TokenSignals],
    texts: Sequence[str],
) -> dict[str, Floats]:
    """Score every record by every attack; higher means member.

    Args:
        signals: under the attacked model, with moments.
        base_signals: under the model before fine-tuning.
        texts: of the same records.

    Returns:
        Scores by the name of the attack.

    References:
        loss: Yeom et al. (2018). zlib: Carlini et al. (2021). Min-K%: Shi et al.
        (2024). Min-K%++: Zhang et al. (2024). Calibrated: Watson et al. (2022).
    """
    attacks: Mapping[str, Callable[[TokenSignals], float]] = {
        "loss": lambda s: float(s.log_probs.mean()),
        "min_k": lambda s: _lowest(s.log_probs),
        "min_k_plus_plus": lambda s: _lowest(_standardized(s)),
    }
    scores = {name: np.array([f(s) for s in signals]) for name, f in attacks.items()}
    base = np.array([s.log_probs.mean() for s in base_signals])
    sizes = np.array([len(zlib.compress(text.encode())) for text in texts])
    scores["zlib"] = -np.array([s.nll for s in signals]) / sizes
    scores["calibrated_loss"] = scores["loss"] - base
    return scores


def _predictable(
    sequences: Sequence[Sequence[int]], texts: Sequence[str]
) -> list[tuple[Sequence[int], str]]:
    """Records with something to predict."""
    if len(sequences) != len(texts):
        raise DataError(
            f"every record needs its text and its tokens, got {len(texts)} texts for "
            f"{len(sequences)} sequences."
        )
    pairs = zip(sequences, texts, strict=True)
    return [(sequence, text) for sequence, text in pairs if len(sequence) >= 2]


def _lowest(values: Floats) -> float:
    """Mean of the lowest `MIN_K_SHARE` of the values, at least one."""
    count = max(1, int(MIN_K_SHARE * len(values)))
    return float(np.partition(values, count - 1)[:count].mean())


def _standardized(signals: TokenSignals) -> Floats:
    """Log probabilities in standard deviations of the model's own distribution."""
    spread = np.maximum(signals.stddevs, 1e-6)
    scores: Floats = (signals.log_probs - signals.means) / spread
    return scores
