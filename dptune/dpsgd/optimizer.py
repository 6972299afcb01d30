"""Optimizers and learning-rate schedules, which see released gradients only."""

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dptune.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Which optimizer, and how fast.

    Args:
        name: `adamw` or `sgd`.
        learning_rate: peak, above 0.
        weight_decay: at least 0; decoupled for `adamw`.
        betas: of `adamw`, each in [0, 1).
        momentum: of `sgd`, in [0, 1).
        warmup_steps: steps of linear warm-up, at least 0.
        schedule: course after the warm-up; `linear` and `cosine` end at 0.

    Raises:
        ConfigError: values are out of range; all at once.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    def __post_init__(self) -> None:
        """Check every value."""
        checks = {
            "name": (self.name in ("adamw", "sgd"), "adamw or sgd"),
            "learning_rate": (0 < self.learning_rate < math.inf, "in (0, inf)"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "in [0, inf)"),
            "betas": (all(0 <= beta < 1 for beta in self.betas), "in [0, 1)"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "warmup_steps": (self.warmup_steps >= 0, "at least 0"),
            "schedule": (
                self.schedule in ("constant", "linear", "cosine"),
                "constant, linear or cosine",
            ),
        }
        problems = [
            Problem(path=name, message=f"must be {span}, got {getattr(self, name)}.")
            for name, (valid, span) in checks.items()
            if not valid
        ]
        if problems:
            raise ConfigError(problems)

    def learning_rate_at(self, step: int, *, num_steps: int) -> float:
        """Return the learning rate of `step`, from 0.

        The first step of a warm-up has 1 / warmup_steps of the peak; the step after the
        last would have rate 0 under `linear` and `cosine`.
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        length = max(1, num_steps - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / length)
        match self.schedule:
            case "constant":
                return self.learning_rate
            case "linear":
                return self.learning_rate * (1 - progress)
            case "cosine":
                return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the torch optimizer."""
        if self.name == "adamw":
            return torch.optim.AdamW(
                parameters,
                lr=self.learning_rate,
                betas=self.betas,
                weight_decay=self.weight_decay,
                fused=True,
            )
        return torch.optim.SGD(
            parameters,
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


def needs_more(optimizer: torch.optim.Optimizer) -> str:
    """Say what an optimizer needs that a private step has not; empty if nothing."""
    kind = type(optimizer)
    if isinstance(optimizer, torch.optim.SparseAdam):
        return f"got {kind.__name__}, whose gradients are sparse: noise is dense"
    _, *asked = inspect.signature(inspect.unwrap(kind.step)).parameters.values()
    free = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    if any(p.default is p.empty and p.kind not in free for p in asked):
        return (
            f"got {kind.__name__}, whose step asks for more gradients than were paid "
            "for, by a closure"
        )
    return ""
