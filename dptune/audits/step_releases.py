"""What the engine releases, step by step, in the space in which it adds its noise."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from dptune.accounting.adaptive import OpenTerms
from dptune.dpsgd.adaptive_clipping import SteeredStep, group_stddevs
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.parameters import group_parameters, trainable_parameters
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import UnitIndices
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.transform import TransformState

_WARM_UP: Final = 2


def last_release(
    model: nn.Module,
    plan: GradientPlan,
    feed: Feed,
    batch: UnitIndices,
    *,
    last: UnitIndices,
) -> Tensor:
    """Return what a step on `last` releases; its noise is the same at every call.

    Where gradients are transformed, steps on `batch` go before it.
    """
    before = [batch] * (0 if plan.transform is None else _WARM_UP)
    return releases(model, plan, feed, [*before, last], seed=0)[-1]


def releases(
    model: nn.Module,
    plan: GradientPlan,
    feed: Feed,
    batches: Sequence[UnitIndices],
    *,
    seed: int | None = None,
    entries: Tensor | None = None,
) -> Tensor:
    """Return releases of consecutive steps, `(steps, entries)`; no weight moves.

    They are in the space in which the plan clips and adds noise. All entries are kept
    unless some are named.
    """
    was_training = model.training
    model.eval()
    rows, replay = [], _Replay(plan)
    held = HeldClip(model, plan) if plan.steering else None
    try:
        with gradient_source(
            model,
            plan=replace(plan, adaptive=held.terms if held else None),
            feed=feed,
            seed=seed,
            attempt=0,
            granted=held.granted if held else None,
            steering=held,
        ) as source:
            for step, indices in enumerate(batches):
                if held is not None:
                    held.granted.ask(step)
                source.compute(indices, step=step)
                flat = torch.cat(list(_gradients(model)))
                if held is not None:
                    flat = flat * held.scales.to(flat.device)
                row = replay.seen(flat, step=step)
                rows.append(row if entries is None else row[entries.to(row.device)])
    finally:
        model.train(was_training)
    return torch.stack(rows)


class HeldClip:
    """A controller that holds still: unequal norms, whose squares add up to C^2.

    A recorded run's own budget would grant nothing, so that every wish is granted.

    Args:
        model: whose parameters are grouped.
        plan: with steering.
    """

    def __init__(self, model: nn.Module, plan: GradientPlan) -> None:
        parameters = trainable_parameters(model)
        groups = group_parameters(parameters, plan.grouping)
        sizes = [0] * (1 + max(groups.values()))
        for name, value in parameters.items():
            sizes[groups[name]] += value.numel()
        whole = math.sqrt(sum((1 + i) ** 2 for i in range(len(sizes))))
        self._norms = [plan.max_grad_norm * (1 + i) / whole for i in range(len(sizes))]
        self._noise_multiplier = plan.noise_multiplier
        self.terms = OpenTerms(sample_rate=plan.sample_rate)
        self.granted = AdaptiveNoise(self, self.terms, sample_rate=plan.sample_rate)
        self.granted.open(None, lambda: None)
        stddevs = group_stddevs(self._norms, sizes, multiplier=1.0)
        self.scales = torch.cat(
            [
                torch.full((value.numel(),), plan.max_grad_norm / stddevs[groups[name]])
                for name, value in parameters.items()
            ]
        )
        """What makes noise that of C in every entry, and bounds what a unit adds by C.
        """

    def wish(self, step: int) -> float:  # noqa: ARG002 - of the protocol
        """Return the planned multiplier."""
        return self._noise_multiplier

    def clip_norms(self, step: int) -> Sequence[float]:  # noqa: ARG002 - of the protocol
        """Return the same norms."""
        return self._norms

    def thresholds(self, step: int) -> Sequence[float]:  # noqa: ARG002 - of the protocol
        """Return what nobody needs."""
        return [*self._norms, 1.0]

    def observe(self, released: Mapping[str, Tensor], *, step: int) -> None:
        """Look at nothing."""

    def observe_step(self, figures: SteeredStep) -> None:
        """Look at nothing."""

    def observe_raw(self, norms: Tensor, *, loss: float) -> None:
        """Look at nothing."""

    def state(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Need nothing."""


class _Replay:
    """Follows a transform from releases alone: the space the engine may clip in."""

    def __init__(self, plan: GradientPlan) -> None:
        self._plan = plan
        self._state: TransformState = {}

    def seen(self, released: Tensor, *, step: int) -> Tensor:
        """Return a released vector in the space of its step, and move on."""
        transform = self._plan.transform
        if transform is None:
            return released.clone()
        state = self._state or {
            name: value.to(released.device)
            for name, value in transform.start(len(released)).items()
        }
        of_mean = self._plan.noise_stddev(step=step) / self._plan.expected_batch_size
        self._state = transform.follow(released, state, noise_stddev=of_mean)
        return transform.forward(released[None], state)[0]


def _gradients(model: nn.Module) -> Iterator[Tensor]:
    """Flat gradients of trained parameters; one without a release counts as zero."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            grad = parameter.grad
            yield (
                torch.zeros_like(parameter) if grad is None else grad.detach()
            ).flatten()
