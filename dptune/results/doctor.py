"""What is known of a model before it trains: values only, all of them public."""

from typing import Any, Literal

from dptune.results.base import Report
from dptune.results.calibration import AttackCost


class Need(Report):
    """Memory of a stage in bytes, all that the process holds included.

    Args:
        loaded: with the model and its adapters; what of its files was not read yet does
            not count.
        checked: at most, in the check before the stage.
        length: tokens of a sequence.
        steps: sequences side by side, and what a private step took at most.
    """

    loaded: int
    checked: int
    length: int
    steps: tuple[tuple[int, int], ...] = ()

    def at(self, rows: int, *, length: int | None = None) -> int | None:
        """Estimate another size: linear in tokens, through the two that were measured.

        Returns:
            Bytes; None unless two sizes were measured.

        Example:
            >>> need = Need(loaded=1, checked=2, length=8, steps=((1, 10), (2, 14)))
            >>> need.at(4), need.at(2, length=16)
            (22, 22)
        """
        if len(self.steps) < 2:
            return None
        (few, low), (many, high) = self.steps
        each = max(0.0, (high - low) / (many - few))
        sequences = rows * (length or self.length) / self.length
        return max(self.loaded, self.checked, round(low + each * (sequences - few)))


class Speed(Report):
    """Steps of one size on this machine.

    Args:
        private: tokens per second, with clip and noise.
        ordinary: tokens per second without.
        ratio: time of a private step over that of an ordinary one, the median of pairs.
    """

    private: float
    ordinary: float
    ratio: float


class Examined(Report):
    """What was found of one stage.

    Args:
        stage: its name in the recipe.
        trains: all weights, or adapters.
        refusals: why it cannot be trained so, each with a way out; empty if it can.
        instead_of: why it was refused before shapes or rows were chosen for it.
        architecture: the class that was trained.
        batch: sequences side by side, with which it was checked and measured.
        fixed_shapes: whether batches were filled up to one shape.
        gradient_checkpointing: whether activations were computed again.
        num_trained: weights that train.
        layers: endings of the names of layers that have adapters.
        distance: of the sum of clipped gradients from that of a loop over single
            records, over its norm.
        rows: sequences side by side that fit into memory, and are enough.
    """

    stage: str
    trains: Literal["full", "lora"]
    refusals: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()
    architecture: str = ""
    batch: int = 1
    fixed_shapes: bool = False
    gradient_checkpointing: bool = False
    num_trained: int = 0
    layers: tuple[str, ...] = ()
    distance: float | None = None
    need: Need | None = None
    speed: Speed | None = None
    rows: int = 1

    @property
    def can(self) -> bool:
        """Whether it can be trained privately and exactly."""
        return not self.refusals

    @property
    def way(self) -> str:
        """How it trains, in words."""
        return "in full" if self.trains == "full" else "by LoRA"


class Diagnosis(Report):
    """What was found of a model on one machine.

    Args:
        name: what was asked for.
        family: of the architecture, as transformers calls it.
        stored: types of the weights in the files.
        memory: bytes that there are for this process; None where nobody knows.
        length: tokens of a sequence.
        stages: what was asked for.
        settings: what to write into a configuration; nothing if none can be trained.
        attacks: what they take on this machine.
    """

    name: str
    family: str
    task: str
    num_weights: int
    stored: tuple[str, ...]
    device: str
    memory: int | None
    dtype: Literal["float32", "bfloat16"]
    quantization: Literal[4, 8] | None
    length: int
    stages: tuple[Examined, ...]
    settings: dict[str, Any]
    attacks: tuple[AttackCost, ...] = ()

    @property
    def can(self) -> bool:
        """Whether something of what was asked for can be trained."""
        return any(stage.can for stage in self.stages)
