"""What is trained of a model. Imports no library of models: a plan needs none."""

import torch
from torch import nn

from dptune.errors import ModelError

DEFAULT_MATERIALIZE_BYTES = 1 << 30


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return trainable parameters by name; tied ones once, under their first name.

    Raises:
        ModelError: there is none, or one is not float32.
    """
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
