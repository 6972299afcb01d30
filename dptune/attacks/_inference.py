"""Where and how a model is run when it is attacked."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dptune.errors import ModelError


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
