"""Where and how a model is run when it is attacked."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from dptune.errors import ModelError

KeyValues = list[tuple[Tensor, Tensor]]


def place(
    model: nn.Module, device: str | torch.device | None, *, allow_half: bool = False
) -> torch.device:
    """Check the weights' type and find, or set, the device."""
    parameters = list(model.parameters())
    half = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in parameters)
    if half and not allow_half:
        raise ModelError(
            "model weights must be float32 to rank candidates, because half precision "
            "makes many of them tie. Call model.float() on a copy."
        )
    if device is None:
        return parameters[0].device
    model.to(device)
    return torch.device(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, then every module's own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def next_logits(
    model: nn.Module,
    tokens: Tensor,
    key_values: KeyValues,
    *,
    past: int,
    device: torch.device,
) -> tuple[Tensor, KeyValues]:
    """Logits behind the last token, and keys and values of all tokens so far.

    Args:
        model: any causal language model with a key-value cache.
        tokens: `(batch, tokens)` that follow what `key_values` holds.
        key_values: of each layer, `(batch, ...)`; empty for a fresh start.
        past: tokens that `key_values` holds.
        device: where the model is.

    Raises:
        ModelError: the architecture keeps no keys and values.
    """
    cache = DynamicCache()
    for layer, (key, value) in enumerate(key_values):
        cache.update(key, value, layer)
    num, length = tokens.shape
    positions = torch.arange(past, past + length, device=device)
    output = model(
        input_ids=tokens.to(device),
        position_ids=positions.expand(num, length),
        past_key_values=cache,
        use_cache=True,
    )
    return output.logits[:, -1].float(), _layers(output.past_key_values)


def _layers(cache: object) -> KeyValues:
    """Keys and values of every layer."""
    layers = getattr(cache, "layers", None)
    if not layers or any(getattr(layer, "keys", None) is None for layer in layers):
        raise ModelError(
            "model must keep keys and values of every layer, which this architecture "
            "does not. Exact exposure needs a transformer with a key-value cache."
        )
    return [(layer.keys, layer.values) for layer in layers]
