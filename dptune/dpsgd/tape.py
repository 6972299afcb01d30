"""What one backward pass leaves: norms of every unit, and the clipped sum."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dptune.dpsgd.terms import Outer, Term, merge, squared_norm_of_sum
from dptune.errors import PrivacyError

# Writing gradients down costs two passes over memory, Gram matrices multiplications.
# Measured on one CPU core: they break even where T^2 (m + n) is about 40 m n.
_DENSE_PASS_COST = 40


class BufferPool:
    """Reused memory for dense gradients, within a budget: fresh pages are slow."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._memory: dict[str, Tensor] = {}
        self._in_use: dict[str, Tensor] = {}

    def release(self) -> None:
        """Declare all buffers free."""
        self._in_use.clear()

    def get(self, name: str) -> Tensor | None:
        """Return the gradients written down for a parameter, if any."""
        return self._in_use.get(name)

    def densify(self, name: str, term: Outer) -> Term:
        """Write gradients down if Gram matrices cost more and memory is left."""
        m, n = term.left.shape[2], term.right.shape[2]
        if term.ghost_cost < _DENSE_PASS_COST * m * n:
            return term
        memory = self._memory.get(name)
        if memory is None or memory.numel() < term.size:
            others = sum(x.nbytes for key, x in self._memory.items() if key != name)
            if others + 4 * term.size > self._budget:
                return term
            memory = torch.empty(
                term.size, dtype=torch.float32, device=term.left.device
            )
            self._memory[name] = memory
        buffer = memory[: term.size].view(len(term.left), m, n)
        self._in_use[name] = buffer
        return term.dense(buffer)


class Tape:
    """What one backward pass left: per-unit gradients of every trainable parameter.

    **Privacy**: everything here is private, counts included.
    """

    def __init__(
        self,
        *,
        group_of: Mapping[str, int],
        rows_of_unit: Tensor,
        buffers: BufferPool,
        device: torch.device,
    ) -> None:
        self._group_of = group_of
        self._num_groups = 1 + max(group_of.values(), default=0)
        self._buffers = buffers
        self._device = device
        self._num_units, largest = rows_of_unit.shape
        self.num_rows = _check_rows(rows_of_unit)
        plain = largest == 1 and bool((rows_of_unit[:-1] < rows_of_unit[1:]).all())
        self._rows_of_unit = None if plain else rows_of_unit.to(device)
        self._terms: dict[str, list[Term]] = {}
        self._nonfinite: Tensor | None = None

    def add(self, name: str, term: Term) -> None:
        """Add the gradient of one use of a parameter, `(rows, ...)`."""
        if self._rows_of_unit is not None:
            term = term.regroup(self._rows_of_unit)
        dense = self._buffers.get(name)
        if dense is not None and name in self._terms:
            term.add_into(dense)
            return
        if isinstance(term, Outer):
            term = self._buffers.densify(name, term)
        self._terms.setdefault(name, []).append(term)

    def norms(self) -> Tensor:
        """Return the L2 norm of each unit's gradient within each group.

        **Formal guarantee**: computed in float32 from the same numbers that
        `add_clipped_sum` adds up, uses of tied weights summed before squaring.

        | case | norm |
        |---|---|
        | a unit with a NaN or infinite entry, or overflow | inf in every group |
        | a parameter that no unit used | adds 0 |

        Returns:
            `(groups, units)`, float32.
        """
        squares = torch.zeros(self._num_groups, self._num_units, device=self._device)
        for name, terms in self._terms.items():
            terms[:] = merge(terms)
            squares[self._group_of[name]] += squared_norm_of_sum(terms)
        nonfinite = ~torch.isfinite(squares.sum(0))
        self._nonfinite = nonfinite
        return squares.sqrt_().masked_fill_(nonfinite, torch.inf)

    @property
    def num_nonfinite_units(self) -> int:
        """Units without a finite gradient, which contribute zero. Private."""
        return 0 if self._nonfinite is None else int(self._nonfinite.sum())

    def add_clipped_sum(self, factors: Tensor, sums: Mapping[str, Tensor]) -> None:
        """Add sum over units of factor * gradient to each parameter's tensor.

        Units whose gradient is not finite contribute exactly zero, whatever their
        factor: they are overwritten, since 0 * NaN is NaN.

        Args:
            factors: `(groups, units)`, from a clip policy.
            sums: one float32 tensor per trainable parameter; changed in place.

        Raises:
            PrivacyError: `norms` was not called before, or a factor is not finite.
        """
        if self._nonfinite is None:
            raise PrivacyError("norms() must be called before add_clipped_sum().")
        factors = factors.masked_fill(self._nonfinite, 0)
        if not bool(torch.isfinite(factors).all()):
            raise PrivacyError(
                "clip factors must be finite for units with a finite norm. "
                "Correct the clip policy."
            )
        has_nonfinite = bool(self._nonfinite.any())
        for name, terms in self._terms.items():
            factor = factors[self._group_of[name]].contiguous()
            for term in terms:
                clean = term.without(self._nonfinite) if has_nonfinite else term
                clean.add_weighted_sum(factor, sums[name])


def _check_rows(rows_of_unit: Tensor) -> int:
    """Return the number of rows; refuse a row with no owner or with two."""
    rows = rows_of_unit[rows_of_unit >= 0].sort().values
    if not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        raise PrivacyError(
            "every row must belong to exactly one unit. Make batches with "
            "UnitDataset.collate."
        )
    return len(rows)
