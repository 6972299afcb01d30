"""What a membership attack makes of the token losses of a record; higher is a member.

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
"""

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dptune.attacks.signals import TokenSignals

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
