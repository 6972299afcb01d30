"""Norms that hold in the arithmetic that runs, whatever a unit is made of.

The norm that decides how far a unit is scaled must bound what is *added* for it, and
both are computed in float32, in different orders. A unit whose tokens cancel has an
exact gradient that is tiny beside its summands, and rounding of either computation can
be larger than that gradient. So the clip is given an upper bound.

Symbols: u = 2^-24 is the unit roundoff of float32, g the gradient of one unit from the
factors that the hooks saw, in exact arithmetic, f its clip factor, a what the unit adds
to the sum. The *spread* A >= |g| is the sum of the norms of its summands: the sum over
t of |left[t]| |right[t]| for a linear layer, of |values[t]| for an embedding, and |g|
itself where g is written down.

**Theorem.** A sum of k products in floating point, in whatever order, blocked, by fused
multiply-add or not, differs from the exact sum by at most gamma_k = k u / (1 - k u)
times the sum of the absolute products, underflow aside: each of them passes at most k
roundings, and an exact or fused product, as of bfloat16 numbers, only takes one away.
So there are constants E and D, below, with

    |g|^2 <= square + E A^2    and    |a| <= f (|g| + D A),

and f times `norm_bound`, which is at least sqrt(square + E A^2) + D A, bounds |a|.

*Proof.* Entry by entry, the absolute products of a unit are the matrix sum over t of
|left[t]| |right[t]|^T, whose norm is at most A: this is D. An error of e |x[s]| |x[t]|
in the entries of both Gram matrices moves the sum of their products by (2 e + e^2) A^2,
as the sum over s and t of |left[s]| |left[t]| |right[s]| |right[t]| is A^2: this is E.
Rows of other units may come between those of one, so that D counts all rows that a
kernel adds together.

| form | square | E / u | D / u |
|---|---|---|---|
| `Dense` | squares in runs of 256, runs in float64 | 260 | 259 |
| `Outer`, Gram | 16 x 64 columns, these sums in float64 | 164 | 324 |
| `Outer`, some units written down | as `Dense` | 260 | 648 |
| `Scatter` | float64 | 1e-5 | 4 |
| up to 16,384 entries | float64 | 1e-5 | 4 |

Rows are added in pieces of 256: 324 is 256 + 64 + 4, for up to 16,384 rows and time
steps, and one more for each 256 beyond; likewise 259 is for up to 256 units. How a
`Dense` form was rounded does not count: what is measured is what is added. E of sums
in float64 is their length / 2^52. Uses of a tied weight are added one by one: spreads
add up, and so does D A.

**Others.** Which form is taken depends on the length of the other units of a batch, and
the bound must not: it is at least (1 + ALLOWANCE) sqrt(square), which covers E and D of
every form unless summands cancel. It is also at least D A / LARGEST_SHARE, so that of
what a unit adds no more than that share of C is rounding, which another order changes.

| extreme | what happens |
|---|---|
| summands that cancel | little of them is added, and nothing above C |
| squares below 2^-126 | what is lost is added to the square, or to norms of rows |
| rows whose norms add up to more than 2^60 | count as not finite |
| factors times entries below 2^-126 | of what stays in reach, they add up to 1e-17 |
| NaN, infinite, or a norm above 2^63 | is not finite: the unit adds nothing |

References:
    Higham (2002), Accuracy and Stability of Numerical Algorithms, 2nd ed., sections
    3.1 (inner products in any order), 3.5 (matrices) and 4.2 (sums).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from dptune.errors import PrivacyError

UNIT_ROUNDOFF = 2.0**-24
UNIT_ROUNDOFF_64 = 2.0**-53
SMALLEST_NORMAL = 2.0**-126
ALLOWANCE = 2.0**-11
LARGEST_SHARE = 2.0**-8
LARGEST_NORM = 2.0**63
FEW_ENTRIES = 1 << 14
_LARGEST_REACH = 2.0**60
_RUN = 256
_SMALL = 4096
_MOST_UNITS = 256
_FULL = ("none", "ieee")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the gradients of one parameter are, and what rounding may hide.

    Args:
        square: squared norms as computed, float64, `(units,)`.
        spread: A, float64, `(units,)`.
        doubt: E.
        rounding: D.
        allowance: what the norm is raised by, so that its form does not show.
    """

    square: Tensor
    spread: Tensor
    doubt: float
    rounding: float
    allowance: float


