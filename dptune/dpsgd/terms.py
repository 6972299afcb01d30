"""Per-unit gradients of one parameter, in the forms that a backward pass leaves.

A *term* is the gradient of one parameter for every unit of a batch. The dense form
holds it as it is. The two factored forms hold activations and output gradients, from
which norms and weighted sums follow without ever writing the gradients down. Summing
terms is exact: a tied weight has one term per use, and its norm includes their inner
product.

Symbols: m x n is the shape of the weight, T the time steps of a unit.

References:
    Goodfellow (2015), https://arxiv.org/abs/1510.01799 (norms from factors); Bu et al.
    (2023), "Differentially Private Optimization on Large Model at Small Cost", ICML,
    https://arxiv.org/abs/2210.00038v2 (one backward pass, book-keeping).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

_RUN = 256
_SMALL = 4096
_LARGE_COPY = 1 << 22
_COLUMNS = 4096


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

    def squared_norm(self) -> Tensor:
        """Return squared L2 norms, float32, `(units,)`."""
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

    def squared_norm(self) -> Tensor:
        """Sum of squares."""
        return _sum_of_squares(self.values)

    def add_into(self, dense: Tensor) -> None:
        """Add entry by entry."""
        dense.add_(self.values)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """One matrix-vector product."""
        flat = self.values.flatten(1).float()
        total.view(-1).addmv_(flat.t(), factors)


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

    def squared_norm(self) -> Tensor:
        """Use Gram matrices or one unit's dense form at a time, the cheaper."""
        time, m = self.left.shape[1:]
        if self.ghost_cost <= time * m * self.right.shape[2]:
            return (_gram(self.left) * _gram(self.right)).sum((1, 2))
        left, right = self.left.float(), self.right.float()
        scratch = left.new_empty(m, right.shape[2])
        squares = [
            _sum_of_squares(torch.mm(x.t(), y, out=scratch)[None])
            for x, y in zip(left, right, strict=True)
        ]
        return torch.cat(squares)

    def dense(self) -> Dense:
        """Write the gradients down."""
        left, right = self.left.float(), self.right.float()
        return Dense(torch.bmm(left.transpose(1, 2), right))

    def add_into(self, dense: Tensor) -> None:
        """One batched product."""
        dense.baddbmm_(self.left.float().transpose(1, 2), self.right.float())

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Scale the narrower factor, then one product."""
        wide, narrow, rows = self.left, self.right.float(), total
        if self.left.shape[2] <= self.right.shape[2]:
            wide, narrow, rows = self.right, self.left.float(), total.t()
        narrow = (narrow * factors[:, None, None]).flatten(0, 1)
        pieces = _columns(wide)
        for piece, part in zip(
            pieces, torch.split(rows, pieces[0].shape[2]), strict=True
        ):
            part.addmm_(piece.flatten(0, 1).float().t(), narrow)


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

    def squared_norm(self) -> Tensor:
        """Sum values of equal ids within a unit, then square."""
        keys, slots = torch.unique(self._flat_ids(), return_inverse=True)
        values = self.values.flatten(0, 1).float()
        rows = values.new_zeros(len(keys), values.shape[1])
        squares = _sum_of_squares(rows.index_add_(0, slots, values))
        total = squares.new_zeros(len(self.ids))
        units = keys.div(self.num_rows, rounding_mode="floor")
        return total.index_add_(0, units, squares)

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
        """Scatter scaled values."""
        scaled = (self.values.float() * factors[:, None, None]).flatten(0, 1)
        if self.by_column:
            total.index_add_(1, self.ids.flatten(), scaled.t())
        else:
            total.index_add_(0, self.ids.flatten(), scaled)

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


def squared_norm_of_sum(terms: Sequence[Term]) -> Tensor:
    """Return squared norms of the sum of merged terms, cross terms included.

    **Formal guarantee**: |a + b|^2 = |a|^2 + |b|^2 + 2 <a, b>. Leaving out the last
    part for a tied weight gives norms that are too small, and gradients above C,
    silently.

    Returns:
        `(units,)`, float32.
    """
    total = torch.stack([term.squared_norm() for term in terms]).sum(0)
    outer = next((term for term in terms if isinstance(term, Outer)), None)
    scatter = next((term for term in terms if isinstance(term, Scatter)), None)
    if outer is not None and scatter is not None:
        total = total + 2 * inner_product(outer, scatter)
    return total.clamp(min=0)


def inner_product(outer: Outer, scatter: Scatter) -> Tensor:
    """Return <outer, scatter> per unit.

    It is the sum over s, t of left[s, ids[t]] (right[s] . values[t]).

    Returns:
        `(units,)`, float32.
    """
    similarity = torch.bmm(
        outer.right.float(), scatter.values.float().transpose(1, 2)
    )  # (units, S, T)
    ids = scatter.ids[:, None, :].expand_as(similarity)
    picked = outer.left.gather(2, ids).float()  # (units, S, T)
    return (similarity * picked).sum((1, 2))


def _sum_of_squares(values: Tensor) -> Tensor:
    """Return sums over all but the first dimension, `(units,)`, float32.

    torch's vector norm adds up one by one: over eight million entries it lost 2e-4 of
    the norm, more than the clip may be off. Short runs of it, summed pairwise, lose
    1e-7.
    """
    flat = values.flatten(1).float()
    if flat.shape[1] <= _SMALL:
        return flat.square().sum(1)
    num_runs = flat.shape[1] // _RUN
    even, rest = flat[:, : num_runs * _RUN], flat[:, num_runs * _RUN :]
    runs = torch.linalg.vector_norm(even.view(len(flat), num_runs, _RUN), dim=2)
    total: Tensor = runs.square().sum(1) + rest.square().sum(1)
    return total


def _gather_rows(values: Tensor, rows_of_unit: Tensor) -> Tensor:
    """Return `(units, largest unit, ...)`; the row -1 is one of zeros."""
    zero = values.new_zeros(1, *values.shape[1:])
    return torch.cat([values, zero])[rows_of_unit]


def _zero_where(units: Tensor, values: Tensor) -> Tensor:
    """Return `values` with the marked leading entries zeroed."""
    mask = units.view(-1, *[1] * (values.dim() - 1))
    return values.masked_fill(mask, 0)


def _gram(values: Tensor) -> Tensor:
    """Return the inner products of all pairs of time steps, `(units, T, T)`."""
    first, *rest = _columns(values)
    total = torch.bmm(first.float(), first.float().transpose(1, 2))
    for piece in rest:
        total.baddbmm_(piece.float(), piece.float().transpose(1, 2))
    return total


def _columns(values: Tensor) -> tuple[Tensor, ...]:
    """Cut the last dimension, where a float32 copy of the whole would be large."""
    width = values.shape[2]
    if values.dtype != torch.float32 and values.numel() > _LARGE_COPY:
        width = min(width, _COLUMNS)
    return torch.split(values, width, dim=2)


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Join in time; one tensor is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=1)
