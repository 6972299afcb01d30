"""Frozen norms that hold their input in the type that autocast computes in.

The sums of a model's layers stay in float32 under autocast, and an RMSNorm of
transformers, written in torch's operations, holds them so until the backward pass: at
two places of every layer. Under adapters norms are frozen, and only their inputs'
gradients are wanted. Here a norm holds its input as autocast would hand it to a linear
layer, and is computed again from that when the gradient is asked for. Outputs do not
change by a bit; the gradient is that of the rounded input.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dptune.dpsgd.rules import is_rms_norm

_Forward = Callable[[Tensor], Tensor]


@contextmanager
def recomputed_norms(model: nn.Module) -> Iterator[None]:
    """Let frozen RMSNorms hold narrower inputs under autocast.

    A norm that is trained is left alone, and so is one that others have hooked into, or
    that torch computes in one kernel.
    """
    norms = [module for module in model.modules() if _is_frozen_norm(module)]
    for norm in norms:
        norm.forward = partial(_forward, norm.forward)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _is_frozen_norm(module: Any) -> bool:  # noqa: ANN401 - whatever a model is made of
    """Whether a norm is written in torch's operations, and nobody else wants it."""
    return (
        is_rms_norm(module)
        and not isinstance(module, nn.RMSNorm)
        and type(module.weight) is nn.Parameter  # no part of one
        and not module.weight.requires_grad
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not module._backward_hooks
    )


def _forward(forward: _Forward, hidden: Tensor) -> Tensor:
    """Call a norm, and hold no more than its input in few bits."""
    kind = hidden.device.type
    if not (torch.is_autocast_enabled(kind) and hidden.requires_grad):
        return forward(hidden)
    result: Tensor = _Recomputed.apply(hidden, forward)  # type: ignore[no-untyped-call]
    return result


class _Recomputed(torch.autograd.Function):
    """A function of one tensor, computed again for its gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, forward: _Forward) -> Tensor:  # noqa: ANN401 - torch's
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind)
        ctx.save_for_backward(hidden.to(dtype))
        ctx.again, ctx.dtype = forward, hidden.dtype
        ctx.autocast = torch.autocast(kind, dtype=dtype)
        return forward(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - torch's
        (hidden,) = ctx.saved_tensors
        with torch.enable_grad(), ctx.autocast:
            again = hidden.to(ctx.dtype).requires_grad_()
            result = ctx.again(again)
        (gradient,) = torch.autograd.grad(result, again, grad)
        return gradient, None
