"""Membership by shadow models: the same base, trained on records that nobody attacks.

Symbols: `x_i` is the mean log probability of the tokens of record `i` under the
attacked model, `s_ij` under shadow `j` of `m`. No shadow saw an attacked record, so
that all are reference models of records left out (the offline attacks of both papers).
With `r = x - log mean_j exp s`:

| name | score |
|---|---|
| `lira` | `(x_i - mean_j s_ij) / sigma`, one `sigma` for all records |
| `rmia` | share of population records `z` with `r_z <= r_i` |

References:
    Carlini et al. (2022), "Membership inference attacks from first principles", offline
    attack with the global variance of section VI.C, which few shadows ask for.
    Zarifzadeh, Liu, Shokri (2024), "Low-cost high-power membership inference attacks",
    equation 4 with gamma = 1; probabilities per token, logged.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dptune.attacks.signals import TokenSignals, token_signals
from dptune.errors import DataError

Floats = NDArray[np.float64]


def mean_log_probs(signals: Sequence[TokenSignals]) -> Floats:
    """Mean log probability of the tokens of each record."""
    return np.array([s.log_probs.mean() for s in signals])


def shadow_log_probs(
    shadows: Iterable[nn.Module],
    sequences: Sequence[Sequence[int]],
    *,
    batch_size: int,
    device: str | None,
) -> Floats:
    """Mean log probabilities under each shadow, `(shadows, records)`.

    Shadows are taken one by one, so that a generator may train each when it is asked
    for and keep none.
    """
    rows = [
        mean_log_probs(
            token_signals(shadow, sequences, batch_size=batch_size, device=device)
        )
        for shadow in shadows
    ]
    return np.array(rows).reshape(len(rows), len(sequences))


def shadow_scores(
    own: Floats, shadows: Floats, population: Floats, population_shadows: Floats
) -> dict[str, Floats]:
    """Score every record by both attacks; higher means member.

    Args:
        own: of the attacked records, under the attacked model.
        shadows: `(shadows, records)`, of the same under models that saw none of them.
        population: of further records that no model saw, under the attacked model.
        population_shadows: the same under the shadows.

    Raises:
        DataError: there are fewer than two shadows, or there is no population.
    """
    if len(shadows) < 2 or not len(population):
        raise DataError(
            "shadow attacks need two shadows and a population, got "
            f"{len(shadows)} shadows and {len(population)} records. Raise "
            "attack.shadows.num_models, or leave more records held out."
        )
    spread = float(np.sqrt(shadows.var(axis=0, ddof=1).mean()))
    ratios, reference = _ratios(own, shadows), _ratios(population, population_shadows)
    below = np.searchsorted(np.sort(reference), ratios, side="right")
    return {
        "lira": (own - shadows.mean(axis=0)) / max(spread, 1e-12),
        "rmia": below / len(reference),
    }


def _ratios(own: Floats, shadows: Floats) -> Floats:
    """Log of the probability per token over its mean under the shadows."""
    means: Floats = np.logaddexp.reduce(shadows, axis=0) - np.log(len(shadows))
    return own - means
