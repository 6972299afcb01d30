"""Was this record trained on? Attacks on token losses, and by shadow models.

**From token losses.** Higher scores mean member.

Symbols: `l_t` is the log probability of token `t` under the attacked model, `b_t` under
the model before fine-tuning, `g_t = l_t - b_t` what fine-tuning gave it.

| name | score |
|---|---|
| `loss` | mean of `l_t` (Yeom et al. 2018) |
| `ending` | mean of `l_t` over the last half (RLDP, equation 37) |
| `zlib` | sum of `l_t` over the bytes of the compressed text (Carlini et al. 2021) |
| `min_k` | mean of the lowest fifth of `l_t` (Shi et al. 2024) |
| `min_k_plus_plus` | the same of standardized `l_t` (Zhang et al. 2024) |
| `calibrated_loss` | mean of `g_t` (Watson et al. 2022) |
| `ez_mia` | gains against losses where a model errs (arXiv 2601.12104) |
| `wbc` | share of windows that gained (arXiv 2601.02751) |

By shadow models, from the same scores: `dptune.attacks.shadow_models`.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.roc import RocSettings, blind_signal, membership_signal
from dptune.attacks.shadow_models import Attacked, Course, Opponent, attack_with_shadows
from dptune.attacks.signals import TokenSignals, token_signals
from dptune.conversation import scored
from dptune.errors import DataError
from dptune.results import MembershipReport, MembershipSignal

Floats = NDArray[np.float64]

MIN_K_SHARE = 0.2
"""Share of the least likely tokens that Min-K% looks at."""

ENDING_SHARE = 0.5
"""Share of a record's tokens that count as its ending."""

ERROR_SMOOTHING = 1.0
"""Nats added to both sides of the ratio of `ez_mia`."""

WINDOW_SIZES = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Tokens of a window: geometric, as in arXiv 2601.02751."""


def membership_scores(
    signals: Sequence[TokenSignals],
    base_signals: Sequence[TokenSignals],
    texts: Sequence[str],
) -> dict[str, Floats]:
    """Score every record by every attack; higher means member.

    Args:
        signals: under the attacked model, with moments.
        base_signals: of the same records under the model before fine-tuning.
        texts: of the same records.

    Returns:
        Scores by the name of the attack.
    """
    alone: Mapping[str, Callable[[TokenSignals], float]] = {
        "loss": lambda s: float(s.log_probs.mean()),
        "ending": ending,
        "min_k": lambda s: _lowest(s.log_probs),
        "min_k_plus_plus": lambda s: _lowest(_standardized(s)),
    }
    beside: Mapping[str, Callable[[TokenSignals, TokenSignals], float]] = {
        "calibrated_loss": lambda s, b: float((s.log_probs - b.log_probs).mean()),
        "ez_mia": error_zone,
        "wbc": window_votes,
    }
    scores = {name: np.array([f(s) for s in signals]) for name, f in alone.items()}
    sizes = np.array([len(zlib.compress(text.encode())) for text in texts])
    scores["zlib"] = -np.array([s.nll for s in signals]) / sizes
    for name, f in beside.items():
        pairs = zip(signals, base_signals, strict=True)
        scores[name] = np.array([f(s, b) for s, b in pairs])
    return scores


def ending(signals: TokenSignals) -> float:
    """Mean log probability of a record's last half, given all that stands before it.

    References:
        RLDP (2025), equation 37: the prompt is read, the true ending is scored.
    """
    count = max(1, int(np.ceil(ENDING_SHARE * len(signals.log_probs))))
    return float(signals.log_probs[-count:].mean())


def error_zone(signals: TokenSignals, base_signals: TokenSignals) -> float:
    """Log ratio of what the tokens of the error zone gained to what they lost.

    `log((P + c) / (N + c))`, where `P` is the sum of positive `g_t` and `N` that of
    negative ones, both over tokens that the model or its base did not put first.

    The paper takes the model's own errors and the plain ratio `P / N`. Then a record
    that is known by heart has no error, `P = 0`, and scores *lowest*; here it keeps
    the errors that the base makes, and `c` bounds the ratio of short records.

    References:
        Ilic, Stanojevic, Cvejoski (2026), "Powerful training-free membership inference
        against autoregressive language models", arXiv 2601.12104.
    """
    zone = ~(signals.hits & base_signals.hits)
    gains = (signals.log_probs - base_signals.log_probs)[zone]
    up = gains[gains > 0].sum() + ERROR_SMOOTHING
    down = -gains[gains < 0].sum() + ERROR_SMOOTHING
    return float(np.log(up / down))


def window_votes(signals: TokenSignals, base_signals: TokenSignals) -> float:
    """Share of sliding windows whose loss fell, averaged over window sizes.

    A window votes by the sign of its summed gain alone, so that no outlier decides.
    Sizes longer than the record are left out; a record of one token is one window.

    References:
        Chen et al. (2026), "Window-based membership inference attacks against
        fine-tuned large language models", arXiv 2601.02751.
    """
    gains = signals.log_probs - base_signals.log_probs
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    sizes = [size for size in WINDOW_SIZES if size <= len(gains)] or [1]
    votes = [float((sums[size:] > sums[:-size]).mean()) for size in sizes]
    return float(np.mean(votes))


def _lowest(values: Floats) -> float:
    """Mean of the lowest `MIN_K_SHARE` of the values, at least one."""
    count = max(1, int(MIN_K_SHARE * len(values)))
    return float(np.partition(values, count - 1)[:count].mean())


def _standardized(signals: TokenSignals) -> Floats:
    """Log probabilities in standard deviations of the model's own distribution."""
    spread = np.maximum(signals.stddevs, 1e-6)
    scores: Floats = (signals.log_probs - signals.means) / spread
    return scores


