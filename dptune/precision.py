"""In which precision a model computes, whatever it holds its weights in."""

from collections.abc import Iterator

from torch import Tensor, nn


def computing(model: nn.Module) -> Iterator[Tensor]:
    """Yield weights and buffers that are computed with in the type that they have.

    A module may name in `decompresses` those that it holds in another type than it
    computes with, such as the frozen layers of `dptune.models.frozen`.
    """
    modules = list(model.modules())
    packed = {
        id(getattr(module, name))
        for module in modules
        for name in getattr(module, "decompresses", ())
    }
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in packed:
            yield tensor
