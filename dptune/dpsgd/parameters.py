"""What is trained of a model, and which parameters share a clip.

Imports no library of models: a plan needs none.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dptune.errors import ModelError

DEFAULT_MATERIALIZE_BYTES = 1 << 30


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return trainable parameters by name; tied ones once, under their first name.

    Raises:
        ModelError: there is none, one is not float32, or a weight is not there yet.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            raise ModelError(
                f"{name} must have values, got a place for some. Load the model whole, "
                "without a device_map that leaves layers on disk; a lazy module gets "
                "its shape by one call of the model, on any rows."
            )
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ModelError(
            "the model must have a trainable parameter, got none. "
            "Set requires_grad_(True) or add LoRA layers."
        )
    for name, parameter in named.items():
        if parameter.dtype != torch.float32:
            raise ModelError(
                f"{name} must be float32 to be trained, got {parameter.dtype}. Load "
                'the model in float32 and choose dtype="bfloat16" to compute.'
            )
    return named


def gradient_hooks(parameter: Tensor) -> list[dict[int, Any]]:
    """List what is called when a parameter gets a gradient, by either kind of hook."""
    fields: Any = parameter
    after = getattr(fields, "_post_accumulate_grad_hooks", None)
    return [dict(hooks or {}) for hooks in (fields._backward_hooks, after)]


def hooked_parameters(model: nn.Module) -> list[str]:
    """Name what is trained and has hooks, which see gradients that are not clipped."""
    named = model.named_parameters()
    return [n for n, p in named if p.requires_grad and any(gradient_hooks(p))]


_LORA_MARKS = (".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B.")


class Grouping(StrEnum):
    """Which parameters share a clip.

    | choice | a group is |
    |---|---|
    | `flat` | everything |
    | `per_layer` | the parameters of one module, such as a weight and its bias |
    | `per_lora_pair` | the two factors of an adapter; other parameters by module |

    One group loses least for a given C; several keep a layer with large gradients from
    silencing the rest (He et al. 2023, https://arxiv.org/abs/2212.01539, section 4).
    """

    FLAT = "flat"
    PER_LAYER = "per_layer"
    PER_LORA_PAIR = "per_lora_pair"


def group_parameters(names: Iterable[str], grouping: Grouping) -> dict[str, int]:
    """Number the groups, from 0, in the order in which they first appear.

    Args:
        names: trainable parameters, as `named_parameters` gives them; a tied weight
            belongs to the group of its first name.
        grouping: what shares a group.
    """
    key_of = _KEYS[grouping]
    numbers: dict[str, int] = {}
    return {name: numbers.setdefault(key_of(name), len(numbers)) for name in names}


def _module(name: str) -> str:
    """Return the name without that of the parameter."""
    return name.rpartition(".")[0]


def _lora_pair(name: str) -> str:
    """Return the name of the adapted module, or of the parameter's own."""
    for mark in _LORA_MARKS:
        if mark in name:
            return name.partition(mark)[0]
    return _module(name)


def _everything(name: str) -> str:  # noqa: ARG001 - the signature of a key
    """Put all names under one key."""
    return ""


_KEYS: dict[Grouping, Callable[[str], str]] = {
    Grouping.FLAT: _everything,
    Grouping.PER_LAYER: _module,
    Grouping.PER_LORA_PAIR: _lora_pair,
}
