"""The gradient of one unit that takes several passes.

Its rows come in pieces, whose gradients are added up before anything is clipped. Only
then is its norm known, and it is the norm of the very numbers that are added: the
memory is one more copy of what is trained, however many rows a unit has.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.rounding import LARGEST_NORM, full_precision, rounded_up
from dptune.dpsgd.tape import Tape
from dptune.dpsgd.terms import Dense, norm_of_sum


class LargeUnit:
    """Adds up the pieces of one unit, then clips it.

    **Formal guarantee**: as that of `Tape.norms`, for the unit as a whole: factors come
    from bounds on the gradient that they multiply. A unit of which any piece has a NaN
    or infinite entry contributes exactly zero.

    Args:
        engine: that records the pieces.
    """

    def __init__(self, engine: PerUnitGradients) -> None:
        self._engine = engine
        self._total = engine.zeros()
        device = next(iter(self._total.values())).device
        self._is_lost = torch.zeros((), dtype=torch.bool, device=device)
        self.loss = torch.zeros(1, device=device)

    def add(self, tape: Tape, losses: Tensor, batch: PhysicalBatch) -> None:
        """Add one piece, whose first unit holds rows of this one and no other.

        Args:
            tape: that recorded the losses.
            losses: of all rows; of those that fill a batch nothing is taken.
            batch: the piece.
        """

        def whole(norms: Tensor) -> Tensor:
            factors = torch.zeros_like(norms)
            factors[:, 0] = 1
            return factors

        rows = batch.rows_of_unit[0]
        self.loss += losses.detach().float()[rows[rows >= 0]].sum()
        norms = tape.backward(losses.sum(), whole, self._total)
        self._is_lost |= ~torch.isfinite(norms[:, 0]).all()

    def clip(
        self, factors_of: Callable[[Tensor], Tensor], sums: Mapping[str, Tensor]
    ) -> None:
        """Add the clipped gradient.

        Args:
            factors_of: norms `(groups, 1)` to factors of that shape.
            sums: one float32 tensor per trainable parameter; changed in place.
        """
        terms = {name: Dense(value[None]) for name, value in self._total.items()}
        groups = self._engine.group_of
        device = self.loss.device
        squares = torch.zeros(
            self._engine.num_groups, 1, dtype=torch.float64, device=device
        )
        with full_precision(device):
            for name, term in terms.items():
                squares[groups[name]] += norm_of_sum([term]).square()
            norms = rounded_up(squares.sqrt())
            lost = self._is_lost | ~(norms <= LARGEST_NORM).all()
            factors = factors_of(norms.masked_fill_(lost, torch.inf))
            if bool(lost):
                return
            for name, term in terms.items():
                term.add_weighted_sum(factors[groups[name]].contiguous(), sums[name])
