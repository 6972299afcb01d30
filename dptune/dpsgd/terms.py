"""Per-unit gradients of one parameter, in the forms that a backward pass leaves.

A *term* is the gradient of one parameter for every unit of a batch. The dense form
holds it as it is. The two factored forms hold activations and output gradients, from
which norms and weighted sums follow without ever writing the gradients down. Summing
terms is exact: a tied weight has one term per use, and its norm includes their inner
product. What rounding can do to norms and sums is bounded in `dptune.dpsgd.rounding`;
here every form says how large it and its summands are, and by how much it is rounded.

Symbols: m x n is the shape of the weight, T the time steps of a unit.

References:
    Goodfellow (2015), https://arxiv.org/abs/1510.01799 (norms from factors); Bu et al.
    (2023), "Differentially Private Optimization on Large Model at Small Cost", ICML,
    https://arxiv.org/abs/2210.00038v2 (one backward pass, book-keeping).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from dptune.dpsgd.rounding import (
    ALLOWANCE,
    FEW_ENTRIES,
    UNIT_ROUNDOFF,
    UNIT_ROUNDOFF_64,
    Size,
    by_unit,
    doubt_64,
    doubt_of_squares,
    floor,
    norm_bound,
    size_of_dense,
    spread_of,
    sum_of_squares,
)

_LARGE_COPY = 1 << 22
_WRITTEN = 1 << 24
_WRITTEN_CPU = 1  # one unit at a time: what fits into the cache
_COLUMNS = 4096
_GRAM_COLUMNS = 64
_GRAM_PIECES = 16
_ROWS = 256
_FEWEST_PIECES = 64


class Term(Protocol):
    """Per-unit gradients of one parameter. Leading dimension: rows, then units."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense form, `(units, *shape)`."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        ...

    def regroup(self, rows_of_unit: Tensor) -> Self:
        """Turn gradients of rows into gradients of units, which are their sums."""
        ...

    def without(self, units: Tensor) -> Self:
        """Set the gradients of the marked units, `(units,)` bool, to zero."""
        ...

    def size(self) -> Size:
        """Return squared L2 norms, and what rounding may hide of them."""
        ...

    def add_into(self, dense: Tensor) -> None:
        """Add the gradients to `dense`, float32, `(units, *shape)`."""
        ...

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Add sum over units of factor * gradient to `total`, float32, `shape`."""
        ...


@dataclass(frozen=True)
class Dense:
    """Gradients as they are: `values`, `(units, *shape)`."""

    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return tuple(self.values.shape)

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    def regroup(self, rows_of_unit: Tensor) -> Self:
        """Sum the rows of each unit."""
        return replace(self, values=_gather_rows(self.values, rows_of_unit).sum(1))

    def without(self, units: Tensor) -> Self:
        """Overwrite, for 0 * NaN is NaN."""
        return replace(self, values=_zero_where(units, self.values))

    def size(self) -> Size:
        """Sum of squares; what is measured is what is added."""
        return size_of_dense(self.values, num_units=len(self.values))

    def add_into(self, dense: Tensor) -> None:
        """Add entry by entry."""
        dense.add_(self.values)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """One matrix-vector product."""
        flat = by_unit(self.values)
        if total.numel() <= FEW_ENTRIES:
            total.add_((factors.double() @ flat.double()).float().view_as(total))
        else:
            total.view(-1).addmv_(flat.float().t(), factors)


@dataclass(frozen=True)
class Outer:
    """Gradient = sum over t of left[t] right[t]^T: linear layers.

    Args:
        left: `(units, T, m)`.
        right: `(units, T, n)`.
    """

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Units, m, n."""
        return len(self.left), self.left.shape[2], self.right.shape[2]

    @property
    def device(self) -> torch.device:
        """Where the factors are."""
        return self.left.device

    @property
    def ghost_cost(self) -> int:
        """Multiplications per unit of a norm from Gram matrices, T^2 (m + n)."""
        return self.left.shape[1] ** 2 * (self.left.shape[2] + self.right.shape[2])

    def regroup(self, rows_of_unit: Tensor) -> Self:
        """Lay the rows of a unit end to end in time; absent rows are zero."""
        return replace(
            self,
            left=_gather_rows(self.left, rows_of_unit).flatten(1, 2),
            right=_gather_rows(self.right, rows_of_unit).flatten(1, 2),
        )

    def without(self, units: Tensor) -> Self:
        """Overwrite both factors."""
        return replace(
            self,
            left=_zero_where(units, self.left),
            right=_zero_where(units, self.right),
        )

    def size(self) -> Size:
        """Use Gram matrices or the dense form of a few units at a time, the cheaper."""
        units, time, m = self.left.shape
        n = self.right.shape[2]
        rounding = _addition_depth(units * time, m * n) * UNIT_ROUNDOFF
        if m * n <= FEW_ENTRIES:
            return self._size_by_gram(rounding, width=None)
        if self.ghost_cost <= time * m * n:
            return self._size_by_gram(rounding, width=_GRAM_COLUMNS)
        spread = spread_of(_row_norms(self.left), _row_norms(self.right))
        most = _WRITTEN_CPU if self.left.is_cpu else _WRITTEN
        few = max(1, most // (m * n))
        scratch = self.left.new_empty(min(few, units), m, n, dtype=torch.float32)
        squares = []
        for x, y in zip(
            torch.split(self.left, few), torch.split(self.right, few), strict=True
        ):
            some = scratch[: len(x)].zero_()
            _add_batched_products(x.float(), y.float(), some)
            squares.append(sum_of_squares(some))
        return Size(
            square=torch.cat(squares),
            spread=spread,
            doubt=doubt_of_squares(scratch),
            rounding=rounding + _addition_depth(time, m * n) * UNIT_ROUNDOFF,
            allowance=ALLOWANCE,
        )

    def _size_by_gram(self, rounding: float, *, width: int | None) -> Size:
        """Multiply Gram matrices entry by entry; in float64 without `width`."""
        grams = [_products(x, x, width=width) for x in (self.left, self.right)]
        norms = [
            gram.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt() + floor(x.shape[2])
            for gram, x in zip(grams, (self.left, self.right), strict=True)
        ]
        return Size(
            square=(grams[0] * grams[1]).sum((1, 2)),
            spread=spread_of(*norms) * (1 + 3 * _GRAM_COLUMNS * UNIT_ROUNDOFF),
            doubt=_doubt_of_products(self.left, self.right, width=width),
            rounding=rounding,
            allowance=0.0 if width is None else ALLOWANCE,
        )

    def dense(self) -> Dense:
        """Write the gradients down."""
        left, right = self.left.float(), self.right.float()
        return Dense(torch.bmm(left.transpose(1, 2), right))

    def add_into(self, dense: Tensor) -> None:
        """One batched product."""
        dense.baddbmm_(self.left.float().transpose(1, 2), self.right.float())

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Scale the narrower factor, then one product of every few rows."""
        wide, narrow, entries = self.left, self.right, total
        if self.left.shape[2] <= self.right.shape[2]:
            wide, narrow, entries = self.right, self.left, total.t()
        if total.numel() <= FEW_ENTRIES:
            scaled = narrow.double() * factors.double()[:, None, None]
            product = wide.double().flatten(0, 1).t() @ scaled.flatten(0, 1)
            entries.add_(product.float())
            return
        scaled = (narrow.float() * factors[:, None, None]).flatten(0, 1)
        pieces = _columns(wide)
        for piece, part in zip(
            pieces, torch.split(entries, pieces[0].shape[2]), strict=True
        ):
            _add_products(piece.flatten(0, 1).float(), scaled, part)


@dataclass(frozen=True)
class Scatter:
    """Gradient row v = sum of values[t] over t with ids[t] = v: embeddings.

    With `by_column` it is column v: adapters of embeddings keep the table transposed.

    Args:
        ids: rows of the weight, `(units, T)`.
        values: `(units, T, n)`.
        num_rows: m, rows of the weight, or columns.
        by_column: whether the weight is n x m.
    """

    ids: Tensor
    values: Tensor
    num_rows: int
    by_column: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Units, m, n; or units, n, m."""
        sides = self.num_rows, self.values.shape[2]
        return len(self.ids), *(reversed(sides) if self.by_column else sides)

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    def regroup(self, rows_of_unit: Tensor) -> Self:
        """Lay the rows of a unit end to end; absent rows have id 0 and value 0."""
        return replace(
            self,
            ids=_gather_rows(self.ids, rows_of_unit).flatten(1, 2),
            values=_gather_rows(self.values, rows_of_unit).flatten(1, 2),
        )

    def without(self, units: Tensor) -> Self:
        """Overwrite the values."""
        return replace(self, values=_zero_where(units, self.values))

    def size(self) -> Size:
        """Sum values of equal ids within a unit, then square."""
        keys, slots = torch.unique(self._flat_ids(), return_inverse=True)
        values = self.values.flatten(0, 1).double()
        rows = values.new_zeros(len(keys), values.shape[1]).index_add_(0, slots, values)
        square = values.new_zeros(len(self.ids))
        units = keys.div(self.num_rows, rounding_mode="floor")
        square.index_add_(0, units, rows.square().sum(1))
        spread = self.values.double().square().sum(2).sqrt().sum(1)
        return Size(
            square=square,
            spread=spread,
            doubt=doubt_64(self.values),
            rounding=4 * UNIT_ROUNDOFF,
            allowance=0.0,
        )

    def add_into(self, dense: Tensor) -> None:
        """Scatter into the flattened dense form."""
        if self.by_column:
            rows = dense.new_zeros(len(self.ids), self.num_rows, self.values.shape[2])
            replace(self, by_column=False).add_into(rows)
            dense.add_(rows.transpose(1, 2))
            return
        values = self.values.flatten(0, 1).float()
        dense.view(-1, values.shape[1]).index_add_(0, self._flat_ids(), values)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Sum scaled values of equal ids, then add every row once."""
        keys, slots = torch.unique(self.ids.flatten(), return_inverse=True)
        scaled = self.values.double() * factors.double()[:, None, None]
        rows = scaled.new_zeros(len(keys), scaled.shape[2])
        rows = rows.index_add_(0, slots, scaled.flatten(0, 1)).float()
        if self.by_column:
            total.index_add_(1, keys, rows.t())
        else:
            total.index_add_(0, keys, rows)

    def _flat_ids(self) -> Tensor:
        """Number of the pair (unit, id), `(units * T,)`."""
        units = torch.arange(len(self.ids), device=self.ids.device)
        return (units[:, None] * self.num_rows + self.ids).flatten()


def merge(terms: Sequence[Term]) -> list[Term]:
    """Join terms of one kind; what remains is at most one `Outer` and one `Scatter`.

    The sum of two factored terms of one kind is their concatenation in time. A `Dense`
    term takes in all others.
    """
    dense = [term for term in terms if isinstance(term, Dense)]
    outers = [term for term in terms if isinstance(term, Outer)]
    scatters = [term for term in terms if isinstance(term, Scatter)]
    if dense:
        for term in terms:
            if term is not dense[0]:
                term.add_into(dense[0].values)
        return [dense[0]]
    merged: list[Term] = []
    if outers:
        merged.append(
            Outer(
                _concatenated([term.left for term in outers]),
                _concatenated([term.right for term in outers]),
            )
        )
    if scatters:
        merged.append(
            Scatter(
                _concatenated([term.ids for term in scatters]),
                _concatenated([term.values for term in scatters]),
                scatters[0].num_rows,
                by_column=scatters[0].by_column,
            )
        )
    return merged


def norm_of_sum(terms: Sequence[Term]) -> Tensor:
    """Bound the norms of the sum of merged terms, cross terms included.

    **Formal guarantee**: |a + b|^2 = |a|^2 + |b|^2 + 2 <a, b>. Leaving out the last
    part for a tied weight gives norms that are too small, and gradients above C,
    silently. Rounding is bounded as `dptune.dpsgd.rounding` says.

    Returns:
        `(units,)`, float64.
    """
    outer = next((term for term in terms if isinstance(term, Outer)), None)
    scatter = next((term for term in terms if isinstance(term, Scatter)), None)
    cross = None
    if outer is not None and scatter is not None:
        cross = 2 * inner_product(outer, scatter)
    return norm_bound([term.size() for term in terms], cross=cross)


def inner_product(outer: Outer, scatter: Scatter) -> Tensor:
    """Return <outer, scatter> per unit.

    It is the sum over s, t of left[s, ids[t]] (right[s] . values[t]).

    Returns:
        `(units,)`, float64; off by no more than E times both spreads.
    """
    few = outer.left.shape[2] * outer.right.shape[2] <= FEW_ENTRIES
    width = None if few else _GRAM_COLUMNS
    similarity = _products(outer.right, scatter.values, width=width)  # (units, S, T)
    ids = scatter.ids[:, None, :].expand_as(similarity)
    picked = outer.left.gather(2, ids)  # (units, S, T)
    return similarity.mul_(picked).sum((1, 2))


def _doubt_of_products(left: Tensor, right: Tensor, *, width: int | None) -> float:
    """Return E of a norm from two of `_products`, and of an inner product from one."""
    products = 0.0
    if width is not None:
        products = 2 * (width + _GRAM_PIECES + 2) * UNIT_ROUNDOFF
    square = left.shape[1] ** 2 * UNIT_ROUNDOFF_64
    return products + square + doubt_64(left) + doubt_64(right)


def _addition_depth(num_rows: int, num_entries: int) -> int:
    """Return how often a product is rounded on its way into a sum, see `Outer`.

    It is the same for all batches of up to 16,384 rows and time steps.
    """
    if num_entries <= FEW_ENTRIES:
        return 4
    return _ROWS + max(_FEWEST_PIECES, math.ceil(num_rows / _ROWS)) + 4


def _add_products(left: Tensor, right: Tensor, total: Tensor) -> None:
    """Add left^T right, `(m, n)`, a few rows at a time, for rounding to stay small."""
    for x, y in zip(torch.split(left, _ROWS), torch.split(right, _ROWS), strict=True):
        total.addmm_(x.t(), y)


def _add_batched_products(left: Tensor, right: Tensor, totals: Tensor) -> None:
    """Add left^T right of every unit, `(units, m, n)`, as `_add_products` does."""
    pieces = torch.split(left, _ROWS, dim=1), torch.split(right, _ROWS, dim=1)
    for x, y in zip(*pieces, strict=True):
        totals.baddbmm_(x.transpose(1, 2), y)


def _row_norms(values: Tensor) -> Tensor:
    """Return norms over the last dimension, `(units, T)`, float64, not too small."""
    width = values.shape[2]
    dtype = torch.promote_types(values.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(values, dim=2, dtype=dtype)
    return norms.double() * (1 + (width + 2) * UNIT_ROUNDOFF) + floor(width)


def _gather_rows(values: Tensor, rows_of_unit: Tensor) -> Tensor:
    """Return `(units, largest unit, ...)`; the row -1 is one of zeros."""
    zero = values.new_zeros(1, *values.shape[1:])
    return torch.cat([values, zero])[rows_of_unit]


def _zero_where(units: Tensor, values: Tensor) -> Tensor:
    """Return `values` with the marked leading entries zeroed."""
    mask = units.view(-1, *[1] * (values.dim() - 1))
    return values.masked_fill(mask, 0)


def _products(left: Tensor, right: Tensor, *, width: int | None) -> Tensor:
    """Return inner products of all pairs of time steps, `(units, S, T)`, float64.

    Args:
        left: `(units, S, n)`.
        right: `(units, T, n)`.
        width: of pieces that are multiplied in float32; None takes float64.
    """
    if width is None:
        return torch.bmm(left.double(), right.double().transpose(1, 2))
    shape = len(left), left.shape[1], right.shape[1]
    total = torch.zeros(shape, dtype=torch.float64, device=left.device)
    pieces = torch.split(left, width, dim=2), torch.split(right, width, dim=2)
    some = total.new_zeros(shape, dtype=torch.float32)
    for number, (x, y) in enumerate(zip(*pieces, strict=True), start=1):
        some.baddbmm_(x.float(), y.float().transpose(1, 2))
        if number % _GRAM_PIECES == 0:
            total += some
            some.zero_()
    return total.add_(some)


def _columns(values: Tensor) -> tuple[Tensor, ...]:
    """Cut the last dimension, where a float32 copy of the whole would be large."""
    width = values.shape[2]
    if values.dtype != torch.float32 and values.numel() > _LARGE_COPY:
        width = min(width, _COLUMNS)
    return torch.split(values, width, dim=2)


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Join in time; one tensor is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=1)
