"""Was this record trained on? Attacks on token losses, and a blind baseline."""

from collections.abc import Iterable, Sequence

from torch import nn

from dptune.attacks.blind import blind_signal
from dptune.attacks.roc import RocSettings, membership_signal
from dptune.attacks.scores import membership_scores
from dptune.attacks.shadows import mean_log_probs, shadow_log_probs, shadow_scores
from dptune.attacks.signals import token_signals
from dptune.errors import DataError
from dptune.results import MembershipReport


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
    shadow_models: Iterable[nn.Module] = (),
    population: Sequence[Sequence[int]] = (),
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
        shadow_models: models of the same base that saw none of the records; with a
            population, LiRA and RMIA join the attacks.
        population: token ids of further records that no model saw.

    Returns:
        One signal for each of `membership_scores`, with `max(AUC, 1 - AUC)` as
        `membership_signal` explains, and the blind baseline.

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
    if population:
        every = [*sequences, *population]
        further = token_signals(model, population, batch_size=batch_size, device=device)
        num = len(sequences)
        shadows = shadow_log_probs(
            shadow_models, every, batch_size=batch_size, device=device
        )
        scores |= shadow_scores(
            mean_log_probs(signals),
            shadows[:, :num],
            mean_log_probs(further),
            shadows[:, num:],
        )
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
