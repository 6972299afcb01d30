"""Counts that move C, or that a controller sees: are they what was released?"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dptune.audits.noise_checks import squares_check
from dptune.audits.step_report import StepCheck
from dptune.dpsgd.adaptive_clipping import StepFigures, moved_norm
from dptune.dpsgd.plan import GradientPlan

ROUNDING: Final = 1e-5
"""Relative error of what is computed in float32."""


class CountTally:
    """Holds counts of units to their noise, and C to what its rule makes of them.

    Args:
        plan: of the stage.
    """

    def __init__(self, plan: GradientPlan) -> None:
        self._plan = plan
        self._squares, self._num = 0.0, 0
        self.start(plan.max_grad_norm)
        self.open_step()

    def start(self, max_grad_norm: float) -> None:
        """Begin a process, at the C that it goes on with."""
        self._initial = max_grad_norm
        self._norms: tuple[float, float | None] = (max_grad_norm, None)

    def open_step(self) -> None:
        """Forget the counts of the step before."""
        self.largest = 1.0
        """Norm of what one unit adds to the counts of this step, at least 1."""
        self._before: Tensor | float = 0.0
        self._after: Sequence[float] | None = None

    def count(self, counts: Tensor) -> None:
        """Keep what units add, `(units, counts)`, until the noise is known."""
        rows = counts.detach().double().cpu()
        sizes = torch.linalg.vector_norm(rows, dim=1)
        self.largest = max(self.largest, float(sizes.amax().nan_to_num(math.inf)))
        self._before = self._before + rows.sum(0)

    def release(self, counts: Sequence[float], *, max_grad_norm: float | None) -> None:
        """Keep released counts, and what C they made; None where none follows."""
        self._after = counts
        self._norms = self._norms[0], max_grad_norm

    def compare(self, *, stddev: float | None, step: int, num_parameters: int) -> bool:
        """Compare what was released in a step with what units added.

        Args:
            stddev: of the noise of counts; None where some units pass elsewhere.
            step: number of the step.
            num_parameters: entries of a gradient.

        Returns:
            Whether there are released counts, and C is what its rule makes of them.
        """
        if not self._after:
            return False
        if stddev:
            noise = (torch.tensor(self._after).double() - self._before) / stddev
            self._squares += float(noise.square().sum())
            self._num += len(noise)
        norm, following = self._norms
        if self._plan.norm_rule is None or following is None:
            return True
        figures = StepFigures(
            max_grad_norm=norm,
            expected_batch_size=self._plan.expected_batch_size,
            gradient_multiplier=self._plan.noise_shares(step)[0],
            num_parameters=num_parameters,
        )
        rule, initial = self._plan.norm_rule, self._initial
        wanted = moved_norm(rule, self._after, figures, initial=initial)
        self._norms = following, None
        return math.isclose(following, wanted, rel_tol=ROUNDING)

    def checks(self) -> list[StepCheck]:
        """Judge the noise of all counts; nothing where there were none."""
        if not self._num:
            return []
        squares, num = np.array([self._squares]), np.array([self._num])
        return [squares_check("noise_variance_of_counts", squares, num)]
