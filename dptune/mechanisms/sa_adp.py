"""Sensitivity-aware adaptive DP (SA-ADP): noise by the sensitivity of single tokens.

The paper clips the gradient of every token and noises it by the tier of what the token
spells. Here the tokens of one tier within a record are one group, which makes three
gradients for each record. The token-wise form is a reference of the tests.

| form | context of a tier's losses | other losses, without noise | certified |
|---|---|---|---|
| `paper` | the whole text | on the whole text | nothing |
| `sound` | the text with all *other* tiers masked | with all tiers masked | secrets |

The paper's form cannot be certified: un-noised losses on the whole text have gradients
in the embedding rows of the very tokens that it protects. In the sound form a secret
of one tier reaches the gradient of that tier alone; see `dptune.dpsgd.parts` for what
follows from that.

References:
    Etuk, Matrawy (2025), "SA-ADP": equations 1 to 4 and algorithm 1 (scores) are in
    `dptune.detection.scoring`; section III-C, the map from scores to noise, and
    algorithm 2 (token-wise noise), are here.
"""

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dptune.detection.scoring import SensitivityTable
from dptune.detection.union import token_labels
from dptune.text import Span

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


class Tier(IntEnum):
    """Sensitivity of a token: nothing to hide, or one of the paper's two levels."""

    NONE = 0
    LOW = 1
    HIGH = 2


PROTECTED = (Tier.LOW, Tier.HIGH)
"""Tiers that get noise, in the order of `tier_shares`."""


def tiers_of_types(table: SensitivityTable, *, spare: bool = False) -> dict[str, Tier]:
    """Map every type of a table to its tier.

    **Privacy**: the tiers must not depend on private counts. A table that was counted
    in private data without noise voids the guarantee of what uses it.

    Args:
        table: scores by type.
        spare: whether a score below 0.01 means no protection, as in the paper. Else a
            token that the detector marked has the lowest tier at least.
    """
    least = Tier.NONE if spare else Tier.LOW
    names = {"none": least, "low": Tier.LOW, "high": Tier.HIGH}
    return {row.entity_type: names[row.tier_group] for row in table.rows}


def token_tiers(
    num_characters: int,
    token_ends: Iterable[tuple[int, int]],
    spans: Iterable[Span],
    *,
    tier_of: Mapping[str, Tier],
) -> IntArray:
    """Return the tier of each token of one record, `(tokens,)`.

    A token has the highest tier of any span that it meets. A type that is not in the
    table is of the highest.

    **Privacy**: the tiers of a record follow from its own labels and a public table.

    Args:
        num_characters: length of the record's text.
        token_ends: code points `[start, end)` of each token.
        spans: what was marked in the text.
        tier_of: see `tiers_of_types`.
    """
    ends = np.asarray(list(token_ends), np.int64).reshape(-1, 2)
    found = np.zeros(len(ends), np.int64)
    marked = [(tier_of.get(span.entity_type, Tier.HIGH), span) for span in spans]
    for tier in PROTECTED:
        own = [span for level, span in marked if level is tier]
        found[token_labels(ends, num_characters, own)] = tier
    return found


def group_view(
    tokens: IntArray,
    weights: FloatArray,
    tiers: IntArray,
    *,
    group: Tier,
    mask: int | None,
) -> tuple[IntArray, FloatArray]:
    """Return what the gradient of one group is computed on: tokens and loss weights.

    **Formal guarantee** (sound form): for records that differ only in the values of
    tokens of tier k, with as many tokens of the same tiers, every group but k gets
    equal tokens and equal weights.

    Args:
        tokens: of a row.
        weights: of its tokens as targets.
        tiers: of its tokens.
        group: whose losses are wanted.
        mask: token that takes the place of every token of another tier, one for one,
            so that positions stay; None shows the whole text, as the paper does.

    References:
        Algorithm 2, where every token is a group.
    """
    own = np.where(tiers == group, weights, np.float32(0))
    if mask is None:
        return tokens, own
    hidden = (tiers != Tier.NONE) & (tiers != group)
    return np.where(hidden, mask, tokens), own


def tier_shares(noise_ratio: float) -> tuple[float, ...]:
    """Return C_k / C of `PROTECTED`, where one noise serves both tiers.

    Noise of stddev sigma_low C on all weights has the multiplier sigma_k = sigma_low C
    / C_k for a tier that is clipped to C_k: sigma_high / sigma_low is C / C_high.

    Args:
        noise_ratio: sigma_high / sigma_low, at least 1; 1.5 in the paper.

    >>> tier_shares(2.0)
    (1.0, 0.5)
    """
    return (1.0, 1.0 / noise_ratio)


def summed_noise(noise_multiplier: float, noise_ratio: float) -> float:
    """Return the multiplier of the paper's noise on the sum of both tiers.

    Each tier's sum, clipped to C, has noise sigma_k C of its own.

    Args:
        noise_multiplier: sigma_low.
        noise_ratio: sigma_high / sigma_low.

    >>> round(summed_noise(1.0, 1.5), 2)
    1.8
    """
    return noise_multiplier * math.hypot(1.0, noise_ratio)
