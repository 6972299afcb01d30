"""Was this record trained on? Attacks on token losses, and a blind baseline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, Self

from torch import nn

from dptune.attacks.blind import blind_signal
from dptune.attacks.roc import RocSettings, membership_signal
from dptune.attacks.scores import membership_scores
from dptune.attacks.shadows import Attacked, attack_with_shadows
from dptune.attacks.signals import token_signals
from dptune.errors import DataError
from dptune.results import MembershipReport


class Train(Protocol):
    """Trains a copy of the base; of the workflow, which knows an engine."""

    def __call__(
        self: Self, number: int, sequences: Sequence[Sequence[int]], *, until: float
    ) -> nn.Module:
        """Train shadow `number` until its records have this mean loss, if ever."""
        ...


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
    train_shadow: Train | None = None,
    num_shadows: int = 0,
) -> MembershipReport:
    """Attack one model by its token losses, and by those of shadow models beside it.

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
        train_shadow: trains shadows, one at a time; each is dropped once it was
            attacked. With None, the attacks of `shadow_scores` are left out.
        num_shadows: how many, as `draw_halves` asks for.

    Returns:
        One signal for each of `membership_scores` and of `shadow_scores`, with
        `max(AUC, 1 - AUC)` as `membership_signal` explains, and the blind baseline.

    Raises:
        DataError: a group is too small, texts and sequences differ in number, or a loss
            is NaN.

    Privacy:
        A function of private data outside any epsilon, shadows included.
    """
    members = _predictable(member_sequences, member_texts)
    others = _predictable(non_member_sequences, non_member_texts)
    num_members = len(members)
    sequences = [sequence for sequence, _ in (*members, *others)]
    texts = [text for _, text in (*members, *others)]
    settings = RocSettings(
        low_fpr=low_fpr, confidence=confidence, num_resamples=num_resamples, seed=seed
    )
    base = token_signals(base_model, sequences, batch_size=batch_size, device=device)

    def attacked(one: nn.Module) -> Attacked:
        signals = token_signals(
            one, sequences, batch_size=batch_size, device=device, moments=True
        )
        scores = membership_scores(signals, base, texts)
        return Attacked(statistic=scores["loss"], scores=scores)

    found = attacked(model)
    scores, shadows = dict(found.scores), None
    if train_shadow is not None:
        until = -float(found.statistic[:num_members].mean())
        scores, shadows = attack_with_shadows(
            found,
            train=lambda k, rows: train_shadow(
                k, [sequences[i] for i in rows], until=until
            ),
            attack=attacked,
            num_records=len(sequences),
            num_shadows=num_shadows,
            seed=seed,
        )
    together = replace(settings, num_attacks=len(scores))
    return MembershipReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        num_members=num_members,
        num_non_members=len(others),
        signals=tuple(
            membership_signal(
                name, values[:num_members], values[num_members:], settings=together
            )
            for name, values in scores.items()
        ),
        blind=blind_signal(texts[:num_members], texts[num_members:], settings=settings),
        shadows=shadows,
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
