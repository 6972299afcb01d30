"""What a script may not do beside a private loop: refused before it is charged."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.optimizer import needs_more
from dptune.dpsgd.parameters import hooked_parameters, trainable_parameters
from dptune.errors import ConfigError, Problem

_WRAPPERS = {
    "DataParallel": "it splits batches by itself",
    "DistributedDataParallel": "it adds gradients up before they are clipped",
    "FullyShardedDataParallel": "it adds gradients up before they are clipped",
    "OptimizedModule": "a compiled model has no modules to look into",
    "GradSampleModule": "it keeps gradients of its own",
}
_FOREIGN = {"accelerate", "deepspeed", "opacus"}
_AT_MOST = 1 + 1e-5


def check_start(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a model and an optimizer that do not belong together.

    Raises:
        ConfigError: with every problem at once.
        ModelError: nothing is trainable, or not in float32.
    """
    wrapper = _WRAPPERS.get(type(model).__name__)
    problems = []
    if wrapper is not None:
        problems.append(
            Problem(
                path="model",
                message=f"must be the model itself, got {type(model).__name__}: "
                f"{wrapper}.",
                next_step="Pass what it wraps.",
            )
        )
    if not Ranks.current().is_alone:
        problems.append(
            Problem(
                path="model",
                message="must train in one process, got several ranks.",
                next_step="dptune.train and the command train on several.",
            )
        )
    hooked = hooked_parameters(model)
    if hooked:
        problems.append(
            Problem(
                path="model",
                message=f"must have no hooks on gradients, got one on {hooked[0]}: "
                "they see them before they are clipped and noised.",
                next_step="Remove them, such as those of wandb.watch.",
            )
        )
    problems += _optimizer_problems(optimizer, trainable_parameters(model))
    if problems:
        raise ConfigError(problems)


def _optimizer_problems(
    optimizer: object, parameters: Mapping[str, nn.Parameter]
) -> Iterator[Problem]:
    """Find what the optimizer would do beside the release."""
    kind = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        yield Problem(
            path="optimizer", message=f"must be torch's, got {kind.__name__}."
        )
        return
    if kind.__module__.partition(".")[0] in _FOREIGN:
        yield Problem(
            path="optimizer",
            message=f"must be torch's own, got one of {kind.__module__}.",
            next_step="Pass the optimizer that it wraps.",
        )
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    if code is not None and "__class__" in code.co_freevars:  # by super()
        yield Problem(
            path="optimizer",
            message=f"must take a step at once, got {kind.__name__}, whose step calls "
            "that of another: two steps would act on one release.",
            next_step=f"Use {kind.__mro__[1].__name__} itself, or write the step out.",
        )
    if more := needs_more(optimizer):
        yield Problem(
            path="optimizer",
            message=f"must need one gradient for a step, {more}.",
            next_step="Use AdamW or SGD.",
        )
    trained = {id(parameter) for parameter in parameters.values()}
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if given - trained:
        yield Problem(
            path="optimizer",
            message=f"must have trainable parameters of the model only, got "
            f"{len(given - trained)} others: frozen, or of another model.",
            next_step="Build it from [p for p in model.parameters() if "
            "p.requires_grad].",
        )
    left = [name for name, p in parameters.items() if id(p) not in given]
    if left:
        yield Problem(
            path="optimizer",
            message=f"must have all trainable parameters, got none of {left[0]} and "
            f"{len(left) - 1} more: they would never be trained, and share the clip.",
            next_step="Add them, or freeze them with requires_grad_(False).",
        )
    accumulated = [name for name, p in parameters.items() if p.grad is not None]
    if accumulated:
        yield Problem(
            path="model",
            message=f"must have no gradients yet, got one on {accumulated[0]}: it was "
            "not clipped, and could be of private rows.",
            next_step="Call optimizer.zero_grad() first.",
        )


def clipped_again(
    now: Sequence[Tensor | None], released: Sequence[Tensor | None]
) -> list[Tensor | None] | None:
    """Compute a script's clip of released gradients from them, or return None.

    A clip of the whole norm makes all of them smaller by one factor, a clip of values
    bounds all entries by one number. Whatever else was written to them is dropped with
    them: the optimizer gets a function of what was released and of that number.

    **Formal guarantee**: what is returned is post-processing of `released`, by one
    number that the script chose, as it chooses the learning rate.

    Args:
        now: gradients as the script left them.
        released: the same as they were released.
    """
    pairs = [(a, b) for a, b in zip(now, released, strict=True) if b is not None]
    if any(a is None or a.shape != b.shape or not a.isfinite().all() for a, b in pairs):
        return None
    found = [(a.detach(), b) for a, b in pairs if a is not None and b.numel()]
    if not found:
        return None
    written, largest = max(found, key=lambda pair: float(pair[1].abs().max()))
    place = int(largest.abs().argmax())
    factor = float(written.flatten()[place]) / (float(largest.flatten()[place]) or 1.0)
    bound = max(float(a.abs().max()) for a, _ in found)
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda gradient: gradient * factor,
        lambda gradient: gradient.clamp(-bound, bound),
    ]
    for way in ways[not 0 < factor <= _AT_MOST :]:
        if bound > 0 and all(
            torch.allclose(a, way(b), rtol=1e-5, atol=1e-37) for a, b in found
        ):
            return [None if b is None else way(b) for b in released]
    return None
