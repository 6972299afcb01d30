"""What one backward pass leaves: norms of every unit, and the clipped sum."""

import math
from collections.abc import Callable, Mapping, Sequence, Set

import torch
from torch import Tensor, nn
from torch.nn import functional

from dptune.dpsgd.rounding import LARGEST_NORM, full_precision, rounded_up
from dptune.dpsgd.stacks import Stack, stack
from dptune.dpsgd.terms import Dense, Outer, Term, merge, norm_of_sum
from dptune.errors import PrivacyError

# Writing gradients down costs passes over memory, Gram matrices multiplications. On one
# CPU core T^2 (m + n) multiplications were measured to cost as much as the passes over
# m n entries at about 32 m n, at 80 m n where a unit's entries exceed the cache; adding
# up Gram matrices a few columns at a time made them 1.4 times dearer.
_DENSE_PASS_COST = 22
_LARGE_PASS_COST = 56
_LARGE_ENTRIES = 1 << 19
_FLOAT32_BYTES = 4


class DenseBudget:
    """Memory that one recording may spend on gradients that are written down."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes

    def densify(self, term: Outer) -> Term:
        """Write gradients down if Gram matrices cost more and memory is left.

        What takes less than the factors that it follows from, as of adapters, takes
        none.
        """
        m, n = term.left.shape[2], term.right.shape[2]
        cost = _LARGE_PASS_COST if m * n > _LARGE_ENTRIES else _DENSE_PASS_COST
        needed = _FLOAT32_BYTES * math.prod(term.shape)
        held = term.left.nbytes + term.right.nbytes
        if term.ghost_cost < cost * m * n or needed > max(self._left, held):
            return term
        self._left -= needed if needed > held else 0
        return term.dense()


class Tape:
    """What one backward pass left: per-unit gradients of every trainable parameter.

    A tape *keeps* terms until the factors are known, or it *streams* them: the first
    backward pass leaves nothing but norms, a second one on the same graph adds up. Only
    the latter holds the memory that gradient checkpointing saves. Kernels may round the
    second pass otherwise, so what it is about to add is measured again, and scaled down
    where it is larger than what was measured before.

    **Privacy**: everything here is private, counts included.

    Args:
        group_of: group of each parameter by name.
        rows_of_unit: rows of each unit, `(units, largest unit)`, or rows of each part
            of a unit that is clipped by itself, `(tiers, units, largest)`; padded
            with -1.
        budget: memory for gradients that are written down.
        shared: parameters that several modules use; their terms are always kept, since
            the norm of a sum needs all of them.
        streams: whether there are two backward passes.
        device: where the gradients are.
        alone: parameters that autograd differentiates, where there is one row and so
            nothing to tell apart; None leaves gradients to those who call `add`.
    """

    def __init__(
        self,
        *,
        group_of: Mapping[str, int],
        rows_of_unit: Tensor,
        budget: DenseBudget,
        shared: Set[str],
        streams: bool,
        device: torch.device,
        alone: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        self._alone = alone
        self._group_of = group_of
        self._num_groups = 1 + max(group_of.values(), default=0)
        self._budget = budget
        self._shared = shared
        self.streams = streams
        self.in_backward = False
        self._device = device
        *tiers, self._num_units, largest = rows_of_unit.shape
        self._num_tiers = math.prod(tiers)
        rows_of_part = rows_of_unit.view(-1, largest)
        self.num_rows = _check_rows(rows_of_part)
        plain = largest == 1 and bool((rows_of_part[:-1] < rows_of_part[1:]).all())
        self._rows_of_part = None if plain else rows_of_part.to(device)
        self._terms: dict[str, list[Term]] = {}
        self._own: set[str] = set()
        self._num_parts = len(rows_of_part)
        self._stacks: list[Stack] = []
        self._bounds: dict[str, list[Tensor]] = {}
        self._nonfinite = torch.zeros(self._num_units, dtype=torch.bool, device=device)
        self._spoilt: Tensor | None = None
        self._adding: tuple[Tensor, Mapping[str, Tensor]] | None = None

    def add(self, name: str, term: Term) -> None:
        """Add the gradient of one use of a parameter, `(rows, ...)`."""
        with full_precision(self._device):
            if self._rows_of_part is not None:
                term = term.regroup(self._rows_of_part)
            if not self.streams or name in self._shared:
                if self._adding is None:
                    self._keep(name, term)
            elif self._adding is None:
                self._bounds.setdefault(name, []).append(norm_of_sum([term]))
            else:
                self._add_again(name, term, *self._adding)

    def norms(self) -> Tensor:
        """Return bounds on the L2 norm of each unit's gradient within each group.

        **Formal guarantee**: a norm times a factor bounds the norm of what
        `backward` adds for that unit, in the arithmetic that runs, for every
        unit: see `dptune.dpsgd.rounding`. It exceeds the exact norm by rounding only,
        unless the summands of a unit cancel. Uses of tied weights are summed before
        squaring; where they stream, their norms are added.

        | case | norm |
        |---|---|
        | a unit with a NaN or infinite entry, or above 2^63 | inf in every group |
        | a parameter that no unit used | adds 0 |
        | summands that cancel | what rounding may leave of them, not 0 |

        Returns:
            `(groups, units)`, float32; with tiers, `(groups * tiers, units)`, the tiers
            of a group one after the other.
        """
        shape = self._num_groups, self._num_parts
        squares = torch.zeros(shape, dtype=torch.float64, device=self._device)
        with full_precision(self._device):
            for name, bounds in self._bounds.items():
                squares[self._group_of[name]] += torch.stack(bounds).sum(0).square()
            for terms in self._terms.values():
                terms[:] = merge(terms)
            self._stacks = stack(self._terms)
            for some in self._stacks:
                sharers = functional.one_hot(self._groups(some), self._num_groups)
                squares += sharers.t().double() @ some.norms().square()
            stacked = {name for some in self._stacks for name in some.names}
            for name, terms in self._terms.items():
                if name not in stacked:
                    squares[self._group_of[name]] += norm_of_sum(terms).square()
        norms = rounded_up(squares.sqrt()).view(-1, self._num_units)
        nonfinite = ~(norms <= LARGEST_NORM).all(0)
        self._nonfinite = nonfinite
        self._spoilt = nonfinite.repeat(self._num_tiers) if nonfinite.any() else None
        return norms.masked_fill_(nonfinite, torch.inf)

    def backward(
        self, loss: Tensor, clip: Callable[[Tensor], Tensor], sums: Mapping[str, Tensor]
    ) -> Tensor:
        """Run the backward passes of a recording and add the clipped gradients.

        The sum over units of factor * gradient is added to each parameter's tensor.
        Units whose gradient is not finite contribute exactly zero, whatever their
        factor: they are overwritten, since 0 * NaN is NaN.

        Args:
            loss: sum of the losses of all rows, scalar.
            clip: norms `(groups, units)` to factors of that shape.
            sums: one float32 tensor per trainable parameter; changed in place.

        Returns:
            The norms.

        Raises:
            PrivacyError: a factor of a unit with a finite norm is not finite.
        """
        self.run(loss)
        norms = self.norms()
        factors = self._checked(clip(norms))
        if self.streams:
            self._adding = (factors, sums)
            loss.backward()  # type: ignore[no-untyped-call]
        self._add_kept(factors, sums)
        return norms

    def run(self, loss: Tensor) -> None:
        """Run the first backward pass, which leaves norms."""
        self.in_backward = True
        if self._alone is None:
            loss.backward(retain_graph=self.streams)  # type: ignore[no-untyped-call]
            return
        if not loss.requires_grad:
            return  # chance has left all that is trained out of this row
        parameters = list(self._alone.values())
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        for name, gradient in zip(self._alone, found, strict=True):
            if gradient is not None:
                self.add(name, Dense(gradient.to_dense().float()[None]))

    def unit_gradients(self) -> dict[str, Tensor]:
        """Write down every unit's gradient, for rules that need more than its norm.

        Returns:
            By parameter, `(units, *shape)`, float32; parameters that no unit used are
            left out. With tiers the first dimension is `tiers * units`.

        Raises:
            PrivacyError: the tape streams.
        """
        if self.streams:
            raise PrivacyError(
                "per-unit gradients must be kept to be read, but gradient "
                "checkpointing streams them. Turn gradient checkpointing off."
            )
        with full_precision(self._device):
            return {name: _written(terms) for name, terms in self._terms.items()}

    def _keep(self, name: str, term: Term) -> None:
        """Hold a term until the factors are known."""
        terms = self._terms.setdefault(name, [])
        if terms and isinstance(terms[0], Dense):
            if name not in self._own:
                # It may be autograd's tensor, and a factor of another gradient.
                terms[0] = Dense(terms[0].values.clone())
                self._own.add(name)
            term.add_into(terms[0].values)
            return
        held = self._budget.densify(term) if isinstance(term, Outer) else term
        if held is not term:
            self._own.add(name)
        terms.append(held)

    def _checked(self, factors: Tensor) -> Tensor:
        """Return factors by part, zero where a gradient is not finite."""
        factors = factors.masked_fill(self._nonfinite, 0)
        if not bool(torch.isfinite(factors).all()):
            raise PrivacyError(
                "clip factors must be finite for units with a finite norm. "
                "Correct the clip policy."
            )
        return factors.reshape(self._num_groups, -1)

    def _add_kept(self, factors: Tensor, sums: Mapping[str, Tensor]) -> None:
        """Add what was held."""
        found: dict[str, Tensor] = {}
        with full_precision(self._device):
            for some in self._stacks:
                clean = some if self._spoilt is None else some.without(self._spoilt)
                found |= clean.weighted_sums(factors[self._groups(some)])
        for name, terms in self._terms.items():  # in one order on all ranks
            if name in found:
                total = sums[name]
                total.add_(found.pop(name).view_as(total))
            else:
                self._add_weighted(name, terms, factors, sums)

    def _groups(self, some: Stack) -> Tensor:
        """Return the group of each parameter of a stack."""
        groups = [self._group_of[name] for name in some.names]
        return torch.tensor(groups, device=self._device)

    def _add_again(
        self, name: str, term: Term, factors: Tensor, sums: Mapping[str, Tensor]
    ) -> None:
        """Add a term of the second pass, at most as large as that of the first."""
        bound, again = self._bounds[name].pop(0), norm_of_sum([term])
        lost = ~torch.isfinite(again)
        if lost.any():
            term = term.without(lost)
        shrink = torch.where(again > bound, bound / again, 1.0).masked_fill(lost, 0)
        self._add_weighted(name, [term], factors * shrink.float(), sums)

    def _add_weighted(
        self,
        name: str,
        terms: Sequence[Term],
        factors: Tensor,
        sums: Mapping[str, Tensor],
    ) -> None:
        """Add the terms of one parameter."""
        factor = factors[self._group_of[name]].contiguous()
        with full_precision(self._device):
            for term in terms:
                clean = term if self._spoilt is None else term.without(self._spoilt)
                clean.add_weighted_sum(factor, sums[name])


def _written(terms: Sequence[Term]) -> Tensor:
    """Add up terms of one parameter entry by entry."""
    dense = torch.zeros(terms[0].shape, device=terms[0].device)
    for term in terms:
        term.add_into(dense)
    return dense


def _check_rows(rows_of_unit: Tensor) -> int:
    """Return the number of rows; refuse a row with no owner or with two."""
    rows = rows_of_unit[rows_of_unit >= 0].sort().values
    if not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        raise PrivacyError(
            "every row must belong to exactly one unit. Make batches with "
            "UnitDataset.collate."
        )
    return len(rows)
