"""Who looks on while a private stage trains: shown everything, changing nothing.

The engine calls a witness at the points where its claim is made or kept. What a witness
is shown is private, noise before all; it may keep verdicts, never values.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dptune.dpsgd.checkpoint import TrainingState
from dptune.dpsgd.randomness import GaussianStream
from dptune.dpsgd.sampling import UnitIndices
from dptune.dpsgd.schedule import AdaptiveNoise


class StepWitness:
    """Looks away. A step is shown in the order of the methods from `drawn` on."""

    def started(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: np.random.Generator,
        state: TrainingState,
    ) -> None:
        """A process is about to train on from `state`."""

    def opened(self, stream: GaussianStream) -> None:
        """The noise of the process comes from this stream, whatever it is for."""

    def charged(self, first_step: int, num_steps: int) -> None:
        """A block was charged."""

    def granted(self, budget: AdaptiveNoise | None, *, step: int) -> None:
        """A step may run: an adaptive budget, if there is one, has granted it."""

    def drawn(self, indices: UnitIndices, *, step: int) -> None:
        """These units join the step."""

    def clipped(self, norms: Tensor, factors: Tensor) -> None:
        """Norms of some units, as shares of their bounds in parts, and their factors.

        Args:
            norms: `(groups, units)`.
            factors: of that shape.
        """

    def counted(self, counts: Tensor) -> None:
        """What some units added to the counts that join the release, `(units, n)`."""

    def summed(self, sums: Mapping[str, Tensor]) -> None:
        """Clipped sums, before their noise."""

    def released(self, means: Mapping[str, Tensor]) -> None:
        """The same tensors after noise and divisor."""

    def moved(self, counts: Sequence[float], *, max_grad_norm: float | None) -> None:
        """What moves the clip has seen these counts, after their noise.

        Args:
            counts: of the step.
            max_grad_norm: C of the next step, where one C moves by a rule.
        """

    def offered(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """The optimizer is about to look at `grad`."""

    def stepped(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """The optimizer has moved the weights."""

    def stored(self, model: nn.Module, *, step: int) -> None:
        """A block has ended; where there are checkpoints, it is on disk."""


UNWATCHED: StepWitness = StepWitness()
