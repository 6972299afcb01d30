"""What the engine releases, step by step, in the space in which it adds its noise."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import UnitIndices
from dptune.dpsgd.step import Feed, gradient_source
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
) -> Tensor:
    """Return releases of consecutive steps, `(steps, parameters)`; no weight moves.

    They are in the space in which the plan clips and adds noise.
    """
    was_training = model.training
    model.eval()
    rows, replay = [], _Replay(plan)
    try:
        fixed = replace(plan, adaptive=None)  # a budget would grant nothing here
        with gradient_source(
            model, plan=fixed, feed=feed, seed=seed, attempt=0
        ) as source:
            for step, indices in enumerate(batches):
                source.compute(indices, step=step)
                rows.append(replay.seen(torch.cat(list(_gradients(model))), step=step))
    finally:
        model.train(was_training)
    return torch.stack(rows)


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
