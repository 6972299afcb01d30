"""Does a unit's gradient stay the same, whoever it is computed with?

Each unit is computed alone and in company, with the engine of the run. What is compared
is what a step would add for it when its gradient is clipped: gradient over norm (or a
thousandth of the largest norm, if that is more), so that a difference of 1e-5 is 1e-5
C. All units and companies go into one sum whose
coefficients c are public and without a pattern,

    sum over units u and companies A of  c(u, A) (g(u | A) - g(u)) / |g(u)|,

which is zero up to rounding if, and but for a set of coefficients of measure zero only
if, every unit's gradient is the same in every company. It takes one vector of the size
of the model's gradient, and as many passes as there are batches.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.probes import COMPARED, Probe
from dptune.errors import ModelError

_SMALLEST_SHARE = 1e-3
Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Apart:
    """How far gradients in company are from those alone, in units of C.

    Args:
        distance: of all units together; NaN or infinite where a gradient is.
        parameter: where it is largest.
        units: distance of each unit by itself, where that was asked for.
    """

    distance: float
    parameter: str
    units: dict[int, float] = field(default_factory=dict)


class Isolation:
    """Compares units alone with units in company, at the weights of the moment.

    Args:
        model: in the modes of the run.
        engine: hooked into the model.
        probe: made-up units.
    """

    def __init__(
        self, model: nn.Module, engine: PerUnitGradients, probe: Probe
    ) -> None:
        self._model = model
        self._engine = engine
        self._probe = probe
        self._coefficients = _coefficients(probe)
        self._largest_norm = 0.0

    def apart(self) -> Apart:
        """Compare all units at once."""
        return self._apart(COMPARED)

    def each(self) -> Apart:
        """Compare one unit after the other: slower, and knows whose gradient moves."""
        found = {unit: self._apart((unit,)) for unit in COMPARED}
        worst = max(found.values(), key=lambda apart: _order(apart.distance))
        return Apart(
            worst.distance,
            worst.parameter,
            {unit: apart.distance for unit, apart in found.items()},
        )

    def padding(self, unit: int) -> float:
        """Return how far padding alone moves a unit."""
        batch = self._probe.padded(unit)
        return self._between(unit, lambda: self._batch_of(unit), lambda: batch)

    def gradient(self, unit: int) -> Sums:
        """Return a unit's gradient alone, divided by its norm."""
        sums = self._engine.zeros()
        self._add(self._batch_of(unit), [-1.0], sums, {}, (unit,))
        return sums

    def distance(self, gradient: Sums, unit: int) -> float:
        """Return how far a unit alone is from what `gradient` found before."""
        sums = {name: -total for name, total in gradient.items()}
        self._add(self._batch_of(unit), [-1.0], sums, {}, (unit,))
        return _largest(sums).distance

    def _apart(self, compared: tuple[int, ...]) -> Apart:
        """Take the longest alone first: what it leaves behind must not matter."""
        sums, norms = self._engine.zeros(), dict[int, Tensor]()
        for unit in compared:
            total = sum(c.get(unit, 0.0) for c in self._coefficients)
            self._add(self._batch_of(unit), [-total], sums, norms, (unit,))
        for company, wanted in zip(
            self._probe.companies, self._coefficients, strict=True
        ):
            if not set(company) & set(compared):
                continue
            factors = [wanted.get(u, 0.0) if u in compared else 0.0 for u in company]
            self._add(self._probe.batch(company), factors, sums, norms, company)
        return _largest(sums)

    def _between(
        self,
        unit: int,
        first: Callable[[], PhysicalBatch],
        second: Callable[[], PhysicalBatch],
    ) -> float:
        """Return the distance of a unit in two batches of its own."""
        sums, norms = self._engine.zeros(), dict[int, Tensor]()
        self._add(first(), [-1.0], sums, norms, (unit,))
        self._add(second(), [1.0], sums, norms, (unit,))
        return _largest(sums).distance

    def _batch_of(self, unit: int) -> PhysicalBatch:
        """Return the batch of one unit alone."""
        return self._probe.batch((unit,))

    def _add(
        self,
        batch: PhysicalBatch,
        coefficients: list[float],
        sums: Sums,
        norms: dict[int, Tensor],
        units: tuple[int, ...],
    ) -> None:
        """Add coefficient * gradient / norm alone of each unit of a batch."""

        def factors(found: Tensor) -> Tensor:
            """Divide by norms alone, which the first batch of a unit finds."""
            result = torch.zeros_like(found)
            for index, (unit, factor) in enumerate(
                zip(units, coefficients, strict=True)
            ):
                if factor:
                    scale = norms.setdefault(unit, self._scale(found[:, index]))
                    result[:, index] = factor * scale
            return result

        with self._engine.record(batch.rows_of_unit) as tape:
            losses = self._probe.feed.losses(self._model, batch)
            _check_losses(losses, batch)
            found = tape.backward(losses.sum(), factors, sums)
        if not bool(torch.isfinite(found[:, : len(units)]).all()):
            for total in sums.values():
                total.fill_(torch.nan)

    def _scale(self, norms: Tensor) -> Tensor:
        """Factors that bring the groups of one unit to norm 1 together, `(groups,)`.

        A group, or a unit, next to nothing is not blown up: it may be rounding alone.
        """
        whole = float(torch.linalg.vector_norm(norms))
        if not 0 < whole < math.inf:
            return torch.zeros_like(norms)
        self._largest_norm = max(self._largest_norm, whole)
        least = _SMALLEST_SHARE * max(whole, _SMALLEST_SHARE * self._largest_norm)
        if len(norms) == 1:
            least = _SMALLEST_SHARE * self._largest_norm
        return 1 / norms.clamp(min=least) / math.sqrt(len(norms))


def _coefficients(probe: Probe) -> list[dict[int, float]]:
    """Return numbers in (.5, 1) for every unit that is compared and every company."""
    generator = torch.Generator().manual_seed(0)  # public constants
    return [
        {
            unit: 0.5 + 0.5 * float(torch.rand((), generator=generator))
            for unit in company
            if unit in COMPARED
        }
        for company in probe.companies
    ]


def _check_losses(losses: Tensor, batch: PhysicalBatch) -> None:
    """Refuse a loss that is not one of each row."""
    if losses.shape != (batch.num_rows,):
        raise ModelError(
            f"a record loss must return one value for each of {batch.num_rows} rows, "
            f"got shape {tuple(losses.shape)}."
        )


def _largest(sums: Sums) -> Apart:
    """Return the norm of everything, and the parameter that has most of it."""
    squares = {
        name: float(total.double().square().sum()) for name, total in sums.items()
    }
    worst = max(squares, key=lambda name: _order(squares[name]))
    return Apart(math.sqrt(sum(squares.values())), worst)


def _order(value: float) -> float:
    """Put NaN above everything."""
    return math.inf if math.isnan(value) else value