class Train(Protocol):
    """Trains a copy of the base; of the workflow, which knows an engine."""

    def __call__(
        self: Self, number: int, sequences: Sequence[Sequence[int]], *, until: float
    ) -> tuple[nn.Module, Course]:
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
    opponent: Opponent | None = None,
    tell: Tell = unwatched,
) -> MembershipReport:
    """Attack one model by its token losses, and by those of shadow models beside it.

    Leave canary records out: they are members that no non-member is alike. Records
    without a token to predict, as of one token, are left out of both groups.

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
        opponent: of another model of this base, these records and these settings.
        tell: told how many records each model has forwarded.

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

    def seen_by(one: nn.Module, name: str, *, moments: bool) -> list[TokenSignals]:
        return token_signals(
            one,
            sequences,
            batch_size=batch_size,
            device=device,
            moments=moments,
            on_progress=partial(tell, f"losses of attacked records, {name}"),
        )

    opponent = opponent or Opponent()
    if opponent.base is None:
        opponent.base = seen_by(base_model, "base", moments=False)
    base = opponent.base

    def attacked(one: nn.Module, name: str) -> Attacked:
        signals = seen_by(one, name, moments=True)
        scores = membership_scores(signals, base, texts)
        return Attacked(statistic=scores["loss"], scores=scores)

    found = attacked(model, "model")
    scores, shadows = dict(found.scores), None
    if train_shadow is not None:
        until = -float(found.statistic[:num_members].mean())
        scores, shadows = attack_with_shadows(
            found,
            train=lambda k, rows: train_shadow(
                k, [sequences[i] for i in rows], until=until
            ),
            attack=attacked,
            until=until,
            opponent=opponent,
            num_members=num_members,
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
        signals=_signals(scores, num_members, together),
        blind=blind_signal(texts[:num_members], texts[num_members:], settings=settings),
        shadows=shadows,
    )


def _signals(
    scores: Mapping[str, Floats], num_members: int, settings: RocSettings
) -> tuple[MembershipSignal, ...]:
    """Say of each attack how well it tells members, which come first, from others."""
    return tuple(
        membership_signal(
            name, values[:num_members], values[num_members:], settings=settings
        )
        for name, values in scores.items()
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
    return [(sequence, text) for sequence, text in pairs if any(scored(sequence))]
