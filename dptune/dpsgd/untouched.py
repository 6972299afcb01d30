"""Leave a model as it was: weights, buffers, attributes, configuration, randomness."""

import copy
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

LOW_PRECISION = frozenset({torch.float16, torch.bfloat16})
_NUDGE = 0.02


class Snapshot:
    """What the modules of a model hold beside their weights, to compare and put back.

    Args:
        model: its weights are not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=True))
        self._fields = {n: _copies(m.__dict__) for n, m in self._modules.items()}
        configs = {id(config): config for config in _configs(self._modules.values())}
        self._configs = [(c, _copies(vars(c))) for c in configs.values()]
        self._buffers = {
            name: (value, value.clone()) for name, value in model.named_buffers()
        }
        self._parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]

    def changed_buffers(self, model: nn.Module) -> list[str]:
        """Name buffers that are others than they were."""
        return [
            name
            for name, value in model.named_buffers()
            if name not in self._buffers or not _same(value, self._buffers[name][1])
        ]

    def changed_fields(self) -> list[str]:
        """Name plain attributes of modules that have another value."""
        return [
            f"{name}.{field}" if name else field
            for name, module in self._modules.items()
            for field, value in module.__dict__.items()
            if isinstance(value, str | int | float | bool | type(None))
            and self._fields[name].get(field, (None, None))[0] != value
        ]

    def restore(self) -> None:
        """Put everything back, bit for bit."""
        for name, module in self._modules.items():
            _put_back(module.__dict__, self._fields[name])
        for config, fields in self._configs:
            _put_back(vars(config), fields)
        with torch.no_grad():
            for value, before in self._buffers.values():
                value.copy_(before)
        for parameter, requires_grad, grad in self._parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


@contextmanager
def untouched(model: nn.Module) -> Iterator[Snapshot]:
    """Put the model, and numpy's and Python's randomness, back on leaving."""
    snapshot = Snapshot(model)
    state = random.getstate()
    legacy = np.random.get_state()  # noqa: NPY002 - that of models, not ours
    try:
        yield snapshot
    finally:
        snapshot.restore()
        random.setstate(state)
        np.random.set_state(legacy)  # noqa: NPY002 - that of models, not ours


@contextmanager
def scaled(model: nn.Module, exponent: int) -> Iterator[None]:
    """Multiply all weights by 2^exponent, and move trainable ones away from zero.

    A factor of an adapter that starts at zero, or a gate next to it, would hide what
    the rest does. Powers of 2 are undone exactly, without a copy of the weights.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    zeros = [(p, p.detach().clone()) for p in trained if not p.any()]
    exponents = [(p, exponent + _lift(p)) for p in model.parameters()]
    generator = torch.Generator().manual_seed(0)  # public constants
    with torch.no_grad():
        try:
            for parameter, power in exponents:
                if parameter.is_floating_point():
                    parameter.mul_(2.0**power)
            for parameter, _ in zeros:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * _NUDGE * 2.0**exponent)
            with torch.enable_grad():
                yield
        finally:
            for parameter, power in exponents:
                if parameter.is_floating_point():
                    parameter.mul_(2.0**-power)
            for parameter, before in zeros:
                parameter.copy_(before)


@contextmanager
def in_dtype(
    model: nn.Module, dtype: torch.dtype, *, of: Set[torch.dtype]
) -> Iterator[None]:
    """Hold weights and buffers of some types in another one meanwhile."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    held = [(tensor, tensor.data) for tensor in tensors if tensor.dtype in of]
    try:
        for tensor, values in held:
            tensor.data = values.to(dtype)
        yield
    finally:
        for tensor, values in held:
            tensor.data = values


def _configs(modules: Iterable[nn.Module]) -> Iterator[PreTrainedConfig]:
    """Yield the configurations that modules hold, and those within them."""
    found = [v for m in modules for v in vars(m).values()]
    for value in found:
        if isinstance(value, PreTrainedConfig):
            yield value
            found += [
                v for v in vars(value).values() if isinstance(v, PreTrainedConfig)
            ]


def _lift(parameter: nn.Parameter) -> int:
    """Powers of 2 that a trainable weight which is tiny, but not zero, lacks."""
    if not (parameter.requires_grad and parameter.is_floating_point()):
        return 0
    size = float(parameter.detach().abs().max()) if parameter.numel() else 0.0
    if not 0 < size < _NUDGE:
        return 0
    return min(64, round(math.log2(_NUDGE / size)))


def _copies(fields: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return values, and copies of those that can change in place."""
    return {
        name: (value, copy.copy(value) if _is_container(value) else _clone(value))
        for name, value in fields.items()
        if "_hooks" not in name
    }


def _put_back(fields: dict[str, Any], before: Mapping[str, tuple[Any, Any]]) -> None:
    """Put attributes back, the same objects with the same contents."""
    for name in [n for n in fields if n not in before and "_hooks" not in n]:
        del fields[name]
    for name, (value, contents) in before.items():
        fields[name] = value
        if isinstance(value, dict | set):
            value.clear()
            value.update(contents)
        elif isinstance(value, list):
            value[:] = contents
        elif isinstance(contents, Tensor):
            with torch.no_grad(), suppress(RuntimeError):
                value.copy_(contents)


def _is_container(value: object) -> bool:
    """Whether a value may change in place without being another one."""
    return isinstance(value, dict | set | list)


def _clone(value: object) -> object:
    """Return a copy of a plain tensor, else nothing."""
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return None
    return value.detach().clone()


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two buffers are equal, NaN included."""
    return first.shape == second.shape and torch.equal(
        first.nan_to_num(), second.nan_to_num()
    )
