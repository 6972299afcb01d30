"""Adapters that are scaled where they are narrow, and take their inputs as given.

peft computes W x + s (B (A x)): the scale s is a pass over the whole output of every
layer, and another one over its gradient. Here it is W x + B (s (A x)), a pass over a
few numbers a token. Both are one function of x, A and B, and differ by rounding alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from peft.tuners.lora.layer import Linear
from torch import Tensor, nn


@contextmanager
def narrow_scales(model: nn.Module) -> Iterator[None]:
    """Let the adapters of linear layers be scaled between their two factors.

    Adapters of another form are left alone, and so is whoever has replaced `forward`.
    """
    layers: list[Any] = [
        module
        for module in model.modules()
        if type(module) is Linear and "forward" not in vars(module)
    ]
    for layer in layers:
        layer.forward = partial(_forward, layer, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextmanager
def inputs_as_given(model: nn.Module, *, active: bool) -> Iterator[None]:
    """Let adapters leave the type of their inputs to autocast.

    peft's own context asks every adapter for a switch that some, such as IA3 and
    trainable tokens, do not have.
    """
    name = "cast_input_dtype_enabled"
    layers = [m for m in model.modules() if active and hasattr(m, name)]
    before = [getattr(layer, name) for layer in layers]
    try:
        for layer in layers:
            setattr(layer, name, False)
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            setattr(layer, name, value)


def _forward(
    layer: Any,  # noqa: ANN401 - peft's layers have no types
    forward: Callable[..., Tensor],
    inputs: Tensor,
    *args: Any,  # noqa: ANN401 - whatever peft takes
    **kwargs: Any,  # noqa: ANN401 - whatever peft takes
) -> Tensor:
    """Add adapters to a layer; leave anything but plain ones to peft."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    is_plain = not (args or kwargs or layer.disable_adapters or layer.merged)
    is_plain &= not any(n in layer.lora_variant or layer.lora_bias[n] for n in names)
    if not is_plain:
        return forward(inputs, *args, **kwargs)
    result: Tensor = layer.base_layer(inputs)
    dtype = result.dtype
    for name in names:
        down, up = layer.lora_A[name], layer.lora_B[name]
        inputs = layer._cast_input_dtype(inputs, down.weight.dtype)
        narrow = down(layer.lora_dropout[name](inputs)) * layer.scaling[name]
        result = result + up(narrow)
    return result.to(dtype)
