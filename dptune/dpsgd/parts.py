"""Units in parts: each part is sampled by a coin of its own and has a bound of its own.

A privacy unit owns one part of every kind k at most. A step releases

    sum over drawn parts of clip_{C w_k}(gradient) + N(0, (m C)^2 I) + G,

where w_k is the public share of a kind, m the noise multiplier, and G what joins
without clip or noise.

**Formal guarantee.** Let neighbors have the same parts and the same `unnoised` data,
and let the gradient of a part depend on what that part holds alone. Then one step is
dominated by

| neighbors differ in | Poisson-sampled Gaussians, composed |
|---|---|
| the part of kind k of one unit | one, of multiplier m / w_k |
| all parts of one unit | one for every k, of multiplier m / sqrt(w_k sum w) |

*Proof.* G is a function of released values and of data that are equal for neighbors,
taken in an order that is public: it shifts both laws by one vector. Write the noise as
a sum of independent N(0, s_k^2 I) with s_k^2 = (m C)^2 w_k / sum w, one for each kind:
the step is then a function of one release for each kind, each a Poisson-sampled sum of
vectors of norm at most C w_k with noise s_k, so that its multiplier is s_k / (C w_k).
Coins and noise of different kinds are independent, so these releases compose. Where
parts of one kind alone differ, all other kinds together shift both laws by a vector
that is independent of that kind's coins and noise, and the whole noise is left to it.

The coins must be the part's own. If parts shared a coin, or G the batch of the parts,
the unclipped rest would tell who was drawn, and sampling would amplify nothing: two
neighbors would differ by a Gaussian of sensitivity 2 C w_k with chance q, in plain
sight. The shares add up, they do not add in quadrature, since all parts move the same
weights: sum over k of 1 / multiplier_k^2 = (sum w)^2 / m^2.

References:
    Abadi et al. (2016), algorithm 1. Steps compose adaptively. The split of the noise
    is the one of least total cost at sample rate 1, by Lagrange.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dptune.dpsgd.dataset import IntArray, PhysicalBatch, UnitDataset
from dptune.errors import PrivacyError

_ROUNDING = 1e-6


def part_multipliers(
    noise_multiplier: float, shares: Sequence[float]
) -> tuple[float, ...]:
    """Return the multiplier of every kind where all parts of a unit may differ.

    One part of share 1 keeps the multiplier of the step.

    Args:
        noise_multiplier: m, noise stddev / C.
        shares: w of every kind, in (0, 1].

    >>> part_multipliers(1.0, (1.0,))
    (1.0,)
    >>> [round(value, 2) for value in part_multipliers(1.0, (1.0, 0.5))]
    [0.82, 1.15]
    """
    return tuple(noise_multiplier / math.sqrt(w * sum(shares)) for w in shares)


def bounds_of(batch: PhysicalBatch, shares: Sequence[float]) -> Tensor:
    """Return the bound of each unit of a batch as a share of C, `(units,)`.

    A millionth is taken off, so that float32 arithmetic stays below the share.

    Raises:
        PrivacyError: the batch is not of parts.
    """
    if batch.kinds is None:
        raise PrivacyError("units must be parts with kinds for a plan in parts.")
    known = torch.tensor([share * (1 - _ROUNDING) for share in shares])
    return known[batch.kinds]


def check_parts(data: UnitDataset, shares: Sequence[float]) -> None:
    """Refuse data that a plan does not speak of.

    Raises:
        PrivacyError: parts without shares, shares without parts, or an unknown kind.
    """
    kinds = () if data.kinds is None else np.unique(data.kinds)
    fits = (data.kinds is None) == (not shares) and all(k < len(shares) for k in kinds)
    if not fits or (data.unnoised is not None and not shares):
        raise PrivacyError(
            "part_shares must be those of the data's parts, got "
            f"{len(shares)} shares and {len(kinds)} kinds. Plan and encode again."
        )


def public_batch(step: int, *, num_units: int, batch_size: int) -> IntArray:
    """Return what joins a step without noise: shuffled epochs in a public order.

    It depends on the step and on two public numbers alone, so that a resumed run goes
    on where it stopped.
    """
    size = min(batch_size, num_units)
    per_epoch = math.ceil(num_units / size)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng(epoch).permutation(num_units)
    return np.sort(order[place * size : (place + 1) * size])