def size_of_dense(values: Tensor, *, num_units: int) -> Size:
    """Measure gradients that are written down.

    Args:
        values: `(rows, *shape)`, one gradient each.
        num_units: how many of the rows are added up together.
    """
    square = sum_of_squares(values)
    few = values.shape[1:].numel() <= FEW_ENTRIES
    return Size(
        square=square,
        spread=square.sqrt(),
        doubt=doubt_of_squares(values),
        rounding=4 * UNIT_ROUNDOFF
        if few
        else (max(num_units, _MOST_UNITS) + 3) * UNIT_ROUNDOFF,
        allowance=0.0 if few else ALLOWANCE,
    )


def by_unit(values: Tensor) -> Tensor:
    """Lay out the entries of every unit in a row, `(units, entries)`; scalars too."""
    return values.reshape(len(values), values.shape[1:].numel())


def sum_of_squares(values: Tensor) -> Tensor:
    """Return sums over all but the first dimension, `(units,)`, float64.

    torch's vector norm adds up one by one: over eight million entries it lost 2e-4 of
    the norm. Short runs of it lose 8e-6 at worst, and float64 adds them up. What is
    lost where a square underflows is added.
    """
    flat = by_unit(values)
    if flat.shape[1] <= _SMALL:
        return flat.double().square().sum(1)
    num_runs = flat.shape[1] // _RUN
    even, rest = flat[:, : num_runs * _RUN].float(), flat[:, num_runs * _RUN :]
    runs = torch.linalg.vector_norm(even.view(len(flat), num_runs, _RUN), dim=2)
    total: Tensor = runs.double().square().sum(1) + rest.double().square().sum(1)
    return total + flat.shape[1] * SMALLEST_NORMAL


def doubt_of_squares(values: Tensor) -> float:
    """Return E of `sum_of_squares`."""
    runs = (_RUN + 4) * UNIT_ROUNDOFF if values.shape[1:].numel() > _SMALL else 0.0
    return runs + doubt_64(values)


def doubt_64(values: Tensor) -> float:
    """Return E of sums over the entries of a unit in float64, twice over."""
    return (2 * values.shape[1:].numel() + 8) * UNIT_ROUNDOFF_64


def norm_bound(sizes: Sequence[Size], *, cross: Tensor | None = None) -> Tensor:
    """Bound the norm of what a sum of terms adds, for each unit, before its factor.

    Args:
        sizes: of terms that are added one after the other.
        cross: twice their inner products, as exact as their squares.

    Returns:
        float64, `(units,)`; NaN or infinite where a unit is not finite.
    """
    square = reduce(torch.add, [size.square for size in sizes])
    if cross is not None:
        square = square + cross
    square = square.clamp(min=0)
    spread = reduce(torch.add, [size.spread for size in sizes])
    rounding = reduce(torch.add, [size.rounding * size.spread for size in sizes])
    doubt = max(size.doubt for size in sizes)
    allowed = (1 + max(size.allowance for size in sizes)) * square.sqrt()
    exact = (square + doubt * spread.square()).sqrt() + rounding
    return torch.maximum(torch.maximum(allowed, exact), rounding / LARGEST_SHARE)


def spread_of(left: Tensor, right: Tensor) -> Tensor:
    """Add up products of norms of rows, `(units, T)`; infinite where out of reach."""
    reach = torch.maximum(left.sum(1), right.sum(1))
    spread = (left * right).sum(1)
    return torch.where(reach > _LARGEST_REACH, torch.inf, spread)


def floor(width: int) -> float:
    """Return the norm of a row beside which lost squares of `width` entries are < u.

    A product below 2^-126 may vanish.
    """
    return float((width * SMALLEST_NORMAL / UNIT_ROUNDOFF) ** 0.5)


def rounded_up(norms: Tensor) -> Tensor:
    """Return float32 numbers that are not below float64 ones."""
    return (norms * (1 + 2 * UNIT_ROUNDOFF)).float()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Compute norms and sums as written, from wherever they are called.

    The backward pass of a checkpointed block runs its forward pass again, with autocast
    on as it was then, and hooks fire within. Modes that look at the functions of torch
    which a model calls are not for these, and cost time at each of many thousand calls.
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return torch._C.DisableTorchFunction()


def check_float32_products() -> None:
    """Refuse settings of torch under which float32 products are not float32.

    Raises:
        PrivacyError: names the setting.
    """
    found = {
        name: getattr(torch.backends, name).matmul.fp32_precision
        for name in ("cuda", "mkldnn")
    }
    for name, precision in found.items():
        if precision not in _FULL:
            raise PrivacyError(
                "matrix products must be computed in full float32 for norms to bound "
                f"gradients, got torch.backends.{name}.matmul.fp32_precision="
                f"{precision!r}. Set it to 'ieee'."
            )
