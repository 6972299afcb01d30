"""Adaptive token-weighted DP (ATDP): token weights, and noise that rises and resets.

References:
    Yu et al., Adaptive Token-Weighted Differential Privacy for LLMs: section 4.3 and
    algorithm 1.
"""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dptune.detection.union import character_marks
from dptune.detection.words import CLOSED, reading_of
from dptune.errors import ConfigError
from dptune.text import Span

FloatArray = NDArray[np.float32]

_WORD = re.compile(r"[^\W\d_]+")


def ordinary_weight(sensitive_share: float, *, target_share: float = 0.5) -> float:
    """Return the weight w of tokens that are neither sensitive nor function words.

    w = alpha (1 - r) / (r (1 - alpha)), at most 1, so that r = alpha / (alpha +
    (1 - alpha) w): sensitive tokens make a share r of all weights.

    **Privacy**: w must be public. A share that was counted on private text is not.

    Args:
        sensitive_share: alpha in (0, 1), share of tokens that are sensitive.
        target_share: r in (0, 1).

    Raises:
        ConfigError: a share is out of range.

    References:
        Section 4.3, "Choosing w". The paper speaks of shares of the gradient *energy*;
        its formula gives shares of the weights, which is what is done here.

    >>> round(ordinary_weight(0.1), 3)
    0.111
    >>> ordinary_weight(0.6)
    1.0
    """
    for name, share in (
        ("sensitive_share", sensitive_share),
        ("target_share", target_share),
    ):
        if not 0 < share < 1:
            raise ConfigError(f"{name} must be in (0, 1), got {name}={share}.")
    odds = sensitive_share / (1 - sensitive_share)
    return min(1.0, odds * (1 - target_share) / target_share)


def token_weights(
    text: str,
    token_ends: Iterable[tuple[int, int]],
    spans: Iterable[Span],
    *,
    ordinary: float,
) -> FloatArray:
    """Weigh the tokens of one record: 1 if sensitive or part of a function word.

    Function words are the closed class of the built-in English lexicon, which is
    public. A record's weights depend on that record alone, so that they change nothing
    in the guarantee of a clipped and noised step.

    Args:
        text: of the record.
        token_ends: code points `[start, end)` of each token; empty ones, such as those
            of special tokens, are ordinary.
        spans: what is sensitive in it.
        ordinary: weight of the other tokens, see `ordinary_weight`.

    Returns:
        Weights in (0, 1], of shape (tokens,).
    """
    pairs = np.asarray(list(token_ends), np.int64).reshape(-1, 2)
    marks = character_marks(len(text), spans) | _function_words(text)
    before = np.concatenate(([0], np.cumsum(marks)))
    full = before[pairs[:, 1]] > before[pairs[:, 0]]
    return np.where(full, 1.0, ordinary).astype(np.float32)


def rise_and_reset(
    num_epochs: int,
    *,
    growth: float,
    jitter: tuple[float, float],
    ceiling: float,
    generator: np.random.Generator,
) -> tuple[float, ...]:
    """Draw sigma / sigma_0 of every epoch, before training.

    sigma <- sigma * growth * rho with rho ~ U(jitter); back to sigma_0 above the
    ceiling.

    **Formal guarantee**: the values are drawn from `generator` alone, never from data,
    and no value is below min(1, growth * jitter[0]) ** num_epochs: where the product
    is below 1 the noise may fall, too. A run that has drawn them composes exactly
    these.

    Args:
        num_epochs: at least 1.
        growth: gamma, above 1.
        jitter: range of rho, around 1.
        ceiling: sigma_max / sigma_0, at least 1.
        generator: public randomness.

    Raises:
        ConfigError: a number is out of range.

    References:
        Algorithm 1, lines 3 to 9.

    >>> import numpy as np
    >>> drawn = rise_and_reset(
    ...     4,
    ...     growth=1.5,
    ...     jitter=(0.99, 1.01),
    ...     ceiling=3.0,
    ...     generator=np.random.default_rng(0),
    ... )
    >>> [round(ratio, 1) for ratio in drawn]
    [1.5, 2.2, 1.0, 1.5]
    """
    low, high = jitter
    if num_epochs < 1 or growth <= 1 or not 0 < low < 1 < high or ceiling < 1:
        raise ConfigError(
            "a rise-reset schedule must have num_epochs >= 1, growth > 1, jitter "
            "[low, high] with 0 < low < 1 < high and ceiling >= 1, got "
            f"num_epochs={num_epochs}, growth={growth}, jitter={list(jitter)}, "
            f"ceiling={ceiling}."
        )
    levels, sigma = [], 1.0
    for rho in generator.uniform(low, high, size=num_epochs):
        sigma *= growth * float(rho)
        if sigma > ceiling:
            sigma = 1.0
        levels.append(sigma)
    return tuple(levels)


def _function_words(text: str) -> NDArray[np.bool_]:
    """Mark the code points of closed-class words, `(characters,)`."""
    marks = np.zeros(len(text), bool)
    for word in _WORD.finditer(text):
        if reading_of(word.group().lower()) & CLOSED:
            marks[word.start() : word.end()] = True
    return marks
