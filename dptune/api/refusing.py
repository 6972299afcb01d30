"""What a script may not do beside a private loop: refused before it is charged."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.parameters import trainable_parameters
from dptune.errors import ConfigError, PrivacyError, Problem

_WRAPPERS = {
    "DataParallel": "it splits batches by itself",
    "DistributedDataParallel": "it adds gradients up before they are clipped",
    "FullyShardedDataParallel": "it adds gradients up before they are clipped",
    "OptimizedModule": "a compiled model has no modules to look into",
    "GradSampleModule": "it keeps gradients of its own",
}
_FOREIGN = {"accelerate", "deepspeed", "opacus"}


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
    if isinstance(optimizer, torch.optim.LBFGS):
        yield Problem(
            path="optimizer",
            message="must need one gradient for a step, got LBFGS, which asks for more "
            "than was paid for.",
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


def check_untouched(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    versions: Mapping[str, int],
) -> None:
    """Refuse to go on where a script has left something on the weights.

    Raises:
        PrivacyError: gradients, changed weights, or others that are trainable.
    """
    now = {n for n, p in model.named_parameters() if p.requires_grad}
    if now != set(parameters):
        raise PrivacyError(
            "the same parameters must be trainable in every step, got others than the "
            "loop was made for. Freeze and unfreeze before make_private."
        )
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            raise PrivacyError(
                f"gradients must come from the loop alone, got one on {name}: a "
                "backward pass of the script is neither clipped nor noised, and cannot "
                "be accumulated. Remove it, or run it under torch.no_grad."
            )
        if parameter._version != versions[name]:
            raise PrivacyError(
                f"weights must be changed by the loop alone, got a change of {name} "
                "between two steps. Remove what writes to it, such as a second "
                "optimizer."
            )
