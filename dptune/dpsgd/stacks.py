"""Gradients of many parameters, measured and added up as one tensor.

Adapters have hundreds of small weights, and starting an operation takes longer than
carrying it out on any of them, on an accelerator above all. Gradients that are written
down, and have equally many entries, are laid side by side. Norms and sums are those of
`Dense`, to the bound on their rounding: no entry meets that of another parameter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dptune.dpsgd.rounding import FEW_ENTRIES, by_unit, norm_bound, size_of_dense
from dptune.dpsgd.terms import Dense, Term

_MOST_ENTRIES = 1 << 24
_MOST_ENTRIES_CPU = 1 << 18  # as much as is copied faster than it is asked for


@dataclass(frozen=True)
class Stack:
    """Per-unit gradients of K parameters.

    Args:
        names: of the parameters.
        values: `(K, units, entries)`, float32.
    """

    names: tuple[str, ...]
    values: Tensor

    def norms(self) -> Tensor:
        """Bound the norm of what every unit adds to every parameter.

        Returns:
            `(K, units)`, float64, as `norm_of_sum` of each.
        """
        units = self.values.shape[1]
        size = size_of_dense(self.values.flatten(0, 1), num_units=units)
        return norm_bound([size]).view(-1, units)

    def without(self, units: Tensor) -> "Stack":
        """Set the gradients of the marked units, `(units,)` bool, to zero."""
        return Stack(self.names, self.values.masked_fill(units[None, :, None], 0))

    def weighted_sums(self, factors: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield sums over units of factor * gradient, by parameter, `(entries,)`.

        Args:
            factors: `(K, units)`, float32.
        """
        if self.values.shape[2] <= FEW_ENTRIES:
            sums = torch.bmm(factors.double()[:, None], self.values.double()).float()
        else:
            sums = torch.bmm(factors[:, None], self.values)
        return zip(self.names, sums[:, 0], strict=True)


def stack(terms: Mapping[str, list[Term]]) -> list[Stack]:
    """Lay gradients side by side, and let `terms` look at them where they are now.

    Args:
        terms: merged, by parameter. What is not written down, is large, or has no
            equal stays as it is.
    """
    return [_stacked(names, terms) for names in _alike(terms)]


def _alike(terms: Mapping[str, list[Term]]) -> Iterator[list[str]]:
    """Yield names of two or more parameters that go into one stack."""
    gathered: dict[int, list[str]] = {}
    for name, (first, *others) in terms.items():
        if others or not isinstance(first, Dense):
            continue
        values = first.values
        most = _MOST_ENTRIES_CPU if values.is_cpu else _MOST_ENTRIES
        entries = values.shape[1:].numel()
        names = gathered.setdefault(entries, [])
        names.append(name)
        if (len(names) + 1) * values.numel() > most:
            del gathered[entries]
            if len(names) > 1:
                yield names
    yield from (names for names in gathered.values() if len(names) > 1)


def _stacked(names: list[str], terms: Mapping[str, list[Term]]) -> Stack:
    """Copy some gradients into one tensor."""
    held = [
        term.values for name in names for term in terms[name] if isinstance(term, Dense)
    ]
    values = torch.stack([by_unit(one).float() for one in held])
    for name, one, now in zip(names, held, values, strict=True):
        terms[name][:] = [Dense(now.view(one.shape))]
    return Stack(tuple(names), values)
